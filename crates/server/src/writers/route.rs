//! The routing mode, and whether a burst goes on.

use crate::direct::{Full, Pipeline, Routing};
use forebay_model::Stamp;
use forebay_policy::Tick;
use forebay_policy::drain::{Burst, burst};
use forebay_policy::route::Mode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What the drain and the back end have to know of routing.
pub(crate) struct RouteState {
    routing: Routing,
    /// Index of the current mode in `Mode::ALL`.
    mode: AtomicUsize,
    /// When the last bytes arrived.
    last: AtomicU64,
    arrived: AtomicU64,
}

impl RouteState {
    pub(crate) fn new(routing: Routing) -> RouteState {
        let mode = AtomicUsize::new(number(routing.mode));
        RouteState { routing, mode, last: AtomicU64::new(0), arrived: AtomicU64::new(0) }
    }

    /// Bytes have arrived.
    pub(crate) fn came(&self, now: Stamp, bytes: u64) {
        self.arrived.fetch_add(bytes, Ordering::Relaxed);
        self.last.fetch_max(now.0, Ordering::Relaxed);
    }

    /// The bytes that have arrived so far.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Changes the routing mode.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(number(mode), Ordering::Relaxed);
    }

    /// The routing mode.
    pub(crate) fn mode(&self) -> Mode {
        Mode::ALL[self.mode.load(Ordering::Relaxed)].1
    }

    /// Whether direct writes are possible at all.
    pub(crate) fn are_open(&self) -> bool {
        self.mode() != Mode::Buffer || self.bypass()
    }

    /// What happens to a write that finds the buffer full.
    pub(crate) fn when_full(&self) -> Full {
        self.routing.when_full()
    }

    /// Whether a write that finds the buffer full is written directly.
    pub(crate) fn bypass(&self) -> bool {
        self.when_full() == Full::Bypass
    }

    /// Whether the end of a burst matters.
    pub(crate) fn follows_bursts(&self) -> bool {
        self.routing.pipeline == Pipeline::Off
    }

    /// Whether data may be drained, as far as bursts matter.
    pub(crate) fn burst(&self, now: Stamp) -> Burst {
        burst(self.routing.pipeline, Tick(self.last.load(Ordering::Relaxed)), Tick(now.0))
    }
}

fn number(mode: Mode) -> usize {
    Mode::ALL.iter().position(|(_, one)| *one == mode).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::drain::LULL;

    #[test]
    fn arriving_bytes_prolong_the_burst() {
        let at = RouteState::new;
        let route = at(Routing { pipeline: Pipeline::Off, ..Routing::default() });
        let second = 1_000_000_000;
        assert_eq!(route.burst(Stamp(second)), Burst::Over);
        route.came(Stamp(second), 1);
        assert_eq!(
            route.burst(Stamp(second + LULL.0 - 1)),
            Burst::GoesOn,
            "any bytes count, however slowly they arrive"
        );
        assert_eq!(route.burst(Stamp(second + LULL.0)), Burst::Over);
        let usual = at(Routing::default());
        usual.came(Stamp(second), 1);
        assert_eq!(usual.burst(Stamp(second)), Burst::Any);
    }
}
