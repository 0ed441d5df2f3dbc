//! The application's memory, which may not be there: the kernel is asked before it is touched.
//!
//! The probes are system calls that read or write a word and do nothing else: setting a signal mask in a way that
//! does not exist, and adding zero under a futex that nobody waits for.

use crate::errno::{Outcome, fail};
use crate::kernel::system_call;
use libc::{c_char, c_int, c_void};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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

/// Whether all of a range is there, as `probe` finds; more than two pages are asked about in one call, which brings
/// their pages in as well.
fn whole(start: usize, len: usize, advice: c_int, probe: fn(usize) -> bool) -> bool {
    let Some(last) = start.checked_add(len - 1) else { return false };
    if !probe(start) || !probe(last) {
        return false;
    }
    let (from, to) = (start.next_multiple_of(PAGE), last & !(PAGE - 1));
    if to <= from {
        return true;
    }
    // SAFETY: pages that are there are made present, which changes nothing that can be seen.
    let done = unsafe { system_call(libc::SYS_madvise, [from, to - from, advice as usize, 0, 0, 0]) };
    match -done as c_int {
        0 => true,
        // An older kernel, or memory of a special kind: page by page.
        libc::EINVAL => (from..to).step_by(PAGE).all(probe),
        libc::ENOMEM | libc::EFAULT => false,
        // Whatever else keeps pages from coming in says nothing about whether they may be used.
        _ => true,
    }
}

/// Counts changes of what is mapped, as far as they pass by here.
static CHANGES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// What this thread asked about last, and after how many changes: programs write from the same buffer again and
    /// again, want answers in the same place, and have paths on the same page. 0 changes: nothing.
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
        // A thread that ends asks every time.
        let _ = LAST_PAGE.try_with(|last| last.set(asked));
    }
    can
}

/// Something is mapped, unmapped or protected: what was there may be there no more.
pub(crate) fn changed() {
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// Bytes of the application to be read.
pub(crate) fn readable<'a>(start: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    let asked = (start as usize, len, CHANGES.load(Ordering::Acquire));
    if LAST.try_with(Cell::get) == Ok(asked) {
        // SAFETY: all of it was there a moment ago; a program that took it away meanwhile, past the C library, has
        // given us a pointer to nothing.
        return Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) });
    }
    if len > isize::MAX as usize || !whole(start as usize, len, libc::MADV_POPULATE_READ, can_read) {
        return fail(libc::EFAULT);
    }
    // A thread that ends asks every time.
    let _ = LAST.try_with(|last| last.set(asked));
    // SAFETY: all of it is there; that nobody changes it meanwhile is the caller's promise in every such call.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// Bytes of the application to be written.
pub(crate) fn writable<'a>(start: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    let asked = (start as usize, len, CHANGES.load(Ordering::Acquire));
    if LAST_WRITTEN.try_with(Cell::get) == Ok(asked) {
        // SAFETY: as for what is read.
        return Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) });
    }
    if len > isize::MAX as usize || !whole(start as usize, len, libc::MADV_POPULATE_WRITE, can_write) {
        return fail(libc::EFAULT);
    }
    let _ = LAST_WRITTEN.try_with(|last| last.set(asked));
    // SAFETY: all of it is there; that nobody uses it meanwhile is the caller's promise in every such call.
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
            // Longer than anything that means something, wherever it ends.
            // SAFETY: as above.
            return Some(unsafe { std::slice::from_raw_parts(start.cast(), len) });
        }
    }
}
