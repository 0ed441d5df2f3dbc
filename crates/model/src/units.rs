//! Quantities in human-readable form: bytes, rates, times.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes. Parses `4GiB`, `1.5 MB`, `4096`; prints the largest unit that stays readable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// The binary units come first, in order.
const UNITS: [(&str, u64); 13] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EiB", 1 << 60),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("EB", 1_000_000_000_000_000_000),
];

impl Bytes {
    /// The bytes in one unit: `GB`, `GiB` in any case; a single letter is a binary unit, as in most tools that accept
    /// sizes.
    #[must_use]
    pub fn unit(name: &str) -> Option<u64> {
        let is = |unit: &str| {
            let letter = unit.strip_suffix("iB").is_some_and(|letter| letter.eq_ignore_ascii_case(name));
            letter || unit.eq_ignore_ascii_case(name)
        };
        UNITS.iter().find(|(unit, _)| is(unit)).map(|(_, size)| *size)
    }

    /// Mebibytes.
    #[must_use]
    pub const fn mib(count: u64) -> Bytes {
        Bytes(count << 20)
    }

    /// Kibibytes.
    #[must_use]
    pub const fn kib(count: u64) -> Bytes {
        Bytes(count << 10)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) =
            UNITS[..7].iter().rev().find(|(_, size)| self.0 >= *size).copied().unwrap_or(UNITS[0]);
        match self.0 % size {
            0 => write!(f, "{} {unit}", self.0 / size),
            _ => write!(f, "{:.1} {unit}", self.0 as f64 / size as f64),
        }
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..split], text[split..].trim());
        let help = || format!("\"{text}\" is not a size: write a number and a unit, such as 512MiB or 4GiB");
        let factor = if unit.is_empty() { 1 } else { Bytes::unit(unit).ok_or_else(help)? };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Bytes).ok_or_else(|| format!("\"{text}\" is too large"));
        }
        let value: f64 = number.parse().map_err(|_| help())?;
        let bytes = value * factor as f64;
        // Larger fractions are not representable.
        if bytes < 9.2e18 { Ok(Bytes(bytes.round() as u64)) } else { Err(format!("\"{text}\" is too large")) }
    }
}

/// Units of time, in milliseconds.
const TIMES: [(&[&str], u64); 6] = [
    (&["ms"], 1),
    (&["s", "sec", "second", "seconds"], 1_000),
    (&["min", "m", "minute", "minutes"], 60_000),
    (&["h", "hour", "hours"], 3_600_000),
    (&["d", "day", "days"], 86_400_000),
    (&["w", "week", "weeks"], 604_800_000),
];

/// The length of one unit of time: `ms`, `s`, `min`, `h`, `d`, `w`.
#[must_use]
pub fn time_unit(name: &str) -> Option<Duration> {
    let unit = TIMES.iter().find(|(names, _)| names.contains(&name));
    unit.map(|(_, millis)| Duration::from_millis(*millis))
}

/// Parses a length of time: `30s`, `500 ms`, `2min`, or a number of seconds.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let help = || format!("\"{text}\" is not a time: write a number and a unit, such as 500ms, 30s or 2min");
    let number: u64 = text[..split].parse().map_err(|_| help())?;
    let unit = match text[split..].trim() {
        "" => Duration::from_secs(1),
        unit => time_unit(unit).ok_or_else(help)?,
    };
    let millis = u64::try_from(unit.as_millis()).ok().and_then(|unit| number.checked_mul(unit));
    millis.map(Duration::from_millis).ok_or_else(|| format!("\"{text}\" is too long"))
}

/// Parses a rate per second: `400MiB/s`.
pub fn parse_rate(text: &str) -> Result<Bytes, String> {
    let help = || format!("\"{text}\" is not a rate: write a size per second, such as 400MiB/s");
    let size = text.trim();
    let size = size.strip_suffix("/s").unwrap_or(size);
    match size.parse::<Bytes>().map_err(|_| help())? {
        Bytes(0) => Err(format!("\"{text}\" is not a positive rate: omit it for no modelled device")),
        rate => Ok(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        for (text, bytes) in [("400MiB/s", 400 << 20), ("1 GB/s", 1_000_000_000), ("77", 77)] {
            assert_eq!(parse_rate(text), Ok(Bytes(bytes)), "{text}");
        }
        for bad in ["", "0", "0MiB/s", "fast", "3MiB/min", "MiB/s"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_read() {
        for (text, millis) in [
            ("30s", 30_000),
            ("30", 30_000),
            ("500 ms", 500),
            ("2min", 120_000),
            ("90m", 5_400_000),
            ("1h", 3_600_000),
            ("30d", 2_592_000_000),
            ("4w", 2_419_200_000),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "s", "-1s", "1.5s", "3 moons", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_parsed_and_printed() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("4 gib", 4 << 30),
            ("1.5 MB", 1_500_000),
            ("4096", 4096),
            ("64k", 65_536),
            ("2 EB", 2_000_000_000_000_000_000),
            ("7 b", 7),
            ("0", 0),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
        for bad in ["", "GiB", "-1", "4 XB", "1e9", "1.2.3M", "99999999PiB", "."] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
        assert_eq!(Bytes(4 << 30).to_string(), "4 GiB");
        assert_eq!(Bytes(1_500_000).to_string(), "1.4 MiB");
        assert_eq!(Bytes(0).to_string(), "0 B");
    }
}
