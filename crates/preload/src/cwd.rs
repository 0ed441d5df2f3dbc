//! A working directory inside Forebay.
//!
//! The kernel cannot have a working directory inside Forebay, so the library sets it to an empty private directory of
//! the user whose path contains the real one: `/run/user/7/.forebay-cwd/fb/run1` means `/fb/run1`. So it survives
//! `exec`, `fork` and `vfork`, and every program with the library can decode it.

use crate::credentials::Credentials;
use crate::errno::{Errno, Outcome, fail};
use crate::lock::Lock;
use crate::place::{Place, locate, ours};
use crate::{backing, hook, mem, path, private, process_state};
use forebay_model::FileKind;
use libc::{c_char, c_int, size_t};
use rustix::fs::{AtFlags, CWD, Mode};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU8, Ordering};

const MARK: &[u8] = b"/.forebay-cwd";

const UNKNOWN: u8 = 0;
const ELSEWHERE: u8 = 1;
const INSIDE: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static HERE: Lock<Vec<u8>> = Lock::new(Vec::new());

/// The working directory, if it is inside Forebay.
pub(crate) fn inside() -> Option<Vec<u8>> {
    if STATE.load(Ordering::Acquire) == UNKNOWN {
        let parked = parked();
        if process_state::is_borrowed() {
            return parked;
        }
        HERE.with(|here| *here = parked.clone().unwrap_or_default());
        STATE.store(if parked.is_some() { INSIDE } else { ELSEWHERE }, Ordering::Release);
    }
    match STATE.load(Ordering::Acquire) {
        // A child forked during a change finds an empty value, and reads the kernel's working directory.
        INSIDE => Some(HERE.with(|here| here.clone())).filter(|here| !here.is_empty()).or_else(parked),
        _ => None,
    }
}

/// Decodes the kernel's working directory.
fn parked() -> Option<Vec<u8>> {
    let real = rustix::process::getcwd(Vec::new()).ok()?;
    let real = real.as_bytes();
    let at = real.windows(MARK.len()).position(|window| window == MARK)?;
    let (mark, here) = real.split_at(at + MARK.len());
    // Accepted if it belongs to a user that this process is or was, or to root, which may have become this user.
    let owner = match rustix::fs::stat(mark) {
        Ok(found) => found.st_uid,
        Err(rustix::io::Errno::ACCESS) => parked_by_root(mark)?,
        Err(_) => return None,
    };
    let now = Credentials::read();
    let mine = owner == 0 || owner == now.identity.uid.0 || now.includes(owner);
    (mine && path::inside(&process_state::config().prefix, here).is_some()).then(|| here.to_vec())
}

/// Root's id, if this is root's private directory and root made the working directory: this process cannot stat its
/// parent.
fn parked_by_root(mark: &[u8]) -> Option<u32> {
    let above = mark.strip_suffix(MARK)?;
    let known = private::places(0).into_iter().flatten().any(|dir| dir.as_os_str().as_bytes() == above);
    let here = rustix::fs::statat(CWD, c"", AtFlags::EMPTY_PATH).ok()?;
    (known && here.st_uid == 0).then_some(0)
}

/// The directory that represents `here` to the kernel; created if it does not exist.
pub(crate) fn local_dir(here: &[u8]) -> Outcome<CString> {
    let mut dir = private::dir()?.as_os_str().as_bytes().to_vec();
    dir.extend_from_slice(MARK);
    let first = dir.len();
    dir.extend_from_slice(here);
    for end in (first..=dir.len()).filter(|&end| end == dir.len() || dir[end] == b'/') {
        match rustix::fs::mkdirat(CWD, &dir[..end], Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(CString::new(dir).map_err(|_| Errno(libc::ENOENT))?)
}

/// Checks that this process may use a place as its working directory.
pub(crate) fn may_enter(place: &Place) -> Outcome<()> {
    let attr = place.find(true)?;
    if attr.kind != FileKind::Directory {
        return fail(libc::ENOTDIR);
    }
    crate::names::may_search(attr.id)
}

fn enter(place: &Place, full: &[u8]) -> Outcome<c_int> {
    may_enter(place)?;
    let here = path::normal(full);
    rustix::process::chdir(local_dir(&here)?)?;
    // A process that borrows its parent's memory changes only its own working directory.
    if !process_state::is_borrowed() {
        HERE.with(|known| *known = here);
        STATE.store(INSIDE, Ordering::Release);
    }
    Ok(0)
}

/// Forgets the known working directory before the C library changes it.
pub(crate) fn forget() {
    if !process_state::is_borrowed() {
        STATE.store(UNKNOWN, Ordering::Release);
    }
}

pub(crate) fn change(start: *const c_char) -> Outcome<c_int> {
    let place = locate(libc::AT_FDCWD, start);
    let place = place.inspect_err(|_| forget())?;
    let full = crate::canonical::text(&place)?;
    enter(&place, &full).inspect_err(|_| forget())
}

pub(crate) fn change_to(fd: c_int) -> Outcome<c_int> {
    let open = ours(fd).inspect_err(|_| forget())?;
    if open.kind() == backing::Kind::File {
        return fail(libc::ENOTDIR);
    }
    let full = open.path().to_vec();
    let place = Place { dir: open.id(), rest: b".".to_vec(), full: full.clone() };
    enter(&place, &full)
}

/// The working directory, in the caller's buffer or in a new one.
pub(crate) fn current_dir(buffer: *mut c_char, size: size_t) -> Outcome<*mut c_char> {
    process_state::ready();
    let mut here = inside().ok_or(crate::errno::Stop::Foreign)?;
    here.push(0);
    if buffer.is_null() {
        if size != 0 && size < here.len() {
            return fail(libc::ERANGE);
        }
        return Ok(crate::canonical::allocated(&here, size)?);
    }
    if size == 0 {
        return fail(libc::EINVAL);
    }
    if size < here.len() {
        return fail(libc::ERANGE);
    }
    mem::writable(buffer.cast(), here.len())?.copy_from_slice(&here);
    Ok(buffer)
}

hook::hooks! {
    fn [chdir](path: *const c_char) -> c_int, at path => change(path);
    fn [fchdir](fd: c_int) -> c_int => change_to(fd);
    fn [getcwd](buffer: *mut c_char, size: size_t) -> *mut c_char => current_dir(buffer, size);
    fn [__getcwd_chk](buffer: *mut c_char, size: size_t, _room: size_t) -> *mut c_char => current_dir(buffer, size);
    fn [getwd](buffer: *mut c_char) -> *mut c_char => current_dir(buffer, mem::PATH_MAX);
    fn [__getwd_chk](buffer: *mut c_char, room: size_t) -> *mut c_char => current_dir(buffer, room);
    fn [get_current_dir_name]() -> *mut c_char => current_dir(std::ptr::null_mut(), 0);
}

/// The error of a failed allocation.
pub(crate) const NO_MEMORY: Errno = Errno(libc::ENOMEM);
