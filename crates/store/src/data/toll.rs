//! What keeping the index costs, estimated from one change in so many, so that knowing it costs next to nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// One change in so many is looked at.
const EVERY: u64 = 16;

#[derive(Default)]
pub(super) struct Toll {
    changes: AtomicU64,
    nanos: AtomicU64,
}

impl Toll {
    /// Makes a change, and may look how long that takes.
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

    /// Nanoseconds that all of them took.
    pub(super) fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_change_in_many_stands_for_all() {
        let toll = Toll::default();
        assert_eq!(toll.around(|| 7), 7);
        let first = toll.nanos();
        for _ in 1..EVERY {
            toll.around(|| std::thread::sleep(Duration::from_millis(1)));
        }
        assert_eq!(toll.nanos(), first, "these are not looked at");
        toll.around(|| std::thread::sleep(Duration::from_millis(1)));
        assert!(toll.nanos() >= first + EVERY * 1_000_000);
    }
}
