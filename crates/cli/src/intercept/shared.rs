//! Which programs of a user share a private mount: all that need one for the same service at the same prefix.
//!
//! Programs in one mount share the kernel's locks and pages, those in two mounts do not. So the first program makes the
//! mount, and the later ones join its namespaces. A file in the user's private directory names the process that serves
//! the mount, and the programs; a process changes it only while it holds its lock.
//!
//! **Invariant**: the process that serves a mount ends it only while it holds the lock, and no program uses the mount.

use crate::connect::Service;
use crate::failure::Outcome;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, FlockOperation, Mode, OFlags, access, flock, mkdir};
use rustix::process::{Pid, PidfdFlags, geteuid, getpid, pidfd_open};
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Interval between two looks at who uses a mount.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// The file about one shared mount, locked.
pub(crate) struct Registry {
    path: PathBuf,
    file: File,
}

/// A process that cannot be taken for a later one with the same number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    id: i32,
    /// When it started, in ticks since the machine started.
    start: u64,
}

impl Process {
    fn now(id: i32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        // A zombie uses nothing any more.
        fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
        Some(Process { id, start: fields.nth(18)?.parse().ok()? })
    }

    fn parse(line: &str) -> Option<Process> {
        let (id, start) = line.split_once(' ')?;
        Some(Process { id: id.parse().ok()?, start: start.parse().ok()? })
    }

    fn lives(self) -> bool {
        Process::now(self.id) == Some(self)
    }
}

fn own_id() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// A directory of this user that no other user can write to.
fn private_dir() -> io::Result<PathBuf> {
    let user = geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let places =
        [runtime, Some(format!("/run/user/{user}").into()), Some(format!("/tmp/.forebay-{user}").into())];
    let is_usable = |dir: &PathBuf| {
        // It may be there.
        let _ = mkdir(dir, Mode::RWXU);
        let own = dir
            .symlink_metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0);
        own && access(dir, Access::WRITE_OK).is_ok()
    };
    let dir = places.into_iter().flatten().find(is_usable);
    let dir =
        dir.ok_or_else(|| io::Error::other("this user has no private directory"))?.join(".forebay-mounts");
    match mkdir(&dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(dir),
        Err(error) => Err(error.into()),
    }
}

impl Registry {
    /// The registry of the mount of a service at a prefix, for programs that see the same mounts as this one.
    pub(crate) fn of(service: &Service, prefix: &Path) -> Outcome<io::Result<Registry>> {
        let mut hasher = DefaultHasher::new();
        service.resolve()?.addresses.to_string().hash(&mut hasher);
        (prefix, &service.key, &service.config).hash(&mut hasher);
        std::fs::read_link("/proc/self/ns/mnt").ok().hash(&mut hasher);
        let name = format!("{:016x}", hasher.finish());
        Ok(private_dir().and_then(|dir| Registry::lock(&dir.join(name))))
    }

    pub(crate) fn lock(path: &Path) -> io::Result<Registry> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Registry { path: path.to_owned(), file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn processes(&self) -> Vec<Process> {
        let mut text = String::new();
        let mut file = &self.file;
        // What cannot be read names no process.
        let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
        text.lines().filter_map(Process::parse).collect()
    }

    /// The process that serves the mount, if there is a mount.
    pub(crate) fn server(&self) -> Option<i32> {
        self.processes().first().filter(|server| server.lives()).map(|server| server.id)
    }

    /// Records that this process uses the mount, also as the program that it becomes.
    pub(crate) fn join(&self) -> io::Result<()> {
        append_own(&self.file)
    }

    /// Forgets an earlier mount.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Forgets programs that have ended; returns the others, after the process that serves the mount.
    fn prune(&self) -> io::Result<Vec<Process>> {
        let all = self.processes();
        let living: Vec<Process> = all.iter().copied().filter(|process| process.lives()).collect();
        if living.len() < all.len() {
            let lines = living.iter().map(|Process { id, start }| format!("{id} {start}\n"));
            self.file.set_len(0)?;
            (&self.file).write_all(lines.collect::<String>().as_bytes())?;
        }
        Ok(living)
    }

    /// Whether a program uses the mount that this process serves.
    fn is_used(&self) -> bool {
        let own = own_id();
        self.processes().iter().skip(1).any(|program| program.lives()) || shares_namespace(own)
    }
}

fn append_own(mut file: &File) -> io::Result<()> {
    let own = own_id();
    let start = Process::now(own).map_or(0, |process| process.start);
    file.write_all(format!("{own} {start}\n").as_bytes())
}

/// Whether another process is in the mount namespace of this one.
fn shares_namespace(own: i32) -> bool {
    let Ok(here) = std::fs::read_link("/proc/self/ns/mnt") else { return false };
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let ids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // Processes of other users, which cannot be looked at, cannot have joined.
    ids.filter(|id| *id != own)
        .any(|id| std::fs::read_link(format!("/proc/{id}/ns/mnt")).is_ok_and(|there| there == here))
}

/// Records that this process serves the mount. The program that started it holds the lock.
pub(crate) fn announce(registry: &Path) -> io::Result<()> {
    append_own(&OpenOptions::new().append(true).open(registry)?)
}

/// Waits until no program uses the mount that this process serves; then no program can join it until `end` is done.
pub(crate) fn wait_until_unused(registry: &Path, end: impl FnOnce()) -> io::Result<()> {
    loop {
        let registry = Registry::lock(registry)?;
        if !registry.is_used() {
            registry.clear()?;
            end();
            return Ok(());
        }
        let programs = registry.prune()?;
        drop(registry);
        let programs = programs.iter().skip(1).filter_map(|process| Pid::from_raw(process.id));
        let watched: Vec<_> = programs.filter_map(|id| pidfd_open(id, PidfdFlags::empty()).ok()).collect();
        let mut polled: Vec<_> = watched.iter().map(|process| PollFd::new(process, PollFlags::IN)).collect();
        // Interrupted, or a program has ended, or it is time to look for programs that were started by others.
        let _ = poll(&mut polled, Some(&INTERVAL));
    }
}

/// The directories that were made for a mount, from the prefix up to the first that was made; they are removed after
/// the mount has ended, unless another mount needs them.
pub(crate) struct Scaffold {
    dir: File,
    path: PathBuf,
    /// How many directories were made.
    made: usize,
}

impl Scaffold {
    /// Keeps other mounts from removing the directory at `path`. Called before something is mounted there.
    pub(crate) fn hold(path: &Path, made: usize) -> io::Result<Scaffold> {
        let dir = File::open(path)?;
        flock(&dir, FlockOperation::LockShared)?;
        Ok(Scaffold { dir, path: path.to_owned(), made })
    }

    /// Removes the directories. To remove a directory ends all mounts on it, in other namespaces too.
    pub(crate) fn remove(self) {
        if self.made == 0 || flock(&self.dir, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let dirs = self.path.ancestors().take(self.made);
        // Directories in which something was made meanwhile stay.
        let _ = dirs.map(std::fs::remove_dir).find(Result::is_err);
    }
}
