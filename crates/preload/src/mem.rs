//! The application's memory, which may not be there: the kernel is asked before it is touched.
//!
//! The probes are system calls that read or write a word and do nothing else: setting a signal mask in a way that
//! does not exist, and adding zero under a futex that nobody waits for.

use crate::errno::{Outcome, fail};
use crate::kernel::system_call;
use libc::{c_char, c_void};
use std::sync::atomic::AtomicU32;

const PAGE: usize = 4096;
/// Longest path, the zero behind it included.
pub(crate) const PATH_MAX: usize = 4096;

fn can_read(address: usize) -> bool {
    let how = usize::MAX;
    // SAFETY: with an unknown `how` the kernel reads eight bytes and refuses.
    let result = unsafe { system_call(libc::SYS_rt_sigprocmask, [how, address & !7, 0, 8, 0, 0]) };
    result != -(libc::EFAULT as isize)
}

fn can_write(address: usize) -> bool {
    const FUTEX_WAKE_OP_PRIVATE: usize = 5 | 128;
    const ADD: usize = 1 << 28;
    let word = AtomicU32::new(0);
    let own = &raw const word as usize;
    // SAFETY: wakes nobody on a word of ours, and adds zero to the word at the address, or says that it cannot.
    let result =
        unsafe { system_call(libc::SYS_futex, [own, FUTEX_WAKE_OP_PRIVATE, 0, 0, address & !3, ADD]) };
    result != -(libc::EFAULT as isize)
}

/// Bytes of the application to be read: looked at from both ends.
pub(crate) fn readable<'a>(start: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    let first = start as usize;
    if len > isize::MAX as usize || !can_read(first) || !can_read(first.wrapping_add(len - 1)) {
        return fail(libc::EFAULT);
    }
    // SAFETY: both ends are there; that all between is one buffer is the caller's promise in every such call.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// Bytes of the application to be written: looked at from both ends.
pub(crate) fn writable<'a>(start: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    let first = start as usize;
    if len > isize::MAX as usize || !can_write(first) || !can_write(first.wrapping_add(len - 1)) {
        return fail(libc::EFAULT);
    }
    // SAFETY: both ends are there; that all between is one buffer is the caller's promise in every such call.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) })
}

/// Puts a value where the application wants it.
pub(crate) fn give<T>(place: *mut T, value: T) -> Outcome<()> {
    writable(place.cast(), size_of::<T>())?;
    // SAFETY: the place can be written; unaligned ones are none of our business.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Reads a value of the application.
pub(crate) fn take<T: Copy>(place: *const T) -> Outcome<T> {
    readable(place.cast(), size_of::<T>())?;
    // SAFETY: the place can be read, and all such values are plain C structures.
    Ok(unsafe { place.read_unaligned() })
}

/// A path, without the zero behind it. `None` if it cannot be read: the kernel is to say so.
pub(crate) fn path<'a>(start: *const c_char) -> Option<&'a [u8]> {
    if (start as usize) < PAGE {
        return None;
    }
    let mut len = 0;
    loop {
        let here = start as usize + len;
        if !can_read(here) {
            return None;
        }
        let end = len + (PAGE - here % PAGE);
        while len < end {
            // SAFETY: this page can be read.
            if unsafe { *start.cast::<u8>().add(len) } == 0 {
                // SAFETY: as above, from the first byte on.
                return Some(unsafe { std::slice::from_raw_parts(start.cast(), len) });
            }
            len += 1;
        }
        if len > 2 * PATH_MAX {
            // Longer than anything that means something, wherever it ends.
            // SAFETY: as above.
            return Some(unsafe { std::slice::from_raw_parts(start.cast(), len) });
        }
    }
}
