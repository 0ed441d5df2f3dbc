//! Access to the application's memory, which may be unmapped: the library probes it by system calls before it touches
//! it.
//!
//! The probes are system calls that read or write one word and have no other effect: setting a signal mask with an
//! invalid `how`, and adding zero by a futex operation that wakes no thread.

use crate::errno::{Outcome, fail};
use crate::kernel::system_call;
use libc::{c_char, c_int, c_void};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const PAGE: usize = 4096;
/// Longest path, including the terminating zero.
pub(crate) const PATH_MAX: usize = 4096;

fn can_read(address: usize) -> bool {
    let how = usize::MAX;
    // SAFETY: with an unknown `how` the kernel reads eight bytes and returns an error.
    let result = unsafe { system_call(libc::SYS_rt_sigprocmask, [how, address & !7, 0, 8, 0, 0]) };
    result != -(libc::EFAULT as isize)
}

fn can_write(address: usize) -> bool {
    const FUTEX_WAKE_OP_PRIVATE: usize = 5 | 128;
    const ADD: usize = 1 << 28;
    let word = AtomicU32::new(0);
    let own = &raw const word as usize;
    // SAFETY: wakes no thread on a word of the library, and adds zero to the word at the address, or fails.
    let result =
        unsafe { system_call(libc::SYS_futex, [own, FUTEX_WAKE_OP_PRIVATE, 0, 0, address & !3, ADD]) };
    result != -(libc::EFAULT as isize)
}

/// Whether all of a range is accessible, according to `probe`. Ranges over more than two pages take one `madvise`,
/// which also populates their pages.
fn whole(start: usize, len: usize, advice: c_int, probe: fn(usize) -> bool) -> bool {
    let Some(last) = start.checked_add(len - 1) else { return false };
    if !probe(start) || !probe(last) {
        return false;
    }
    let (from, to) = (start.next_multiple_of(PAGE), last & !(PAGE - 1));
    if to <= from {
        return true;
    }
    // SAFETY: populates accessible pages, which has no visible effect.
    let done = unsafe { system_call(libc::SYS_madvise, [from, to - from, advice as usize, 0, 0, 0]) };
    match -done as c_int {
        0 => true,
        // An older kernel, or a special kind of memory: probe page by page.
        libc::EINVAL => (from..to).step_by(PAGE).all(probe),
        libc::ENOMEM | libc::EFAULT => false,
        // Other errors do not mean that the pages are inaccessible.
        _ => true,
    }
}

/// Counts changes of mappings that the library observes.
static CHANGES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The range that this thread checked last, and the value of `CHANGES` then. Programs often reuse the same buffers,
    /// and have their paths on the same page. 0: none.
    static LAST: Cell<(usize, usize, u64)> = const { Cell::new((0, 0, 0)) };
    static LAST_WRITTEN: Cell<(usize, usize, u64)> = const { Cell::new((0, 0, 0)) };
    static LAST_PAGE: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// Whether the page of an address can be read.
fn can_read_page(address: usize) -> bool {
    let asked = (address & !(PAGE - 1), CHANGES.load(Ordering::Acquire));
    if LAST_PAGE.try_with(Cell::get) == Ok(asked) {
        return true;
    }
    let can = can_read(address);
    if can {
        // A thread that is ending probes every time.
        let _ = LAST_PAGE.try_with(|last| last.set(asked));
    }
    can
}

/// Records that memory is mapped, unmapped or protected: earlier checks are not valid any more.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// Memory of the application for reading.
pub(crate) fn readable<'a>(start: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if (start as usize) < PAGE {
        return fail(libc::EFAULT);
    }
    let asked = (start as usize, len, CHANGES.load(Ordering::Acquire));
    if LAST.try_with(Cell::get) == Ok(asked) {
        // SAFETY: all of it was accessible when last checked; a program that has unmapped it since, bypassing the C
        // library, has passed an invalid pointer.
        return Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) });
    }
    if len > isize::MAX as usize || !whole(start as usize, len, libc::MADV_POPULATE_READ, can_read) {
        return fail(libc::EFAULT);
    }
    // A thread that is ending probes every time.
    let _ = LAST.try_with(|last| last.set(asked));
    // SAFETY: all of it is accessible; that it does not change meanwhile is the caller's promise in every such call.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// Memory of the application for writing.
pub(crate) fn writable<'a>(start: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if (start as usize) < PAGE {
        return fail(libc::EFAULT);
    }
    let asked = (start as usize, len, CHANGES.load(Ordering::Acquire));
    if LAST_WRITTEN.try_with(Cell::get) == Ok(asked) {
        // SAFETY: as in `readable`.
        return Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) });
    }
    if len > isize::MAX as usize || !whole(start as usize, len, libc::MADV_POPULATE_WRITE, can_write) {
        return fail(libc::EFAULT);
    }
    let _ = LAST_WRITTEN.try_with(|last| last.set(asked));
    // SAFETY: all of it is accessible; that it is not used meanwhile is the caller's promise in every such call.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) })
}

/// Writes a value to memory of the application.
pub(crate) fn give<T>(place: *mut T, value: T) -> Outcome<()> {
    writable(place.cast(), size_of::<T>())?;
    // SAFETY: the address can be written; it need not be aligned.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Reads a value from memory of the application.
pub(crate) fn take<T: Copy>(place: *const T) -> Outcome<T> {
    readable(place.cast(), size_of::<T>())?;
    // SAFETY: the address can be read, and all such values are plain C structures.
    Ok(unsafe { place.read_unaligned() })
}

/// A path without its terminating zero. `None` if it cannot be read: the kernel then reports the error.
pub(crate) fn path<'a>(start: *const c_char) -> Option<&'a [u8]> {
    if (start as usize) < PAGE {
        return None;
    }
    let mut len = 0;
    loop {
        let here = start as usize + len;
        if !can_read_page(here) {
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
            // Longer than any valid path, wherever it ends.
            // SAFETY: as above.
            return Some(unsafe { std::slice::from_raw_parts(start.cast(), len) });
        }
    }
}
