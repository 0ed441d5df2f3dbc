//! A lock that works in forked children.
//!
//! A thread that held the lock in the parent does not exist in the child. The lock word holds the generation of the
//! process that took it, so the child detects this, and starts with a fresh value.

use crate::process_state;
use crate::quiet::Quiet;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value behind a lock. It is reset if the holder was a thread of the parent process.
pub(crate) struct Lock<T> {
    /// 0, or the generation that holds it.
    holder: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: only the one holder of the lock accesses the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T: Default> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { holder: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// Runs `work` with the lock held and signals blocked. Keep it short: other threads spin.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let _quiet = Quiet::begin();
        let now = process_state::generation();
        let mut orphan = false;
        loop {
            match self.holder.compare_exchange(0, now, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(holder) if holder != now => {
                    let taken =
                        self.holder.compare_exchange(holder, now, Ordering::Acquire, Ordering::Relaxed);
                    if taken.is_ok() {
                        orphan = true;
                        break;
                    }
                }
                Err(_) => rustix::thread::sched_yield(),
            }
        }
        let _release = Release(&self.holder);
        // SAFETY: this thread holds the lock.
        let value = unsafe { &mut *self.value.get() };
        if orphan {
            // The old value may be half changed: it is leaked, not dropped.
            std::mem::forget(std::mem::take(value));
        }
        work(value)
    }
}

struct Release<'a>(&'a AtomicU64);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
