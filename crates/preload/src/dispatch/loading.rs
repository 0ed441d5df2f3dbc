//! Libraries that the program loads while it runs.
//!
//! `dlopen` and `dlsym` depend on the address of their caller. So they are not replaced like other functions: a check
//! runs first, and the program then continues in the C library's own function as if it had called it directly.

use super::{Gate, is_on, require, scan};
use crate::errno::{Outcome, Stop};
use crate::place::{Place, locate};
use crate::process_state::{self, Intercept};
use crate::{engine, hook, mem, path};
use forebay_client::PROGRAM_HEAD;
use forebay_model::Access;
use libc::{c_char, c_int, c_void};
use rustix::fs::{CWD, Mode, OFlags};
use std::arch::naked_asm;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A library was loaded, with its dependencies, and has not been scanned yet.
static LOADED: AtomicBool = AtomicBool::new(false);

static REAL_OPEN: hook::Real = hook::Real::new("dlopen\0");
static REAL_OPEN_APART: hook::Real = hook::Real::new("dlmopen\0");

/// Whether loaded libraries can still require interception.
fn matters() -> bool {
    !is_on() && process_state::is_set_up() && process_state::config().intercept == Intercept::Auto
}

fn look_before(path: *const c_char) -> bool {
    let Some(text) = mem::path(path).filter(|text| !text.is_empty()) else { return false };
    LOADED.store(true, Ordering::Release);
    if !text.contains(&b'/') {
        return false;
    }
    match locate(libc::AT_FDCWD, path) {
        // The loader reads it bypassing this library, while it holds its lock: so the library's threads are started
        // first.
        Ok(place) => {
            let _ = place.find(true);
            true
        }
        Err(Stop::Foreign) => {
            // SAFETY: readable up to its terminating zero, as checked above.
            let path = unsafe { CStr::from_ptr(path) };
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = rustix::fs::openat(CWD, path, flags, Mode::empty());
            file.is_ok_and(|file| scan::file_has_raw_calls(text, &file))
        }
        Err(_) => false,
    }
}

fn look_at_loaded() -> bool {
    LOADED.swap(false, Ordering::AcqRel) && scan::finds_raw_calls()
}

/// Runs a check before a function of the loader; ignores a panic in it.
fn before(look: impl FnOnce() -> bool) {
    if !matters() {
        return;
    }
    let gate = Gate::open();
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).unwrap_or(false);
    drop(gate);
    if found {
        require();
    }
}

extern "C" fn nothing() -> *mut c_void {
    std::ptr::null_mut()
}

fn or_nothing(found: Option<*mut c_void>) -> *mut c_void {
    found.unwrap_or(nothing as *const () as *mut c_void)
}

/// Directories in which the loader looks for names without a slash, after those of `LD_LIBRARY_PATH`.
const USUAL: [&[u8]; 6] = [
    b"/lib/x86_64-linux-gnu",
    b"/usr/lib/x86_64-linux-gnu",
    b"/usr/local/lib",
    b"/lib64",
    b"/usr/lib64",
    b"/lib",
];

/// Whether a library contains Go code. One that is found by `RUNPATH` or the loader's cache alone is not recognised.
fn is_of_go(start: *const c_char) -> bool {
    let Some(name) = mem::path(start).filter(|name| !name.is_empty()) else { return false };
    if name.contains(&b'/') {
        return match locate(libc::AT_FDCWD, start) {
            Ok(place) => is_of_go_inside(&place).unwrap_or(false),
            Err(Stop::Foreign) => local_is_of_go(name),
            Err(_) => false,
        };
    }
    let listed = std::env::var_os("LD_LIBRARY_PATH").map(OsStringExt::into_vec).unwrap_or_default();
    let dirs = listed.split(|byte| matches!(byte, b':' | b';')).filter(|dir| !dir.is_empty());
    dirs.chain(USUAL).any(|dir| local_is_of_go(&path::join(dir, name)))
}

fn local_is_of_go(path: &[u8]) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file =
        CString::new(path).ok().and_then(|path| rustix::fs::openat(CWD, path, flags, Mode::empty()).ok());
    file.is_some_and(|file| scan::file_has_go(&file))
}

fn is_of_go_inside(place: &Place) -> Outcome<bool> {
    let id = place.find(true)?.id;
    let mut head = vec![0; PROGRAM_HEAD];
    let into = &mut head[..];
    let len = engine::run(async move |engine| {
        let file = engine.by_id().open(id, Access::READ, false).await?;
        let len = file.pread(0, into).await?;
        file.close().await.map(|()| len)
    })?;
    Ok(scan::head_has_go(&head[..len]))
}

/// Go makes its calls on stacks that the handler of intercepted calls would overrun: where interception is on, loading
/// such a library fails, and `dlerror` says why.
fn refuses(path: *const c_char) -> bool {
    if !is_on() || !process_state::is_set_up() {
        return false;
    }
    let _gate = Gate::open();
    let found = std::panic::catch_unwind(|| is_of_go(path)).unwrap_or(false);
    if let (true, Some(name), Some(real)) = (found, mem::path(path), REAL_OPEN.address()) {
        let name = String::from_utf8_lossy(name);
        let why = format!(
            "{name} contains Go code, which cannot run while system calls are intercepted: use \"forebay exec \
             --intercept library\" or \"--intercept mount\"/"
        );
        // The loader's error is the name of a file that does not exist.
        if let Ok(why) = CString::new(why) {
            // SAFETY: the C library's function of this name has this signature; there is no such file.
            unsafe {
                let real: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
                    std::mem::transmute(real);
                real(why.as_ptr(), libc::RTLD_LAZY);
            }
        }
    }
    found
}

/// Whether a library may be loaded.
fn allows(path: *const c_char) -> bool {
    // Interception may be switched on for this very library.
    before(|| look_before(path));
    !refuses(path)
}

extern "C" fn before_open(path: *const c_char, _flags: c_int) -> *mut c_void {
    or_nothing(if allows(path) { REAL_OPEN.address() } else { None })
}

extern "C" fn before_open_apart(_list: c_int, path: *const c_char, _flags: c_int) -> *mut c_void {
    or_nothing(if allows(path) { REAL_OPEN_APART.address() } else { None })
}

/// The C library's `dlsym`, which cannot be looked up by `dlsym`, since that name is this library's.
fn real_symbol() -> *mut c_void {
    static REAL_SYMBOL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut found = REAL_SYMBOL.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: valid names; the pseudo-handle means the libraries loaded after this one.
        found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
        REAL_SYMBOL.store(found, Ordering::Release);
    }
    found
}

extern "C" fn before_symbol() -> *mut c_void {
    if LOADED.load(Ordering::Relaxed) {
        before(look_at_loaded);
    }
    let real = real_symbol();
    or_nothing((!real.is_null()).then_some(real))
}

/// A function of the libraries loaded after this one; null if none has it.
pub(crate) fn next_function(name: &CStr) -> *mut c_void {
    let real = real_symbol();
    if real.is_null() {
        return real;
    }
    // SAFETY: the C library's function of this name has this signature; the pseudo-handle means those libraries.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void = std::mem::transmute(real);
        real(libc::RTLD_NEXT, name.as_ptr())
    }
}

/// A function of the loader with a check before it, which returns the address at which to continue.
macro_rules! preceded {
    ($name:ident, $before:ident) => {
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "call {before}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                before = sym $before,
            )
        }
    };
}

preceded!(dlopen, before_open);
preceded!(dlmopen, before_open_apart);
preceded!(dlsym, before_symbol);
