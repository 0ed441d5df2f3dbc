//! The explicit API.

use crate::create::create;
use crate::decide::FileHint;
use crate::real;
use libc::{c_char, c_int, c_uint, mode_t};

/// Opens a file as `open` does; a new file gets the layout planned for the given writers and bytes (0:
/// unknown).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn forebay_place_create(
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    writers: c_uint,
    bytes: u64,
) -> c_int {
    let bytes = Some(bytes).filter(|&bytes| bytes > 0);
    let hint = FileHint { writers: writers.max(1), source: "its caller", bytes, ..FileHint::default() };
    let flags = flags | libc::O_CREAT;
    create(libc::AT_FDCWD, path, flags, mode, hint)
        .unwrap_or_else(|| real::openat(libc::AT_FDCWD, path, flags, mode))
}
