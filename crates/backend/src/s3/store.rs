//! Requests to an object store: one at a time, signed, without retries.

use super::metadata::date;
use forebay_model::{Error, ErrorKind, Result, Time};
use rusty_s3::actions::{CompleteMultipartUpload, CreateMultipartUpload, ListObjectsV2};
use rusty_s3::{Bucket, Credentials, Method, S3Action, UrlStyle};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{HeaderMap, Request, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Lifetime of a signature.
const SIGNED: Duration = Duration::from_secs(600);
const CONNECT: Duration = Duration::from_secs(10);
/// Timeout of one response.
const ANSWER: Duration = Duration::from_secs(300);
/// Files with the system's trusted certificates.
const ROOTS: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Attributes of an object.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) key: String,
    pub(super) size: u64,
    pub(super) etag: String,
    /// When the object was written.
    pub(super) modified: Time,
    /// Its metadata, by names without `x-amz-meta-`.
    pub(super) meta: Meta,
}

pub(super) type Meta = BTreeMap<String, String>;

/// A page of a listing.
#[derive(Default)]
pub(super) struct Page {
    pub(super) keys: Vec<String>,
    pub(super) prefixes: Vec<String>,
    pub(super) next: Option<String>,
}

/// Address and credentials of an object store. Without a key, requests are not signed.
#[derive(Clone, Default)]
pub struct Access {
    /// Its address; Amazon's own in the region if not given.
    pub endpoint: Option<String>,
    /// The region for signatures.
    pub region: String,
    /// The access key id.
    pub key: Option<String>,
    /// The secret access key.
    pub secret: Option<String>,
    /// The session token.
    pub token: Option<String>,
}

impl Access {
    /// Reads the environment variables that other S3 clients use.
    #[must_use]
    pub fn from_env() -> Access {
        let given = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
        Access {
            endpoint: given("AWS_ENDPOINT_URL_S3").or_else(|| given("AWS_ENDPOINT_URL")),
            region: given("AWS_REGION")
                .or_else(|| given("AWS_DEFAULT_REGION"))
                .unwrap_or_else(|| "us-east-1".to_owned()),
            key: given("AWS_ACCESS_KEY_ID"),
            secret: given("AWS_SECRET_ACCESS_KEY"),
            token: given("AWS_SESSION_TOKEN"),
        }
    }
}

/// One bucket.
pub(super) struct Store {
    name: String,
    bucket: Bucket,
    credentials: Option<Credentials>,
    agent: Agent,
}

impl Store {
    /// Opens a bucket.
    pub(super) fn open(name: &str, access: &Access) -> Result<Store> {
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        let (endpoint, style) = match &access.endpoint {
            Some(url) => (url.clone(), UrlStyle::Path),
            None => (format!("https://s3.{}.amazonaws.com", access.region), UrlStyle::VirtualHost),
        };
        let url = endpoint
            .parse()
            .map_err(|error| invalid(format!("AWS_ENDPOINT_URL \"{endpoint}\" is not a URL: {error}")))?;
        let bucket = Bucket::new(url, style, name.to_owned(), access.region.clone())
            .map_err(|error| invalid(format!("\"s3:{name}\" at {endpoint} is not a bucket: {error}")))?;
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(roots())
            .build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(ANSWER));
        let agent = config.build().new_agent();
        let Access { key, secret, token, .. } = access.clone();
        let credentials = key.zip(secret).map(|(key, secret)| match token {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        });
        Ok(Store { name: format!("s3:{name}"), bucket, credentials, agent })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the bucket exists and is accessible.
    pub(super) fn demand(&self) -> Result<()> {
        let action = self.bucket.head_bucket(self.credentials.as_ref());
        let answer = self.send(action, &[], &Meta::new(), "use", "")?;
        self.demand_success(answer, "use", "").map(drop)
    }

    pub(super) fn head(&self, key: &str) -> Result<Option<Head>> {
        let action = self.bucket.head_object(self.credentials.as_ref(), key);
        let answer = self.send(action, &[], &Meta::new(), "look up", key)?;
        if answer.status() == 404 {
            return Ok(None);
        }
        let answer = self.demand_success(answer, "look up", key)?;
        let text = |name: &str| text(answer.headers(), name);
        let meta = answer.headers().iter().filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix("x-amz-meta-")?;
            Some((name.to_owned(), value.to_str().ok()?.to_owned()))
        });
        let size = text("content-length").and_then(|size| size.parse().ok()).unwrap_or(0);
        let modified =
            text("last-modified").and_then(|text| date(&text)).unwrap_or(Time { secs: 0, nanos: 0 });
        let (key, etag) = (key.to_owned(), text("etag").unwrap_or_default());
        Ok(Some(Head { key, size, etag, modified, meta: meta.collect() }))
    }

    /// Reads exactly the requested bytes of an object.
    pub(super) fn get(&self, key: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        let action = self.bucket.get_object(self.credentials.as_ref(), key);
        let range = format!("bytes={offset}-{}", offset + into.len() as u64 - 1);
        let headers = Meta::from([("range".to_owned(), range)]);
        let answer = self.send(action, &[], &headers, "read", key)?;
        if matches!(answer.status().as_u16(), 404 | 416) {
            return Err(self.failed(ErrorKind::Stale, "read", key, "it changed during the read"));
        }
        let mut answer = self.demand_success(answer, "read", key)?;
        let mut reader = answer.body_mut().as_reader();
        std::io::Read::read_exact(&mut reader, into)
            .map_err(|error| self.failed(ErrorKind::Io, "read", key, &error.to_string()))
    }

    pub(super) fn put(&self, key: &str, bytes: &[u8], meta: &Meta) -> Result<()> {
        let action = self.bucket.put_object(self.credentials.as_ref(), key);
        let answer = self.send(action, bytes, &named(meta), "write", key)?;
        self.demand_success(answer, "write", key).map(drop)
    }

    /// Copies an object within the store; replaces its metadata if given.
    pub(super) fn copy(&self, from: &str, to: &str, meta: Option<&Meta>) -> Result<()> {
        let action = self.bucket.put_object(self.credentials.as_ref(), to);
        let mut headers = meta.map(named).unwrap_or_default();
        headers.insert("x-amz-copy-source".into(), self.source(from));
        if meta.is_some() {
            headers.insert("x-amz-metadata-directive".into(), "REPLACE".into());
        }
        let answer = self.send(action, &[], &headers, "copy to", to)?;
        let body = self.body(answer, "copy to", to)?;
        match body.contains("<Error>") {
            true => Err(self.failed(ErrorKind::Io, "copy to", to, &reason(&body))),
            false => Ok(()),
        }
    }

    pub(super) fn delete(&self, key: &str) -> Result<()> {
        let action = self.bucket.delete_object(self.credentials.as_ref(), key);
        let answer = self.send(action, &[], &Meta::new(), "remove", key)?;
        if answer.status() == 404 { Ok(()) } else { self.demand_success(answer, "remove", key).map(drop) }
    }

    /// A page of the keys with a prefix; with `level`, only those of one directory level.
    pub(super) fn list(&self, prefix: &str, level: bool, most: usize, after: Option<&str>) -> Result<Page> {
        let mut action = self.bucket.list_objects_v2(self.credentials.as_ref());
        action.with_prefix(prefix);
        action.with_max_keys(most);
        if level {
            action.with_delimiter("/");
        }
        if let Some(token) = after {
            action.with_continuation_token(token);
        }
        let answer = self.send(action, &[], &Meta::new(), "list", prefix)?;
        let body = self.body(answer, "list", prefix)?;
        let listed = ListObjectsV2::parse_response(&body)
            .map_err(|error| self.failed(ErrorKind::Io, "list", prefix, &error.to_string()))?;
        Ok(Page {
            keys: listed.contents.into_iter().map(|entry| entry.key).collect(),
            prefixes: listed.common_prefixes.into_iter().map(|entry| entry.prefix).collect(),
            next: listed.next_continuation_token,
        })
    }

    pub(super) fn begin_upload(&self, key: &str, meta: &Meta) -> Result<String> {
        let action = self.bucket.create_multipart_upload(self.credentials.as_ref(), key);
        let answer = self.send(action, &[], &named(meta), "write", key)?;
        let body = self.body(answer, "write", key)?;
        let made = CreateMultipartUpload::parse_response(&body)
            .map_err(|error| self.failed(ErrorKind::Io, "write", key, &error.to_string()))?;
        Ok(made.upload_id().to_owned())
    }

    /// Uploads bytes as a part of an upload; returns its ETag.
    pub(super) fn upload(&self, key: &str, upload: &str, number: u16, bytes: &[u8]) -> Result<String> {
        let action = self.bucket.upload_part(self.credentials.as_ref(), key, number, upload);
        let answer = self.send(action, bytes, &Meta::new(), "write", key)?;
        let answer = self.demand_success(answer, "write", key)?;
        text(answer.headers(), "etag")
            .ok_or_else(|| self.failed(ErrorKind::Io, "write", key, "the response has no ETag"))
    }

    /// Copies bytes of another object as a part of an upload; returns its ETag.
    pub(super) fn upload_copy(
        &self,
        key: &str,
        upload: &str,
        number: u16,
        from: &str,
        (first, count): (u64, u64),
    ) -> Result<String> {
        let action = self.bucket.upload_part(self.credentials.as_ref(), key, number, upload);
        let range = format!("bytes={first}-{}", first + count - 1);
        let headers = Meta::from([
            ("x-amz-copy-source".to_owned(), self.source(from)),
            ("x-amz-copy-source-range".to_owned(), range),
        ]);
        let answer = self.send(action, &[], &headers, "copy to", key)?;
        let body = self.body(answer, "copy to", key)?;
        let tag = body.split_once("<ETag>").and_then(|(_, rest)| rest.split_once("</ETag>"));
        let tag = tag.map(|(tag, _)| tag.replace("&quot;", "\"").replace("&#34;", "\""));
        tag.ok_or_else(|| self.failed(ErrorKind::Io, "copy to", key, &reason(&body)))
    }

    pub(super) fn finish_upload(&self, key: &str, upload: &str, tags: &[String]) -> Result<()> {
        let tags = || tags.iter().map(String::as_str);
        let action = self.bucket.complete_multipart_upload(self.credentials.as_ref(), key, upload, tags());
        let body = CompleteMultipartUpload::new(&self.bucket, None, key, upload, tags()).body();
        let answer = self.send(action, body.as_bytes(), &Meta::new(), "write", key)?;
        // The store may begin its response before the result is known.
        let body = self.body(answer, "write", key)?;
        match body.contains("<CompleteMultipartUploadResult") {
            true => Ok(()),
            false => Err(self.failed(ErrorKind::Io, "write", key, &reason(&body))),
        }
    }

    pub(super) fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let action = self.bucket.abort_multipart_upload(self.credentials.as_ref(), key, upload);
        let answer = self.send(action, &[], &Meta::new(), "abort the upload of", key)?;
        self.demand_success(answer, "abort the upload of", key).map(drop)
    }

    /// The name of an object as the source of a copy.
    fn source(&self, key: &str) -> String {
        let url = self.bucket.object_url(key);
        let base = self.bucket.base_url().path().len();
        format!("/{}/{}", self.bucket.name(), &url.path()[base..])
    }

    fn send<'a, A: S3Action<'a>>(
        &self,
        mut action: A,
        bytes: &[u8],
        headers: &Meta,
        verb: &str,
        key: &str,
    ) -> Result<Response<Body>> {
        for (name, value) in headers.iter().filter(|(name, _)| name.starts_with("x-amz-")) {
            action.headers_mut().insert(name.clone(), value.clone());
        }
        let method = match A::METHOD {
            Method::Head => "HEAD",
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        };
        let mut request = Request::builder().method(method).uri(action.sign(SIGNED).as_str());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let failed = |error: &dyn std::fmt::Display| {
            self.failed(ErrorKind::Unreachable, verb, key, &error.to_string())
        };
        let sent = match method {
            "PUT" | "POST" => self.agent.run(request.body(bytes).map_err(|error| failed(&error))?),
            _ => self.agent.run(request.body(()).map_err(|error| failed(&error))?),
        };
        sent.map_err(|error| failed(&error))
    }

    fn demand_success(&self, mut answer: Response<Body>, verb: &str, key: &str) -> Result<Response<Body>> {
        if answer.status().is_success() {
            return Ok(answer);
        }
        let kind = match answer.status().as_u16() {
            401 | 403 => ErrorKind::AccessDenied,
            404 => ErrorKind::NotFound,
            429 | 503 => ErrorKind::Busy,
            507 => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        let body = answer.body_mut().read_to_string().unwrap_or_default();
        Err(self.failed(kind, verb, key, &format!("{} {}", answer.status(), reason(&body))))
    }

    fn body(&self, answer: Response<Body>, verb: &str, key: &str) -> Result<String> {
        let mut answer = self.demand_success(answer, verb, key)?;
        let read = answer.body_mut().with_config().limit(64 << 20).read_to_string();
        read.map_err(|error| self.failed(ErrorKind::Io, verb, key, &error.to_string()))
    }

    fn failed(&self, kind: ErrorKind, verb: &str, key: &str, why: &str) -> Error {
        Error::new(kind, format!("cannot {verb} {key} in the back end {}: {why}", self.name))
    }
}

/// The error in a response.
fn reason(body: &str) -> String {
    let between = |tag: &str| {
        let (_, rest) = body.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(text, _)| text)
    };
    let (code, text) = (between("Code").unwrap_or("no reason given"), between("Message").unwrap_or(""));
    format!("{code} {text}").trim().to_owned()
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn named(meta: &Meta) -> Meta {
    meta.iter().map(|(name, value)| (format!("x-amz-meta-{name}"), value.clone())).collect()
}

/// The system's trusted certificates.
fn roots() -> RootCerts {
    let pem = ROOTS.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_default();
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    RootCerts::new_with_certs(&certificates)
}
