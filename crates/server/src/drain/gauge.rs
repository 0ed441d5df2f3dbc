//! Write rates and write slots of targets.

use forebay_policy::Tick;
use forebay_policy::drain::{Side, WriteSlots};
use std::time::{Duration, Instant};

/// Window over which a rate is measured.
const WINDOW: Duration = Duration::from_secs(1);

/// State of one target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gauge {
    pub(super) written: u64,
    /// Who may write.
    pub(super) slots: WriteSlots,
    /// Direct writers that wait for a slot.
    pub(super) direct_waiters: u32,
    began: Instant,
    since: Instant,
    before: u64,
    rate: u64,
}

impl Gauge {
    pub(super) fn new(now: Instant) -> Gauge {
        let slots = WriteSlots::default();
        Gauge { written: 0, slots, direct_waiters: 0, began: now, since: now, before: 0, rate: 0 }
    }

    /// Whether one side may begin another write at a target with `streams` slots.
    pub(super) fn may_begin(&mut self, side: Side, streams: u32, now: Instant) -> bool {
        let nanos = now.duration_since(self.began).as_nanos();
        self.slots.may_begin(side, streams, Tick(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Recent rate, in bytes a second.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    /// Updates the rate.
    pub(super) fn update(&mut self, now: Instant) {
        let passed = now.duration_since(self.since);
        if passed >= WINDOW {
            let rate = (self.written - self.before) as f64 / passed.as_secs_f64();
            // The mean of both: one slow write is no trend.
            self.rate = ((self.rate as f64 + rate) / if self.rate == 0 { 1.0 } else { 2.0 }) as u64;
            (self.since, self.before) = (now, self.written);
        }
    }
}

/// Limits the rate of the drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Valve {
    rate: u64,
    /// When the next byte may be written.
    free: Instant,
}

impl Valve {
    pub(super) fn new(rate: u64, now: Instant) -> Valve {
        Valve { rate: rate.max(1), free: now }
    }

    /// How long these bytes have to wait.
    pub(super) fn pass(&mut self, now: Instant, bytes: u64) -> Duration {
        let wait = self.free.saturating_duration_since(now);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        self.free = self.free.max(now) + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_measured_and_limited() {
        let start = Instant::now();
        let mut gauge = Gauge::new(start);
        gauge.written = 1000;
        gauge.update(start + Duration::from_millis(500));
        assert_eq!(gauge.rate(), 0, "not yet");
        gauge.update(start + Duration::from_secs(2));
        assert_eq!(gauge.rate(), 500);
        gauge.update(start + Duration::from_secs(4));
        assert_eq!(gauge.rate(), 250);
        let mut valve = Valve::new(1000, start);
        assert_eq!(valve.pass(start, 500), Duration::ZERO);
        assert_eq!(valve.pass(start, 500), Duration::from_millis(500));
        assert_eq!(
            valve.pass(start + Duration::from_secs(9), 500),
            Duration::ZERO,
            "unused budget does not accumulate"
        );
    }
}
