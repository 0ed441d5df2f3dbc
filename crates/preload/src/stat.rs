//! File attributes and file system statistics, in all the structures that programs use.

use crate::credentials::Credentials;
use crate::errno::{Outcome, Stop, fail};
use crate::place::{Subject, ours, subject, subject_in};
use crate::{engine, hook, mem};
use forebay_model::{Access, Attr, FileId, FileKind, Identity, Special, Time, may};
use libc::{c_char, c_int, c_uint, stat as Stat, statfs as StatFs, statvfs as StatVfs, statx as Statx};

/// Device number of the file system: no device has it.
const DEVICE: (u32, u32) = (0, 0xfb);
/// Preferred transfer size.
const BLOCK: u64 = 1 << 20;
const SECTOR: u64 = 512;
const NAME_MAX: u64 = 255;
/// `FUSE_SUPER_MAGIC`: programs treat it as a file system that is not local.
const MAGIC: i64 = 0x6573_5546;

pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Special(Special::Pipe) => libc::S_IFIFO,
        FileKind::Special(Special::Socket) => libc::S_IFSOCK,
        FileKind::Special(Special::Character(_)) => libc::S_IFCHR,
        FileKind::Special(Special::Block(_)) => libc::S_IFBLK,
    }
}

/// Major and minor number of a device, from the kernel's encoding.
fn device(kind: FileKind) -> (u32, u32) {
    match kind {
        FileKind::Special(Special::Character(number) | Special::Block(number)) => {
            (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xfff00)
        }
        _ => (0, 0),
    }
}

/// The special file with this mode and device; `None` for a regular file.
pub(crate) fn special(mode: u32, dev: libc::dev_t) -> Outcome<Option<Special>> {
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    let number = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    Ok(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => None,
        libc::S_IFIFO => Some(Special::Pipe),
        libc::S_IFSOCK => Some(Special::Socket),
        libc::S_IFCHR => Some(Special::Character(number)),
        libc::S_IFBLK => Some(Special::Block(number)),
        libc::S_IFDIR => return fail(libc::EPERM),
        _ => return fail(libc::EINVAL),
    })
}

fn classic(attr: &Attr) -> Stat {
    // SAFETY: a structure of integers.
    let mut stat: Stat = unsafe { std::mem::zeroed() };
    stat.st_dev = libc::makedev(DEVICE.0, DEVICE.1);
    stat.st_ino = attr.id.0;
    stat.st_nlink = attr.links.into();
    stat.st_mode = type_bits(attr.kind) | u32::from(attr.mode);
    stat.st_uid = attr.uid.0;
    stat.st_gid = attr.gid.0;
    let (major, minor) = device(attr.kind);
    stat.st_rdev = libc::makedev(major, minor);
    stat.st_size = attr.size as i64;
    stat.st_blksize = BLOCK as libc::blksize_t;
    stat.st_blocks = attr.buffered.div_ceil(SECTOR) as i64;
    (stat.st_atime, stat.st_atime_nsec) = (attr.atime.secs, attr.atime.nanos.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (attr.mtime.secs, attr.mtime.nanos.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (attr.ctime.secs, attr.ctime.nanos.into());
    stat
}

fn extended(attr: &Attr) -> Statx {
    // SAFETY: a structure of integers.
    let mut stat: Statx = unsafe { std::mem::zeroed() };
    let time = |time: Time| {
        // SAFETY: as above.
        let mut stamp: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (stamp.tv_sec, stamp.tv_nsec) = (time.secs, time.nanos);
        stamp
    };
    stat.stx_mask = libc::STATX_BASIC_STATS;
    stat.stx_blksize = BLOCK as u32;
    stat.stx_nlink = attr.links;
    stat.stx_uid = attr.uid.0;
    stat.stx_gid = attr.gid.0;
    stat.stx_mode = (type_bits(attr.kind) | u32::from(attr.mode)) as u16;
    stat.stx_ino = attr.id.0;
    stat.stx_size = attr.size;
    stat.stx_blocks = attr.buffered.div_ceil(SECTOR);
    (stat.stx_atime, stat.stx_mtime, stat.stx_ctime) = (time(attr.atime), time(attr.mtime), time(attr.ctime));
    (stat.stx_dev_major, stat.stx_dev_minor) = DEVICE;
    (stat.stx_rdev_major, stat.stx_rdev_minor) = device(attr.kind);
    stat
}

/// Rejects flags other than the known ones.
fn known(flags: c_int, known: c_int) -> Outcome<()> {
    if flags & !known == 0 { Ok(()) } else { fail(libc::EINVAL) }
}

pub(crate) fn at(dirfd: c_int, path: *const c_char, into: *mut Stat, flags: c_int) -> Outcome<c_int> {
    let mut quiet = None;
    let subject = subject_in(&mut quiet, dirfd, path, flags)?;
    known(flags, NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH)?;
    let attr = subject.into_attr(flags & NOFOLLOW == 0)?;
    mem::give(into, classic(&attr))?;
    Ok(0)
}

pub(crate) fn of(fd: c_int, into: *mut Stat) -> Outcome<c_int> {
    let attr = ours(fd)?.attr()?;
    mem::give(into, classic(&attr))?;
    Ok(0)
}

pub(crate) fn extended_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut Statx,
) -> Outcome<c_int> {
    const RESERVED: c_uint = 1 << 31;
    let mut quiet = None;
    let subject = subject_in(&mut quiet, dirfd, path, flags)?;
    known(flags, NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | libc::AT_STATX_SYNC_TYPE)?;
    if mask & RESERVED != 0 {
        return fail(libc::EINVAL);
    }
    let attr = subject.into_attr(flags & libc::AT_SYMLINK_NOFOLLOW == 0)?;
    mem::give(into, extended(&attr))?;
    Ok(0)
}

pub(crate) fn access_at(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Outcome<c_int> {
    let who = if flags & libc::AT_EACCESS != 0 { Credentials::for_files } else { Credentials::real };
    access_as(who, dirfd, path, mode, flags)
}

/// Checks access for one of the identities in the calling thread's credentials.
fn access_as(
    who: fn(&Credentials) -> Identity,
    dirfd: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> Outcome<c_int> {
    let subject = subject(dirfd, path, flags)?;
    known(mode, libc::R_OK | libc::W_OK | libc::X_OK)?;
    known(flags, NOFOLLOW | libc::AT_EACCESS | libc::AT_EMPTY_PATH)?;
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    // That identity must also be able to search every directory of the path.
    let now = Credentials::read();
    let who = who(&now);
    let attr = match who == now.identity {
        true => subject.into_attr(follow)?,
        false => engine::run_as(&who, || subject.into_attr(follow))??,
    };
    let wanted = Access {
        read: mode & libc::R_OK != 0,
        write: mode & libc::W_OK != 0,
        execute: mode & libc::X_OK != 0,
    };
    match may(&who, &attr, wanted) {
        true => Ok(0),
        false => fail(libc::EACCES),
    }
}

/// The file at a place, if this process may execute it.
pub(crate) fn runnable(place: &crate::place::Place) -> Outcome<FileId> {
    let attr = place.find(true)?;
    if may_run(&attr) { Ok(attr.id) } else { fail(libc::EACCES) }
}

/// Whether this process may execute a file.
pub(crate) fn may_run(attr: &Attr) -> bool {
    attr.kind == FileKind::File && may(&Credentials::read().identity, attr, Access::EXECUTE)
}

struct Space {
    blocks: u64,
    free: u64,
    files: u64,
}

const FS_BLOCK: u64 = 4096;
/// The number of files is limited only by memory, but programs expect a number.
const MOST_FILES: u64 = 1 << 32;

fn space() -> Outcome<Space> {
    let usage = engine::run(|engine| engine.client().statfs())?;
    let free = usage.capacity.saturating_sub(usage.live);
    Ok(Space { blocks: usage.capacity / FS_BLOCK, free: free / FS_BLOCK, files: usage.files })
}

fn there(subject: Outcome<Subject>) -> Outcome<()> {
    subject?.attr(true).map(drop)
}

pub(crate) fn fill_statfs(subject: Outcome<Subject>, into: *mut StatFs) -> Outcome<c_int> {
    there(subject)?;
    let space = space()?;
    // SAFETY: a structure of integers.
    let mut stat: StatFs = unsafe { std::mem::zeroed() };
    stat.f_type = MAGIC;
    stat.f_bsize = FS_BLOCK as i64;
    (stat.f_blocks, stat.f_bfree, stat.f_bavail) = (space.blocks, space.free, space.free);
    (stat.f_files, stat.f_ffree) = (MOST_FILES, MOST_FILES - space.files.min(MOST_FILES));
    stat.f_namelen = NAME_MAX as i64;
    stat.f_frsize = FS_BLOCK as i64;
    mem::give(into, stat)?;
    Ok(0)
}

fn fill_statvfs(subject: Outcome<Subject>, into: *mut StatVfs) -> Outcome<c_int> {
    there(subject)?;
    let space = space()?;
    // SAFETY: a structure of integers.
    let mut stat: StatVfs = unsafe { std::mem::zeroed() };
    (stat.f_bsize, stat.f_frsize) = (FS_BLOCK, FS_BLOCK);
    (stat.f_blocks, stat.f_bfree, stat.f_bavail) = (space.blocks, space.free, space.free);
    let free = MOST_FILES - space.files.min(MOST_FILES);
    (stat.f_files, stat.f_ffree, stat.f_favail) = (MOST_FILES, free, free);
    stat.f_fsid = u64::from(DEVICE.1);
    stat.f_flag = libc::ST_NOSUID | libc::ST_NODEV;
    stat.f_namemax = NAME_MAX;
    mem::give(into, stat)?;
    Ok(0)
}

pub(crate) fn by_path(path: *const c_char) -> Outcome<Subject> {
    subject(libc::AT_FDCWD, path, 0)
}

pub(crate) fn by_fd(fd: c_int) -> Outcome<Subject> {
    ours(fd).map(Subject::Open)
}

/// A limit of the file system (`pathconf`).
fn limit(subject: Outcome<Subject>, name: c_int) -> Outcome<i64> {
    match &subject {
        Err(Stop::Foreign | Stop::Outside(_)) => {}
        // The C library checks the name first.
        _ if !(libc::_PC_LINK_MAX..=libc::_PC_2_SYMLINKS).contains(&name) => return fail(libc::EINVAL),
        _ => {}
    }
    let attr = subject?.into_attr(true)?;
    match name {
        // -1 without an error: not supported.
        libc::_PC_ASYNC_IO => Ok(if attr.kind == FileKind::File { 1 } else { -1 }),
        libc::_PC_REC_MIN_XFER_SIZE | libc::_PC_REC_XFER_ALIGN | libc::_PC_ALLOC_SIZE_MIN => {
            Ok(FS_BLOCK as i64)
        }
        libc::_PC_NAME_MAX => Ok(NAME_MAX as i64),
        libc::_PC_LINK_MAX => Ok(1024),
        libc::_PC_FILESIZEBITS => Ok(64),
        libc::_PC_SYMLINK_MAX => Ok(4095),
        libc::_PC_2_SYMLINKS | libc::_PC_NO_TRUNC | libc::_PC_CHOWN_RESTRICTED => Ok(1),
        // The other limits do not depend on the file system.
        _ => Err(Stop::Foreign),
    }
}

const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
const HERE: c_int = libc::AT_FDCWD;

hook::hooks! {
    fn [stat, stat64](path: *const c_char, into: *mut Stat) -> c_int, at path => at(HERE, path, into, 0);
    fn [lstat, lstat64](path: *const c_char, into: *mut Stat) -> c_int, at path => at(HERE, path, into, NOFOLLOW);
    fn [fstat, fstat64](fd: c_int, into: *mut Stat) -> c_int => of(fd, into);
    fn [fstatat, fstatat64](dirfd: c_int, path: *const c_char, into: *mut Stat, flags: c_int) -> c_int, at path =>
        at(dirfd, path, into, flags);
    fn [__xstat, __xstat64](_version: c_int, path: *const c_char, into: *mut Stat) -> c_int, at path =>
        at(HERE, path, into, 0);
    fn [__lxstat, __lxstat64](_version: c_int, path: *const c_char, into: *mut Stat) -> c_int, at path =>
        at(HERE, path, into, NOFOLLOW);
    fn [__fxstat, __fxstat64](_version: c_int, fd: c_int, into: *mut Stat) -> c_int => of(fd, into);
    fn [__fxstatat, __fxstatat64](_version: c_int, dirfd: c_int, path: *const c_char, into: *mut Stat, flags: c_int)
        -> c_int, at path => at(dirfd, path, into, flags);
    fn [statx](dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int, at path =>
        extended_at(dirfd, path, flags, mask, into);
    fn [access](path: *const c_char, mode: c_int) -> c_int, at path => access_at(HERE, path, mode, 0);
    fn [eaccess, euidaccess](path: *const c_char, mode: c_int) -> c_int, at path =>
        access_as(Credentials::effective, HERE, path, mode, 0);
    fn [faccessat](dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, at path =>
        access_at(dirfd, path, mode, flags);
    fn [statfs, statfs64, __statfs](path: *const c_char, into: *mut StatFs) -> c_int, at path =>
        fill_statfs(by_path(path), into);
    fn [fstatfs, fstatfs64](fd: c_int, into: *mut StatFs) -> c_int => fill_statfs(by_fd(fd), into);
    fn [statvfs, statvfs64](path: *const c_char, into: *mut StatVfs) -> c_int, at path =>
        fill_statvfs(by_path(path), into);
    fn [fstatvfs, fstatvfs64](fd: c_int, into: *mut StatVfs) -> c_int => fill_statvfs(by_fd(fd), into);
    fn [pathconf](path: *const c_char, name: c_int) -> i64, at path => limit(by_path(path), name);
    fn [fpathconf](fd: c_int, name: c_int) -> i64 => limit(by_fd(fd), name);
}
