//! Limits the rate of log lines about peers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Passes a number of lines per second and counts the rest.
pub(crate) struct LogLimit {
    most: u32,
    written: AtomicU32,
    left_out: AtomicU64,
}

impl LogLimit {
    pub(crate) fn new(most: usize) -> LogLimit {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        LogLimit { most, written: AtomicU32::new(0), left_out: AtomicU64::new(0) }
    }

    /// Whether another line may be logged in this second.
    pub(crate) fn allows(&self) -> bool {
        let counted = |written: u32| (written < self.most).then_some(written + 1);
        let allowed = self.written.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).is_ok();
        if !allowed {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        allowed
    }

    /// Starts the next second; returns the number of suppressed lines.
    pub(crate) fn second(&self) -> u64 {
        self.written.store(0, Ordering::Relaxed);
        self.left_out.swap(0, Ordering::Relaxed)
    }
}

/// Logs a line about a peer at INFO while the limit allows it, otherwise at DEBUG.
macro_rules! about_peer {
    ($log:expr, $($line:tt)*) => {
        match $log.allows() {
            true => tracing::info!($($line)*),
            false => tracing::debug!($($line)*),
        }
    };
}

pub(crate) use about_peer;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_lines_are_counted_and_each_second_starts_anew() {
        let log = LogLimit::new(3);
        assert_eq!((0..10_000).filter(|_| log.allows()).count(), 3);
        assert_eq!(log.second(), 9_997);
        assert!(log.allows());
        assert_eq!(log.second(), 0);
    }
}
