//! Creating, removing and renaming names.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::open::Open;
use crate::opening::{LINKABLE, masked};
use crate::place::{Place, Subject, by_descriptor, found, locate, locate_in, seen_entry, subject};
use crate::quiet::Quiet;
use crate::{engine, hook, mem};
use forebay_client::{ById, RenameMode};
use forebay_model::{ErrorKind, FileId, FileKind, Result};
use libc::{c_char, c_int, c_uint, mode_t, size_t, ssize_t};
use std::ffi::CString;

const HERE: c_int = libc::AT_FDCWD;

/// Checks that this process may search a directory.
pub(crate) fn may_search(dir: FileId) -> Outcome<()> {
    engine::run(|engine| engine.by_id().step(dir, b"./.", true))?;
    Ok(())
}

pub(crate) fn make_dir(dirfd: c_int, path: *const c_char, mode: mode_t) -> Outcome<c_int> {
    let entry = locate(dirfd, path)?.entry(ErrorKind::Exists)?;
    let mode = masked(mode & 0o1777);
    found(engine::run(|engine| engine.by_id().mkdir(entry.dir, entry.name, mode)))?;
    Ok(0)
}

fn remove_dir(place: &Place) -> Outcome<c_int> {
    let dots = place.rest.split(|&byte| byte == b'/').rfind(|part| !part.is_empty());
    let none = match dots {
        Some(b".") => ErrorKind::Invalid,
        Some(b"..") => ErrorKind::NotEmpty,
        _ => ErrorKind::Busy,
    };
    let entry = place.entry(none)?;
    found(engine::run(|engine| engine.by_id().rmdir(entry.dir, entry.name)))?;
    Ok(0)
}

fn remove_file(place: &Place) -> Outcome<c_int> {
    let _quiet = Quiet::begin();
    if engine::run(|engine| remove_seen(engine.by_id(), place))? {
        return Ok(0);
    }
    let entry = place.entry(ErrorKind::IsDirectory)?;
    if entry.slash {
        let kind = place.find(false)?.kind;
        return fail(if kind == FileKind::Directory { libc::EISDIR } else { libc::ENOTDIR });
    }
    found(engine::run(|engine| engine.by_id().unlink(entry.dir, entry.name)))?;
    Ok(0)
}

/// Removes a name from a directory that the client knows without a request; false if it knows none, or the directory is
/// gone.
async fn remove_seen(by_id: &ById, place: &Place) -> Result<bool> {
    let Some((dir, name)) = seen_entry(by_id, place.dir, &place.rest) else { return Ok(false) };
    match by_id.unlink(dir, name).await {
        Err(error) if error.kind() == ErrorKind::Stale => Ok(false),
        removed => removed.map(|()| true),
    }
}

fn remove_at_once(place: Place) -> Outcome<c_int> {
    let _quiet = Quiet::begin();
    let removed = remove_file(&place);
    drop(place);
    removed
}

pub(crate) fn remove_at(dirfd: c_int, path: *const c_char, flags: c_int) -> Outcome<c_int> {
    let mut quiet = None;
    let place = locate_in(&mut quiet, dirfd, path)?;
    match flags {
        0 => remove_at_once(place),
        libc::AT_REMOVEDIR => remove_dir(&place),
        _ => fail(libc::EINVAL),
    }
}

fn remove_any(path: *const c_char) -> Outcome<c_int> {
    let place = locate(HERE, path)?;
    match remove_file(&place) {
        Err(Stop::Errno(Errno(libc::EISDIR))) => remove_dir(&place),
        other => other,
    }
}

/// Two places, of which both or none must be inside Forebay.
fn both(one: Outcome<Place>, two: Outcome<Place>) -> Outcome<(Place, Place)> {
    match (one, two) {
        (Ok(one), Ok(two)) => Ok((one, two)),
        (Err(Stop::Foreign), Err(Stop::Foreign)) => Err(Stop::Foreign),
        (Err(Stop::Errno(errno)), _) | (_, Err(Stop::Errno(errno))) => Err(Stop::Errno(errno)),
        _ => fail(libc::EXDEV),
    }
}

/// Errors of the path outside Forebay take precedence over `EXDEV`.
fn foreign_fault<T>(stop: Stop, from: (c_int, *const c_char), to: (c_int, *const c_char)) -> Outcome<T> {
    if let Stop::Errno(Errno(libc::EXDEV)) = stop {
        if matches!(locate(from.0, from.1), Err(Stop::Foreign)) {
            look_at(from.0, from.1)?;
        }
        if let (Err(Stop::Foreign), Some(text)) = (locate(to.0, to.1), mem::path(to.1)) {
            let parent = crate::path::split(text).map_or(text, |(parent, ..)| parent);
            let parent = CString::new(if parent.is_empty() { b"." } else { parent }).unwrap_or_default();
            look_at(to.0, parent.as_ptr())?;
        }
    }
    Err(stop)
}

/// Checks that the kernel finds a file at a path.
fn look_at(dirfd: c_int, path: *const c_char) -> Outcome<()> {
    // SAFETY: a structure of integers.
    let mut attributes: libc::stat = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW as usize;
    let args = [dirfd as usize, path as usize, &raw mut attributes as usize, flags, 0, 0];
    // SAFETY: the kernel reads a path that can be read, and writes the structure.
    unsafe { try_system_call(libc::SYS_newfstatat, args) }?;
    Ok(())
}

/// Checks that both paths can be read. Fails only if one is inside Forebay; otherwise the kernel reports the fault.
fn readable(one: *const c_char, two: *const c_char) -> Outcome<()> {
    let (first, second) = (mem::path(one), mem::path(two));
    if first.is_some() && second.is_some() {
        return Ok(());
    }
    let known = if first.is_some() { one } else { two };
    locate(HERE, known)?;
    fail(libc::EFAULT)
}

pub(crate) fn rename_at(
    from_fd: c_int,
    from: *const c_char,
    to_fd: c_int,
    to: *const c_char,
    flags: c_uint,
) -> Outcome<c_int> {
    readable(from, to)?;
    let (from, to) = both(locate(from_fd, from), locate(to_fd, to))
        .or_else(|stop| foreign_fault(stop, (from_fd, from), (to_fd, to)))?;
    let mode = match flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::NoReplace,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        _ => return fail(libc::EINVAL),
    };
    let (old, new) = (from.own_entry(ErrorKind::Busy)?, to.own_entry(ErrorKind::Busy)?);
    if old.slash || new.slash {
        let attr = engine::run(|engine| {
            let (dir, name) = (old.dir, old.name.as_bytes().to_vec());
            async move { engine.by_id().walk(dir, &name, false).await }
        })?;
        if attr.kind != FileKind::Directory {
            return fail(libc::ENOTDIR);
        }
    }
    found(engine::run(|engine| engine.by_id().rename(old.dir, old.name, new.dir, new.name, mode)))?;
    Ok(0)
}

/// The file of a descriptor that is to be linked, and whether the link is its first name.
fn linkable(open: &Open) -> Outcome<(FileId, bool)> {
    let attr = open.attr()?;
    match attr.kind {
        FileKind::Directory => fail(libc::EPERM),
        // A file that has lost its last name cannot be linked again.
        _ if attr.links == 0 && open.access & LINKABLE == 0 => fail(libc::ENOENT),
        _ => Ok((attr.id, attr.links == 0)),
    }
}

pub(crate) fn link_at(
    from_fd: c_int,
    from: *const c_char,
    to_fd: c_int,
    to: *const c_char,
    flags: c_int,
) -> Outcome<c_int> {
    readable(from, to)?;
    if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        locate(from_fd, from).or_else(|_| locate(to_fd, to))?;
        return fail(libc::EINVAL);
    }
    let start = from;
    let named = || by_descriptor(from).filter(|_| flags & libc::AT_SYMLINK_FOLLOW != 0);
    let (file, first) = match subject(from_fd, from, flags) {
        Ok(Subject::Open(open)) => linkable(&open)?,
        Ok(Subject::Place(from)) => {
            let (from, _) = both(Ok(from), locate(to_fd, to))
                .or_else(|stop| foreign_fault(stop, (from_fd, start), (to_fd, to)))?;
            let attr = match from.find(flags & libc::AT_SYMLINK_FOLLOW != 0) {
                Err(Stop::Outside(_)) => return fail(libc::EXDEV),
                found => found?,
            };
            if attr.kind == FileKind::Directory {
                return fail(libc::EPERM);
            }
            (attr.id, false)
        }
        Err(stop) => match named() {
            Some(open) => linkable(&open)?,
            None => {
                both(Err(stop), locate(to_fd, to))
                    .or_else(|stop| foreign_fault(stop, (from_fd, start), (to_fd, to)))?;
                return Err(Stop::Foreign);
            }
        },
    };
    let entry = locate(to_fd, to)?.own_entry(ErrorKind::Exists)?;
    match engine::run(|engine| engine.by_id().link(file, entry.dir, entry.name)) {
        // The directory exists: the file's server is not the server that holds the new name.
        Err(Errno(libc::ENOENT)) if first => fail(libc::EOPNOTSUPP),
        linked => found(linked.map(|_| 0)),
    }
}

pub(crate) fn symlink_at(target: *const c_char, dirfd: c_int, path: *const c_char) -> Outcome<c_int> {
    let place = locate(dirfd, path)?;
    let target = mem::path(target).ok_or(Errno(libc::EFAULT))?;
    if target.is_empty() {
        return fail(libc::ENOENT);
    }
    if target.len() >= mem::PATH_MAX {
        return fail(libc::ENAMETOOLONG);
    }
    let entry = place.entry(ErrorKind::Exists)?;
    if entry.slash {
        return fail(libc::ENOENT);
    }
    found(engine::run(|engine| engine.by_id().symlink(entry.dir, entry.name, target)))?;
    Ok(0)
}

pub(crate) fn read_link_at(
    dirfd: c_int,
    path: *const c_char,
    into: *mut c_char,
    size: size_t,
) -> Outcome<ssize_t> {
    // An empty path means a symbolic link opened with `O_PATH`.
    let subject = match subject(dirfd, path, libc::AT_EMPTY_PATH) {
        Err(Stop::Foreign) => return read_descriptor_link(path, into, size),
        subject => subject?,
    };
    // The kernel reads the size as a signed number.
    if (size as c_int) <= 0 {
        return fail(libc::EINVAL);
    }
    let attr = subject.attr(false)?;
    if attr.kind != FileKind::Symlink {
        let empty = mem::path(path).is_some_and(<[u8]>::is_empty);
        return fail(if empty { libc::ENOENT } else { libc::EINVAL });
    }
    let target = engine::run(|engine| engine.by_id().read_link(attr.id))?;
    put_target(&target, into, size)
}

fn put_target(target: &[u8], into: *mut c_char, size: size_t) -> Outcome<ssize_t> {
    let count = target.len().min(size);
    mem::writable(into.cast(), count)?.copy_from_slice(&target[..count]);
    Ok(count as ssize_t)
}

/// The path of the open file of a descriptor, for a path such as `/proc/self/fd/7`.
fn read_descriptor_link(path: *const c_char, into: *mut c_char, size: size_t) -> Outcome<ssize_t> {
    let open = by_descriptor(path).ok_or(Stop::Foreign)?;
    if (size as c_int) <= 0 {
        return fail(libc::EINVAL);
    }
    let mut target = crate::path::normal(open.path());
    if open.attr()?.links == 0 {
        target.extend_from_slice(b" (deleted)");
    }
    put_target(&target, into, size)
}

hook::hooks! {
    fn [mkdir](path: *const c_char, mode: mode_t) -> c_int, at path => make_dir(HERE, path, mode);
    fn [mkdirat](dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int, at path => make_dir(dirfd, path, mode);
    fn [rmdir](path: *const c_char) -> c_int, at path => remove_dir(&locate(HERE, path)?);
    fn [unlink](path: *const c_char) -> c_int, at path => remove_at(HERE, path, 0);
    fn [unlinkat](dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, at path => remove_at(dirfd, path, flags);
    fn [remove](path: *const c_char) -> c_int, at path => remove_any(path);
    fn [rename](from: *const c_char, to: *const c_char) -> c_int => rename_at(HERE, from, HERE, to, 0);
    fn [renameat](from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char) -> c_int =>
        rename_at(from_fd, from, to_fd, to, 0);
    fn [renameat2](from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_uint) -> c_int =>
        rename_at(from_fd, from, to_fd, to, flags);
    fn [link](from: *const c_char, to: *const c_char) -> c_int => link_at(HERE, from, HERE, to, 0);
    fn [linkat](from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_int) -> c_int =>
        link_at(from_fd, from, to_fd, to, flags);
    fn [symlink](target: *const c_char, path: *const c_char) -> c_int, at path => symlink_at(target, HERE, path);
    fn [symlinkat](target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int, at path =>
        symlink_at(target, dirfd, path);
    fn [readlink](path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t, at path =>
        read_link_at(HERE, path, into, size);
    fn [readlinkat](dirfd: c_int, path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t, at path =>
        read_link_at(dirfd, path, into, size);
    fn [__readlink_chk](path: *const c_char, into: *mut c_char, size: size_t, _room: size_t) -> ssize_t, at path =>
        read_link_at(HERE, path, into, size);
    fn [__readlinkat_chk](dirfd: c_int, path: *const c_char, into: *mut c_char, size: size_t, _room: size_t)
        -> ssize_t, at path => read_link_at(dirfd, path, into, size);
}
