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

impl Clock {
    /// A clock whose first stamp is later than `floor`.
    pub(super) fn after(floor: Stamp) -> Clock {
        let start = nanos(ClockId::Realtime).max(floor.0 + 1);
        Clock { base: start.saturating_sub(nanos(ClockId::Monotonic)), last: AtomicU64::new(floor.0) }
    }

    /// A stamp later than all before.
    pub(super) fn next(&self) -> Stamp {
        let now = self.base + nanos(ClockId::Monotonic);
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
