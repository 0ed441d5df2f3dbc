//! The client side: the server process, its addresses, and the directories for comparison.

use crate::Outcome;
use crate::far::{self, Far};
use crate::plan::{Plan, Socket};
use forebay_client::{Address, ClientConfig, Credential};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// A tmpfs directory that every Linux has.
const MEMORY: &str = "/dev/shm";

/// The value of all written bytes.
pub(crate) const BYTE: u8 = 7;

/// State shared by all benchmarks.
pub(crate) struct Near {
    far: Child,
    unix: PathBuf,
    tcp: String,
    key: PathBuf,
    pub(crate) bare_tcp: String,
    pub(crate) bare_unix: PathBuf,
    /// Runs the async clients.
    pub(crate) runtime: Runtime,
    /// Time until the server was ready with its memory prepared: it allocates and touches its regions in that
    /// time.
    pub(crate) set_up: Duration,
}

impl Near {
    /// Starts the server process.
    pub(crate) fn start(plan: &Plan, what: Far) -> Outcome<Near> {
        let begin = Instant::now();
        let mut far = Command::new(std::env::current_exe()?)
            .arg(far::WORD)
            .arg(&plan.disk)
            .arg(what.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Control-C goes to the parent: this process ends in order when the parent is gone.
            .process_group(0)
            .spawn()?;
        let mut output = BufReader::new(far.stdout.take().expect("it is piped")).lines();
        let mut next = || -> Outcome<String> { Ok(output.next().ok_or("the server did not start")??) };
        Ok(Near {
            unix: next()?.into(),
            tcp: next()?,
            key: next()?.into(),
            bare_tcp: next()?,
            bare_unix: next()?.into(),
            runtime: Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
            far,
            set_up: begin.elapsed(),
        })
    }

    pub(crate) fn client(&self, socket: Socket) -> Outcome<ClientConfig> {
        let address = match socket {
            Socket::Unix => Address::Unix(self.unix.clone()),
            Socket::Tcp => format!("tcp:{}", self.tcp).parse()?,
        };
        Ok(ClientConfig { credential: Credential::File(self.key.clone()), ..ClientConfig::new(address) })
    }
}

#[expect(clippy::print_stderr, reason = "Drop cannot return an error")]
impl Drop for Near {
    fn drop(&mut self) {
        drop(self.far.stdin.take());
        match self.far.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("the server's process ended with {status}"),
            Err(error) => eprintln!("the server's process cannot be waited for: {error}"),
        }
    }
}

/// The directory for files in memory.
pub(crate) fn memory() -> &'static Path {
    Path::new(MEMORY)
}
