//! The C library's functions that create files.

use crate::create::create;
use crate::decide::FileHint;
use libc::{c_char, c_int};
use std::ffi::CStr;

const ALONE: FileHint =
    FileHint { writers: 1, source: "its opener", bytes: None, stripe_count: None, stripe_size: None };
const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

/// Creates the file of a stream first. Returns the mode to open it with, without `x` (exclusive creation).
fn stream(path: *const c_char, mode: *const c_char) -> Option<Vec<u8>> {
    if mode.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated string, as the interposed function requires.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    if !matches!(mode.first(), Some(b'w' | b'a')) {
        return None;
    }
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
    let fd = create(libc::AT_FDCWD, path, flags, 0o666, ALONE)?;
    // SAFETY: the descriptor is ours and not shared.
    unsafe { libc::close(fd) };
    let end = mode.iter().position(|&letter| letter == b',').unwrap_or(mode.len());
    let kept = mode[..end].iter().filter(|&&letter| letter != b'x');
    Some(kept.chain(&mode[end..]).copied().chain([0]).collect())
}

#[cfg(not(feature = "wrap"))]
mod interposed {
    use super::{ALONE, CREAT, create, stream};
    use crate::real::Real;
    use libc::{FILE, c_char, c_int, c_void, mode_t};

    fn failed<T>(result: T) -> T {
        // SAFETY: `errno` is this thread's own.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        result
    }

    macro_rules! creators {
        ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $none:expr, $ours:expr;)*) => {$(
            /// The C library's function of this name; new files get their planned layout.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                static REAL: Real = Real::new(concat!(stringify!($name), "\0"));
                let ours: Option<$result> = $ours;
                if let Some(done) = ours {
                    return done;
                }
                let Some(real) = REAL.address() else { return failed($none) };
                // SAFETY: the function of this name has this signature.
                unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(real)($($argument),*)
                }
            }
        )*};
    }

    creators! {
        fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1,
            create(libc::AT_FDCWD, path, flags, mode, ALONE);
        fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1,
            create(libc::AT_FDCWD, path, flags, mode, ALONE);
        fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1,
            create(dirfd, path, flags, mode, ALONE);
        fn openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1,
            create(dirfd, path, flags, mode, ALONE);
        fn creat(path: *const c_char, mode: mode_t) -> c_int = -1,
            create(libc::AT_FDCWD, path, CREAT, mode, ALONE);
        fn creat64(path: *const c_char, mode: mode_t) -> c_int = -1,
            create(libc::AT_FDCWD, path, CREAT, mode, ALONE);
    }

    macro_rules! streams {
        ($($name:ident)*) => {$(
            /// The C library's function of this name; new files get their planned layout.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
                static REAL: Real = Real::new(concat!(stringify!($name), "\0"));
                let Some(real) = REAL.address() else { return failed(std::ptr::null_mut()) };
                let kept = stream(path, mode);
                let mode = kept.as_ref().map_or(mode, |kept| kept.as_ptr().cast());
                // SAFETY: the function of this name has this signature.
                unsafe {
                    std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE,
                    >(real)(path, mode)
                }
            }
        )*};
    }

    streams! { fopen fopen64 }
}

/// Replacements of the C library's functions at link time (`--wrap`).
#[cfg(feature = "wrap")]
mod wrapped {
    use super::{ALONE, CREAT, create, stream};
    use libc::{FILE, c_char, c_int, mode_t};

    macro_rules! creators {
        ($(fn $wrap:ident, $real:ident($($argument:ident: $type:ty),*), $ours:expr;)*) => {
            unsafe extern "C" { $(fn $real($($argument: $type),*) -> c_int;)* }
            $(
                /// The C library's function of this name; new files get their planned layout.
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $wrap($($argument: $type),*) -> c_int {
                    // SAFETY: the caller's own arguments.
                    $ours.unwrap_or_else(|| unsafe { $real($($argument),*) })
                }
            )*
        };
    }

    creators! {
        fn __wrap_open, __real_open(path: *const c_char, flags: c_int, mode: mode_t),
            create(libc::AT_FDCWD, path, flags, mode, ALONE);
        fn __wrap_open64, __real_open64(path: *const c_char, flags: c_int, mode: mode_t),
            create(libc::AT_FDCWD, path, flags, mode, ALONE);
        fn __wrap_openat, __real_openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t),
            create(dirfd, path, flags, mode, ALONE);
        fn __wrap_openat64, __real_openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t),
            create(dirfd, path, flags, mode, ALONE);
        fn __wrap_creat, __real_creat(path: *const c_char, mode: mode_t),
            create(libc::AT_FDCWD, path, CREAT, mode, ALONE);
        fn __wrap_creat64, __real_creat64(path: *const c_char, mode: mode_t),
            create(libc::AT_FDCWD, path, CREAT, mode, ALONE);
    }

    unsafe extern "C" {
        fn __real_fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
        fn __real_fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    }

    macro_rules! streams {
        ($($wrap:ident, $real:ident;)*) => {$(
            /// The C library's function of this name; new files get their planned layout.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $wrap(path: *const c_char, mode: *const c_char) -> *mut FILE {
                let kept = stream(path, mode);
                let mode = kept.as_ref().map_or(mode, |kept| kept.as_ptr().cast());
                // SAFETY: the caller's own arguments, or a NUL-terminated mode.
                unsafe { $real(path, mode) }
            }
        )*};
    }

    streams! {
        __wrap_fopen, __real_fopen;
        __wrap_fopen64, __real_fopen64;
    }
}
