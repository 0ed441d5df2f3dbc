//! Sizes and times in human-readable form, for configuration files.

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
    use forebay_model::{Bytes, parse_rate};

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
            NumberOrText::Text(text) => parse_rate(&text).map(Some).map_err(de::Error::custom),
        }
    }
}

/// `30s`, `500ms`, `2min`, or a number of seconds.
pub(crate) mod time {
    use super::{Deserialize, Deserializer, Duration, NumberOrText, Serializer, de};
    use forebay_model::parse_time;

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
