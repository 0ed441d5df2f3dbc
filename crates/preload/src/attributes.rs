//! Changing modes, owners and times; extended attributes.

use crate::backing::Kind;
use crate::errno::{Errno, Outcome, fail};
use crate::place::{Subject, ours, subject};
use crate::{engine, hook, mem};
use forebay_client::XattrMode;
use forebay_model::{Change, ErrorKind, FileId, Gid, Name, SetTime, Time, Uid};
use libc::{c_char, c_int, c_void, gid_t, mode_t, size_t, ssize_t, timespec, timeval, uid_t};

const HERE: c_int = libc::AT_FDCWD;
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

/// The file at a path.
pub(crate) fn file_at(dirfd: c_int, path: *const c_char, flags: c_int) -> Outcome<FileId> {
    subject(dirfd, path, flags)?.id(flags & NOFOLLOW == 0)
}

/// The file of a descriptor, opened at the service so that it is found even if its name is gone.
pub(crate) fn file_of(fd: c_int) -> Outcome<FileId> {
    let open = ours(fd)?;
    match open.kind() {
        Kind::Path => return fail(libc::EBADF),
        Kind::File => drop(open.data()?),
        Kind::Directory => {}
    }
    Ok(open.id())
}

pub(crate) fn change(file: Outcome<FileId>, change: Change) -> Outcome<c_int> {
    let file = file?;
    engine::run(|engine| engine.by_id().set_attr(file, change))?;
    Ok(0)
}

pub(crate) fn mode(mode: mode_t) -> Change {
    Change { mode: Some((mode & 0o7777) as u16), ..Change::default() }
}

pub(crate) fn owner(uid: uid_t, gid: gid_t) -> Change {
    let (uid, gid) = ((uid != uid_t::MAX).then_some(Uid(uid)), (gid != gid_t::MAX).then_some(Gid(gid)));
    Change { uid, gid, ..Change::default() }
}

fn set_time(time: timespec) -> Outcome<Option<SetTime>> {
    match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        nanos @ 0..1_000_000_000 => Ok(Some(SetTime::To(Time { secs: time.tv_sec, nanos: nanos as u32 }))),
        _ => fail(libc::EINVAL),
    }
}

pub(crate) fn times(list: *const timespec) -> Outcome<Change> {
    if list.is_null() {
        let now = Some(SetTime::Now);
        return Ok(Change { atime: now, mtime: now, ..Change::default() });
    }
    let [atime, mtime] = mem::take(list.cast::<[timespec; 2]>())?;
    Ok(Change { atime: set_time(atime)?, mtime: set_time(mtime)?, ..Change::default() })
}

pub(crate) fn old_times(list: *const timeval) -> Outcome<Change> {
    if list.is_null() {
        return times(std::ptr::null());
    }
    let pair = mem::take(list.cast::<[timeval; 2]>())?;
    let fine = |time: timeval| match time.tv_usec {
        micros @ 0..1_000_000 => Ok(timespec { tv_sec: time.tv_sec, tv_nsec: micros * 1000 }),
        _ => fail(libc::EINVAL),
    };
    times([fine(pair[0])?, fine(pair[1])?].as_ptr())
}

pub(crate) fn oldest_times(pair: *const libc::utimbuf) -> Outcome<Change> {
    if pair.is_null() {
        return times(std::ptr::null());
    }
    let pair = mem::take(pair)?;
    let coarse = |secs| timespec { tv_sec: secs, tv_nsec: 0 };
    times([coarse(pair.actime), coarse(pair.modtime)].as_ptr())
}

/// `utimensat` without a path applies to the descriptor.
pub(crate) fn times_at(
    dirfd: c_int,
    path: *const c_char,
    list: *const timespec,
    flags: c_int,
) -> Outcome<c_int> {
    if path.is_null() && dirfd != HERE {
        return change(file_of(dirfd), times(list)?);
    }
    let file = file_at(dirfd, path, flags)?;
    change(Ok(file), times(list)?)
}

/// The name of an extended attribute.
fn attribute(name: *const c_char) -> Outcome<Name> {
    let name = mem::path(name).ok_or(Errno(libc::EFAULT))?;
    if name.is_empty() || name.len() > 255 {
        return fail(libc::ERANGE);
    }
    if name.starts_with(b"system.") {
        // Programs that look for ACLs take this error to mean that there are none.
        return fail(libc::EOPNOTSUPP);
    }
    Ok(Name::new(name).map_err(|_| ErrorKind::Unsupported)?)
}

fn hand_out(value: &[u8], into: *mut c_void, size: size_t) -> Outcome<ssize_t> {
    if size != 0 {
        if size < value.len() {
            return fail(libc::ERANGE);
        }
        mem::writable(into, value.len())?.copy_from_slice(value);
    }
    Ok(value.len() as ssize_t)
}

pub(crate) fn get(
    file: Outcome<FileId>,
    name: *const c_char,
    into: *mut c_void,
    size: size_t,
) -> Outcome<ssize_t> {
    let file = file?;
    let name = match attribute(name) {
        Err(crate::errno::Stop::Errno(Errno(libc::EOPNOTSUPP))) => return fail(libc::ENODATA),
        name => name?,
    };
    let value = engine::run(|engine| engine.by_id().get_xattr(file, name))?;
    hand_out(&value, into, size)
}

pub(crate) fn set(
    file: Outcome<FileId>,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
) -> Outcome<c_int> {
    let (file, name) = (file?, attribute(name)?);
    let mode = match flags {
        0 => XattrMode::Any,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return fail(libc::EINVAL),
    };
    if size > 64 << 10 {
        return fail(libc::E2BIG);
    }
    let value = mem::readable(value, size)?;
    engine::run(|engine| engine.by_id().set_xattr(file, name, value, mode))?;
    Ok(0)
}

pub(crate) fn list(file: Outcome<FileId>, into: *mut c_char, size: size_t) -> Outcome<ssize_t> {
    let file = file?;
    let names = engine::run(|engine| engine.by_id().list_xattr(file))?;
    let all: Vec<u8> = names.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect();
    hand_out(&all, into.cast(), size)
}

pub(crate) fn remove(file: Outcome<FileId>, name: *const c_char) -> Outcome<c_int> {
    let (file, name) = (file?, attribute(name)?);
    engine::run(|engine| engine.by_id().remove_xattr(file, name))?;
    Ok(0)
}

/// Resolves the file before it reads the other arguments: they matter only if the path is inside Forebay.
pub(crate) fn with(file: Outcome<FileId>, what: impl FnOnce() -> Outcome<Change>) -> Outcome<c_int> {
    let file = file?;
    change(Ok(file), what()?)
}

/// As on Linux, the mode of a symbolic link cannot be changed.
pub(crate) fn mode_at(dirfd: c_int, path: *const c_char, bits: mode_t, flags: c_int) -> Outcome<c_int> {
    let subject = subject(dirfd, path, flags)?;
    if flags & !(NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return fail(libc::EINVAL);
    }
    if flags & NOFOLLOW != 0 && subject.attr(false)?.kind == forebay_model::FileKind::Symlink {
        return fail(libc::EOPNOTSUPP);
    }
    match &subject {
        Subject::Open(open) => change(Ok(open.id()), mode(bits)),
        Subject::Place(_) => change(subject.id(true), mode(bits)),
    }
}

hook::hooks! {
    fn [chmod](path: *const c_char, bits: mode_t) -> c_int, at path => change(file_at(HERE, path, 0), mode(bits));
    fn [lchmod](path: *const c_char, bits: mode_t) -> c_int, at path => mode_at(HERE, path, bits, NOFOLLOW);
    fn [fchmod](fd: c_int, bits: mode_t) -> c_int => change(file_of(fd), mode(bits));
    fn [fchmodat](dirfd: c_int, path: *const c_char, bits: mode_t, flags: c_int) -> c_int, at path =>
        mode_at(dirfd, path, bits, flags);
    fn [chown](path: *const c_char, uid: uid_t, gid: gid_t) -> c_int, at path =>
        change(file_at(HERE, path, 0), owner(uid, gid));
    fn [lchown](path: *const c_char, uid: uid_t, gid: gid_t) -> c_int, at path =>
        change(file_at(HERE, path, NOFOLLOW), owner(uid, gid));
    fn [fchown](fd: c_int, uid: uid_t, gid: gid_t) -> c_int => change(file_of(fd), owner(uid, gid));
    fn [fchownat](dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int, at path =>
        change(file_at(dirfd, path, flags), owner(uid, gid));
    fn [utimensat](dirfd: c_int, path: *const c_char, list: *const timespec, flags: c_int) -> c_int, at path =>
        times_at(dirfd, path, list, flags);
    fn [futimens](fd: c_int, list: *const timespec) -> c_int => with(file_of(fd), || times(list));
    fn [utimes](path: *const c_char, list: *const timeval) -> c_int, at path =>
        with(file_at(HERE, path, 0), || old_times(list));
    fn [lutimes](path: *const c_char, list: *const timeval) -> c_int, at path =>
        with(file_at(HERE, path, NOFOLLOW), || old_times(list));
    fn [futimes](fd: c_int, list: *const timeval) -> c_int => with(file_of(fd), || old_times(list));
    fn [futimesat](dirfd: c_int, path: *const c_char, list: *const timeval) -> c_int, at path =>
        with(file_at(dirfd, path, 0), || old_times(list));
    fn [utime](path: *const c_char, pair: *const libc::utimbuf) -> c_int, at path =>
        with(file_at(HERE, path, 0), || oldest_times(pair));
    fn [getxattr](path: *const c_char, name: *const c_char, into: *mut c_void, size: size_t) -> ssize_t, at path =>
        get(file_at(HERE, path, 0), name, into, size);
    fn [lgetxattr](path: *const c_char, name: *const c_char, into: *mut c_void, size: size_t) -> ssize_t, at path =>
        get(file_at(HERE, path, NOFOLLOW), name, into, size);
    fn [fgetxattr](fd: c_int, name: *const c_char, into: *mut c_void, size: size_t) -> ssize_t =>
        get(file_of(fd), name, into, size);
    fn [setxattr](path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int)
        -> c_int, at path => set(file_at(HERE, path, 0), name, value, size, flags);
    fn [lsetxattr](path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int)
        -> c_int, at path => set(file_at(HERE, path, NOFOLLOW), name, value, size, flags);
    fn [fsetxattr](fd: c_int, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int =>
        set(file_of(fd), name, value, size, flags);
    fn [listxattr](path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t, at path =>
        list(file_at(HERE, path, 0), into, size);
    fn [llistxattr](path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t, at path =>
        list(file_at(HERE, path, NOFOLLOW), into, size);
    fn [flistxattr](fd: c_int, into: *mut c_char, size: size_t) -> ssize_t => list(file_of(fd), into, size);
    fn [removexattr](path: *const c_char, name: *const c_char) -> c_int, at path =>
        remove(file_at(HERE, path, 0), name);
    fn [lremovexattr](path: *const c_char, name: *const c_char) -> c_int, at path =>
        remove(file_at(HERE, path, NOFOLLOW), name);
    fn [fremovexattr](fd: c_int, name: *const c_char) -> c_int => remove(file_of(fd), name);
}
