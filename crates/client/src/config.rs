//! Configuration of a client.

use crate::Addresses;
use crate::job::job_of_this_process;
use forebay_model::{Error, ErrorKind, Job, Member, Result};
use forebay_wire::{ConnectionKey, Key, Security};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of a key file: a key and comments.
const LONGEST: u64 = 4096;

/// How a client authenticates over TCP. Unix sockets need no key.
#[derive(Clone, Debug, Default)]
pub enum Credential {
    /// No key.
    #[default]
    None,
    /// The service's or a user's key in this file, which is read again for every connection. The file must belong to
    /// the caller and be readable by no other user.
    File(PathBuf),
    /// The given key of the service.
    Key(Key),
}

impl Credential {
    pub(crate) fn key(&self) -> Result<Option<ConnectionKey>> {
        match self {
            Credential::None => Ok(None),
            Credential::Key(key) => Ok(Some(key.clone().into())),
            Credential::File(path) => {
                let unread = |error: io::Error| {
                    let text = format!("cannot read the key file {}: {error}", path.display());
                    Error::new(ErrorKind::Unauthenticated, text)
                };
                let mut file = File::open(path).map_err(unread)?;
                let meta = file.metadata().map_err(unread)?;
                let wrong =
                    |error: Error| error.within(format_args!("cannot use the key file {}", path.display()));
                let me = rustix::process::geteuid().as_raw();
                ConnectionKey::check_file(meta.mode(), meta.uid(), me).map_err(wrong)?;
                let mut text = String::new();
                file.by_ref().take(LONGEST).read_to_string(&mut text).map_err(unread)?;
                ConnectionKey::from_text(&text).map(Some).map_err(wrong)
            }
        }
    }
}

/// Runs work as the user who owns a client's connections, in a process that changes its credentials. The function must
/// run the work exactly once, or fail.
#[derive(Clone)]
pub struct Acting(Arc<ActAs>);

type ActAs = dyn Fn(&mut dyn FnMut()) -> io::Result<()> + Send + Sync;

impl std::fmt::Debug for Acting {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Acting")
    }
}

impl Acting {
    /// Creates it from a function that runs the work as that user.
    pub fn new(act: impl Fn(&mut dyn FnMut()) -> io::Result<()> + Send + Sync + 'static) -> Acting {
        Acting(Arc::new(act))
    }

    fn run<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let (mut work, mut done) = (Some(work), None);
        (self.0)(&mut || done = work.take().map(|work| work()))?;
        done.ok_or_else(|| io::Error::other("the work was not run as the other user"))
    }
}

/// Addresses, credentials, job and timeouts of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Addresses of the service, tried in order and from the first one at every reconnect, each for at most
    /// `connect_timeout`.
    pub addresses: Addresses,
    /// The server that must answer at one of these addresses, as its own server list names it; `None` accepts any
    /// server.
    pub server: Option<Member>,
    /// The credential for every server that is reached over TCP, even if the first one is reached by a Unix socket.
    pub credential: Credential,
    /// The minimum protection over TCP. The default is authentication on this machine and encryption to other machines;
    /// a service that requires more gets more.
    pub security: Option<Security>,
    /// The job to which this process belongs.
    pub job: Job,
    /// Timeout of one connection attempt, including the handshake.
    pub connect_timeout: Duration,
    /// Timeout of a request, including reconnects. Each piece of a large transfer is a request.
    pub request_timeout: Duration,
    /// Maximum number of data connections.
    pub data_connections: usize,
    /// Maximum number of outstanding requests on the control connection; further requests wait.
    pub outstanding: usize,
    /// How to act as the user who owns the connections; `None` uses the credentials of the calling thread.
    pub acting: Option<Acting>,
}

impl ClientConfig {
    /// The defaults: this process's job, no key, 5 s to connect, 60 s for a request, 4 data connections.
    ///
    /// ```
    /// use forebay_client::{Addresses, ClientConfig, Credential};
    /// use std::time::Duration;
    ///
    /// let addresses: Addresses = "tcp:node1:7411,tcp:node2:7411".parse()?;
    /// let config = ClientConfig {
    ///     credential: Credential::File("alice.key".into()),
    ///     request_timeout: Duration::from_secs(10),
    ///     ..ClientConfig::new(addresses)
    /// };
    /// assert_eq!(config.connect_timeout, Duration::from_secs(5));
    /// # Ok::<(), forebay_model::Error>(())
    /// ```
    #[must_use]
    pub fn new(addresses: impl Into<Addresses>) -> ClientConfig {
        ClientConfig {
            addresses: addresses.into(),
            server: None,
            credential: Credential::None,
            security: None,
            job: job_of_this_process(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            data_connections: 4,
            outstanding: 128,
            acting: None,
        }
    }

    /// Runs `work` as the user who owns the connections.
    pub(crate) fn act<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        match &self.acting {
            Some(acting) => acting.run(work),
            None => Ok(work()),
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
                return invalid(format!("{count} {what} are out of range: use 1 to 4096"));
            }
        }
        Ok(())
    }
}
