//! A server and a mount of it, in processes of their own.

use crate::helper;
use forebay_client::blocking::Client;
use forebay_model::Striping;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) struct World {
    dir: TempDir,
    server: Child,
    servers: u16,
    mounts: Vec<(Child, PathBuf)>,
}

/// Says aloud that something could not be tested here.
pub(crate) fn skip(why: &str) {
    forebay_dice::skip("mount", why);
}

/// Whether this machine can mount; says so where it cannot.
pub(crate) fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = device {
        skip(&format!(
            "/dev/fuse cannot be opened ({error}): load the kernel's fuse module, and run as root"
        ));
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        skip("only root can mount for other users: run as root");
        return false;
    }
    true
}

impl World {
    /// A fresh service, mounted at [`World::at`]; `None` where mounting is impossible.
    pub(crate) fn new(options: &str) -> Option<World> {
        World::of(1, options)
    }

    /// The same with so many servers in one process.
    pub(crate) fn of(servers: u16, options: &str) -> Option<World> {
        if !can_mount() {
            return None;
        }
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        open_to_all(dir.path());
        let server = helper::server(&dir.path().join("store"), servers);
        let mut world = World { dir, server, servers, mounts: Vec::new() };
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

    /// Where the service is mounted.
    pub(crate) fn at(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Mounts the service once more.
    pub(crate) fn mount(&mut self, name: &str, options: &str) -> PathBuf {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let child = helper::mount(&self.store(), &dir, options);
        self.mounts.push((child, dir.clone()));
        wait_until("the mount appears", || is_mounted(&dir));
        dir
    }

    fn wait_for_server(&self) {
        let socket = helper::socket(&self.store());
        wait_until("the server listens", || UnixStream::connect(&socket).is_ok());
    }

    /// Kills the server without warning, and starts it again.
    pub(crate) fn crash_server(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        self.server = helper::server(&self.store(), self.servers);
        self.wait_for_server();
    }

    /// Has the bytes of all files that will be made spread over all servers.
    pub(crate) fn stripe(&self) {
        let client = Client::connect(helper::client_config(&self.store())).unwrap();
        client.set_layout("/", Some(Striping { width: 0, stripe: 64 << 10 })).unwrap();
    }

    /// The process that serves the first mount.
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

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(5));
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
