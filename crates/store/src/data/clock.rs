//! The store's clock: strictly increasing, never behind anything it stamped before.

use forebay_model::Stamp;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};

/// Stamps follow the machine's monotonic clock, moved so that they read as nanoseconds since the Unix epoch and
/// lie behind every stamp found in the store.
pub(super) struct Clock {
    base: u64,
    last: AtomicU64,
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of the machine's monotonic clock.
pub(super) fn monotonic() -> u64 {
    nanos(ClockId::Monotonic)
}

impl Clock {
    /// A clock whose first stamp is later than `floor`. With the base of an earlier clock of the same boot it goes on as
    /// that one did, so that what was stamped by it and by others in the meantime keeps its order.
    pub(super) fn after(floor: Stamp, base: Option<u64>) -> Clock {
        let start = nanos(ClockId::Realtime).max(floor.0 + 1);
        let base = base.unwrap_or_else(|| start.saturating_sub(monotonic()));
        Clock { base, last: AtomicU64::new(floor.0) }
    }

    /// What turns the machine's monotonic clock into stamps.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Somebody else has stamped something: the next stamp is later.
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
