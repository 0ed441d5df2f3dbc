//! Libraries that the program loads while it runs.
//!
//! `dlopen` and `dlsym` depend on the address of their caller. So they are not replaced like other functions: a check
//! runs first, and the program then continues in the C library's own function as if it had called it directly.

use super::{Gate, is_on, scan, switch_on};
use crate::errno::Stop;
use crate::life::{self, Intercept};
use crate::place::locate;
use crate::{hook, mem};
use libc::{c_char, c_int, c_void};
use rustix::fs::{CWD, Mode, OFlags};
use std::arch::naked_asm;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A library was loaded, with its dependencies, and has not been scanned yet.
static LOADED: AtomicBool = AtomicBool::new(false);

static REAL_OPEN: hook::Real = hook::Real::new("dlopen\0");
static REAL_OPEN_APART: hook::Real = hook::Real::new("dlmopen\0");

/// Whether loaded libraries can still require interception.
fn matters() -> bool {
    !is_on() && life::is_set_up() && life::config().intercept == Intercept::Auto
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
        switch_on();
    }
}

extern "C" fn nothing() -> *mut c_void {
    std::ptr::null_mut()
}

fn or_nothing(found: Option<*mut c_void>) -> *mut c_void {
    found.unwrap_or(nothing as *const () as *mut c_void)
}

extern "C" fn before_open(path: *const c_char, _flags: c_int) -> *mut c_void {
    before(|| look_before(path));
    or_nothing(REAL_OPEN.address())
}

extern "C" fn before_open_apart(_list: c_int, path: *const c_char, _flags: c_int) -> *mut c_void {
    before(|| look_before(path));
    or_nothing(REAL_OPEN_APART.address())
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
