//! What a turn costs, and when.

use forebay_model::Bytes;
use serde::{Deserialize, Serialize};

/// What every request costs besides its bytes unless configured otherwise, so that jobs with small requests are
/// charged for their number.
pub const OPERATION: Cost = Cost(16 << 10);

/// What a turn costs the server, in bytes or their equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Cost(pub u64);

impl Cost {
    /// The cost of a request that moves so many bytes, at the usual price of an operation.
    #[must_use]
    pub fn of(bytes: Bytes) -> Cost {
        Tariff::default().of(bytes)
    }

    /// As a number to share by. More than a tebibyte is a lie or a mistake, and must not spoil sums of others.
    pub(super) fn amount(self) -> f64 {
        self.0.min(1 << 40) as f64
    }
}

/// What an operation costs besides its bytes.
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
    /// The cost of a request that moves so many bytes.
    #[must_use]
    pub fn of(self, bytes: Bytes) -> Cost {
        Cost(self.operation.0.saturating_add(bytes.0))
    }
}

/// A moment, in nanoseconds since any fixed one; never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tick(pub u64);

impl Tick {
    /// So many milliseconds after the start.
    #[must_use]
    pub const fn ms(count: u64) -> Tick {
        Tick(count * 1_000_000)
    }

    /// The moment so much later.
    #[must_use]
    pub fn after(self, span: Tick) -> Tick {
        Tick(self.0.saturating_add(span.0))
    }

    /// How much later this is than `earlier`; nothing if it is not.
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

/// Cost a second: what a device is believed to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate(pub u64);

impl Rate {
    /// What it does in a span of time; at least one byte, so that nothing divides by zero.
    pub(super) fn during(self, span: Tick) -> f64 {
        (self.0 as f64 * span.secs()).max(1.0)
    }
}

/// The number of a request that waits for its turn; each is used once, later requests have larger ones.
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
