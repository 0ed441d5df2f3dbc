//! A real object store for tests: moto's server, in the interpreter that `FOREBAY_PYTHON` names.

use forebay_backend::{Access, S3};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

pub(crate) struct Bucket {
    server: Child,
    address: SocketAddr,
}

impl Bucket {
    /// An empty bucket; `None`, with a note about the skipped test, if there is no server.
    pub(crate) fn new() -> Option<Bucket> {
        let python = std::env::var("FOREBAY_PYTHON").unwrap_or_else(|_| "python3".into());
        let has =
            Command::new(&python).args(["-c", "import moto.server, flask"]).stderr(Stdio::null()).status();
        if !has.is_ok_and(|status| status.success()) {
            forebay_testkit::skip("a back end in an object store", "there is no moto[server]");
            return None;
        }
        let mut command = Command::new(&python);
        // It recognises path-style buckets for this host only, and prints the port it chose.
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]);
        let mut server = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (notify, addresses) = mpsc::channel();
        let output = BufReader::new(server.stderr.take().unwrap());
        // Reads its output to the end, so that it never blocks.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("Running on http://") {
                    let _ = notify.send(address.trim().to_owned());
                }
            }
        });
        let address = addresses.recv_timeout(Duration::from_secs(120)).expect("the object store answers");
        let bucket = Bucket { server, address: address.parse().expect("an address") };
        bucket.ask("PUT", "", b"");
        Some(bucket)
    }

    pub(crate) fn access(&self) -> Access {
        Access {
            endpoint: Some(format!("http://{}", self.address)),
            region: "us-east-1".into(),
            key: Some("key".into()),
            secret: Some("secret".into()),
            token: None,
        }
    }

    pub(crate) fn open(&self) -> S3 {
        S3::open("bucket", &self.access()).unwrap()
    }

    /// Sends a request as any S3 client would; returns the status and the body.
    pub(crate) fn ask(&self, method: &str, key: &str, bytes: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // Any credentials are accepted.
        let who = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let head = format!(
            "{method} /bucket/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {who}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            bytes.len()
        );
        stream.write_all(&[head.as_bytes(), bytes].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
        (status, answer.split_off(end))
    }

    /// Number of private objects.
    pub(crate) fn parts(&self) -> usize {
        let (_, listed) = self.ask("GET", "?list-type=2&prefix=.forebay-parts/", b"");
        String::from_utf8_lossy(&listed).matches("<Key>").count()
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
