//! Cost of the TCP protection levels on one machine: a client writes and reads a file over loopback with each level.
//!
//! ```text
//! cargo run --release -p forebay-client --example transport
//! ```

use forebay_client::{Address, ClientConfig, Credential, OpenOptions, Security, blocking::Client};
use forebay_model::{Bytes, Result};
use forebay_server::{Config, Medium, Server};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Duration of each measurement, and number of rounds; the best one is reported.
const TIME: Duration = Duration::from_millis(700);
const ROUNDS: usize = 5;
/// Size of the file, which is overwritten repeatedly.
const FILE: u64 = 64 << 20;

#[expect(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> Result<()> {
    println!("{:<14}{:>16}{:>16}{:>16}{:>16}", "", "write 1 MiB", "read 1 MiB", "write 4 KiB", "read 4 KiB");
    for (level, name) in Security::ALL {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut config = Config {
            capacity: Bytes::mib(512),
            medium: Medium::Memory,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            ..Config::for_store(dir.path().join("store"))
        };
        config.transport.security = Some(level);
        let running = Server::start(config.clone())?;
        let listens = running.addresses().tcp.expect("it listens");
        let address = Address::Tcp { host: listens.ip().to_string(), port: listens.port() };
        let client = Client::connect(ClientConfig {
            credential: Credential::File(config.key_path()),
            security: Some(level),
            ..ClientConfig::new(address)
        })?;
        let file = client.open("/f", OpenOptions::CREATE)?;
        file.pwrite(0, &vec![7; FILE as usize])?;
        let mut shown = format!("{name:<14}");
        for size in [1 << 20, 4 << 10] {
            let mut bytes = vec![3; size];
            let write = best(size, |offset| file.pwrite(offset, &bytes))?;
            let read = best(size, |offset| file.pread(offset, &mut bytes).map(drop))?;
            for seconds in [write, read] {
                let cell = match size {
                    0..=65_536 => format!("{:.1} µs", seconds * 1e6),
                    _ => format!("{:.0} MB/s", size as f64 / seconds / 1e6),
                };
                shown += &format!("{cell:>16}");
            }
        }
        println!("{shown}");
        drop((file, client));
        running.shutdown()?;
    }
    Ok(())
}

/// Seconds per request in the best round.
fn best(size: usize, mut request: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let (mut least, mut offset) = (f64::MAX, 0);
    for _ in 0..ROUNDS {
        let (begin, mut count) = (Instant::now(), 0);
        while begin.elapsed() < TIME {
            request(offset)?;
            offset = (offset + size as u64) % FILE;
            count += 1;
        }
        least = least.min(begin.elapsed().as_secs_f64() / f64::from(count));
    }
    Ok(least)
}
