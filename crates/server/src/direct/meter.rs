//! Measures the write rate of the back end while it is busy.

use forebay_model::Bytes;
use std::time::{Duration, Instant};

/// Minimum busy time of a measurement.
const WINDOW: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Meter {
    writers: u32,
    /// When the current busy time began.
    since: Instant,
    busy: Duration,
    bytes: u64,
}

impl Meter {
    pub(super) fn new(now: Instant) -> Meter {
        Meter { writers: 0, since: now, busy: Duration::ZERO, bytes: 0 }
    }

    /// A writer begins.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.writers == 0 {
            self.since = now;
        }
        self.writers += 1;
    }

    /// A writer has written `bytes`. Returns the rate now and then, in bytes a second.
    pub(super) fn end(&mut self, now: Instant, bytes: u64) -> Option<Bytes> {
        self.writers -= 1;
        self.bytes += bytes;
        self.busy += now.duration_since(std::mem::replace(&mut self.since, now));
        (self.busy >= WINDOW && self.bytes > 0).then(|| {
            let rate = self.bytes as f64 / self.busy.as_secs_f64();
            (self.busy, self.bytes) = (Duration::ZERO, 0);
            Bytes(rate as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_busy_time_is_measured() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::new(start);
        meter.begin(at(0));
        assert_eq!(meter.end(at(100), 1000), None, "too short");
        meter.begin(at(1000));
        meter.begin(at(1050));
        assert_eq!(meter.end(at(1100), 1000), Some(Bytes(10_000)), "100 ms, a pause, and 100 ms");
        assert_eq!(meter.end(at(1300), 500), Some(Bytes(2500)));
        meter.begin(at(2000));
        assert_eq!(meter.end(at(2300), 0), None, "nothing was written");
    }
}
