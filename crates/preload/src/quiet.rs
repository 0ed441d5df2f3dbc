//! Moments in which the application must not interrupt us, and threads that are not the application's.

use crate::kernel::system_call;
use std::cell::Cell;

thread_local! {
    static INTERNAL: Cell<bool> = const { Cell::new(false) };
    /// The application's mask in a quiet moment.
    static BEFORE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether the running code is ours: descriptors it makes are hidden from the application.
pub(crate) fn is_internal() -> bool {
    INTERNAL.try_with(Cell::get).unwrap_or(false)
}

/// Makes the calling thread one of ours for good. It was born quiet, so no signal is ever delivered to it.
pub(crate) fn become_internal() {
    INTERNAL.set(true);
}

/// The kernel's own form of a set of signals. Two are the C library's: with them it cancels threads and changes users.
const ALL: u64 = !(1 << 31 | 1 << 32);

/// Asks the kernel, because the C library might be asked by nobody but the application.
fn mask(how: i32, set: u64) -> u64 {
    let mut before = 0_u64;
    let args = [how as usize, &raw const set as usize, &raw mut before as usize, size_of::<u64>(), 0, 0];
    // SAFETY: both sets are variables here; changing the mask needs no other promise.
    unsafe { system_call(libc::SYS_rt_sigprocmask, args) };
    before
}

/// While this lives, no signal handler runs on the thread, and what the thread does counts as ours.
pub(crate) struct Quiet {
    /// The mask to go back to; `None` inside another quiet moment.
    mask: Option<u64>,
}

impl Quiet {
    pub(crate) fn begin() -> Quiet {
        if is_internal() {
            return Quiet { mask: None };
        }
        let before = mask(libc::SIG_BLOCK, ALL);
        INTERNAL.set(true);
        BEFORE.set(Some(before));
        Quiet { mask: Some(before) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = self.mask {
            BEFORE.set(None);
            INTERNAL.set(false);
            mask(libc::SIG_SETMASK, before);
        }
    }
}

/// Interrupts a quiet moment for something that may take long: signals are as the application has them meanwhile, and
/// its handlers may call in.
pub(crate) fn aloud<T>(wait: impl FnOnce() -> T) -> T {
    let Some(before) = BEFORE.take() else { return wait() };
    INTERNAL.set(false);
    mask(libc::SIG_SETMASK, before);
    let waited = wait();
    mask(libc::SIG_BLOCK, ALL);
    INTERNAL.set(true);
    BEFORE.set(Some(before));
    waited
}
