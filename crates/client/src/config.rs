//! What a client has to know before it can begin.

use crate::Address;
use crate::job::job_of_this_process;
use forebay_model::{Error, ErrorKind, Job, Result};
use forebay_wire::Key;
use std::path::PathBuf;
use std::time::Duration;

/// How a client proves that it may use a service over TCP. A Unix socket needs nothing.
#[derive(Clone, Debug, Default)]
pub enum Credential {
    /// It cannot.
    #[default]
    None,
    /// With the key in this file, read again for every connection.
    File(PathBuf),
    /// With this key.
    Key(Key),
}

impl Credential {
    pub(crate) fn key(&self) -> Result<Option<Key>> {
        match self {
            Credential::None => Ok(None),
            Credential::Key(key) => Ok(Some(key.clone())),
            Credential::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    let text = format!("cannot read the key file {}: {error}", path.display());
                    Error::new(ErrorKind::Unauthenticated, text)
                })?;
                let wrong =
                    |error: Error| error.within(format_args!("the key file {} is bad", path.display()));
                Key::from_text(&text).map(Some).map_err(wrong)
            }
        }
    }
}

/// Where the service is, on whose behalf it is used, and how patient the client is.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the service listens.
    pub address: Address,
    /// The proof for TCP.
    pub credential: Credential,
    /// The job this process works for.
    pub job: Job,
    /// How long one attempt to connect may take, handshake included.
    pub connect_timeout: Duration,
    /// How long a request may go without an answer, reconnects included. A large transfer is as many requests
    /// as it has pieces.
    pub request_timeout: Duration,
    /// Most connections for payload.
    pub data_connections: usize,
    /// Most requests under way on the control connection; more wait.
    pub outstanding: usize,
}

impl ClientConfig {
    /// The defaults: this process's job, no key, 5 s to connect, 60 s for a request, 4 data connections.
    #[must_use]
    pub fn new(address: Address) -> ClientConfig {
        ClientConfig {
            address,
            credential: Credential::None,
            job: job_of_this_process(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            data_connections: 4,
            outstanding: 128,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if let Some(fault) = self.job.fault() {
            return invalid(fault);
        }
        for (what, count) in
            [("data connections", self.data_connections), ("outstanding requests", self.outstanding)]
        {
            if !(1..=4096).contains(&count) {
                return invalid(format!("a client has 1 to 4096 {what}, not {count}"));
            }
        }
        Ok(())
    }
}
