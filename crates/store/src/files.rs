//! The directory of a store: its lock, and the place of its regions.

use crate::data::{UNFINISHED, sync_dir};
use forebay_model::{Error, ErrorKind, Incarnation, Result};
use forebay_shm::{EPOCHS_NAME, Epochs};
use rustix::fs::{FlockOperation, flock, statfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{DirBuilder, DirEntry, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

const TMPFS: u64 = 0x0102_1994;
/// How often a lock is tried again while its holder is dying, 10 ms apart.
const PATIENCE: u32 = 1000;

/// What holds the regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Memory: a tmpfs of the store's own where that is allowed. Lost with the machine.
    Memory,
    /// The file system of the store's directory.
    Disk,
}

/// An error of the store itself.
pub(crate) fn bad(text: String) -> Error {
    Error::new(ErrorKind::BadStore, text)
}

/// An error of the file system under the store.
pub(crate) fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let (kind, hint) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::NoSpace, ": free space there")
        }
        io::ErrorKind::PermissionDenied => (ErrorKind::BadStore, ": run as the owner of the store"),
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::BadStore, ": choose a directory that can be written")
        }
        io::ErrorKind::NotFound => (ErrorKind::BadStore, ": check the path"),
        _ => (ErrorKind::Io, ""),
    };
    Error::new(kind, format!("cannot {what} {}: {error}{hint}", path.display()))
}

/// What says that a store is being made, until it is, or removed.
const MAKING: &str = "making";
/// Where memory of users who may not mount is found.
const SHARED_MEMORY: &str = "/dev/shm/forebay-";

/// Makes a private directory if it is not there.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| failed("make", dir, &error))
}

/// Fails if others may look into a store's directory: the key that seals tokens is in it.
pub(crate) fn check_private(dir: &Path) -> Result<()> {
    let facts = std::fs::metadata(dir).map_err(|error| failed("look at", dir, &error))?;
    if facts.permissions().mode() & 0o077 != 0 {
        let advice = format!("run \"chmod 700 {}\" first", dir.display());
        return Err(bad(format!("others may look into the store {}: {advice}", dir.display())));
    }
    Ok(())
}

/// Marks a directory as a store that is being made, and removes what an earlier attempt left. A directory that holds
/// anything else is refused.
pub(crate) fn begin_making(dir: &Path) -> Result<()> {
    let making = dir.join(MAKING);
    if !making.exists() {
        let list = std::fs::read_dir(dir).map_err(|error| failed("list", dir, &error))?;
        for entry in list {
            let name = entry.map_err(|error| failed("list", dir, &error))?.file_name();
            if name != "lock" {
                return Err(bad(format!(
                    "{} is not empty (it holds {}) and has no head of a store: choose an empty directory",
                    dir.display(),
                    name.to_string_lossy()
                )));
            }
        }
        let private = std::fs::set_permissions(dir, Permissions::from_mode(0o700));
        private.map_err(|error| failed("mark", dir, &error))?;
        mark(dir)?;
    }
    clear(dir)
}

/// Removes everything in the directory of a store, its head first: whoever dies over it leaves something that is no
/// store any more, and can be removed again or made anew.
pub(crate) fn remove_parts(dir: &Path) -> Result<()> {
    mark(dir)?;
    let head = dir.join("store");
    gone(std::fs::remove_file(&head), &head)?;
    sync_dir(dir).map_err(|error| failed("flush", dir, &error))?;
    clear(dir)?;
    end_making(dir)
}

/// Whether making or removing a store has begun and not ended here.
pub(crate) fn is_half(dir: &Path) -> bool {
    dir.join(MAKING).exists()
}

fn mark(dir: &Path) -> Result<()> {
    let made = File::create(dir.join(MAKING)).and_then(|_| sync_dir(dir));
    made.map_err(|error| failed("mark", dir, &error))
}

/// Removes what belongs to a store beside its head.
fn clear(dir: &Path) -> Result<()> {
    remove_regions_dir(dir)?;
    let meta = dir.join("meta");
    gone(std::fs::remove_dir_all(&meta), &meta)
}

/// The store is whole.
pub(crate) fn end_making(dir: &Path) -> Result<()> {
    let making = dir.join(MAKING);
    gone(std::fs::remove_file(&making), &making)
}

/// Removes files of regions that were being made when the process died.
pub(crate) fn clear_unfinished(regions: &Path) -> Result<()> {
    let list = std::fs::read_dir(regions).map_err(|error| failed("list", regions, &error))?;
    for entry in list {
        let path = entry.map_err(|error| failed("list", regions, &error))?.path();
        if path.to_string_lossy().ends_with(UNFINISHED) {
            gone(std::fs::remove_file(&path), &path)?;
        }
    }
    Ok(())
}

/// What is gone already need not be removed.
fn gone(result: io::Result<()>, path: &Path) -> Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Locks a store's directory for as long as the returned file lives.
pub(crate) fn lock_dir(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    for attempt in 0..=PATIENCE {
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = open.map_err(|error| failed("open", &path, &error))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let read = file.rewind().and_then(|()| file.read_to_string(&mut holder));
            let holder = read.ok().and_then(|_| holder.trim().parse().ok());
            if attempt == PATIENCE || !holder.is_some_and(is_dying) {
                return Err(in_use(dir, holder));
            }
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        // Whoever removed the store meanwhile took the file away: a lock on what has no name keeps nobody out.
        if is_at(&file, &path) {
            let note = file
                .set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            note.map_err(|error| failed("write", &path, &error))?;
            return Ok(file);
        }
    }
    Err(in_use(dir, None))
}

fn is_at(file: &File, path: &Path) -> bool {
    let same = |one: std::fs::Metadata, other: std::fs::Metadata| {
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    };
    file.metadata().ok().zip(std::fs::metadata(path).ok()).is_some_and(|(one, other)| same(one, other))
}

fn in_use(dir: &Path, holder: Option<u32>) -> Error {
    let holder = holder.map_or_else(|| "another".to_owned(), |pid| format!("process {pid}"));
    bad(format!(
        "the store {} is in use by {holder}: stop that server first (\"forebay down\")",
        dir.display()
    ))
}

/// Whether a process is past its end: a server that was killed holds its lock until its memory is given back.
fn is_dying(pid: u32) -> bool {
    const EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The command's name may hold spaces and brackets; the flags are the seventh field behind it.
    let flags =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Where the regions of a store are.
pub(crate) fn regions_dir(dir: &Path) -> PathBuf {
    dir.join("regions")
}

/// Whether a path is on a file system that lives in memory.
pub(crate) fn is_in_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|facts| facts.f_type as u64 == TMPFS)
}

/// Makes an empty place for regions: on the store's own disk, or in memory by the best means we may use.
pub(crate) fn make_regions_dir(
    dir: &Path,
    medium: Medium,
    incarnation: Incarnation,
    bytes: u64,
) -> Result<()> {
    let regions = regions_dir(dir);
    if medium == Medium::Disk || is_in_memory(dir) {
        return make_dir(&regions);
    }
    if rustix::process::geteuid().is_root() {
        make_dir(&regions)?;
        let size = bytes + bytes / 64 + (1 << 20);
        if mount_tmpfs(&regions, size).is_ok() {
            return Ok(());
        }
        // The root of a container may not mount, and does as everybody else.
        std::fs::remove_dir(&regions).map_err(|error| failed("remove", &regions, &error))?;
    }
    let elsewhere = PathBuf::from(format!("{SHARED_MEMORY}{incarnation}"));
    make_dir(&elsewhere)?;
    symlink(&elsewhere, &regions).map_err(|error| failed("link", &regions, &error))
}

fn mount_tmpfs(at: &Path, size: u64) -> Result<()> {
    let mount_with = |options: String| {
        let options = CString::new(options).expect("options have no zero byte");
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("forebay", at, "tmpfs", flags, options.as_c_str())
    };
    let plain = format!("size={size},mode=0700");
    // Kernels without huge pages in tmpfs refuse the option; small pages serve as well, only slower.
    let mounted = mount_with(format!("{plain},huge=within_size")).or_else(|_| mount_with(plain));
    mounted.map_err(|error| failed("mount memory at", at, &error.into()))
}

/// Says what holds the regions: `tmpfs, huge pages`, `tmpfs` or `disk`.
pub(crate) fn describe_medium(dir: &Path) -> String {
    let regions = regions_dir(dir);
    if !is_in_memory(&regions) {
        return "disk".to_owned();
    }
    let huge = std::fs::canonicalize(&regions)
        .ok()
        .zip(std::fs::read_to_string("/proc/mounts").ok())
        .is_some_and(|(path, mounts)| {
            let place = path.to_string_lossy().into_owned();
            mounts.lines().any(|line| line.split(' ').nth(1) == Some(&place) && line.contains("huge="))
        });
    if huge { "tmpfs, huge pages".to_owned() } else { "tmpfs".to_owned() }
}

/// Removes the place of the regions with everything in it.
pub(crate) fn remove_regions_dir(dir: &Path) -> Result<()> {
    let regions = regions_dir(dir);
    // Whoever was told something by a server that died here believes it no more.
    if let Ok(file) = File::options().read(true).write(true).open(regions.join(EPOCHS_NAME)) {
        Epochs::end(&file).map_err(|error| failed("end", &regions, &error))?;
    }
    if let Ok(elsewhere) = std::fs::read_link(&regions) {
        if !elsewhere.to_string_lossy().starts_with(SHARED_MEMORY) {
            let text = "leads to a place that Forebay did not make: remove it yourself";
            return Err(bad(format!("{} {text}", regions.display())));
        }
        discard(&elsewhere)?;
        return gone(std::fs::remove_file(&regions), &regions);
    }
    // Not a mount point unless the store is in memory and we were root. A client that still has a region mapped keeps
    // its memory, and nobody waits for that.
    let _ = unmount(&regions, UnmountFlags::DETACH);
    discard(&regions)
}

/// Removes a directory with everything in it. It loses its name first: whoever dies over it leaves all or nothing.
fn discard(dir: &Path) -> Result<()> {
    let mut aside = dir.as_os_str().to_owned();
    aside.push(".gone");
    let aside = PathBuf::from(aside);
    gone(std::fs::remove_dir_all(&aside), &aside)?;
    gone(std::fs::rename(dir, &aside), dir)?;
    gone(std::fs::remove_dir_all(&aside), &aside)
}

/// Whether there is any region.
pub(crate) fn has_regions(dir: &Path) -> bool {
    let is_log = |entry: io::Result<DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension() == Some("log".as_ref()))
    };
    std::fs::read_dir(regions_dir(dir)).is_ok_and(|mut list| list.any(is_log))
}
