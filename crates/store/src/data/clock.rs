//! The store's clock: strictly increasing, and later than every earlier stamp.

use crate::timeline::Timeline;
use forebay_model::{Result, Stamp};
use forebay_shm::monotonic;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Stamps follow the machine's monotonic clock, offset so that they read as nanoseconds since the Unix epoch and are
/// later than every stamp found in the store.
pub(super) struct Clock {
    base: u64,
    last: AtomicU64,
    /// The machine's clock, in nanoseconds since 1970.
    realtime: fn() -> u64,
}

fn realtime() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Clock {
    /// A clock whose first stamp is later than `floor`. With the base of an earlier clock of the same boot it continues
    /// that clock, so that stamps of clients in the meantime keep their order.
    pub(super) fn after(floor: Stamp, base: Option<u64>) -> Clock {
        Clock::with(realtime, floor, base)
    }

    fn with(realtime: fn() -> u64, floor: Stamp, base: Option<u64>) -> Clock {
        let start = realtime().max(floor.0 + 1);
        let base = base.unwrap_or_else(|| start.saturating_sub(monotonic()));
        Clock { base, last: AtomicU64::new(floor.0), realtime }
    }

    /// Has times from now on be those of the machine's clock, if they are not; true if they were not.
    pub(super) fn follow(&self, times: &Timeline) -> Result<bool> {
        let stamp = self.next();
        times.follow(stamp, (self.realtime)())
    }

    /// How far it is ahead of the machine's clock, because of the stamps that were found.
    pub(super) fn ahead(&self) -> Duration {
        let next = (self.base + monotonic()).max(self.last.load(Ordering::Relaxed));
        Duration::from_nanos(next.saturating_sub((self.realtime)()))
    }

    /// The offset from the machine's monotonic clock to stamps.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Makes the next stamp later than a client's stamp.
    pub(super) fn observe(&self, stamp: Stamp) {
        self.last.fetch_max(stamp.0, Ordering::AcqRel);
    }

    /// A stamp later than all before.
    pub(super) fn next(&self) -> Stamp {
        let now = self.base + monotonic();
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            let next = now.max(last + 1);
            match self.last.compare_exchange_weak(last, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Stamp(next),
                Err(seen) => last = seen,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::{Kv, MemoryKv};
    use forebay_model::Time;
    use std::sync::Arc;

    const HOUR: u64 = 3_600_000_000_000;
    /// What the machine's clock says.
    static MACHINE: AtomicU64 = AtomicU64::new(0);

    /// How many whole hours a stamp that is made now shows.
    fn hours(clock: &Clock, times: &Timeline) -> i64 {
        times.time_of(clock.next()).secs / 3600
    }

    #[test]
    fn times_are_right_again_after_a_start_with_a_clock_in_the_future_and_stamps_only_grow() {
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::default());
        let start = |floor, hour| {
            MACHINE.store(hour * HOUR + 1, Ordering::SeqCst);
            let times = Timeline::load(kv.clone()).unwrap();
            let clock = Clock::with(|| MACHINE.load(Ordering::SeqCst), floor, None);
            clock.follow(&times).unwrap();
            (clock, times)
        };
        // Far enough from the start of the machine.
        let (clock, times) = start(Stamp(0), 1_000_000);
        assert_eq!(hours(&clock, &times), 1_000_000);
        let (clock, times) = start(clock.next(), 1_000_900);
        let future = clock.next();
        assert_eq!(hours(&clock, &times), 1_000_900, "as the machine says, right or wrong");
        let (clock, times) = start(future, 1_000_001);
        assert_eq!(hours(&clock, &times), 1_000_001);
        assert!(clock.next() > future);
        assert_eq!(times.time_of(future), Time::from(future), "what was shown before stays");
        // The clock is set while the store is open.
        MACHINE.store(1_000_500 * HOUR + 1, Ordering::SeqCst);
        let before = clock.next();
        assert!(clock.follow(&times).unwrap() && !clock.follow(&times).unwrap());
        assert_eq!(hours(&clock, &times), 1_000_500);
        assert!(clock.next() > before && times.time_of(before).secs / 3600 == 1_000_001);
    }
}
