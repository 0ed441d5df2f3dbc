//! A lock that a forked child can trust.
//!
//! A thread that held it in the parent does not exist in the child. The word of the lock says in which life of the
//! process it was taken, so the child sees that, and begins with a fresh value.

use crate::life;
use crate::quiet::Quiet;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Something guarded that is reset when its holder was left behind in a parent process.
pub(crate) struct Lock<T> {
    /// 0, or the generation that holds it.
    holder: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the one holder of the lock.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T: Default> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { holder: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// Runs `work` alone and undisturbed. Keep it short: others spin.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let _quiet = Quiet::begin();
        let now = life::generation();
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
            // The old value may be half changed: it is left behind, not dropped.
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
