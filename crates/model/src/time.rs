//! File timestamps.

use crate::Stamp;
use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub secs: i64,
    /// Nanoseconds within the second, below 10⁹.
    pub nanos: u32,
}

impl From<Stamp> for Time {
    fn from(stamp: Stamp) -> Time {
        const SECOND: u64 = 1_000_000_000;
        Time { secs: (stamp.0 / SECOND) as i64, nanos: (stamp.0 % SECOND) as u32 }
    }
}
