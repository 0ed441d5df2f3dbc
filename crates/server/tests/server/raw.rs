//! A server in a directory of its own.

use forebay_model::Bytes;
use forebay_server::{Config, Medium, Running, Server};
pub(crate) use forebay_testkit::{Raw, hello, name, person, refused};
use forebay_wire::{Channel, Key};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

pub(crate) const ALICE: u32 = 4001;
pub(crate) const BOB: u32 = 4002;

/// A server, its directory, and its configuration for a restart.
pub(crate) struct World {
    pub(crate) config: Config,
    running: Option<Running>,
    backend: Option<Arc<dyn forebay_backend::Backend>>,
    _dir: TempDir,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> World {
        let (dir, mut config) = plan();
        change(&mut config);
        let running = Server::start(config.clone()).expect("the server starts");
        World { config, running: Some(running), backend: None, _dir: dir }
    }

    pub(crate) fn before(backend: Arc<dyn forebay_backend::Backend>) -> World {
        World::before_with(backend, |_| {})
    }

    pub(crate) fn before_with(
        backend: Arc<dyn forebay_backend::Backend>,
        change: impl FnOnce(&mut Config),
    ) -> World {
        let (dir, mut config) = plan();
        change(&mut config);
        let running = Server::start_before(config.clone(), backend.clone()).expect("the server starts");
        World { config, running: Some(running), backend: Some(backend), _dir: dir }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.config.socket_path()
    }

    pub(crate) fn tcp(&self) -> SocketAddr {
        self.running.as_ref().and_then(|running| running.addresses().tcp).expect("TCP address")
    }

    pub(crate) fn key(&self) -> Key {
        let text = std::fs::read_to_string(self.config.key_path()).expect("key file");
        Key::from_text(&text).expect("valid key")
    }

    pub(crate) fn control(&self) -> Raw {
        Raw::unix(&self.socket(), Channel::Control, 1).expect("connected")
    }

    /// Lets other users of this host connect to the socket.
    pub(crate) fn open_to_all(&self) {
        let dir = self.config.store.parent().expect("parent directory");
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("permissions set");
    }

    pub(crate) fn data(&self) -> Raw {
        Raw::unix(&self.socket(), Channel::Data, 1).expect("connected")
    }

    pub(crate) fn stop(&mut self) {
        self.running.take().expect("running server").shutdown().expect("clean shutdown");
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    pub(crate) fn start(&mut self) {
        let started = match &self.backend {
            Some(backend) => Server::start_before(self.config.clone(), backend.clone()),
            None => Server::start(self.config.clone()),
        };
        self.running = Some(started.expect("the server starts again"));
    }

    pub(crate) fn wait(&mut self) {
        self.running.take().expect("running server").wait().expect("clean shutdown");
    }
}

fn plan() -> (TempDir, Config) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut config = Config::for_store(dir.path().join("store"));
    config.capacity = Bytes::mib(16);
    config.region = Some(Bytes::mib(1));
    config.medium = Medium::Disk;
    config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    (dir, config)
}

/// Bytes that depend on the position and on the seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let start = seed.wrapping_mul(0xd1b5_4a32_d192_ed03);
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(start) >> 32) as u8).collect()
}
