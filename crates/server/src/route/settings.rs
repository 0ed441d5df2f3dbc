//! What can be set about routing.

use forebay_model::{Error, ErrorKind, Result};
use forebay_policy::route::{Marks, Mode, Settings};
use serde::{Deserialize, Serialize};

/// Which writes are buffered, and what happens when the buffer is full: the table `[server.route]` of `forebay.toml`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// Which writes are buffered.
    pub mode: Mode,
    /// So many writes are looked at together.
    pub stream: usize,
    /// Above this share of random writes the next stream is buffered.
    pub high: Share,
    /// Below this share of random writes the next stream goes past the buffer.
    pub low: Share,
}

impl Default for Routing {
    fn default() -> Routing {
        Routing { mode: Mode::Buffer, stream: 128, high: Share(450_000), low: Share(300_000) }
    }
}

impl Routing {
    pub(crate) fn check(&self) -> Result<()> {
        self.settings().map(drop).map_err(|error| error.within("route"))
    }

    pub(super) fn settings(&self) -> Result<Settings> {
        Settings::new(self.stream, Marks::new(self.high.into(), self.low.into())?)
    }
}

/// A share, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Share(u32);

impl From<Share> for f64 {
    fn from(share: Share) -> f64 {
        f64::from(share.0) / 1e6
    }
}

impl TryFrom<f64> for Share {
    type Error = Error;

    fn try_from(share: f64) -> Result<Share> {
        if (0.0..=1.0).contains(&share) {
            return Ok(Share((share * 1e6).round() as u32));
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!("{share} is no share: write a number from 0 to 1, such as 0.45"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_and_checked() {
        let routing: Routing =
            toml::from_str("mode = 'traffic'\nstream = 32\nhigh = 0.5\nlow = 0.25").unwrap();
        let marks = (Share(500_000), Share(250_000));
        assert_eq!(routing, Routing { mode: Mode::Traffic, stream: 32, high: marks.0, low: marks.1 });
        assert!(routing.check().is_ok() && Routing::default().check().is_ok());
        for (bad, says) in [("high = 0.2", "marks"), ("stream = 1", "stream"), ("stream = 1000000", "stream")]
        {
            let routing: Routing = toml::from_str(bad).unwrap();
            assert!(routing.check().unwrap_err().to_string().contains(says), "{bad}");
        }
        for bad in ["mode = 'sometimes'", "high = 45", "low = -0.1", "low = nan", "marks = 1"] {
            assert!(toml::from_str::<Routing>(bad).is_err(), "{bad}");
        }
    }
}
