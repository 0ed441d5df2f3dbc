//! Sizes and times in human-readable form, for configuration files.

use forebay_model::Bytes;
use serde::{Deserialize, Deserializer, Serializer, de};
use std::time::Duration;

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

/// `4GiB`, or a number of bytes.
pub(crate) mod size {
    use super::{Deserialize, Deserializer, NumberOrText, Serializer, de};
    use forebay_model::Bytes;

    // The signature is serde's.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_u64(bytes.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Bytes, D::Error> {
        match NumberOrText::deserialize(input)? {
            NumberOrText::Number(bytes) => Ok(Bytes(bytes)),
            NumberOrText::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

/// An optional size.
pub(crate) mod maybe_size {
    use super::{Deserializer, Serializer, size};
    use forebay_model::Bytes;

    #[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn serialize<S: Serializer>(bytes: &Option<Bytes>, out: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => out.serialize_some(&bytes.0),
            None => out.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Bytes>, D::Error> {
        size::deserialize(input).map(Some)
    }
}

/// `400MiB/s`, or a number of bytes per second; optional.
pub(crate) mod rate {
    use super::{Deserialize, Deserializer, NumberOrText, Serializer, de};
    use forebay_model::Bytes;

    #[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn serialize<S: Serializer>(rate: &Option<Bytes>, out: S) -> Result<S::Ok, S::Error> {
        match rate {
            Some(rate) => out.serialize_some(&rate.0),
            None => out.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Bytes>, D::Error> {
        match NumberOrText::deserialize(input)? {
            NumberOrText::Number(bytes) => Ok(Some(Bytes(bytes))),
            NumberOrText::Text(text) => super::parse_rate(&text).map(Some).map_err(de::Error::custom),
        }
    }
}

/// Parses `400MiB/s`.
pub fn parse_rate(text: &str) -> Result<Bytes, String> {
    let help = || format!("\"{text}\" is not a rate: write a size per second, such as 400MiB/s");
    let size = text.trim();
    let size = size.strip_suffix("/s").unwrap_or(size);
    match size.parse::<Bytes>().map_err(|_| help())? {
        Bytes(0) => Err(format!("\"{text}\" is not a positive rate: omit it for no modelled device")),
        rate => Ok(rate),
    }
}

/// `30s`, `500ms`, `2min`, or a number of seconds.
pub(crate) mod time {
    use super::{Deserialize, Deserializer, Duration, NumberOrText, Serializer, de, parse_time};

    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn serialize<S: Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{}ms", time.as_millis()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        match NumberOrText::deserialize(input)? {
            NumberOrText::Number(seconds) => Ok(Duration::from_secs(seconds)),
            NumberOrText::Text(text) => parse_time(&text).map_err(de::Error::custom),
        }
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let help = || format!("\"{text}\" is not a time: write a number and a unit, such as 500ms, 30s or 2min");
    let number: u64 = text[..split].parse().map_err(|_| help())?;
    let millis = match text[split..].trim() {
        "ms" => 1,
        "s" | "" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(help()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(|| format!("\"{text}\" is too long"))
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
        for (text, millis) in
            [("30s", 30_000), ("30", 30_000), ("500 ms", 500), ("2min", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "s", "-1s", "1.5s", "3 weeks", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
