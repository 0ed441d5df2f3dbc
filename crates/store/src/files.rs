//! The directory of a store: its lock, and the location of its regions.

use crate::data::{UNFINISHED, sync_dir};
use crate::lasting::{MountHolder, mount_holder, stat_field};
use crate::owner::{demand_own, open_own_dir, who_may_replace};
use forebay_model::{Error, ErrorKind, Incarnation, Result};
use forebay_shm::{EPOCHS_NAME, Epochs};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, statat, statfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{DirBuilder, DirEntry, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

const TMPFS: u64 = 0x0102_1994;
/// How often a lock is tried again while its holder is exiting, 10 ms apart.
const PATIENCE: u32 = 1000;

/// The storage that holds the regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Memory: a tmpfs of its own if mounting is permitted. Lost when the machine goes down.
    Memory,
    /// The file system of the store's directory.
    Disk,
}

/// An error of the store itself.
pub(crate) fn bad(text: String) -> Error {
    Error::new(ErrorKind::BadStore, text)
}

/// An error of the file system that holds the store.
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

const LOCK: &str = "lock";
/// Marker file: the store is being created or removed.
const MAKING: &str = "making";
/// Prefix of the memory directories of users who may not mount.
const SHARED_MEMORY: &str = "/dev/shm/forebay-";

/// Creates a private directory if it does not exist.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| failed("make", dir, &error))
}

/// Fails if other users may access a store's directory: it holds the key that seals tokens.
pub(crate) fn check_private(dir: &Path) -> Result<()> {
    let facts = std::fs::metadata(dir).map_err(|error| failed("stat", dir, &error))?;
    if facts.permissions().mode() & 0o077 != 0 {
        let advice = format!("run \"chmod 700 {}\" first", dir.display());
        return Err(bad(format!("other users may access the store {}: {advice}", dir.display())));
    }
    Ok(())
}

/// Marks a directory as a store that is being created, and removes the remains of an earlier attempt. Fails if the
/// directory holds anything else.
pub(crate) fn begin_making(dir: &Path) -> Result<()> {
    let making = dir.join(MAKING);
    if !making.exists() {
        let list = std::fs::read_dir(dir).map_err(|error| failed("list", dir, &error))?;
        for entry in list {
            let name = entry.map_err(|error| failed("list", dir, &error))?.file_name();
            if name != LOCK {
                return Err(bad(format!(
                    "{} is not empty (it holds {}) and has no superblock: choose an empty directory",
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

/// Removes everything in the directory of a store, the superblock first. After a crash the directory is no store any
/// more; removing or creating it can start again.
pub(crate) fn remove_parts(dir: &Path) -> Result<()> {
    mark(dir)?;
    let head = dir.join("store");
    gone(std::fs::remove_file(&head), &head)?;
    sync_dir(dir).map_err(|error| failed("flush", dir, &error))?;
    clear(dir)?;
    end_making(dir)
}

/// Whether a store in this directory is partly created or partly removed.
pub(crate) fn is_half(dir: &Path) -> bool {
    dir.join(MAKING).exists()
}

fn mark(dir: &Path) -> Result<()> {
    let made = File::create(dir.join(MAKING)).and_then(|_| sync_dir(dir));
    made.map_err(|error| failed("mark", dir, &error))
}

/// Removes all parts of a store except its superblock.
fn clear(dir: &Path) -> Result<()> {
    remove_regions_dir(dir)?;
    let meta = dir.join("meta");
    gone(std::fs::remove_dir_all(&meta), &meta)
}

/// Removes the marker: the store is complete.
pub(crate) fn end_making(dir: &Path) -> Result<()> {
    let making = dir.join(MAKING);
    gone(std::fs::remove_file(&making), &making)
}

/// Removes the files of regions that were being created when the process died.
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

/// Treats a missing file as removed.
fn gone(result: io::Result<()>, path: &Path) -> Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Locks a store's directory for as long as the returned file is open. Fails before anything is written if another user
/// may change the directory.
pub(crate) fn lock_dir(dir: &Path) -> Result<File> {
    for attempt in 0..=PATIENCE {
        let own = open_own_dir(dir)?;
        let mut file = open_lock(&own, dir)?;
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
        // If the lock file was removed along with the store, a lock on the unlinked file excludes no other process.
        if is_lock_of(&file, &own) {
            let note = file
                .set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            note.map_err(|error| failed("write", &dir.join(LOCK), &error))?;
            return Ok(file);
        }
    }
    Err(in_use(dir, None))
}

/// Opens or creates the lock file of a directory. It is truncated, so it must be no other file: no link, and no file that
/// has another name too.
fn open_lock(own: &File, dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let other = || bad(format!("{} is not the lock of a store: choose another directory", path.display()));
    let file = match openat(own, LOCK, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return Err(other()),
        Err(error) => return Err(failed("open", &path, &error.into())),
    };
    let facts = file.metadata().map_err(|error| failed("stat", &path, &error))?;
    demand_own(&path, facts.uid())?;
    if !facts.is_file() || facts.nlink() > 1 {
        return Err(other());
    }
    Ok(file)
}

fn is_lock_of(file: &File, dir: &File) -> bool {
    let there = statat(dir, LOCK, AtFlags::SYMLINK_NOFOLLOW).ok();
    let same = |(one, other): (std::fs::Metadata, rustix::fs::Stat)| {
        (one.dev(), one.ino()) == (other.st_dev, other.st_ino)
    };
    file.metadata().ok().zip(there).is_some_and(same)
}

fn in_use(dir: &Path, holder: Option<u32>) -> Error {
    let holder = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    bad(format!(
        "the store {} is in use by {holder}: stop that server first (\"forebay down\")",
        dir.display()
    ))
}

/// Whether a process is exiting: a killed server holds its lock until the kernel has freed its memory.
fn is_dying(pid: u32) -> bool {
    const EXITING: u64 = 4;
    let Some(flags) = stat_field(pid, 6) else { return true };
    flags.parse::<u64>().is_ok_and(|flags| flags & EXITING != 0)
}

/// The directory of a store's regions.
pub(crate) fn regions_dir(dir: &Path) -> PathBuf {
    dir.join("regions")
}

/// Fails if there is a directory for regions, or a link to one, that another user made. Regions in shared memory are lost
/// with the machine, and a user who knows the incarnation of the store may then make a directory of that name.
pub(crate) fn demand_own_regions(dir: &Path) -> Result<()> {
    let regions = regions_dir(dir);
    let place = std::fs::read_link(&regions).map_or(regions, |linked| dir.join(linked));
    match place.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => open_own_dir(&place).map(drop).map_err(|error| {
            error.within(format_args!(
                "the regions of the store {0} are not its own (run \"forebay store replace {0}\" to go on without the \
                 bytes they held)",
                dir.display()
            ))
        }),
    }
}

/// Whether a path is on a tmpfs.
pub(crate) fn is_in_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|facts| facts.f_type as u64 == TMPFS)
}

/// Whether the regions of a new store will be in memory, and the file system that they must fit on, unless they get a
/// tmpfs of their own.
pub(crate) fn place_of_regions(dir: &Path, medium: Medium) -> (bool, Option<PathBuf>) {
    let around = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
    if medium == Medium::Disk || is_in_memory(around) {
        return (is_in_memory(around), Some(dir.to_owned()));
    }
    let shared = Path::new(SHARED_MEMORY).parent().map(Path::to_owned);
    (true, shared.filter(|_| !rustix::process::geteuid().is_root()))
}

/// Creates an empty directory for regions: on the store's own disk, or in memory by the best means permitted.
pub(crate) fn make_regions_dir(
    dir: &Path,
    medium: Medium,
    incarnation: Incarnation,
    bytes: u64,
) -> Result<()> {
    let regions = regions_dir(dir);
    // Also in a shared directory of memory, which has small pages: a fresh one takes longer to fault in than to fill.
    if medium == Medium::Memory && rustix::process::geteuid().is_root() {
        make_dir(&regions)?;
        let size = bytes + bytes / 64 + (1 << 20);
        if mount_tmpfs(&regions, size).is_ok() {
            if is_lasting(&regions) {
                return Ok(());
            }
            unmount(&regions, UnmountFlags::DETACH)
                .map_err(|error| failed("unmount", &regions, &error.into()))?;
        }
        // Root in a container may not mount, or its mounts end with this process. It then uses a shared directory.
        std::fs::remove_dir(&regions).map_err(|error| failed("remove", &regions, &error))?;
    }
    if is_in_memory(dir) {
        require_mount_holder(dir)?;
        return make_dir(&regions);
    }
    if medium == Medium::Disk {
        return make_dir(&regions);
    }
    let elsewhere = PathBuf::from(format!("{SHARED_MEMORY}{incarnation}"));
    require_mount_holder(elsewhere.parent().expect("the directory has a parent"))?;
    // The parent is open to all: a directory that is there already is not the store's.
    let made = DirBuilder::new().mode(0o700).create(&elsewhere);
    made.map_err(|error| failed("make", &elsewhere, &error))?;
    symlink(&elsewhere, &regions).map_err(|error| failed("link", &regions, &error))
}

fn is_lasting(place: &Path) -> bool {
    mount_holder(place) != MountHolder::Unknown
}

/// Fails if a tmpfs would be lost with this process: acknowledged bytes must outlive it.
fn require_mount_holder(place: &Path) -> Result<()> {
    if !is_in_memory(place) || is_lasting(place) {
        return Ok(());
    }
    Err(bad(format!(
        "the memory at {} would be lost with the server's process: it is in a mount namespace of its own (a hardened \
         systemd unit, a container). Give the server the /dev/shm of the machine, run it under an init process \
         that stays, or keep data on disk (--disk)",
        place.display()
    )))
}

/// The note for the administrator if the memory of a store ends with a mount namespace or with this process.
pub(crate) fn note_on_memory(dir: &Path) -> Option<String> {
    let regions = regions_dir(dir);
    if !is_in_memory(&regions) {
        return None;
    }
    let end = match mount_holder(&regions) {
        MountHolder::Init => return None,
        MountHolder::Ancestor(pid, name) => {
            format!("with its mount namespace, which process {pid} ({name}) keeps alive")
        }
        MountHolder::Unknown => {
            "with this process: drain it, and give the server the /dev/shm of the machine".to_owned()
        }
    };
    Some(format!("the memory of the store {} is lost {end}", dir.display()))
}

fn mount_tmpfs(at: &Path, size: u64) -> Result<()> {
    let mount_with = |options: String| {
        let options = CString::new(options).expect("options have no zero byte");
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("forebay", at, "tmpfs", flags, options.as_c_str())
    };
    let plain = format!("size={size},mode=0700");
    // Kernels without huge pages in tmpfs reject the option; small pages work too, only slower.
    let mounted = mount_with(format!("{plain},huge=within_size")).or_else(|_| mount_with(plain));
    mounted.map_err(|error| failed("mount memory at", at, &error.into()))
}

/// Describes the storage of the regions: `tmpfs, huge pages`, `tmpfs` or `disk`.
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

/// Removes the directory of the regions with everything in it. A directory in shared memory that another user made in its
/// place is left alone.
pub(crate) fn remove_regions_dir(dir: &Path) -> Result<()> {
    let regions = regions_dir(dir);
    let linked = std::fs::read_link(&regions).ok();
    if linked.as_ref().is_some_and(|place| !place.to_string_lossy().starts_with(SHARED_MEMORY)) {
        let text = "links to a directory that Forebay did not make: remove it yourself";
        return Err(bad(format!("{} {text}", regions.display())));
    }
    let place = linked.as_ref().unwrap_or(&regions);
    let is_own = open_own_dir(place).is_ok();
    // Clients stop trusting answers of the server that died on this store.
    if is_own && let Ok(file) = File::options().read(true).write(true).open(place.join(EPOCHS_NAME)) {
        Epochs::end(&file).map_err(|error| failed("end", &regions, &error))?;
    }
    if linked.is_some() {
        if is_own {
            discard(place)?;
        }
        return gone(std::fs::remove_file(&regions), &regions);
    }
    // A mount point only if the store is in memory and root created it. A lazy unmount does not wait for clients that
    // still map a region; they keep its memory.
    let _ = unmount(&regions, UnmountFlags::DETACH);
    discard(&regions)
}

/// Removes a directory with everything in it. It is renamed first, so that a crash leaves the directory complete or
/// gone, unless another user took that name.
fn discard(dir: &Path) -> Result<()> {
    let mut aside = dir.as_os_str().to_owned();
    aside.push(".gone");
    let aside = PathBuf::from(aside);
    let _ = std::fs::remove_dir_all(&aside);
    if aside.symlink_metadata().is_ok() {
        return gone(std::fs::remove_dir_all(dir), dir);
    }
    gone(std::fs::rename(dir, &aside), dir)?;
    gone(std::fs::remove_dir_all(&aside), &aside)
}

/// The note for the administrator if other users may put another directory in the place of a store.
pub(crate) fn note_on_owner(dir: &Path) -> Option<String> {
    // The store is open: what cannot be looked at is not known to be wrong.
    let who = who_may_replace(dir).ok().flatten()?;
    Some(format!(
        "{who}, may replace the store {}: keep it below directories of its own user and root",
        dir.display()
    ))
}

/// Whether the store has any region files.
pub(crate) fn has_regions(dir: &Path) -> bool {
    let is_log = |entry: io::Result<DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension() == Some("log".as_ref()))
    };
    std::fs::read_dir(regions_dir(dir)).is_ok_and(|mut list| list.any(is_log))
}
