//! A server and its mount, in processes of their own.

use crate::helper;
use forebay_client::blocking::Client;
use forebay_model::Striping;
pub(crate) use forebay_testkit::until as wait_until;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;
use tempfile::TempDir;

/// Default request timeout.
const REQUEST: Duration = Duration::from_secs(60);

pub(crate) struct World {
    dir: TempDir,
    server: Child,
    servers: u16,
    mounts: Vec<(Child, PathBuf)>,
    /// Request timeout of the mounts.
    patience: Duration,
}

/// Prints a note that something was not tested.
pub(crate) fn skip(why: &str) {
    forebay_testkit::skip("mount", why);
}

/// Whether this host can mount; prints a note if not.
pub(crate) fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = device {
        skip(&format!("cannot open /dev/fuse ({error}): load the kernel's fuse module, and run as root"));
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        skip("only root can mount for other users: run as root");
        return false;
    }
    true
}

impl World {
    /// A new service, mounted at [`World::at`]; `None` if mounting is not possible.
    pub(crate) fn new(options: &str) -> Option<World> {
        World::of(1, options)
    }

    /// The same with the given number of servers in one process.
    pub(crate) fn of(servers: u16, options: &str) -> Option<World> {
        World::with(servers, options, REQUEST)
    }

    /// The same with the given request timeout.
    pub(crate) fn with(servers: u16, options: &str, patience: Duration) -> Option<World> {
        if !can_mount() {
            return None;
        }
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        open_to_all(dir.path());
        let server = helper::server(&dir.path().join("store"), servers);
        let mut world = World { dir, server, servers, mounts: Vec::new(), patience };
        world.wait_for_server();
        world.mount("mnt", options);
        Some(world)
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A directory on a local file system, for comparison.
    pub(crate) fn local(&self) -> PathBuf {
        let local = self.dir.path().join("local");
        std::fs::create_dir_all(&local).unwrap();
        local
    }

    /// The mount point.
    pub(crate) fn at(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Mounts the service again.
    pub(crate) fn mount(&mut self, name: &str, options: &str) -> PathBuf {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let child = helper::mount(&self.store(), &dir, options, self.patience);
        self.mounts.push((child, dir.clone()));
        wait_until("the mount appears", || is_mounted(&dir));
        dir
    }

    fn wait_for_server(&self) {
        let socket = helper::socket(&self.store());
        wait_until("the server accepts connections", || UnixStream::connect(&socket).is_ok());
    }

    /// Kills the server, and restarts it.
    pub(crate) fn crash_server(&mut self) {
        self.kill_server();
        self.start_server();
    }

    pub(crate) fn kill_server(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    /// Starts the server again.
    pub(crate) fn start_server(&mut self) {
        self.server = helper::server(&self.store(), self.servers);
        self.wait_for_server();
    }

    /// A client that bypasses the mount.
    pub(crate) fn client(&self, patience: Duration) -> Client {
        Client::connect(helper::client_config(&self.store(), patience)).unwrap()
    }

    /// Sends the server a signal, to stop or continue it.
    pub(crate) fn signal_server(&self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_child(&self.server);
        rustix::process::kill_process(process, signal).unwrap();
    }

    /// Stops the server's process, and waits until all its threads have stopped: until then they may still answer.
    pub(crate) fn freeze_server(&self) {
        use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
        self.signal_server(Signal::STOP);
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.server)), options).expect("the server stops");
    }

    /// Stripes all new files over all servers.
    pub(crate) fn stripe(&self) {
        let client = self.client(REQUEST);
        client.set_layout("/", Some(Striping { width: 0, stripe: 64 << 10 })).unwrap();
    }

    /// The process of the first mount.
    pub(crate) fn mount_process(&mut self) -> &mut Child {
        &mut self.mounts[0].0
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for (child, dir) in &mut self.mounts {
            // It may be gone already.
            let _ = forebay_fuse::unmount(dir, true);
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

pub(crate) fn is_mounted(dir: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dir = dir.to_str().unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == Some(dir) && line.contains(" - fuse.forebay "))
}

pub(crate) fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
