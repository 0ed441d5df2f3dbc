//! The other process: servers with their stores, and a peer for bare sockets.
//!
//! It ends when its standard input does, so also when the process that started it dies, and removes what it made.

use crate::{Outcome, bare, near};
use forebay_model::{Bytes, Member, ServerId};
use forebay_server::{Config, Medium, Running, Server};
use forebay_store::Store;
use std::io::{Read, Write, stdin, stdout};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The word on the command line that makes a process the far side.
pub(crate) const WORD: &str = "far-side";

/// Several times what one round writes.
const CAPACITY: Bytes = Bytes::mib(3072);

/// Serves until nobody is interested any more.
pub(crate) fn serve(servers: u16) -> Outcome {
    let dir = tempfile::tempdir_in(near::disk()?)?;
    let configs = configs(dir.path(), servers)?;
    let running =
        configs.iter().map(|config| Server::start(config.clone())).collect::<Result<Vec<_>, _>>()?;
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
    let mut out = stdout();
    writeln!(out, "{}", told.join("\n"))?;
    out.flush()?;
    // An error is an end, too.
    let _ = stdin().read_to_end(&mut Vec::new());
    running.into_iter().try_for_each(Running::shutdown)?;
    configs.iter().try_for_each(|config| Store::remove(&config.store))?;
    Ok(())
}

/// One server as it is on its own, or several that know each other and share the capacity.
fn configs(dir: &Path, servers: u16) -> Outcome<Vec<Config>> {
    let config = |number: u16, listen: SocketAddr| Config {
        capacity: Bytes(CAPACITY.0 / u64::from(servers)),
        medium: Medium::Memory,
        listen,
        key: Some(dir.join("key")),
        ..Config::for_store(dir.join(format!("store{number}")))
    };
    let anywhere: SocketAddr = "127.0.0.1:0".parse()?;
    if servers == 1 {
        return Ok(vec![config(1, anywhere)]);
    }
    // All at once, so that they differ; closed again before the servers come.
    let listeners =
        (0..servers).map(|_| TcpListener::bind(anywhere)).collect::<Result<Vec<_>, std::io::Error>>()?;
    let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>()?;
    let mut configs: Vec<Config> =
        (1..).zip(addresses).map(|(number, address)| config(number, address)).collect();
    let members: Vec<Member> = (1..)
        .zip(&configs)
        .map(|(number, config)| Member {
            server: ServerId(number),
            address: format!("tcp:{}", config.listen),
            socket: Some(config.socket_path().display().to_string()),
        })
        .collect();
    for (number, config) in (1..).zip(&mut configs) {
        (config.server, config.servers) = (ServerId(number), members.clone());
    }
    Ok(configs)
}
