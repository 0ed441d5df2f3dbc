//! A word that writers ring when somebody who sleeps should look.

use crate::map::Map;
use crate::queue::Core;
use rustix::io::Errno;
use rustix::thread::futex;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Bytes of a bell's file.
pub const BELL_BYTES: u64 = 4096;

const RINGS_AT: usize = 0;
const SLEEPERS_AT: usize = 64;
const CORE_AT: usize = 128;

/// A mapped word that one process waits for and others change. A lost ring delays nobody longer than the sleeper's
/// own patience.
pub struct Bell(Map);

impl Bell {
    /// Maps the bell in a file.
    pub fn new(file: &File) -> io::Result<Bell> {
        Ok(Bell(Map::new(file, BELL_BYTES as usize)?))
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` checks the range; all words lie at multiples of four of a mapping that begins at a page, lives
        // as long as the borrow, and is never used but as atomics.
        unsafe { AtomicU32::from_ptr(self.0.at(at, 4).cast()) }
    }

    /// Wakes who sleeps; without a system call if nobody does.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.is_waited_for() {
            self.wake();
        }
    }

    /// Whether somebody sleeps, or is about to; a fence stands between what he should see and this question.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.word(SLEEPERS_AT).load(Ordering::Relaxed) != 0
    }

    /// Wakes who sleeps.
    pub(crate) fn wake(&self) {
        self.word(RINGS_AT).fetch_add(1, Ordering::Release);
        // Nobody there any more: nobody to wake.
        let _ = futex::wake(self.word(RINGS_AT), futex::Flags::empty(), 1);
    }

    /// Who is woken here is awake, and lets others know where it runs.
    pub fn attend(&self) {
        let (word, here) = (self.word(CORE_AT), Core::here().word());
        // Written only where it is news: others look at it all the time.
        if word.load(Ordering::Relaxed) != here {
            word.store(here, Ordering::Relaxed);
        }
    }

    /// It is about to run elsewhere: nobody waits for it in vain.
    pub fn leave(&self) {
        self.word(CORE_AT).store(Core::NOWHERE.word(), Ordering::Relaxed);
    }

    /// The core on which it was awake last, if it has said so.
    pub(crate) fn core(&self) -> Option<Core> {
        Core::of(self.word(CORE_AT).load(Ordering::Relaxed))
    }

    /// Sleeps until somebody rings, or for so long; not at all if `look` finds something to do.
    pub fn sleep(&self, patience: Duration, look: impl FnOnce() -> bool) {
        let rings = self.word(RINGS_AT).load(Ordering::Acquire);
        self.word(SLEEPERS_AT).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !look() {
            let patience = futex::Timespec {
                tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(patience.subsec_nanos()),
            };
            let waited = futex::wait(self.word(RINGS_AT), futex::Flags::empty(), rings, Some(&patience));
            debug_assert!(matches!(waited, Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)));
        }
        self.word(SLEEPERS_AT).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn whoever_sleeps_is_woken_and_whoever_has_work_does_not_sleep() {
        let file = File::from(memfd_create("bell", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, BELL_BYTES).unwrap();
        let (near, far) = (Bell::new(&file).unwrap(), Bell::new(&file).unwrap());
        let long = Duration::from_secs(600);
        near.sleep(long, || true);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                near.sleep(long, || false);
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                far.ring();
                std::thread::yield_now();
            }
        });
        near.sleep(Duration::from_millis(1), || false);
    }
}
