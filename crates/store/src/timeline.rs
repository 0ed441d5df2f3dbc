//! The wall-clock time of a stamp.
//!
//! Stamps only grow, because at every byte the newest stamp wins. If the machine's clock was in the future for a while,
//! stamps stay ahead of it for good, but displayed times must not. The store records from which stamp on its stamps
//! differ from the machine's clock, and by how much, and computes times from stamps when it reports them.
//!
//! **Invariant**: a new step never changes the times of stamps before it.

use crate::meta::{Batch, KeySpace, Kv};
use forebay_model::{Error, ErrorKind, Result, Stamp, Time};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// The keys of steps: this prefix, then the stamp.
const KEY: &[u8] = KeySpace::ClockOffset.prefix();
/// Largest number of steps. If the clock is set more often, the store corrects the newest step instead.
const MOST: usize = 256;
/// Smaller differences are ignored, in nanoseconds.
const TOLERANCE: u64 = 1_000_000_000;
const SECOND: i128 = 1_000_000_000;

/// Differences between stamps and the machine's clock. Read without a lock, by every `stat`.
pub struct Timeline {
    kv: Option<Arc<dyn Kv>>,
    steps: Vec<Step>,
    len: AtomicUsize,
    adding: Mutex<()>,
}

/// From this stamp on, so many nanoseconds are added for the time.
#[derive(Default)]
struct Step {
    from: AtomicU64,
    shift: AtomicI64,
}

impl Default for Timeline {
    /// Stamps are times.
    fn default() -> Timeline {
        Timeline { kv: None, steps: Vec::new(), len: AtomicUsize::new(0), adding: Mutex::default() }
    }
}

impl Timeline {
    /// The steps that were noted.
    pub(crate) fn load(kv: Arc<dyn Kv>) -> Result<Timeline> {
        let mut steps = (0..MOST).map(|_| Step::default()).collect::<Vec<Step>>();
        let (mut len, mut damaged) = (0, false);
        kv.scan(KEY, b"", &mut |key, value| {
            let number = |bytes: Option<&[u8]>| bytes.and_then(|bytes| bytes.try_into().ok());
            match (number(key.get(KEY.len()..)), number(Some(value)), steps.get_mut(len)) {
                (Some(from), Some(shift), Some(step)) => {
                    let (from, shift) = (u64::from_be_bytes(from), i64::from_be_bytes(shift));
                    *step = Step { from: AtomicU64::new(from), shift: AtomicI64::new(shift) };
                    len += 1;
                }
                _ => damaged = true,
            }
            ControlFlow::Continue(())
        })?;
        match damaged {
            true => {
                Err(Error::new(ErrorKind::BadStore, "what was noted about the machine's clock is damaged"))
            }
            false => {
                Ok(Timeline { kv: Some(kv), steps, len: AtomicUsize::new(len), adding: Mutex::default() })
            }
        }
    }

    fn steps(&self) -> impl DoubleEndedIterator<Item = (u64, i64)> {
        let steps = &self.steps[..self.len.load(Ordering::Acquire)];
        steps.iter().map(|step| (step.from.load(Ordering::Relaxed), step.shift.load(Ordering::Relaxed)))
    }

    /// What is added to this stamp for the time.
    fn shift(&self, stamp: i128) -> i64 {
        self.steps().rev().find(|&(from, _)| i128::from(from) <= stamp).map_or(0, |(_, shift)| shift)
    }

    /// When something was stamped, by the machine's clock of then.
    #[must_use]
    pub fn time_of(&self, stamp: Stamp) -> Time {
        self.shown(Time::from(stamp))
    }

    /// The time to show for one that is kept by the clock of stamps.
    #[must_use]
    pub fn shown(&self, kept: Time) -> Time {
        if self.len.load(Ordering::Acquire) == 0 {
            return kept;
        }
        let stamp = nanos(kept);
        time(stamp + i128::from(self.shift(stamp)))
    }

    /// The reverse: what to keep for a time that is to be shown.
    #[must_use]
    pub fn kept(&self, shown: Time) -> Time {
        let time_shown = nanos(shown);
        let since = |(_, shift): (u64, i64)| {
            let stamp = time_shown - i128::from(shift);
            (self.shift(stamp) == shift).then_some(stamp)
        };
        time(self.steps().rev().find_map(since).unwrap_or(time_shown))
    }

    /// This stamp is made while the machine's clock shows `now`, in nanoseconds since 1970: if times from it on would be
    /// wrong, they are put right. True if they were.
    pub(crate) fn follow(&self, stamp: Stamp, now: u64) -> Result<bool> {
        let Some(kv) = &self.kv else { return Ok(false) };
        let _adding = self.adding.lock();
        let shift = i64::try_from(i128::from(now) - i128::from(stamp.0)).unwrap_or(i64::MIN);
        if shift.abs_diff(self.shift(i128::from(stamp.0))) <= TOLERANCE {
            return Ok(false);
        }
        let len = self.len.load(Ordering::Acquire);
        let (at, from) = match len < MOST {
            true => (len, stamp.0),
            false => (len - 1, self.steps[len - 1].from.load(Ordering::Relaxed)),
        };
        let mut batch = Batch::default();
        batch.put([KEY, &from.to_be_bytes()].concat(), shift.to_be_bytes());
        kv.commit(batch)?;
        self.steps[at].from.store(from, Ordering::Relaxed);
        self.steps[at].shift.store(shift, Ordering::Relaxed);
        self.len.store(at + 1, Ordering::Release);
        Ok(true)
    }
}

fn nanos(time: Time) -> i128 {
    i128::from(time.secs) * SECOND + i128::from(time.nanos)
}

fn time(nanos: i128) -> Time {
    let secs = i64::try_from(nanos.div_euclid(SECOND)).unwrap_or(i64::MAX);
    Time { secs, nanos: nanos.rem_euclid(SECOND) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::MemoryKv;

    const HOUR: u64 = 3_600_000_000_000;

    fn at(nanos: u64) -> Time {
        Time::from(Stamp(nanos))
    }

    #[test]
    fn times_follow_a_clock_that_is_set_and_older_ones_stay() {
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::default());
        let times = Timeline::load(kv.clone()).unwrap();
        assert_eq!(times.time_of(Stamp(5)), at(5));
        assert!(!times.follow(Stamp(20 * HOUR), 20 * HOUR + TOLERANCE).unwrap(), "no reason yet");
        // The clock was 10 hours ahead until here, then one hour behind, then right.
        assert!(times.follow(Stamp(30 * HOUR), 20 * HOUR).unwrap());
        assert!(times.follow(Stamp(32 * HOUR), 21 * HOUR).unwrap());
        assert!(times.follow(Stamp(33 * HOUR), 33 * HOUR).unwrap());
        let again = Timeline::load(kv).unwrap();
        for times in [&times, &again] {
            for (stamp, shown) in [(29, 29), (30, 20), (31, 21), (32, 21), (33, 33), (99, 99)] {
                assert_eq!(times.time_of(Stamp(stamp * HOUR)), at(shown * HOUR), "{stamp}");
            }
            for shown in [0, 19, 20, 21, 25, 29, 33, 99] {
                assert_eq!(times.shown(times.kept(at(shown * HOUR))), at(shown * HOUR), "{shown}");
            }
        }
        let before_1970 = Time { secs: -5, nanos: 7 };
        assert_eq!(times.shown(times.kept(before_1970)), before_1970);
    }

    #[test]
    fn clock_that_is_set_again_and_again_takes_no_more_memory() {
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::default());
        let times = Timeline::load(kv.clone()).unwrap();
        for step in 1..=MOST as u64 + 9 {
            assert!(times.follow(Stamp(step * 100 * HOUR), step * HOUR).unwrap());
        }
        let last = MOST as u64 + 9;
        for times in [&times, &Timeline::load(kv).unwrap()] {
            assert_eq!(times.time_of(Stamp(last * 100 * HOUR)), at(last * HOUR));
            assert_eq!(times.time_of(Stamp(200 * HOUR)), at(2 * HOUR));
        }
    }

    #[test]
    fn damaged_records_are_reported() {
        for (key, value) in [(&b"T"[..], &[0; 8][..]), (b"T12345678", b"short")] {
            let kv = MemoryKv::default();
            let mut batch = Batch::default();
            batch.put(key, value);
            kv.commit(batch).unwrap();
            assert_eq!(Timeline::load(Arc::new(kv)).err().expect("damaged").kind(), ErrorKind::BadStore);
        }
    }
}
