//! Cost of requests, time and rates.

use forebay_model::Bytes;
use serde::{Deserialize, Serialize};

/// Default price of an operation in addition to its bytes, so that jobs with small requests are charged for
/// their number of requests.
pub const OPERATION: Cost = Cost(16 << 10);

/// Work of a request for the server, in bytes or an equivalent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Cost(pub u64);

impl Cost {
    /// The cost of a request that moves the given number of bytes, at the default price of an operation.
    #[must_use]
    pub fn of(bytes: Bytes) -> Cost {
        Tariff::default().of(bytes)
    }

    /// The cost as a float. Caps it at one tebibyte, so that one absurd value does not spoil the sums of
    /// other jobs.
    pub(super) fn amount(self) -> f64 {
        self.0.min(1 << 40) as f64
    }
}

/// Price of an operation in addition to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tariff {
    /// The price of any operation.
    pub operation: Cost,
}

impl Default for Tariff {
    fn default() -> Tariff {
        Tariff { operation: OPERATION }
    }
}

impl Tariff {
    /// The cost of a request that moves the given number of bytes.
    #[must_use]
    pub fn of(self, bytes: Bytes) -> Cost {
        Cost(self.operation.0.saturating_add(bytes.0))
    }
}

/// A monotonic instant, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tick(pub u64);

impl Tick {
    /// The given number of milliseconds after the start.
    #[must_use]
    pub const fn ms(count: u64) -> Tick {
        Tick(count * 1_000_000)
    }

    /// The instant `span` later.
    #[must_use]
    pub fn after(self, span: Tick) -> Tick {
        Tick(self.0.saturating_add(span.0))
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Tick) -> Tick {
        Tick(self.0.saturating_sub(earlier.0))
    }

    /// In seconds.
    #[must_use]
    pub fn secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// Cost per second: the assumed throughput of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate(pub u64);

impl Rate {
    /// Cost done in a span of time; at least one byte, so that it can be a divisor.
    pub(super) fn during(self, span: Tick) -> f64 {
        (self.0 as f64 * span.secs()).max(1.0)
    }
}

/// Number of a waiting request. Numbers are unique; later requests have larger ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_are_charged_for_their_number() {
        assert_eq!(Cost::of(Bytes(0)), OPERATION);
        assert_eq!(Cost::of(Bytes(u64::MAX)), Cost(u64::MAX));
        assert_eq!(Tariff { operation: Cost(1) }.of(Bytes(7)), Cost(8));
    }
}
