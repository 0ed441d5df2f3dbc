//! A server that can be restarted, and clients of it.

use forebay_client::{Address, Client, ClientConfig, Credential, OpenOptions, blocking};
use forebay_model::{Bytes, Job};
use forebay_server::{Config, Medium, Running, Server};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How a client reaches the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    Unix,
    Tcp,
}

pub(crate) struct World {
    _dir: TempDir,
    config: Config,
    running: Option<Running>,
}

impl World {
    pub(crate) fn new(mib: u64) -> World {
        World::with(mib, |_, _| {})
    }

    /// Starts a server with a changed configuration; `change` gets a directory for additional files.
    pub(crate) fn with(mib: u64, change: impl FnOnce(&Path, &mut Config)) -> World {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            capacity: Bytes::mib(mib),
            region: Some(Bytes::mib(4)),
            medium: Medium::Disk,
            listen: forebay_testkit::address(),
            ..Config::for_store(dir.path().join("store"))
        };
        change(dir.path(), &mut config);
        let mut world = World { _dir: dir, config, running: None };
        world.start();
        world
    }

    fn start(&mut self) {
        self.running = Some(Server::start(self.config.clone()).unwrap());
    }

    pub(crate) fn stop(&mut self) {
        self.running.take().unwrap().shutdown().unwrap();
    }

    /// The directory of the store.
    pub(crate) fn store(&self) -> &Path {
        &self.config.store
    }

    pub(crate) fn start_again(&mut self) {
        self.stop();
        self.start();
    }

    pub(crate) async fn restart(&mut self) {
        tokio::task::block_in_place(|| self.start_again());
    }

    pub(crate) fn client_config(&self, by: By) -> ClientConfig {
        let address = match by {
            By::Unix => Address::Unix(self.config.socket_path()),
            By::Tcp => {
                Address::Tcp { host: self.config.listen.ip().to_string(), port: self.config.listen.port() }
            }
        };
        let job = Job { label: "7".into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 1 };
        ClientConfig {
            job,
            credential: Credential::File(self.config.key_path()),
            request_timeout: Duration::from_secs(60),
            ..ClientConfig::new(address)
        }
    }

    pub(crate) async fn client(&self, by: By) -> Client {
        Client::connect(self.client_config(by)).await.unwrap()
    }
}

/// Waits until a client's short requests use the queue: it is opened while the first ones use the socket.
pub(crate) fn wait_for_queue(client: &blocking::Client) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = format!("/wait{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let file = client.wait(client.inner().open(&path, OpenOptions::CREATE_NEW)).unwrap();
    client.unlink(&path).unwrap();
    let begin = Instant::now();
    while !file.close_now() {
        assert!(begin.elapsed() < Duration::from_secs(60), "there is no queue");
        std::thread::yield_now();
    }
}

/// Bytes that depend on their position.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
