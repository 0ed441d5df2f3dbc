//! The same by a call of its own.

use crate::create::create;
use crate::decide::Wish;
use crate::real;
use libc::{c_char, c_int, c_uint, mode_t};

/// Opens a file as `open` does; one that is new lies as is planned for so many writers and bytes (0: not known).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn forebay_place_create(
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    writers: c_uint,
    bytes: u64,
) -> c_int {
    let bytes = Some(bytes).filter(|&bytes| bytes > 0);
    let wish = Wish { writers: writers.max(1), says: "its caller", bytes, ..Wish::default() };
    let flags = flags | libc::O_CREAT;
    create(libc::AT_FDCWD, path, flags, mode, wish)
        .unwrap_or_else(|| real::openat(libc::AT_FDCWD, path, flags, mode))
}
