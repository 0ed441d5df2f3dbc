//! Waiting in a loop for as long as that has been worth it lately.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Looks between two looks at the clock.
const LOOKS: u32 = 32;
/// What took less than so many times the longest look would have been worth one, but for the time that waking up takes.
const SOON: u32 = 4;
/// Nobody has asked yet how many cores there are.
const UNKNOWN: u32 = u32::MAX;

/// How long to look for something before sleeping: for long where it has come soon lately, shorter and shorter where it has
/// not, not at all where nobody else could do anything meanwhile. Nothing in it is ever locked: a forked child may go on
/// with it.
///
/// What counts is how long was waited, not whether looking was in time: two who look for a moment only, and take longer to
/// wake up than that, would never find each other awake again.
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

    /// Looks until it is there, or no longer worth it, or in vain: then whoever waits on says in the end how long it was,
    /// with [`Spin::waited`].
    pub fn until(&self, mut is_there: impl FnMut() -> bool, in_vain: impl Fn() -> bool) -> Looked {
        if is_there() {
            return Looked::There;
        }
        let (begin, now) = (Instant::now(), self.now());
        if now == 0 || in_vain() {
            return Looked::SinceThen(begin);
        }
        let patience = Duration::from_nanos(now.into());
        loop {
            for _ in 0..LOOKS {
                std::hint::spin_loop();
                if is_there() {
                    return Looked::There;
                }
            }
            if begin.elapsed() >= patience || in_vain() {
                return Looked::SinceThen(begin);
            }
        }
    }

    /// How long it took until it was there, or nobody waited for it any more.
    pub fn waited(&self, time: Duration) {
        let now = self.now();
        if now == 0 {
            return;
        }
        let soon = time < SOON * Duration::from_nanos(self.most.into());
        self.now.store(if soon { self.most } else { (now / 2).max(self.least) }, Ordering::Relaxed);
    }
}

/// What came of looking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looked {
    /// It is there.
    There,
    /// It is not; looking began then.
    SinceThen(Instant),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_follows_how_long_was_waited_between_its_bounds() {
        let spin = Spin::new(Duration::from_nanos(100), Duration::from_nanos(1000));
        let no = || false;
        assert_eq!(spin.until(|| true, || true), Looked::There, "nothing to wait for");
        spin.now.store(1000, Ordering::Relaxed);
        let (soon, late) = (Duration::from_nanos(3999), Duration::from_nanos(4000));
        for (waited, expected) in
            [(late, 500), (late, 250), (late, 125), (late, 100), (late, 100), (soon, 1000), (late, 500)]
        {
            assert!(matches!(spin.until(no, no), Looked::SinceThen(_)));
            spin.waited(waited);
            assert_eq!(spin.now.load(Ordering::Relaxed), expected);
        }
        let mut looks = 0;
        let mut third = || {
            looks += 1;
            looks > 2
        };
        assert_eq!((spin.until(&mut third, no), spin.now.load(Ordering::Relaxed)), (Looked::There, 500));
        looks = 0;
        let look = || {
            looks += 1;
            false
        };
        assert!(matches!(spin.until(look, || true), Looked::SinceThen(_)));
        assert_eq!(looks, 1, "once is never in vain");
    }

    #[test]
    fn on_one_core_nobody_looks() {
        let spin = Spin::new(Duration::from_nanos(100), Duration::from_nanos(1000));
        spin.now.store(0, Ordering::Relaxed);
        assert!(matches!(spin.until(|| false, || false), Looked::SinceThen(_)));
        spin.waited(Duration::ZERO);
        assert_eq!(spin.now.load(Ordering::Relaxed), 0);
    }
}
