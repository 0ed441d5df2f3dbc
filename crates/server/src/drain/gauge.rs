//! How much goes where, and how fast.

use std::time::{Duration, Instant};

/// Over how long a rate is measured.
const WINDOW: Duration = Duration::from_secs(1);

/// What one target has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gauge {
    pub(super) written: u64,
    pub(super) writers: u32,
    /// Writers past the buffer that wait for a place.
    pub(super) callers: u32,
    /// Whose turn the last place is, because the other side took it while this one had work, and since when that keeps the
    /// other side from it.
    pub(super) turn: Option<(Side, Option<Instant>)>,
    since: Instant,
    before: u64,
    rate: u64,
}

/// Who shares the places of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Drain,
    Past,
}

/// The last place of a target is left for so long to the side whose turn it is.
pub(super) const COURTESY: Duration = Duration::from_millis(50);

impl Gauge {
    pub(super) fn new(now: Instant) -> Gauge {
        Gauge { written: 0, writers: 0, callers: 0, turn: None, since: now, before: 0, rate: 0 }
    }

    /// Whether one side may begin another write where so many may write: the last place goes to both in turn.
    pub(super) fn may_begin(&mut self, side: Side, streams: u32, now: Instant) -> bool {
        if self.writers + 1 != streams {
            return self.writers < streams;
        }
        match &mut self.turn {
            Some((turn, since)) if *turn != side => now.duration_since(*since.get_or_insert(now)) >= COURTESY,
            _ => true,
        }
    }

    /// One side begins to write. If it takes the last place, and the other waits, that one is next.
    pub(super) fn begin(&mut self, side: Side, streams: u32, other_waits: bool) {
        self.writers += 1;
        if self.writers >= streams {
            let other = if side == Side::Drain { Side::Past } else { Side::Drain };
            self.turn = other_waits.then_some((other, None));
        }
    }

    /// Bytes a second, lately.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    /// Looks at the clock.
    pub(super) fn look(&mut self, now: Instant) {
        let passed = now.duration_since(self.since);
        if passed >= WINDOW {
            let rate = (self.written - self.before) as f64 / passed.as_secs_f64();
            // Half of what was: one slow write is no trend.
            self.rate = ((self.rate as f64 + rate) / if self.rate == 0 { 1.0 } else { 2.0 }) as u64;
            (self.since, self.before) = (now, self.written);
        }
    }
}

/// No more than so much a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Valve {
    rate: u64,
    /// When the next byte may go.
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
    fn rates_are_measured_and_kept() {
        let start = Instant::now();
        let mut gauge = Gauge::new(start);
        gauge.written = 1000;
        gauge.look(start + Duration::from_millis(500));
        assert_eq!(gauge.rate(), 0, "not yet");
        gauge.look(start + Duration::from_secs(2));
        assert_eq!(gauge.rate(), 500);
        gauge.look(start + Duration::from_secs(4));
        assert_eq!(gauge.rate(), 250);
        let mut valve = Valve::new(1000, start);
        assert_eq!(valve.pass(start, 500), Duration::ZERO);
        assert_eq!(valve.pass(start, 500), Duration::from_millis(500));
        assert_eq!(
            valve.pass(start + Duration::from_secs(9), 500),
            Duration::ZERO,
            "what was not used is gone"
        );
    }
}
