//! The server process: servers with their stores, and a peer for raw sockets.
//!
//! It ends when its standard input is closed, so also when its parent dies, and removes its files.

use crate::{Outcome, bare};
use forebay_model::Bytes;
use forebay_server::{Config, Medium, Running, Server};
use forebay_store::Store;
use std::fmt;
use std::fs::Permissions;
use std::io::{Read, Write, stdin, stdout};
use std::net::TcpListener;
use std::num::ParseIntError;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The command-line argument that starts the server process.
pub(crate) const WORD: &str = "bench-far";

/// Several times the data of one round.
const CAPACITY: Bytes = Bytes::mib(3072);
/// For each of several servers, where only names are measured.
const SMALL: Bytes = Bytes::mib(128);
/// For a server before a directory, and for each of several servers, where bytes are measured.
const BEFORE: Bytes = Bytes::mib(2048);
const SHARDS: Bytes = Bytes::mib(512);
/// For the benchmark that writes more than the buffer holds.
pub(crate) const LITTLE: Bytes = Bytes::mib(64);

/// Poll interval while the memory of the servers is prepared.
const POLL: Duration = Duration::from_millis(5);
/// Timeout of that.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the process serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Far {
    /// The given number of servers, in memory.
    Servers(u16),
    /// One server with little memory, and a directory as its back end.
    Little,
    /// One server before a directory.
    Before,
    /// Four servers.
    Shards,
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Far::Servers(count) => write!(f, "{count}"),
            Far::Little => f.write_str("little"),
            Far::Before => f.write_str("before"),
            Far::Shards => f.write_str("several"),
        }
    }
}

impl FromStr for Far {
    type Err = ParseIntError;

    fn from_str(word: &str) -> Result<Far, ParseIntError> {
        Ok(match word {
            "little" => Far::Little,
            "before" => Far::Before,
            "several" => Far::Shards,
            _ => Far::Servers(word.parse()?),
        })
    }
}

/// Serves until standard input is closed.
pub fn serve(disk: &Path, far: Far) -> Outcome {
    let dir = tempfile::tempdir_in(disk)?;
    let behind = dir.path().join("behind");
    std::fs::create_dir(&behind)?;
    // Another user reaches the socket; the stores and the key are private.
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o711))?;
    let backend = || Some(format!("dir:{}", behind.display()));
    let (servers, capacity, backend) = match far {
        Far::Servers(1) => (1, CAPACITY, None),
        Far::Servers(count) => (count, SMALL, None),
        Far::Little => (1, LITTLE, backend()),
        Far::Before => (1, BEFORE, backend()),
        Far::Shards => (4, SHARDS, None),
    };
    let config = Config {
        capacity,
        backend,
        medium: Medium::Memory,
        listen: "127.0.0.1:0".parse()?,
        ..Config::for_store(dir.path().join("store"))
    };
    let running = Server::start_cluster(&config, servers)?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let unix = UnixListener::bind(dir.path().join("bare"))?;
    let addresses = running.first().ok_or("the service has no server")?.addresses().clone();
    let addresses_text = [
        addresses.unix.display().to_string(),
        addresses.tcp.ok_or("the server has no TCP port")?.to_string(),
        addresses.key.display().to_string(),
        tcp.local_addr()?.to_string(),
        dir.path().join("bare").display().to_string(),
    ];
    std::thread::spawn(move || bare::serve_all(|| tcp.accept().map(|(stream, _)| stream)));
    std::thread::spawn(move || bare::serve_all(|| unix.accept().map(|(stream, _)| stream)));
    let warm = wait_until_warm(&running);
    if warm.is_ok() {
        let mut out = stdout();
        writeln!(out, "{}", addresses_text.join("\n"))?;
        out.flush()?;
        // A read error also ends it.
        let _ = stdin().read_to_end(&mut Vec::new());
    }
    running.into_iter().try_for_each(Running::shutdown)?;
    config.cluster(servers).iter().try_for_each(|config| Store::remove(&config.store))?;
    warm
}

/// Otherwise the preparation of memory would compete with the first measurement for CPU time.
fn wait_until_warm(running: &[Running]) -> Outcome {
    let begin = Instant::now();
    while !running.iter().all(Running::is_warm) {
        if begin.elapsed() > PATIENCE {
            return Err("the memory of the servers was not ready in time".into());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
