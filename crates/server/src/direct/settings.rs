//! Settings of routing.

use forebay_model::{Error, ErrorKind, Result};
pub use forebay_policy::drain::Pipeline;
pub use forebay_policy::route::Full;
use forebay_policy::route::{Marks, Mode, Settings};
use serde::{Deserialize, Serialize};

/// Which writes are buffered, and what happens when the buffer is full: the table `[server.route]` of `forebay.toml`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Routing {
    /// Which writes are buffered.
    pub mode: Mode,
    /// Number of writes that are classified together.
    pub stream: usize,
    /// Above this share of random writes, the next stream is buffered.
    pub high: Share,
    /// Below this share of random writes, the next stream is written directly.
    pub low: Share,
    /// Whether data is drained while more arrives, or only after the burst.
    pub pipeline: Pipeline,
    /// What happens to a write that finds the buffer full; if not given, it waits with a pipeline and is written
    /// directly without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<Full>,
}

impl Default for Routing {
    fn default() -> Routing {
        let (high, low, pipeline) = (Share(450_000), Share(300_000), Pipeline::On);
        Routing { mode: Mode::Buffer, stream: 128, high, low, pipeline, full: None }
    }
}

impl Routing {
    pub(crate) fn check(&self) -> Result<()> {
        self.settings().map(drop).map_err(|error| error.within("route"))
    }

    /// What happens to a write that finds the buffer full.
    pub(crate) fn when_full(&self) -> Full {
        self.full.unwrap_or(match self.pipeline {
            Pipeline::On => Full::Wait,
            Pipeline::Off => Full::Bypass,
        })
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
            format!("{share} is not a share: write a number from 0 to 1, such as 0.45"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_settings_are_parsed_and_checked() {
        let text = "mode = 'traffic'\nstream = 32\nhigh = 0.5\nlow = 0.25\npipeline = 'off'\nfull = 'wait'";
        let routing: Routing = toml::from_str(text).unwrap();
        let (high, low, pipeline) = (Share(500_000), Share(250_000), Pipeline::Off);
        let full = Some(Full::Wait);
        assert_eq!(routing, Routing { mode: Mode::Traffic, stream: 32, high, low, pipeline, full });
        for (text, full) in
            [("", Full::Wait), ("pipeline = 'off'", Full::Bypass), ("full = 'bypass'", Full::Bypass)]
        {
            assert_eq!(toml::from_str::<Routing>(text).unwrap().when_full(), full, "{text}");
        }
        assert!(routing.check().is_ok() && Routing::default().check().is_ok());
        for (bad, says) in [("high = 0.2", "marks"), ("stream = 1", "stream"), ("stream = 1000000", "stream")]
        {
            let routing: Routing = toml::from_str(bad).unwrap();
            assert!(routing.check().unwrap_err().to_string().contains(says), "{bad}");
        }
        for bad in
            ["mode = 'sometimes'", "high = 45", "low = -0.1", "low = nan", "marks = 1", "full = 'fail'"]
        {
            assert!(toml::from_str::<Routing>(bad).is_err(), "{bad}");
        }
    }
}
