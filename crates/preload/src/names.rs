//! Making, removing and moving names.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::opening::masked;
use crate::place::{Place, Subject, locate, locate_in, seen_entry, subject};
use crate::quiet::Quiet;
use crate::{engine, hook, mem};
use forebay_client::{ById, RenameMode};
use forebay_model::{ErrorKind, FileId, FileKind, Result};
use libc::{c_char, c_int, c_uint, mode_t, size_t, ssize_t};

const HERE: c_int = libc::AT_FDCWD;

/// Whether this process may pass through a directory.
pub(crate) fn may_search(dir: FileId) -> Outcome<()> {
    engine::run(|engine| engine.by_id().step(dir, b"./.", true))?;
    Ok(())
}

pub(crate) fn make_dir(dirfd: c_int, path: *const c_char, mode: mode_t) -> Outcome<c_int> {
    let entry = locate(dirfd, path)?.entry(ErrorKind::Exists)?;
    let mode = masked(mode & 0o1777);
    engine::run(|engine| engine.by_id().mkdir(entry.dir, entry.name, mode))?;
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
    engine::run(|engine| engine.by_id().rmdir(entry.dir, entry.name))?;
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
    engine::run(|engine| engine.by_id().unlink(entry.dir, entry.name))?;
    Ok(0)
}

/// Removes a name from a directory that is known without asking; false if none is, or it is gone.
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

/// Two places, of which both or none must be ours.
fn both(one: Outcome<Place>, two: Outcome<Place>) -> Outcome<(Place, Place)> {
    match (one, two) {
        (Ok(one), Ok(two)) => Ok((one, two)),
        (Err(Stop::Foreign), Err(Stop::Foreign)) => Err(Stop::Foreign),
        (Err(Stop::Errno(errno)), _) | (_, Err(Stop::Errno(errno))) => Err(Stop::Errno(errno)),
        _ => fail(libc::EXDEV),
    }
}

/// Both paths can be read, or one of them is ours and the other a fault. What is not ours is the kernel's to refuse.
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
    let (from, to) = both(locate(from_fd, from), locate(to_fd, to))?;
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
    engine::run(|engine| engine.by_id().rename(old.dir, old.name, new.dir, new.name, mode))?;
    Ok(0)
}

pub(crate) fn link_at(
    from_fd: c_int,
    from: *const c_char,
    to_fd: c_int,
    to: *const c_char,
    flags: c_int,
) -> Outcome<c_int> {
    readable(from, to)?;
    let file = match subject(from_fd, from, flags) {
        Ok(Subject::Open(open)) => open.id(),
        Ok(Subject::Place(from)) => {
            let (from, _) = both(Ok(from), locate(to_fd, to))?;
            let attr = match from.find(flags & libc::AT_SYMLINK_FOLLOW != 0) {
                Err(Stop::Outside(_)) => return fail(libc::EXDEV),
                found => found?,
            };
            if attr.kind == FileKind::Directory {
                return fail(libc::EPERM);
            }
            attr.id
        }
        Err(stop) => {
            both(Err(stop), locate(to_fd, to))?;
            return Err(Stop::Foreign);
        }
    };
    let entry = locate(to_fd, to)?.own_entry(ErrorKind::Exists)?;
    engine::run(|engine| engine.by_id().link(file, entry.dir, entry.name))?;
    Ok(0)
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
    engine::run(|engine| engine.by_id().symlink(entry.dir, entry.name, target))?;
    Ok(0)
}

pub(crate) fn read_link_at(
    dirfd: c_int,
    path: *const c_char,
    into: *mut c_char,
    size: size_t,
) -> Outcome<ssize_t> {
    // An empty path means a link opened with `O_PATH`.
    let subject = subject(dirfd, path, libc::AT_EMPTY_PATH)?;
    if size == 0 {
        return fail(libc::EINVAL);
    }
    let attr = subject.attr(false)?;
    if attr.kind != FileKind::Symlink {
        return fail(libc::EINVAL);
    }
    let target = engine::run(|engine| engine.by_id().read_link(attr.id))?;
    let count = target.len().min(size);
    mem::writable(into.cast(), count)?.copy_from_slice(&target[..count]);
    Ok(count as ssize_t)
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
