//! Moments in which the application must not interrupt us, and threads that are not the application's.

use std::cell::Cell;
use std::mem::MaybeUninit;

thread_local! {
    static INTERNAL: Cell<bool> = const { Cell::new(false) };
}

/// Whether the running code is ours: descriptors it makes are hidden from the application.
pub(crate) fn is_internal() -> bool {
    INTERNAL.try_with(Cell::get).unwrap_or(false)
}

/// Makes the calling thread one of ours for good.
pub(crate) fn become_internal() {
    INTERNAL.set(true);
}

/// While this lives, no signal handler runs on the thread, and what the thread does counts as ours.
pub(crate) struct Quiet {
    mask: libc::sigset_t,
    before: bool,
}

impl Quiet {
    pub(crate) fn begin() -> Quiet {
        let (mut all, mut mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both sets are written before they are read; blocking signals needs no other promise.
        let mask = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), mask.as_mut_ptr());
            mask.assume_init()
        };
        Quiet { mask, before: INTERNAL.replace(true) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        INTERNAL.set(self.before);
        // SAFETY: the mask is the one that was in force when this began.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut()) };
    }
}
