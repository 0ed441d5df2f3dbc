//! The functions behind ours.

use libc::{c_char, c_int, c_uint, mode_t};

#[cfg(not(feature = "wrap"))]
mod looked_up {
    use libc::{c_char, c_void};
    use std::sync::atomic::{AtomicPtr, Ordering};

    /// A function that is looked up once.
    pub(crate) struct Real {
        name: &'static str,
        address: AtomicPtr<c_void>,
    }

    impl Real {
        /// The name ends with a zero.
        pub(crate) const fn new(name: &'static str) -> Real {
            Real { name, address: AtomicPtr::new(std::ptr::null_mut()) }
        }

        /// The next one after ours, if there is one.
        pub(crate) fn address(&self) -> Option<*mut c_void> {
            let known = self.address.load(Ordering::Relaxed);
            if !known.is_null() {
                return Some(known);
            }
            debug_assert!(self.name.ends_with('\0'));
            // SAFETY: the name ends with a zero.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast::<c_char>()) };
            self.address.store(found, Ordering::Relaxed);
            (!found.is_null()).then_some(found)
        }
    }

    /// Something that any library of this process has.
    pub(crate) fn anywhere(name: &'static str) -> Option<*mut c_void> {
        debug_assert!(name.ends_with('\0'));
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast::<c_char>()) };
        (!found.is_null()).then_some(found)
    }
}

#[cfg(not(feature = "wrap"))]
pub(crate) use looked_up::{Real, anywhere};

/// The system call itself: what our own files are opened with, whoever has taken the place of the C library's function.
pub(crate) fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the path is whoever called's own; the kernel checks it.
    unsafe { libc::syscall(libc::SYS_openat, dirfd, path, flags, mode as c_uint) as c_int }
}
