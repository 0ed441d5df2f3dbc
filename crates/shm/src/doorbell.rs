//! A futex word that producers ring to wake a sleeping consumer.

use crate::map::Map;
use crate::queue::Core;
use rustix::io::Errno;
use rustix::thread::futex;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Size of a doorbell file in bytes.
pub const DOORBELL_BYTES: u64 = 4096;

const RINGS_AT: usize = 0;
const SLEEPERS_AT: usize = 64;
const CORE_AT: usize = 128;

/// A mapped word that one process waits on and others change. A lost ring delays the sleeper by at most its own
/// timeout.
pub struct Doorbell(Map);

impl Doorbell {
    /// Maps the doorbell in a file. Fails if the device of the file cannot read it.
    pub fn new(file: &File) -> io::Result<Doorbell> {
        Ok(Doorbell(Map::read_in(file, DOORBELL_BYTES as usize)?))
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` checks the range; all words lie at multiples of four of a mapping that begins at a page, lives
        // as long as the borrow, and is accessed only through atomics.
        unsafe { AtomicU32::from_ptr(self.0.at(at, 4).cast()) }
    }

    /// Wakes the sleeper. Makes no system call if the consumer is awake.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.is_waited_for() {
            self.wake();
        }
    }

    /// Whether the consumer sleeps or is about to. The caller has issued a fence after its writes.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.word(SLEEPERS_AT).load(Ordering::Relaxed) != 0
    }

    /// Wakes the sleeper.
    pub(crate) fn wake(&self) {
        self.word(RINGS_AT).fetch_add(1, Ordering::Release);
        // An error means that the sleeper is gone.
        let _ = futex::wake(self.word(RINGS_AT), futex::Flags::empty(), 1);
    }

    /// Publishes the core on which the calling consumer runs.
    pub fn announce_core(&self) {
        let (word, here) = (self.word(CORE_AT), Core::here().word());
        // Store only a changed value: other processes poll this word.
        if word.load(Ordering::Relaxed) != here {
            word.store(here, Ordering::Relaxed);
        }
    }

    /// Clears the published core before the consumer moves, so that clients do not spin for it.
    pub fn leave(&self) {
        self.word(CORE_AT).store(Core::NOWHERE.word(), Ordering::Relaxed);
    }

    /// The core on which the consumer last ran, if it has published one.
    pub(crate) fn core(&self) -> Option<Core> {
        Core::of(self.word(CORE_AT).load(Ordering::Relaxed))
    }

    /// Sleeps until the doorbell rings or `patience` expires. Returns at once if `look` finds work.
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
    fn sleeper_is_woken_and_pending_work_prevents_sleep() {
        let file = File::from(memfd_create("bell", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, DOORBELL_BYTES).unwrap();
        let (near, far) = (Doorbell::new(&file).unwrap(), Doorbell::new(&file).unwrap());
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
