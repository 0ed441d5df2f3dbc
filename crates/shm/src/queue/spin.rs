//! Waiting in a loop for as long as that has been worth it lately.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Looks between two looks at the clock.
const LOOKS: u32 = 32;
/// Nobody has asked yet how many cores there are.
const UNKNOWN: u32 = u32::MAX;

/// How long to look for something before sleeping: longer where it came in time, shorter where it did not, not at all
/// where nobody else could do anything meanwhile. Nothing in it is ever locked: a forked child may go on with it.
pub struct Spin {
    /// In nanoseconds.
    now: AtomicU32,
    least: u32,
    most: u32,
}

impl Spin {
    /// Between a shortest and a longest time, below a second; not at all on one core.
    #[must_use]
    pub const fn new(least: Duration, most: Duration) -> Spin {
        Spin { now: AtomicU32::new(UNKNOWN), least: least.subsec_nanos(), most: most.subsec_nanos() }
    }

    fn now(&self) -> u32 {
        let now = self.now.load(Ordering::Relaxed);
        if now != UNKNOWN {
            return now;
        }
        let cores = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
        let first = if cores > 1 { self.most } else { 0 };
        self.now.store(first, Ordering::Relaxed);
        first
    }

    /// Looks until it is there, which is true, or no longer worth it.
    pub fn until(&self, mut is_there: impl FnMut() -> bool) -> bool {
        if is_there() {
            return true;
        }
        let now = self.now();
        if now == 0 {
            return false;
        }
        let (begin, patience) = (Instant::now(), Duration::from_nanos(now.into()));
        loop {
            for _ in 0..LOOKS {
                std::hint::spin_loop();
                if is_there() {
                    self.now.store((now + now / 4 + 1).min(self.most), Ordering::Relaxed);
                    return true;
                }
            }
            if begin.elapsed() >= patience {
                self.now.store((now / 2).max(self.least), Ordering::Relaxed);
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_follows_what_was_worth_it_between_its_bounds() {
        let spin = Spin::new(Duration::from_nanos(100), Duration::from_nanos(1000));
        assert!(spin.until(|| true), "nothing to wait for");
        spin.now.store(1000, Ordering::Relaxed);
        for expected in [500, 250, 125, 100, 100] {
            assert!(!spin.until(|| false));
            assert_eq!(spin.now.load(Ordering::Relaxed), expected);
        }
        for expected in [126, 158, 198] {
            let mut looks = 0;
            assert!(spin.until(|| {
                looks += 1;
                looks > 2
            }));
            assert_eq!(spin.now.load(Ordering::Relaxed), expected);
        }
        spin.now.store(0, Ordering::Relaxed);
        assert!(!spin.until(|| false), "on one core nobody looks");
        assert_eq!(spin.now.load(Ordering::Relaxed), 0);
    }
}
