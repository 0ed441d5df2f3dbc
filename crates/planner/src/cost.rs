//! Price of a buffer, and lifetime of its devices.

use crate::{Metrics, Units};

/// Prices and units.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prices {
    /// Price of one TB of buffer.
    pub per_tb: f64,
    /// How often the whole capacity can be written before the devices wear out.
    pub endurance: Option<f64>,
    /// Bytes in one data unit.
    pub unit_bytes: f64,
    /// Seconds in one time unit.
    pub unit_seconds: f64,
}

/// Cost of a buffer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// Size of the buffer in TB.
    pub terabytes: f64,
    /// Purchase price.
    pub price: f64,
    /// TB written into it per day.
    pub written_per_day: f64,
    /// Times its whole capacity is written per day.
    pub drive_writes_per_day: f64,
    /// Years until its endurance is used up; `None` without an endurance or without writes.
    pub years: Option<f64>,
}

impl Cost {
    /// The cost of `capacity` with the use that `metrics` describe.
    #[must_use]
    pub fn of(capacity: Units, metrics: &Metrics, prices: &Prices) -> Cost {
        let terabytes = capacity.0 as f64 * prices.unit_bytes / 1e12;
        let written_per_day = metrics.written * prices.unit_bytes / 1e12 * 86_400.0 / prices.unit_seconds;
        let wears = terabytes > 0.0 && written_per_day > 0.0;
        let drive_writes_per_day = if wears { written_per_day / terabytes } else { 0.0 };
        let years = prices.endurance.filter(|_| wears).map(|writes| writes / drive_writes_per_day / 365.25);
        Cost { terabytes, price: terabytes * prices.per_tb, written_per_day, drive_writes_per_day, years }
    }
}
