//! Functions that Forebay does not support, and that fail at once: watching files, file handles, and tree walks by the
//! C library.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::place::{locate, ours};
use crate::{dispatch, hook, mem, stat};
use forebay_model::FileKind;
use libc::{c_char, c_int, c_uint, c_void};

/// Forebay does not report changes of files.
pub(crate) fn watch(path: *const c_char) -> Outcome<c_int> {
    locate(libc::AT_FDCWD, path)?.find(true)?;
    fail(libc::EOPNOTSUPP)
}

/// Files have no handles by which they could be opened again.
pub(crate) fn at(dirfd: c_int, path: *const c_char) -> Outcome<c_int> {
    if path.is_null() {
        ours(dirfd)?;
    } else {
        locate(dirfd, path)?;
    }
    fail(libc::EOPNOTSUPP)
}

type Walk = unsafe extern "C" fn(*const *const c_char, c_int, *const c_void) -> *mut c_void;

static REAL_WALK: hook::Real = hook::Real::new("fts_open\0");

/// `fts_open` lists directories bypassing this library, unless every system call is intercepted.
fn walk(paths: *const *const c_char, options: c_int, order: *const c_void) -> Outcome<*mut c_void> {
    if let (true, Some(real)) = (dispatch::is_on(), REAL_WALK.address()) {
        // SAFETY: the C library's function of this name has this signature.
        let opened = dispatch::waiting(|| unsafe {
            let real: Walk = std::mem::transmute(real);
            real(paths, options, order)
        });
        return if opened.is_null() { Err(Errno::last().into()) } else { Ok(opened) };
    }
    for at in 0.. {
        // The C library reports a list that cannot be read.
        let Ok(path) = mem::take(paths.wrapping_add(at)) else { break };
        if path.is_null() {
            break;
        }
        match locate(libc::AT_FDCWD, path) {
            Err(Stop::Foreign) => {}
            Err(stop) => return Err(stop),
            Ok(_) => return fail(libc::EOPNOTSUPP),
        }
    }
    Err(Stop::Foreign)
}

/// A process with its root inside Forebay would not find the files it needs.
pub(crate) fn change_root(path: *const c_char) -> Outcome<c_int> {
    let attr = locate(libc::AT_FDCWD, path)?.find(true)?;
    if attr.kind != FileKind::Directory {
        return fail(libc::ENOTDIR);
    }
    crate::names::may_search(attr.id)?;
    fail(if rustix::process::geteuid().is_root() { libc::EOPNOTSUPP } else { libc::EPERM })
}

/// `ftok`: a key from the attributes of a file.
fn key(path: *const c_char, project: c_int) -> Outcome<c_int> {
    // SAFETY: a structure of integers.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    stat::at(libc::AT_FDCWD, path, &raw mut found, 0)?;
    Ok((found.st_ino & 0xffff) as c_int | ((found.st_dev & 0xff) << 16) as c_int | (project & 0xff) << 24)
}

hook::hooks! {
    fn [inotify_add_watch](_fd: c_int, path: *const c_char, _mask: u32) -> c_int, at path => watch(path);
    fn [fanotify_mark](_fd: c_int, _flags: c_uint, _mask: u64, dirfd: c_int, path: *const c_char) -> c_int, at path =>
        at(dirfd, path);
    fn [name_to_handle_at](dirfd: c_int, path: *const c_char, _handle: *mut c_void, _mount: *mut c_int, _flags: c_int)
        -> c_int, at path => at(dirfd, path);
    fn [fts_open, fts64_open](paths: *const *const c_char, options: c_int, order: *const c_void) -> *mut c_void =>
        walk(paths, options, order);
    fn [chroot](path: *const c_char) -> c_int, at path => change_root(path);
    fn [ftok](path: *const c_char, project: c_int) -> c_int, at path => key(path, project);
}
