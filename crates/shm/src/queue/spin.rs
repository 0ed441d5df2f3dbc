//! Adaptive spinning: spins as long as recent waits were short.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Polls between two reads of the clock.
const POLLS: u32 = 32;
/// A wait shorter than this multiple of the longest spin counts as short: the excess is the time to wake up.
const SOON: u32 = 4;
/// The number of cores was not read yet.
const UNKNOWN: u32 = u32::MAX;

/// How long to spin before sleeping: long after short waits, shorter and shorter after long ones, not at all on a
/// single core. It uses no lock, so that a forked child can continue to use it.
///
/// The decision uses the total wait, not whether the spin succeeded. Otherwise two threads that spin for less time than
/// a wake-up takes would never find each other awake again.
pub struct Spin {
    /// Current spin time in nanoseconds.
    now: AtomicU32,
    least: u32,
    most: u32,
}

impl Spin {
    /// Spins between `least` and `most`, both below a second; never on a single core.
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

    /// Spins until `is_there`, until the spin time is over, or until `in_vain`. In the last two cases the caller
    /// reports the total wait with [`Spin::waited`].
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
            for _ in 0..POLLS {
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

    /// Records how long the caller waited until success or until it gave up.
    pub fn waited(&self, time: Duration) {
        let now = self.now();
        if now == 0 {
            return;
        }
        let soon = time < SOON * Duration::from_nanos(self.most.into());
        self.now.store(if soon { self.most } else { (now / 2).max(self.least) }, Ordering::Relaxed);
    }
}

/// The result of spinning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looked {
    /// The condition holds.
    There,
    /// The condition does not hold; spinning began at this time.
    SinceThen(Instant),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_time_adapts_to_waits_within_its_bounds() {
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
        let mut polls = 0;
        let mut third = || {
            polls += 1;
            polls > 2
        };
        assert_eq!((spin.until(&mut third, no), spin.now.load(Ordering::Relaxed)), (Looked::There, 500));
        polls = 0;
        let look = || {
            polls += 1;
            false
        };
        assert!(matches!(spin.until(look, || true), Looked::SinceThen(_)));
        assert_eq!(polls, 1, "the first poll always happens");
    }

    #[test]
    fn single_core_never_spins() {
        let spin = Spin::new(Duration::from_nanos(100), Duration::from_nanos(1000));
        spin.now.store(0, Ordering::Relaxed);
        assert!(matches!(spin.until(|| false, || false), Looked::SinceThen(_)));
        spin.waited(Duration::ZERO);
        assert_eq!(spin.now.load(Ordering::Relaxed), 0);
    }
}
