//! Replaces functions of the C library.
//!
//! The body of a hook returns an [`Outcome`]. The rest is common to all hooks: no panic leaves a hook; errors become
//! error numbers; success leaves `errno` unchanged; calls that do not concern Forebay go to the next library that has
//! the function.

use crate::dispatch;
use crate::errno::{Errno, Outcome, Stop};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function that would be called without this library.
pub(crate) struct Real {
    name: &'static [u8],
    found: AtomicPtr<c_void>,
}

impl Real {
    /// By name, with a terminating zero.
    pub(crate) const fn new(name: &'static str) -> Real {
        Real { name: name.as_bytes(), found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; `None` where no library has it.
    pub(crate) fn address(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            let name = CStr::from_bytes_with_nul(self.name).ok()?;
            found = dispatch::next_function(name);
            self.found.store(found, Ordering::Release);
        }
        (!found.is_null()).then_some(found)
    }
}

// SAFETY: the linker's own symbols for the ends of the section in which all `Real`s are listed.
unsafe extern "C" {
    #[link_name = "__start_forebay_reals"]
    static FIRST: u8;
    #[link_name = "__stop_forebay_reals"]
    static END: u8;
}

/// Looks up all functions now. When system calls are intercepted, the loader may wait for our threads while it holds
/// its lock, and they could not look up anything.
pub(crate) fn find_all() {
    let mut next = (&raw const FIRST).cast::<&'static Real>();
    while next < (&raw const END).cast() {
        // SAFETY: inside the section, which consists of such references.
        unsafe {
            (*next).address();
            next = next.add(1);
        }
    }
}

/// What a function returns when it fails.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: c_int = -1;
}

impl Failed for isize {
    const FAILED: isize = -1;
}

impl Failed for i64 {
    const FAILED: i64 = -1;
}

impl<T> Failed for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

impl Failed for () {
    const FAILED: () = ();
}

/// Runs the body of a hook; a panic in it is an I/O error.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _gate = dispatch::Gate::open();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Stop::Errno(Errno(libc::EIO))))
}

/// Sets `errno` and returns the value that means failure.
pub(crate) fn failed<T: Failed>(errno: Errno) -> T {
    errno.set();
    T::FAILED
}

/// Replaces functions. Several names share a body if their arguments have the same layout. `at path` names the argument
/// that is replaced when a path leads out of Forebay; `failing` gives the value that means failure, if it is not the
/// usual one of its type.
macro_rules! hooks {
    ($(fn [$($name:ident),+ $(,)?] $args:tt -> $ret:ty $(, at $path:ident)? $(, failing $failed:expr)? => $body:expr;)*) => {
        $($crate::hook::hooks! { @each [$($name)+] $args -> $ret, [$($path)?], [$($failed)?], $body })*
    };
    (@each [$($name:ident)+] $args:tt -> $ret:ty, $path:tt, $failed:tt, $body:expr) => {
        $($crate::hook::hooks! { @one $name $args -> $ret, $path, $failed, $body })+
    };
    (@failed $errno:expr, []) => { $crate::hook::failed($errno) };
    (@failed $errno:expr, [$failed:expr]) => {{ $errno.set(); $failed }};
    (@one $name:ident ($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, [$($path:ident)?], $failed:tt, $body:expr) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        // The names of the C library.
        #[allow(non_snake_case)]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            static REAL: $crate::hook::Real = $crate::hook::Real::new(concat!(stringify!($name), "\0"));
            #[used]
            #[unsafe(link_section = "forebay_reals")]
            static LISTED: &$crate::hook::Real = &REAL;
            let real = |$($arg: $type),*| -> $ret {
                let Some(address) = REAL.address() else {
                    return $crate::hook::hooks! { @failed $crate::errno::Errno(libc::ENOSYS), $failed };
                };
                // SAFETY: the C library's function of this name has this signature, and the arguments are the
                // caller's own.
                unsafe {
                    let real: unsafe extern "C" fn($($type),*) -> $ret = std::mem::transmute(address);
                    real($($arg),*)
                }
            };
            // System calls that the C library makes for this call are not intercepted.
            let _gate = $crate::dispatch::Gate::open();
            let before = $crate::errno::Errno::last();
            let outcome = $crate::hook::guarded(|| $body);
            before.set();
            match outcome {
                Ok(value) => value,
                Err($crate::errno::Stop::Foreign) => real($($arg),*),
                Err($crate::errno::Stop::Errno(errno)) => $crate::hook::hooks! { @failed errno, $failed },
                Err($crate::errno::Stop::Outside(_outside)) => {
                    $(let $path = _outside.as_ptr();)?
                    real($($arg),*)
                }
            }
        }
    };
}
pub(crate) use hooks;
