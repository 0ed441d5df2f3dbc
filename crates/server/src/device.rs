//! A modelled device: work takes as long as on the real one, so that contention can be shown on any machine.

use forebay_model::Bytes;
use forebay_policy::{Cost, Tick};

/// How late the server may be without losing device time, since timers are inexact and threads wait for cores. Short
/// enough that the backlog contains requests of all jobs.
const SLACK: Tick = Tick::ms(20);

/// A device that works sequentially at a fixed rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    rate: Bytes,
    free: Tick,
    /// Since when work has been waiting.
    wanted: Tick,
}

impl Device {
    /// A device with this many bytes per second.
    pub(crate) fn new(rate: Bytes) -> Device {
        Device { rate: Bytes(rate.0.max(1)), free: Tick(0), wanted: Tick(0) }
    }

    /// When it can start the next piece of work, if not now.
    pub(crate) fn busy(&self, now: Tick) -> Option<Tick> {
        (self.free > now).then_some(self.free)
    }

    /// No work was waiting before this moment: that device time is lost, even if this call is late.
    pub(crate) fn want(&mut self, since: Tick) {
        self.wanted = since;
    }

    /// Starts a piece of work at the earliest possible time.
    pub(crate) fn occupy(&mut self, now: Tick, cost: Cost) {
        let from = self.free.max(self.wanted.min(now)).max(Tick(now.0.saturating_sub(SLACK.0)));
        self.free = from.after(self.time(cost));
    }

    /// A piece of work was smaller than planned.
    pub(crate) fn give_back(&mut self, cost: Cost) {
        self.free = Tick(self.free.0.saturating_sub(self.time(cost).0));
    }

    fn time(&self, cost: Cost) -> Tick {
        let nanos = u128::from(cost.0) * 1_000_000_000 / u128::from(self.rate.0);
        Tick(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_device_time_and_small_delays_cost_nothing() {
        let mut device = Device::new(Bytes(1_000));
        assert_eq!(device.busy(Tick(0)), None);
        device.occupy(Tick(0), Cost(10));
        assert_eq!(device.busy(Tick::ms(9)), Some(Tick::ms(10)));
        assert_eq!(device.busy(Tick::ms(11)), None);
        device.occupy(Tick::ms(11), Cost(10));
        assert_eq!(device.busy(Tick::ms(11)), Some(Tick::ms(20)), "1 ms late, but no time lost");
        device.give_back(Cost(5));
        assert_eq!(device.busy(Tick::ms(11)), Some(Tick::ms(15)));
        device.occupy(Tick::ms(100), Cost(40));
        assert_eq!(device.busy(Tick::ms(100)), Some(Tick::ms(120)), "more lateness loses device time");
        device.want(Tick::ms(128));
        device.occupy(Tick::ms(130), Cost(10));
        assert_eq!(device.busy(Tick::ms(130)), Some(Tick::ms(138)), "idle time is lost");
    }
}
