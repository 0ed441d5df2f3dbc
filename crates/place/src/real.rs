//! The original functions.

use libc::{c_char, c_int, c_uint, mode_t};

#[cfg(not(feature = "wrap"))]
mod looked_up {
    use libc::{c_char, c_int, c_void, dl_phdr_info};
    use std::ffi::{CStr, CString};
    use std::sync::atomic::{AtomicPtr, Ordering};

    /// A function or an object of another library, looked up until it is found.
    pub(crate) struct Real {
        name: &'static str,
        is_object: bool,
        address: AtomicPtr<c_void>,
    }

    impl Real {
        /// A function. The name is NUL-terminated.
        pub(crate) const fn new(name: &'static str) -> Real {
            Real { name, is_object: false, address: AtomicPtr::new(std::ptr::null_mut()) }
        }

        /// An object. The name is NUL-terminated.
        pub(crate) const fn object(name: &'static str) -> Real {
            Real { is_object: true, ..Real::new(name) }
        }

        /// The next function after ours, or the globally visible object (a program may contain a library
        /// statically), or else one in a library that only some others see.
        pub(crate) fn address(&self) -> Option<*mut c_void> {
            let known = self.address.load(Ordering::Relaxed);
            if !known.is_null() {
                return Some(known);
            }
            debug_assert!(self.name.ends_with('\0'));
            let name = self.name.as_ptr().cast::<c_char>();
            let seen = if self.is_object { libc::RTLD_DEFAULT } else { libc::RTLD_NEXT };
            // SAFETY: the name is NUL-terminated.
            let next = unsafe { libc::dlsym(seen, name) };
            let found = if next.is_null() { hidden(name)? } else { next };
            self.address.store(found, Ordering::Relaxed);
            Some(found)
        }
    }

    /// Libraries loaded by a module of an interpreter are visible to that module alone, but the functions it
    /// calls by name resolve to ours first.
    fn hidden(name: *const c_char) -> Option<*mut c_void> {
        let mut libraries: Vec<CString> = Vec::new();
        // SAFETY: the callback gets this list and nothing else, before this returns.
        unsafe { libc::dl_iterate_phdr(Some(listed), (&raw mut libraries).cast()) };
        let ours = home(home as *mut c_void);
        libraries.iter().find_map(|library| {
            // SAFETY: a NUL-terminated name of a loaded library; the handle is closed again.
            unsafe {
                let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if handle.is_null() {
                    return None;
                }
                let found = libc::dlsym(handle, name);
                libc::dlclose(handle);
                (!found.is_null() && home(found) != ours).then_some(found)
            }
        })
    }

    unsafe extern "C" fn listed(library: *mut dl_phdr_info, _: usize, into: *mut c_void) -> c_int {
        // SAFETY: the loader passes a library with a NUL-terminated name, and the list given above.
        unsafe {
            let (name, into) = ((*library).dlpi_name, &mut *into.cast::<Vec<CString>>());
            if !name.is_null() && *name != 0 {
                into.push(CStr::from_ptr(name).to_owned());
            }
        }
        0
    }

    /// Base address of the library that contains an address.
    fn home(address: *mut c_void) -> *mut c_void {
        // SAFETY: all-zero bytes are a valid Dl_info, and the loader fills it.
        unsafe {
            let mut info = std::mem::zeroed::<libc::Dl_info>();
            libc::dladdr(address, &raw mut info);
            info.dli_fbase
        }
    }
}

#[cfg(not(feature = "wrap"))]
pub(crate) use looked_up::Real;

/// The system call itself, for our own files, whatever library interposes the C function.
pub(crate) fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the path is the caller's; the kernel checks it.
    unsafe { libc::syscall(libc::SYS_openat, dirfd, path, flags, mode as c_uint) as c_int }
}
