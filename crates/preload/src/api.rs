//! The functions of `forebay.h`, for programs written for Forebay. They work whatever the prefix is.
//!
//! Paths start at the root of the service. Descriptors are the same as those of `open` under the prefix: the C
//! library's functions accept them, and children inherit them. Every pointer is checked before it is used.

use crate::data::{self, At};
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::place::Place;
use crate::{descriptors, engine, hook, mem, names, opening, path, process_state, stat};
use forebay_model::FileId;
use libc::{c_char, c_int, c_uint, c_void, mode_t, off_t, size_t, ssize_t};
use std::ffi::CStr;

/// Turns a path from the root of the service into a path under the prefix.
fn full(start: *const c_char) -> Outcome<std::ffi::CString> {
    process_state::ready();
    let text = mem::path(start).ok_or(Errno(libc::EFAULT))?;
    if text.is_empty() {
        return fail(libc::ENOENT);
    }
    if text.len() >= mem::PATH_MAX {
        return fail(libc::ENAMETOOLONG);
    }
    let whole = path::join(&process_state::config().prefix, text);
    Ok(std::ffi::CString::new(whole).map_err(|_| Errno(libc::ENOENT))?)
}

fn place(start: *const c_char) -> Outcome<Place> {
    let full = full(start)?.into_bytes();
    let text = mem::path(start).ok_or(Errno(libc::EFAULT))?;
    Ok(Place { dir: FileId::ROOT, rest: text.to_vec(), full })
}

/// Runs the body of a function that is always about Forebay: a foreign descriptor or path is an error.
fn answer<T: hook::Failed>(body: impl FnOnce() -> Outcome<T>) -> T {
    let before = Errno::last();
    match hook::guarded(body) {
        Ok(value) => {
            before.set();
            value
        }
        Err(Stop::Errno(errno)) => hook::failed(errno),
        Err(Stop::Foreign) => hook::failed(Errno(libc::EBADF)),
        Err(Stop::Outside(_)) => hook::failed(Errno(libc::EXDEV)),
    }
}

/// Opens a file of the service; flags and mode as for `open`. Returns a descriptor, or -1 with `errno` set.
#[unsafe(no_mangle)]
pub extern "C" fn fb_open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    answer(|| opening::open_place(&place(path)?, flags, mode))
}

/// Closes a descriptor that `fb_open` returned.
#[unsafe(no_mangle)]
pub extern "C" fn fb_close(fd: c_int) -> c_int {
    answer(|| descriptors::close_fd(fd))
}

/// Reads from the current offset.
#[unsafe(no_mangle)]
pub extern "C" fn fb_read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    answer(|| data::read_fd(fd, into, len, At::Current))
}

/// Writes at the current offset. After it returns, every later read on any node sees the bytes.
#[unsafe(no_mangle)]
pub extern "C" fn fb_write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    answer(|| data::write_fd(fd, from, len, At::Current))
}

/// Reads from an offset; the current offset does not change.
#[unsafe(no_mangle)]
pub extern "C" fn fb_pread(fd: c_int, into: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    answer(|| data::read_fd(fd, into, len, At::offset(offset)?))
}

/// Writes at an offset; the current offset does not change.
#[unsafe(no_mangle)]
pub extern "C" fn fb_pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    answer(|| data::write_fd(fd, from, len, At::offset(offset)?))
}

/// Moves the current offset.
#[unsafe(no_mangle)]
pub extern "C" fn fb_lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    answer(|| data::seek(fd, offset, whence))
}

/// Waits until all data written to the file is on stable storage.
#[unsafe(no_mangle)]
pub extern "C" fn fb_fsync(fd: c_int) -> c_int {
    answer(|| data::sync_fd(fd))
}

/// Sets the size of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn fb_ftruncate(fd: c_int, size: off_t) -> c_int {
    answer(|| data::truncate_open(fd, size))
}

/// Returns the attributes of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn fb_fstat(fd: c_int, into: *mut libc::stat) -> c_int {
    answer(|| stat::of(fd, into))
}

/// Returns the attributes of the file at a path; follows symbolic links.
#[unsafe(no_mangle)]
pub extern "C" fn fb_stat(path: *const c_char, into: *mut libc::stat) -> c_int {
    answer(|| stat::at(libc::AT_FDCWD, full(path)?.as_ptr(), into, 0))
}

/// Creates a directory.
#[unsafe(no_mangle)]
pub extern "C" fn fb_mkdir(path: *const c_char, mode: mode_t) -> c_int {
    answer(|| names::make_dir(libc::AT_FDCWD, full(path)?.as_ptr(), mode))
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub extern "C" fn fb_rmdir(path: *const c_char) -> c_int {
    answer(|| names::remove_at(libc::AT_FDCWD, full(path)?.as_ptr(), libc::AT_REMOVEDIR))
}

/// Removes a name of a file.
#[unsafe(no_mangle)]
pub extern "C" fn fb_unlink(path: *const c_char) -> c_int {
    answer(|| names::remove_at(libc::AT_FDCWD, full(path)?.as_ptr(), 0))
}

/// Renames a file or directory; flags as for `renameat2`.
#[unsafe(no_mangle)]
pub extern "C" fn fb_rename(from: *const c_char, to: *const c_char, flags: c_uint) -> c_int {
    answer(|| {
        let (from, to) = (full(from)?, full(to)?);
        names::rename_at(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
    })
}

/// Connects now instead of at the first call. Fails if the service does not answer.
#[unsafe(no_mangle)]
pub extern "C" fn fb_connect() -> c_int {
    answer(|| {
        engine::run(|engine| engine.client().ping())?;
        Ok(0)
    })
}

/// Returns the version of the library, such as "0.1.0". The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn fb_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
