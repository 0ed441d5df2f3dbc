//! A directory of a mounted file system.
//!
//! The kernel resolves every path below the root's own descriptor and refuses symbolic links, so that nothing
//! outside is reachable even if another user replaces a directory by a link.

use crate::layout_source::LayoutSource;
use crate::{
    Backend, Creation, Found, Layout, Object, Path, Seen, Slot, Target, Version, acl, lustre, shown,
    write_zeros,
};
use forebay_model::{Error, ErrorKind, FileKind, Gid, Name, Result, Span, Special, Time, Uid};
use forebay_policy::place::Description;
use rustix::fs::{
    Advice, AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, ResolveFlags, Statx, StatxAttributes,
    StatxFlags, Timespec, Timestamps, XattrFlags, chmod, chownat, fadvise, fallocate, fchmod, fchown,
    fsetxattr, ftruncate, getxattr, linkat, mkdirat, openat, openat2, readlinkat, renameat, renameat_with,
    statx, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pwritev};
use std::fs::File;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// How often to retry when the kernel reports a concurrent rename on the path.
const TRIES: u32 = 100;
/// Most buffers of one vectored write on Linux.
const MOST_PARTS: usize = 1024;
const PAGE: u64 = 4096;
/// `O_LOV_DELAY_CREATE`: Lustre creates the name, but not yet the layout.
const DELAY: OFlags = OFlags::NOCTTY.union(OFlags::from_bits_retain(0o20_000));
/// Longest access control list that is read.
const LIST: usize = 4096;

/// A directory.
pub struct Dir {
    root: OwnedFd,
    path: PathBuf,
    layout_source: LayoutSource,
}

impl Dir {
    /// Opens the directory at a path; later renames of it have no effect.
    pub fn open(path: impl Into<PathBuf>) -> Result<Dir> {
        let path = path.into();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(root) => Ok(Dir { layout_source: LayoutSource::by(&root), root, path }),
            Err(errno) => {
                let text = format!("cannot use {} as a back end: {errno}", path.display());
                Err(Error::new(kind(errno), text))
            }
        }
    }

    /// The same, on a Lustre with these targets, without detection.
    pub fn on_lustre(path: impl Into<PathBuf>, targets: Description) -> Result<Dir> {
        Ok(Dir { layout_source: LayoutSource::Lustre(targets), ..Dir::open(path)? })
    }

    /// A directory at the root that belongs to this user alone; it is created if it is missing.
    pub(crate) fn private(&self, name: &Name) -> Result<Option<Dir>> {
        let (at, me) = (std::slice::from_ref(name), rustix::process::geteuid());
        let owner = (Uid(me.as_raw()), Gid(rustix::process::getegid().as_raw()));
        self.make_dir(at, owner, 0o700)?;
        let (root, stat) = self.seen(Seen::any(at), OFlags::PATH, "open")?;
        let shown = self.shown(&root, &stat).map_err(|errno| self.failed(at, "open", errno))?;
        let own = file_kind(&stat) == Some(FileKind::Directory) && stat.stx_uid == me.as_raw();
        let path = self.path.join(std::ffi::OsStr::from_bytes(name.as_bytes()));
        Ok((own && shown & 0o077 == 0).then(|| Dir { layout_source: LayoutSource::by(&root), root, path }))
    }

    fn at(&self, path: Path<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        Dir::below(&self.root, path, flags)
    }

    fn below(root: &OwnedFd, path: Path<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let whole = match path {
            [] => b".".to_vec(),
            path => path.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/'),
        };
        for _ in 1..TRIES {
            match openat2(root, whole.as_slice(), flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return done,
            }
        }
        openat2(root, whole.as_slice(), flags, Mode::empty(), resolve)
    }

    /// Sets owner and mode of an open file. Only root can change owners; a server of another user serves only
    /// that user.
    fn give(file: &impl AsFd, owner: (Uid, Gid), mode: u16) -> rustix::io::Result<()> {
        let (uid, gid) = (rustix::fs::Uid::from_raw(owner.0.0), rustix::fs::Gid::from_raw(owner.1.0));
        match fchown(file, Some(uid), Some(gid)) {
            Err(Errno::PERM) | Ok(()) => {}
            Err(errno) => return Err(errno),
        }
        fchmod(file, permitted(mode, owner, &look(file)?))
    }

    /// Opens a regular file; refuses other types without blocking on them.
    fn file(&self, path: Path<'_>, flags: OFlags) -> rustix::io::Result<(File, Statx)> {
        let file = self.at(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let stat = look(&file)?;
        match rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()).is_file() {
            true => Ok((File::from(file), stat)),
            false => Err(Errno::INVAL),
        }
    }

    /// Opens the directory of a new entry; returns it with the entry's name.
    fn slot<'a>(&self, at: Slot<'a>, verb: &str) -> Result<(OwnedFd, &'a [u8])> {
        let Some(name) = at.path.last() else { return Err(self.failed(at.path, verb, Errno::BUSY)) };
        let (dir, _) = self.seen(at.dir(), OFlags::PATH | OFlags::DIRECTORY, verb)?;
        Ok((dir, name.as_bytes()))
    }

    /// The same for an entry that may be missing, with its directory; `None` if the directory is missing.
    fn slot_if_there<'a>(&self, at: Slot<'a>, verb: &str) -> Result<Option<(OwnedFd, &'a [u8])>> {
        match self.slot(at, verb) {
            Ok(slot) => Ok(Some(slot)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a file, open for reading and writing.
    pub(crate) fn make(&self, file: Slot<'_>, creation: &Creation) -> Result<File> {
        self.make_with(file, creation, OFlags::empty())
    }

    fn make_with(&self, file: Slot<'_>, creation: &Creation, more: OFlags) -> Result<File> {
        let (dir, name) = self.slot(file, "create")?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
        let make = || {
            // No other user can open it before its owner and mode are set.
            let made = openat(&dir, name, flags, Mode::RUSR | Mode::WUSR)?;
            Dir::give(&made, creation.owner, creation.mode)?;
            Ok(File::from(made))
        };
        make().map_err(|errno| self.failed(file.path, "create", errno))
    }

    /// Opens a file for reading and writing.
    pub(crate) fn to_write(&self, file: Path<'_>) -> Result<File> {
        self.file(file, OFlags::RDWR).map(|(file, _)| file).map_err(|errno| self.failed(file, "open", errno))
    }

    /// Opens a file for reading.
    pub(crate) fn to_read(&self, file: Path<'_>) -> Result<File> {
        self.file(file, OFlags::RDONLY)
            .map(|(file, _)| file)
            .map_err(|errno| self.failed(file, "open", errno))
    }

    /// Opens an entry that the caller saw; the descriptor stays valid whatever happens to its name.
    fn seen(&self, it: Seen<'_>, flags: OFlags, verb: &str) -> Result<(OwnedFd, Statx)> {
        let open = || {
            let file = self.at(it.path, flags)?;
            let stat = look(&file)?;
            Ok((file, stat))
        };
        let (file, stat) = open().map_err(|errno| self.failed(it.path, verb, errno))?;
        it.demand(serial(&stat)).map(|()| (file, stat))
    }

    /// Opens the parent directory of an entry that the caller saw, and returns it with the name; `None` if
    /// the entry does not exist. From then on only users with write permission for this directory can replace
    /// the entry, and these could remove or rename it as well.
    fn seen_in<'a>(&self, it: Seen<'a>, verb: &str) -> Result<Option<(OwnedFd, &'a [u8], u64)>> {
        let Some((dir, name)) = self.slot_if_there(it.slot(), verb)? else { return Ok(None) };
        match serial_in(&dir, name) {
            Ok(None) => Ok(None),
            Ok(Some(serial)) => it.demand(serial).map(|()| Some((dir, name, serial))),
            Err(errno) => Err(self.failed(it.path, verb, errno)),
        }
    }

    fn unlinked(&self, it: Seen<'_>, flags: AtFlags) -> Result<bool> {
        let Some((dir, name, _)) = self.seen_in(it, "remove")? else { return Ok(false) };
        match unlinkat(&dir, name, flags) {
            // ENOTDIR here refers to the entry itself.
            Err(Errno::NOTDIR) => Err(self.failed(it.path, "remove", Errno::NOTDIR)),
            done => self.if_there(it.path, "remove", done),
        }
    }

    fn if_there(&self, path: Path<'_>, verb: &str, done: rustix::io::Result<()>) -> Result<bool> {
        match done {
            Ok(()) => Ok(true),
            Err(errno) if is_miss(errno) => Ok(false),
            Err(errno) => Err(self.failed(path, verb, errno)),
        }
    }

    fn failed(&self, path: Path<'_>, verb: &str, errno: Errno) -> Error {
        let text = format!("cannot {verb} {} in the back end {}: {errno}", shown(path), self.name());
        Error::new(kind(errno), text)
    }

    /// The permission bits that are shown of an entry: never more than its access list grants.
    fn shown(&self, file: &OwnedFd, stat: &Statx) -> rustix::io::Result<u16> {
        let mode = stat.stx_mode & 0o7777;
        let kind = file_kind(stat).ok_or(Errno::NOENT)?;
        Ok(match access_list(file, kind)? {
            Some(list) => acl::narrowed(mode, &list),
            None => mode,
        })
    }

    fn describe(&self, file: &OwnedFd) -> rustix::io::Result<Found> {
        let stat = look(file)?;
        let kind = file_kind(&stat).ok_or(Errno::NOENT)?;
        let target = match kind {
            FileKind::Symlink => readlinkat(file, "", Vec::new())?.into_bytes(),
            _ => Vec::new(),
        };
        Ok(Found {
            kind,
            mode: self.shown(file, &stat)?,
            uid: Uid(stat.stx_uid),
            gid: Gid(stat.stx_gid),
            version: version(&stat),
            atime: time(stat.stx_atime),
            ctime: time(stat.stx_ctime),
            target,
            mount: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        })
    }
}

impl Backend for Dir {
    fn name(&self) -> String {
        format!("dir:{}", self.path.display())
    }

    fn find_at(&self, at: Slot<'_>) -> Result<Option<Found>> {
        let opened = match (at.dir, at.path) {
            (0, path) => self.at(path, OFlags::PATH),
            (_, []) => self.at(&[], OFlags::PATH),
            (_, [.., name]) => match self.slot(at, "look up") {
                Ok((dir, _)) => Dir::below(&dir, std::slice::from_ref(name), OFlags::PATH),
                Err(error) if is_missing(error.kind()) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        match opened.and_then(|file| self.describe(&file)) {
            Ok(found) => Ok(Some(found)),
            // A path through a link finds nothing: the path walk resolves links one at a time.
            Err(errno) if is_miss(errno) || errno == Errno::LOOP => Ok(None),
            Err(errno) => Err(self.failed(at.path, "look up", errno)),
        }
    }

    fn list_of(&self, dir: Seen<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        let failed = |errno| self.failed(dir.path, "list", errno);
        let (listed, _) = self.seen(dir, OFlags::RDONLY | OFlags::DIRECTORY, "list")?;
        for entry in rustix::fs::Dir::new(listed).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Only "." and ".." are not valid names.
            if let Ok(name) = Name::new(entry.file_name().to_bytes()) {
                show(name);
            }
        }
        Ok(())
    }

    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        match self.file(file, OFlags::RDONLY) {
            Ok((file, _)) => Ok(Box::new(DirObject(file))),
            Err(errno) => Err(self.failed(file, "open", errno)),
        }
    }

    fn targets(&self) -> Vec<String> {
        match self.layout_source.targets() {
            none if none.is_empty() => vec![self.path.display().to_string()],
            layout_source => layout_source,
        }
    }

    fn identity(&self) -> Option<String> {
        // Another mount point, or none, has another inode number and birth time.
        let stat =
            statx(&self.root, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME).ok()?;
        let birth = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        let birth = birth.then(|| format!(" {}.{:09}", stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        Some(format!("{}{}", stat.stx_ino, birth.unwrap_or_default()))
    }

    fn topology(&self) -> Option<Description> {
        match &self.layout_source {
            // Read again, because it may have changed since it was opened.
            LayoutSource::Lustre(then) => Some(lustre::on(&self.root).unwrap_or_else(|| then.clone())),
            _ => None,
        }
    }

    fn layout(&self, file: Path<'_>) -> Result<Layout> {
        match self.file(file, OFlags::RDONLY) {
            Ok((file, _)) => {
                Ok(self.layout_source.layout(&file).unwrap_or(Layout { targets: vec![0], stripe: u64::MAX }))
            }
            Err(errno) => Err(self.failed(file, "open", errno)),
        }
    }

    fn create_at(&self, file: Slot<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        self.make(file, creation).map(|file| Box::new(DirObject(file)) as Box<dyn Object>)
    }

    fn create_on_at(&self, file: Slot<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        if !matches!(self.layout_source, LayoutSource::Lustre(_)) {
            return self.create_at(file, creation);
        }
        let made = self.make_with(file, creation, DELAY)?;
        // Without the requested layout the file is still usable: the caller reads the actual layout.
        let _ = lustre::request(&made, layout);
        rustix::fs::fcntl_setfl(&made, OFlags::RDWR)
            .map_err(|errno| self.failed(file.path, "create", errno))?;
        Ok(Box::new(DirObject(made)))
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.to_write(file).map(|file| Box::new(DirObject(file)) as Box<dyn Object>)
    }

    fn symlink_at(&self, at: Slot<'_>, target: &[u8]) -> Result<()> {
        let (dir, name) = self.slot(at, "create the link")?;
        symlinkat(target, &dir, name).map_err(|errno| self.failed(at.path, "create the link", errno))
    }

    fn set_attr_of(&self, it: Seen<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        // One descriptor for all changes, so that a replaced entry is left unchanged.
        let (named, stat) = self.seen(it, OFlags::PATH, "set attributes of")?;
        let set = || {
            let (uid, gid) = (rustix::fs::Uid::from_raw(owner.0.0), rustix::fs::Gid::from_raw(owner.1.0));
            match chownat(&named, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
                Err(Errno::PERM) | Ok(()) => {}
                Err(errno) => return Err(errno),
            }
            if file_kind(&stat) != Some(FileKind::Symlink) {
                let now = look(&named)?;
                let mode = permitted(mode, owner, &now);
                // The shown mode may be narrower than the access list, whose mask `chmod` would set to it.
                if u32::from(self.shown(&named, &now)?) != mode.as_raw_mode() {
                    // The owner may do this even without read permission.
                    chmod(proc_path(&named), mode)?;
                }
            }
            let moment = Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) };
            let times = Timestamps { last_access: moment, last_modification: moment };
            utimensat(&named, "", &times, AtFlags::EMPTY_PATH)
        };
        set().map_err(|errno| self.failed(it.path, "set attributes of", errno))
    }

    fn make_dir_at(&self, dir: Slot<'_>, owner: (Uid, Gid), mode: u16) -> Result<Option<u64>> {
        let (parent, name) = self.slot(dir, "create the directory")?;
        let make = || {
            // No other user can enter it before its owner and mode are set.
            let exists = match mkdirat(&parent, name, Mode::RWXU) {
                Err(Errno::EXIST) => true,
                made => made.map(|()| false)?,
            };
            let open = |flags| {
                let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                openat(&parent, name, flags, Mode::empty())
            };
            let made = match open(OFlags::RDONLY) {
                // A directory without read permission is not one whose creation was interrupted.
                Err(Errno::ACCESS) if exists => return open(OFlags::PATH).map(|_| None),
                made => made?,
            };
            // Another user may have replaced it. That user could also remove an empty directory of this one, so
            // changing its owner gives nothing away; one that is not empty is not new.
            let stat = look(&made)?;
            match is_begun(&stat) && is_empty(&made)? {
                true => Dir::give(&made, owner, mode).map(|()| Some(serial(&stat))),
                false if exists => Ok(None),
                false => Err(Errno::EXIST),
            }
        };
        make().map_err(|errno| self.failed(dir.path, "create the directory", errno))
    }

    fn unlink_of(&self, it: Seen<'_>) -> Result<bool> {
        self.unlinked(it, AtFlags::empty())
    }

    fn remove_dir_of(&self, dir: Seen<'_>) -> Result<bool> {
        self.unlinked(dir, AtFlags::REMOVEDIR)
    }

    fn rename_of(&self, from: Seen<'_>, to: Slot<'_>, target: Target) -> Result<bool> {
        let (to_dir, to_name) = self.slot(to, "rename to")?;
        let Some((dir, name, serial)) = self.seen_in(from, "rename")? else { return Ok(false) };
        let there = serial_in(&to_dir, to_name).map_err(|errno| self.failed(to.path, "rename to", errno))?;
        if there == Some(serial) {
            // A rename of a hard link to another one of the same file would leave both.
            let done = if from.path == to.path { Ok(()) } else { unlinkat(&dir, name, AtFlags::empty()) };
            return self.if_there(from.path, "rename", done);
        }
        target.demand(to.path, there)?;
        let renamed = match target {
            Target::Nothing => match renameat_with(&dir, name, &to_dir, to_name, RenameFlags::NOREPLACE) {
                // Not every file system supports the flag.
                Err(Errno::INVAL | Errno::NOSYS) => renameat(&dir, name, &to_dir, to_name),
                done => done,
            },
            Target::Entry(_) | Target::Any => renameat(&dir, name, &to_dir, to_name),
        };
        self.if_there(from.path, "rename", renamed)
    }

    fn link_of(&self, file: Seen<'_>, to: Slot<'_>) -> Result<()> {
        let (named, _) = self.seen(file, OFlags::PATH, "link")?;
        let (dir, name) = self.slot(to, "link")?;
        linkat(rustix::fs::CWD, proc_path(&named), &dir, name, AtFlags::SYMLINK_FOLLOW)
            .map_err(|errno| self.failed(to.path, "link", errno))
    }

    fn set_xattr_of(&self, it: Seen<'_>, name: &Name, value: &[u8]) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (open, _) = self.seen(it, flags, "set an attribute of")?;
        fsetxattr(&open, name.as_bytes(), value, XattrFlags::empty())
            .map_err(|errno| self.failed(it.path, "set an attribute of", errno))
    }

    fn truncate_of(&self, it: Seen<'_>, size: u64) -> Result<bool> {
        match self.file(it.path, OFlags::WRONLY) {
            Ok((file, stat)) => {
                it.demand(serial(&stat))?;
                self.if_there(it.path, "truncate", ftruncate(&file, size))
            }
            Err(errno) => self.if_there(it.path, "truncate", Err(errno)),
        }
    }
}

/// A path to an open file that resolves to exactly this file.
fn proc_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Whether a directory has the attributes it has between its creation and the setting of its owner.
fn is_begun(stat: &Statx) -> bool {
    let inherited = 0o2000;
    u32::from(stat.stx_mode) & 0o7777 & !inherited == 0o700
        && stat.stx_uid == rustix::process::geteuid().as_raw()
}

/// The permission bits that a file gets: of one that could not be given to its owner, set-id bits would give the
/// rights of this server's user to the user who wrote its bytes.
fn permitted(mode: u16, owner: (Uid, Gid), now: &Statx) -> Mode {
    let bits = if (now.stx_uid, now.stx_gid) == (owner.0.0, owner.1.0) { 0o7777 } else { 0o1777 };
    Mode::from_raw_mode(u32::from(mode & bits))
}

/// The serial number of the entry of this name, if there is one.
fn serial_in(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<Option<u64>> {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    match statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, flags) {
        Ok(stat) => Ok(Some(serial(&stat))),
        Err(errno) if is_miss(errno) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn is_empty(dir: &OwnedFd) -> rustix::io::Result<bool> {
    let mut entries = rustix::fs::Dir::read_from(dir)?;
    let named = |entry: &rustix::fs::DirEntry| !matches!(entry.file_name().to_bytes(), b"." | b"..");
    entries.try_fold(true, |empty, entry| Ok(empty && !named(&entry?)))
}

/// A file of a mounted file system.
pub(crate) struct DirObject(pub(crate) File);

impl Object for DirObject {
    fn version(&self) -> Result<Version> {
        look(&self.0).map(|stat| version(&stat)).map_err(|errno| unreadable(&errno))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.0.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(&error)),
            }
        }
        Ok(done)
    }

    fn forget(&self, span: Span) {
        // The kernel drops only whole pages; the rest stays cached.
        let start = span.start / PAGE * PAGE;
        let len = NonZeroU64::new(span.end.next_multiple_of(PAGE) - start);
        let _ = fadvise(&self.0, start, len, Advice::DontNeed);
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let (mut at, mut left): (u64, Vec<IoSlice<'_>>) =
            (offset, parts.iter().map(|part| IoSlice::new(part)).collect());
        let mut left = left.as_mut_slice();
        while left.iter().any(|part| !part.is_empty()) {
            match pwritev(&self.0, &left[..left.len().min(MOST_PARTS)], at) {
                Ok(0) => return Err(unwritable(&"the write returned 0 bytes")),
                Ok(count) => {
                    at += count as u64;
                    IoSlice::advance_slices(&mut left, count);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::new(kind(errno), unwritable(&errno).to_string())),
            }
        }
        Ok(())
    }

    fn zero(&self, span: Span) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.0, flags, span.start, span.len()) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => write_zeros(self, span),
            Err(errno) => Err(Error::new(kind(errno), unwritable(&errno).to_string())),
        }
    }

    fn sync(&self) -> Result<()> {
        self.0.sync_all().map_err(|error| unwritable(&error))
    }
}

fn unwritable(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("cannot write a file in the back end: {error}"))
}

fn unreadable(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read a file in the back end: {error}"))
}

pub(crate) fn look(file: &impl AsFd) -> rustix::io::Result<Statx> {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

pub(crate) fn version(stat: &Statx) -> Version {
    Version { size: stat.stx_size, mtime: time(stat.stx_mtime), serial: serial(stat) }
}

/// Inode numbers are reused, often at once; together with the birth time, where known, they are unique.
fn serial(stat: &Statx) -> u64 {
    (stat.stx_ino ^ birth(stat).unwrap_or(0).rotate_left(32)).max(1)
}

/// When a file was created, in nanoseconds, where the file system knows it.
pub(crate) fn birth(stat: &Statx) -> Option<u64> {
    let time = (stat.stx_btime.tv_sec as u64, u64::from(stat.stx_btime.tv_nsec));
    (stat.stx_mask & StatxFlags::BTIME.bits() != 0)
        .then(|| time.0.wrapping_mul(1_000_000_000).wrapping_add(time.1))
}

fn time(time: rustix::fs::StatxTimestamp) -> Time {
    Time { secs: time.tv_sec, nanos: time.tv_nsec }
}

fn file_kind(stat: &Statx) -> Option<FileKind> {
    use rustix::fs::FileType;
    let device = || rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) as u32;
    Some(match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Special(Special::Pipe),
        FileType::Socket => FileKind::Special(Special::Socket),
        FileType::CharacterDevice => FileKind::Special(Special::Character(device())),
        FileType::BlockDevice => FileKind::Special(Special::Block(device())),
        FileType::Unknown => return None,
    })
}

/// The access control list of a file, if it has one.
fn access_list(file: &OwnedFd, kind: FileKind) -> rustix::io::Result<Option<Vec<u8>>> {
    if kind == FileKind::Symlink {
        return Ok(None);
    }
    let mut list = vec![0; LIST];
    // A descriptor opened with O_PATH gives access to extended attributes only through its /proc path.
    match getxattr(proc_path(file), "system.posix_acl_access", list.as_mut_slice()) {
        Ok(len) => {
            list.truncate(len);
            Ok(Some(list))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        // A list that is too long to read grants nothing.
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(errno) => Err(errno),
    }
}

/// Whether a path led to no directory: a part of it is missing, a file, or a link.
fn is_missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotDirectory | ErrorKind::TooManyLinks)
}

fn is_miss(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR)
}

fn kind(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::EXIST => ErrorKind::Exists,
        Errno::NOTDIR => ErrorKind::NotDirectory,
        Errno::ISDIR => ErrorKind::IsDirectory,
        Errno::NOTEMPTY => ErrorKind::NotEmpty,
        Errno::ACCESS => ErrorKind::AccessDenied,
        Errno::PERM | Errno::ROFS => ErrorKind::NotPermitted,
        Errno::NOSPC | Errno::DQUOT => ErrorKind::NoSpace,
        Errno::INVAL => ErrorKind::Invalid,
        Errno::NAMETOOLONG => ErrorKind::NameTooLong,
        Errno::LOOP | Errno::XDEV => ErrorKind::TooManyLinks,
        Errno::MLINK => ErrorKind::LinkLimit,
        Errno::FBIG => ErrorKind::TooLarge,
        Errno::BUSY => ErrorKind::Busy,
        Errno::NOTSUP => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    }
}
