//! Samples the cost of index updates: one update in `EVERY` is timed, so that measuring costs next to nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// One update in this many is timed.
const EVERY: u64 = 16;

#[derive(Default)]
pub(super) struct IndexCost {
    changes: AtomicU64,
    nanos: AtomicU64,
}

impl IndexCost {
    /// Runs an update, and may time it.
    pub(super) fn around<T>(&self, change: impl FnOnce() -> T) -> T {
        if !self.changes.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY) {
            return change();
        }
        let begin = Instant::now();
        let changed = change();
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(took.saturating_mul(EVERY), Ordering::Relaxed);
        changed
    }

    /// Estimated nanoseconds of all updates.
    pub(super) fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn index_cost_samples_one_change_in_many() {
        let index_cost = IndexCost::default();
        assert_eq!(index_cost.around(|| 7), 7);
        let first = index_cost.nanos();
        for _ in 1..EVERY {
            index_cost.around(|| std::thread::sleep(Duration::from_millis(1)));
        }
        assert_eq!(index_cost.nanos(), first, "these are not sampled");
        index_cost.around(|| std::thread::sleep(Duration::from_millis(1)));
        assert!(index_cost.nanos() >= first + EVERY * 1_000_000);
    }
}
