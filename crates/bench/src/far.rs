//! The other process: servers with their stores, and a peer for bare sockets.
//!
//! It ends when its standard input does, so also when the process that started it dies, and removes what it made.

use crate::{Outcome, bare};
use forebay_model::Bytes;
use forebay_server::{Config, Medium, Running, Server};
use forebay_store::Store;
use std::fmt;
use std::io::{Read, Write, stdin, stdout};
use std::net::TcpListener;
use std::num::ParseIntError;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The word on the command line that makes a process the far side.
pub(crate) const WORD: &str = "bench-far";

/// Several times what one round writes.
const CAPACITY: Bytes = Bytes::mib(3072);
/// For each of several servers, with which only names are measured.
const SMALL: Bytes = Bytes::mib(128);
/// Where more is written than it holds.
pub(crate) const LITTLE: Bytes = Bytes::mib(64);

/// Between two looks whether the memory of all servers is ready.
const GLANCE: Duration = Duration::from_millis(5);
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the other process serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Far {
    /// So many servers, in memory.
    Servers(u16),
    /// One with little memory, before a directory.
    Little,
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Far::Servers(count) => write!(f, "{count}"),
            Far::Little => f.write_str("little"),
        }
    }
}

impl FromStr for Far {
    type Err = ParseIntError;

    fn from_str(word: &str) -> Result<Far, ParseIntError> {
        if word == "little" { Ok(Far::Little) } else { word.parse().map(Far::Servers) }
    }
}

/// Serves until nobody is interested any more.
pub fn serve(disk: &Path, far: Far) -> Outcome {
    let dir = tempfile::tempdir_in(disk)?;
    let behind = dir.path().join("behind");
    std::fs::create_dir(&behind)?;
    let (servers, capacity, backend) = match far {
        Far::Servers(1) => (1, CAPACITY, None),
        Far::Servers(count) => (count, SMALL, None),
        Far::Little => (1, LITTLE, Some(format!("dir:{}", behind.display()))),
    };
    let config = Config {
        capacity,
        backend,
        medium: Medium::Memory,
        listen: "127.0.0.1:0".parse()?,
        ..Config::for_store(dir.path().join("store"))
    };
    let running = Server::start_several(&config, servers)?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let unix = UnixListener::bind(dir.path().join("bare"))?;
    let addresses = running.first().ok_or("a service has a server")?.addresses().clone();
    let told = [
        addresses.unix.display().to_string(),
        addresses.tcp.ok_or("the server has no TCP port")?.to_string(),
        addresses.key.display().to_string(),
        tcp.local_addr()?.to_string(),
        dir.path().join("bare").display().to_string(),
    ];
    std::thread::spawn(move || bare::answer(|| tcp.accept().map(|(stream, _)| stream)));
    std::thread::spawn(move || bare::answer(|| unix.accept().map(|(stream, _)| stream)));
    let warm = wait_until_warm(&running);
    if warm.is_ok() {
        let mut out = stdout();
        writeln!(out, "{}", told.join("\n"))?;
        out.flush()?;
        // An error is an end, too.
        let _ = stdin().read_to_end(&mut Vec::new());
    }
    running.into_iter().try_for_each(Running::shutdown)?;
    config.several(servers).iter().try_for_each(|config| Store::remove(&config.store))?;
    warm
}

/// Otherwise what is measured first would compete with that for the processors.
fn wait_until_warm(running: &[Running]) -> Outcome {
    let begin = Instant::now();
    while !running.iter().all(Running::is_warm) {
        if begin.elapsed() > PATIENCE {
            return Err("the memory of the servers was not ready in time".into());
        }
        std::thread::sleep(GLANCE);
    }
    Ok(())
}
