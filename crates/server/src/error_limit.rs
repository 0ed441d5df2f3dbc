//! Limits repeated log lines about a persistent error, such as a full disk.

use std::time::{Duration, Instant};

/// Minimum time between two lines about the same error.
const PAUSE: Duration = Duration::from_secs(60);

/// Passes one line per [`PAUSE`].
#[derive(Default)]
pub(crate) struct ErrorLimit {
    last: Option<Instant>,
    held_back: u64,
}

impl ErrorLimit {
    /// If this line may be logged, the number of lines suppressed since the last one.
    pub(crate) fn allows(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_counts_the_suppressed_ones() {
        let (mut error_limit, start) = (ErrorLimit::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        let through: Vec<_> = [0, 1, 59, 60, 61, 200].map(|secs| error_limit.allows(at(secs))).into();
        assert_eq!(through, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
