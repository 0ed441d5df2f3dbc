//! A directory of a mounted file system.
//!
//! Every path is resolved by the kernel below the root's own descriptor, with symbolic links refused wherever they
//! are met, so that nothing outside is reached even if somebody swaps a directory for a link meanwhile.

use crate::told::Told;
use crate::{Backend, Creation, Found, Layout, Object, Path, Version, acl, lustre, shown, write_zeros};
use forebay_model::{Error, ErrorKind, FileKind, Gid, Name, Result, Span, Special, Time, Uid};
use forebay_policy::place::Description;
use rustix::fs::{
    Advice, AtFlags, FallocateFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags, Timespec, Timestamps,
    XattrFlags, chmod, chownat, fadvise, fallocate, fchmod, fchown, fsetxattr, ftruncate, getxattr, linkat,
    mkdirat, openat2, readlinkat, renameat, statx, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pwritev};
use std::fs::File;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// How often the kernel may ask to try again because something moved on the way.
const TRIES: u32 = 100;
/// Most parts of one vectored write that Linux takes.
const MOST_PARTS: usize = 1024;
const PAGE: u64 = 4096;
/// `O_LOV_DELAY_CREATE`: Lustre makes a name, and waits with the layout.
const DELAY: OFlags = OFlags::NOCTTY.union(OFlags::from_bits_retain(0o20_000));
/// Longest access list that is looked at.
const LIST: usize = 4096;

/// A directory.
pub struct Dir {
    root: OwnedFd,
    path: PathBuf,
    told: Told,
}

impl Dir {
    /// The directory at a path, which stays the same one whatever happens to its name.
    pub fn open(path: impl Into<PathBuf>) -> Result<Dir> {
        let path = path.into();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(root) => Ok(Dir { told: Told::by(&root), root, path }),
            Err(errno) => {
                let text = format!("cannot use {} as a back end: {errno}", path.display());
                Err(Error::new(kind(errno), text))
            }
        }
    }

    /// The same, on a Lustre with these targets, whatever else says so.
    pub fn on_lustre(path: impl Into<PathBuf>, targets: Description) -> Result<Dir> {
        Ok(Dir { told: Told::Lustre(targets), ..Dir::open(path)? })
    }

    fn at(&self, path: Path<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        self.at_mode(path, flags, Mode::empty())
    }

    fn at_mode(&self, path: Path<'_>, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let whole = match path {
            [] => b".".to_vec(),
            path => path.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/'),
        };
        for _ in 1..TRIES {
            match openat2(&self.root, whole.as_slice(), flags, mode, resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return done,
            }
        }
        openat2(&self.root, whole.as_slice(), flags, mode, resolve)
    }

    /// Gives something that is open its owner and mode. Only root can give things away; whoever else serves serves himself.
    fn give(file: &impl AsFd, (uid, gid): (Uid, Gid), mode: u16) -> rustix::io::Result<()> {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid.0), rustix::fs::Gid::from_raw(gid.0));
        match fchown(file, Some(uid), Some(gid)) {
            Err(Errno::PERM) | Ok(()) => fchmod(file, Mode::from_raw_mode(u32::from(mode & 0o7777))),
            Err(errno) => Err(errno),
        }
    }

    /// The directory that holds a path, and the name in it.
    fn parent<'a>(&self, path: Path<'a>) -> rustix::io::Result<(OwnedFd, &'a [u8])> {
        let (name, dir) = path.split_last().ok_or(Errno::BUSY)?;
        Ok((self.at(dir, OFlags::PATH | OFlags::DIRECTORY)?, name.as_bytes()))
    }

    /// A regular file; anything else is opened without waiting for it, and refused.
    fn file(&self, path: Path<'_>, flags: OFlags) -> rustix::io::Result<(File, Statx)> {
        let file = self.at(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let stat = look(&file)?;
        match rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()).is_file() {
            true => Ok((File::from(file), stat)),
            false => Err(Errno::INVAL),
        }
    }

    /// A new file, open for reading and writing.
    pub(crate) fn make(&self, file: Path<'_>, creation: &Creation) -> Result<File> {
        self.make_with(file, creation, OFlags::empty())
    }

    fn make_with(&self, file: Path<'_>, creation: &Creation, more: OFlags) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | more;
        let make = || {
            // Nobody gets in before it is as it should be.
            let made = self.at_mode(file, flags, Mode::RUSR | Mode::WUSR)?;
            Dir::give(&made, creation.owner, creation.mode)?;
            Ok(File::from(made))
        };
        make().map_err(|errno| self.failed(file, "create", errno))
    }

    /// A file, open for reading and writing.
    pub(crate) fn to_write(&self, file: Path<'_>) -> Result<File> {
        self.file(file, OFlags::RDWR).map(|(file, _)| file).map_err(|errno| self.failed(file, "open", errno))
    }

    /// A file, open for reading.
    pub(crate) fn to_read(&self, file: Path<'_>) -> Result<File> {
        self.file(file, OFlags::RDONLY)
            .map(|(file, _)| file)
            .map_err(|errno| self.failed(file, "open", errno))
    }

    fn unlinked(&self, path: Path<'_>, flags: AtFlags) -> Result<bool> {
        match self.parent(path).map(|(dir, name)| unlinkat(&dir, name, flags)) {
            // Here it is the thing itself that is no directory.
            Ok(Err(Errno::NOTDIR)) => Err(self.failed(path, "remove", Errno::NOTDIR)),
            Ok(done) => self.if_there(path, "remove", done),
            Err(errno) => self.if_there(path, "remove", Err(errno)),
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

    fn describe(&self, path: Path<'_>) -> rustix::io::Result<Found> {
        let file = self.at(path, OFlags::PATH)?;
        let stat = look(&file)?;
        let kind = file_kind(&stat).ok_or(Errno::NOENT)?;
        let target = match kind {
            FileKind::Symlink => readlinkat(&file, "", Vec::new())?.into_bytes(),
            _ => Vec::new(),
        };
        let mode = stat.stx_mode & 0o7777;
        let mode = match access_list(&file, kind)? {
            Some(list) => acl::narrowed(mode, &list),
            None => mode,
        };
        Ok(Found {
            kind,
            mode,
            uid: Uid(stat.stx_uid),
            gid: Gid(stat.stx_gid),
            version: version(&stat),
            atime: time(stat.stx_atime),
            ctime: time(stat.stx_ctime),
            target,
        })
    }
}

impl Backend for Dir {
    fn name(&self) -> String {
        format!("dir:{}", self.path.display())
    }

    fn find(&self, path: Path<'_>) -> Result<Option<Found>> {
        match self.describe(path) {
            Ok(found) => Ok(Some(found)),
            // A path through a link leads nowhere here: links are followed by whoever walks, one at a time.
            Err(errno) if is_miss(errno) || errno == Errno::LOOP => Ok(None),
            Err(errno) => Err(self.failed(path, "look up", errno)),
        }
    }

    fn list(&self, dir: Path<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        let failed = |errno| self.failed(dir, "list", errno);
        let listed = self.at(dir, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        for entry in rustix::fs::Dir::new(listed).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // What cannot be a name here is "." or "..".
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
        match self.told.targets() {
            none if none.is_empty() => vec![self.path.display().to_string()],
            told => told,
        }
    }

    fn identity(&self) -> Option<String> {
        // Where something else is mounted, or nothing, both numbers are others.
        let stat =
            statx(&self.root, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME).ok()?;
        let born = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        let born = born.then(|| format!(" {}.{:09}", stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        Some(format!("{}{}", stat.stx_ino, born.unwrap_or_default()))
    }

    fn topology(&self) -> Option<Description> {
        match &self.told {
            // What was true when it was opened may have changed.
            Told::Lustre(then) => Some(lustre::on(&self.root).unwrap_or_else(|| then.clone())),
            _ => None,
        }
    }

    fn layout(&self, file: Path<'_>) -> Result<Layout> {
        match self.file(file, OFlags::RDONLY) {
            Ok((file, _)) => {
                Ok(self.told.layout(&file).unwrap_or(Layout { targets: vec![0], stripe: u64::MAX }))
            }
            Err(errno) => Err(self.failed(file, "open", errno)),
        }
    }

    fn create(&self, file: Path<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        self.make(file, creation).map(|file| Box::new(DirObject(file)) as Box<dyn Object>)
    }

    fn create_on(&self, file: Path<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        if !matches!(self.told, Told::Lustre(_)) {
            return self.create(file, creation);
        }
        let made = self.make_with(file, creation, DELAY)?;
        // A layout that cannot be had is no reason to have no file: whoever asked looks what it has become.
        let _ = lustre::ask(&made, layout);
        rustix::fs::fcntl_setfl(&made, OFlags::RDWR).map_err(|errno| self.failed(file, "create", errno))?;
        Ok(Box::new(DirObject(made)))
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.to_write(file).map(|file| Box::new(DirObject(file)) as Box<dyn Object>)
    }

    fn symlink(&self, path: Path<'_>, target: &[u8]) -> Result<()> {
        let made = self.parent(path).and_then(|(dir, name)| symlinkat(target, &dir, name));
        made.map_err(|errno| self.failed(path, "make the link", errno))
    }

    fn set_attr(&self, path: Path<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        let set = || {
            let (dir, name) = self.parent(path)?;
            let (uid, gid) = (rustix::fs::Uid::from_raw(owner.0.0), rustix::fs::Gid::from_raw(owner.1.0));
            match chownat(&dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::PERM) | Ok(()) => {}
                Err(errno) => return Err(errno),
            }
            let named = self.at(path, OFlags::PATH)?;
            if file_kind(&look(&named)?) != Some(FileKind::Symlink) {
                // Its owner may do this even where he may not open it.
                let path = format!("/proc/self/fd/{}", named.as_raw_fd());
                chmod(path, Mode::from_raw_mode(u32::from(mode & 0o7777)))?;
            }
            let moment = Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) };
            let times = Timestamps { last_access: moment, last_modification: moment };
            utimensat(&dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        };
        set().map_err(|errno| self.failed(path, "set attributes of", errno))
    }

    fn make_dir(&self, dir: Path<'_>, owner: (Uid, Gid), mode: u16) -> Result<()> {
        let make = || {
            let (parent, name) = self.parent(dir)?;
            // Nobody gets in before it is as it should be.
            match mkdirat(&parent, name, Mode::RWXU) {
                Err(Errno::EXIST) if look(&self.at(dir, OFlags::PATH | OFlags::DIRECTORY)?).is_ok() => {
                    return Ok(());
                }
                made => made?,
            }
            let made = self.at(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
            Dir::give(&made, owner, mode)
        };
        make().map_err(|errno| self.failed(dir, "make the directory", errno))
    }

    fn unlink(&self, path: Path<'_>) -> Result<bool> {
        self.unlinked(path, AtFlags::empty())
    }

    fn remove_dir(&self, dir: Path<'_>) -> Result<bool> {
        self.unlinked(dir, AtFlags::REMOVEDIR)
    }

    fn rename(&self, from: Path<'_>, to: Path<'_>) -> Result<bool> {
        let (to_dir, to_name) =
            self.parent(to).map_err(|errno| self.failed(to, "rename something to", errno))?;
        let done = self.parent(from).and_then(|(dir, name)| renameat(&dir, name, &to_dir, to_name));
        self.if_there(from, "rename", done)
    }

    fn link(&self, file: Path<'_>, to: Path<'_>) -> Result<()> {
        let linked = || {
            let (from_dir, from) = self.parent(file)?;
            let (to_dir, name) = self.parent(to)?;
            linkat(&from_dir, from, &to_dir, name, AtFlags::empty())
        };
        linked().map_err(|errno| self.failed(to, "link", errno))
    }

    fn set_xattr(&self, path: Path<'_>, name: &Name, value: &[u8]) -> Result<()> {
        let set = || {
            let open = self.at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
            fsetxattr(&open, name.as_bytes(), value, XattrFlags::empty())
        };
        set().map_err(|errno| self.failed(path, "set an attribute of", errno))
    }

    fn truncate(&self, file: Path<'_>, size: u64) -> Result<bool> {
        let done = self.file(file, OFlags::WRONLY).and_then(|(file, _)| ftruncate(&file, size));
        self.if_there(file, "truncate", done)
    }
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
        // Only whole pages go, and what does not is read from memory.
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
                Ok(0) => return Err(unwritable(&"nothing was taken")),
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
    Error::new(ErrorKind::Io, format!("the back end cannot write a file of its own: {error}"))
}

fn unreadable(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("the back end cannot read a file of its own: {error}"))
}

pub(crate) fn look(file: &impl AsFd) -> rustix::io::Result<Statx> {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

pub(crate) fn version(stat: &Statx) -> Version {
    Version { size: stat.stx_size, mtime: time(stat.stx_mtime), serial: serial(stat) }
}

/// Inode numbers are used again, often at once: with the time of its birth, where that is known, a file has one of its own.
fn serial(stat: &Statx) -> u64 {
    let born = match stat.stx_mask & StatxFlags::BTIME.bits() {
        0 => 0,
        _ => (stat.stx_btime.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(stat.stx_btime.tv_nsec.into()),
    };
    (stat.stx_ino ^ born.rotate_left(32)).max(1)
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

/// The access list of a file, if it has one.
fn access_list(file: &OwnedFd, kind: FileKind) -> rustix::io::Result<Option<Vec<u8>>> {
    if kind == FileKind::Symlink {
        return Ok(None);
    }
    let mut list = vec![0; LIST];
    // A descriptor that only names a file gives its attributes away by its path alone.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match getxattr(path, "system.posix_acl_access", list.as_mut_slice()) {
        Ok(len) => {
            list.truncate(len);
            Ok(Some(list))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        // One that is too long to be read grants nobody anything.
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(errno) => Err(errno),
    }
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
