//! Settings of the drain.

use super::alpha::Alpha;
use crate::human;
use forebay_model::{Bytes, Error, ErrorKind, Result, Stamp};
use forebay_policy::Tick;
use forebay_policy::arbiter::Choice;
use forebay_policy::drain::{Order, Trigger};
use forebay_policy::place::{Description, Weights};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The topology of the back end as the administrator described it, and the weight of each kind of resource.
#[derive(Clone, PartialEq, Debug)]
pub struct Described {
    /// Routers, servers and targets, the latter by their indices in the back end; this server is the client with its
    /// host's name.
    pub description: Description,
    /// The weight of each kind of resource.
    pub weights: Weights,
}

/// A checked description has no NaN.
impl Eq for Described {}

/// When, in which order and how fast buffered data is drained: the table `[server.drain]` of `forebay.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Draining {
    /// Above this fill level, in per cent of the capacity, data is drained until the level is reached.
    pub threshold: u8,
    /// Below the threshold, only data older than this is drained.
    #[serde(with = "human::time")]
    pub age: Duration,
    /// Drain whenever no other data is being drained, however little there is.
    pub when_idle: bool,
    /// Order in which data is drained.
    pub order: Order,
    /// Largest write to the back end.
    #[serde(with = "human::size")]
    pub write: Bytes,
    /// Servers that write to one target at once: a number, "learnt", or the output file of calibrate.
    pub alpha: Alpha,
    /// Which job comes first at a target.
    pub choice: Choice,
    /// A grant ends after this many bytes; if not given, when all of a job's bytes for the target are written.
    #[serde(with = "human::maybe_size", skip_serializing_if = "Option::is_none")]
    pub quantum: Option<Bytes>,
    /// What has to be verified before the buffer frees bytes.
    pub verify: Verify,
    /// Limit on the rate of the drain, in bytes a second.
    #[serde(with = "human::rate", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bytes>,
    /// Hours (UTC) in which data is drained automatically, such as "20:00-06:00". A nearly full buffer is drained at
    /// any time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<Hours>,
    /// Topology of the back end for the placement of new files: a `topology.toml`; if not given, what the back end
    /// reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<PathBuf>,
    /// A writer that finds the buffer full waits as long as the drain frees some space within this time.
    #[serde(with = "human::time")]
    pub patience: Duration,
    /// Longest time between two statements to the arbiter of a target. Changes are sent at once, so this only repeats
    /// lost messages and reports progress. A server that is silent for forty beats loses its grants.
    #[serde(with = "human::time")]
    pub beat: Duration,
}

impl Default for Draining {
    fn default() -> Draining {
        Draining {
            threshold: 20,
            age: Duration::from_secs(600),
            when_idle: false,
            order: Order::Trio,
            write: Bytes::mib(8),
            alpha: Alpha::Fixed(2),
            choice: Choice::Sjf,
            quantum: None,
            verify: Verify::Acknowledged,
            rate: None,
            hours: None,
            topology: None,
            patience: Duration::from_secs(45),
            beat: Duration::from_millis(250),
        }
    }
}

impl Draining {
    /// Whether data may be drained automatically now.
    pub(super) fn may_drain(&self, now: Stamp) -> bool {
        self.hours.is_none_or(|hours| hours.contain(now.0 / 1_000_000_000))
    }

    /// When data is drained automatically.
    pub(super) fn trigger(&self) -> Trigger {
        let age = Tick(u64::try_from(self.age.as_nanos()).unwrap_or(u64::MAX));
        Trigger { threshold: f64::from(self.threshold) / 100.0, age, when_idle: self.when_idle }
    }

    /// A server that sends nothing for this long loses its grants.
    pub(super) fn lease(&self) -> Tick {
        Tick(u64::try_from(self.beat.saturating_mul(40).as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text.to_owned()));
        match self {
            Draining { threshold: 100.., .. } => invalid("drain.threshold is 100 % or more: choose less"),
            Draining { write: Bytes(0..=4095), .. } => {
                invalid("drain.write is less than 4KiB: choose more, such as 8MiB")
            }
            Draining { alpha: Alpha::Fixed(0), .. } => invalid("drain.alpha is 0: no server could write"),
            Draining { quantum: Some(Bytes(0)), .. } => invalid("drain.quantum is 0: omit it"),
            Draining { rate: Some(Bytes(0)), .. } => invalid("drain.rate is 0: omit it"),
            Draining { beat, .. } if *beat < Duration::from_millis(10) => {
                invalid("drain.beat is less than 10ms: choose more, such as 250ms")
            }
            _ => Ok(()),
        }
    }
}

/// What has to be verified before the buffer frees bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// The back end has acknowledged that the bytes are on stable storage.
    #[default]
    Acknowledged,
    /// The bytes were read back and are the same.
    ReadBack,
}

/// Hours of the day, in UTC; they may reach over midnight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hours {
    /// Minutes since midnight.
    from: u16,
    to: u16,
}

impl Hours {
    /// Whether a time, in seconds since the epoch, is within these hours.
    pub(super) fn contain(self, seconds: u64) -> bool {
        let minute = (seconds / 60 % (24 * 60)) as u16;
        match self.from <= self.to {
            true => (self.from..self.to).contains(&minute),
            false => minute >= self.from || minute < self.to,
        }
    }
}

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Hours, String> {
        let minutes = |text: &str| {
            let (hours, minutes) = text.trim().split_once(':')?;
            let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
        };
        let ends = text.split_once('-').and_then(|(from, to)| Some((minutes(from)?, minutes(to)?)));
        match ends {
            Some((from, to)) if from != to => Ok(Hours { from, to }),
            _ => Err(format!(
                "\"{text}\" is not a range of hours: write two times of the day, such as 20:00-06:00"
            )),
        }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hours { from, to } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

impl Serialize for Hours {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hours {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Hours, D::Error> {
        String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_settings_are_parsed_and_checked() {
        let text = "threshold = 50\nage = '1min'\norder = 'offset'\nwrite = '1MiB'\nchoice = 'fcfs'\nrate = '10MiB/s'\n\
                    quantum = '64MiB'\nverify = 'read_back'\nhours = '20:00-06:30'\n";
        let draining: Draining = toml::from_str(text).unwrap();
        let expected = Draining {
            threshold: 50,
            age: Duration::from_secs(60),
            order: Order::Offset,
            write: Bytes::mib(1),
            choice: Choice::Fcfs,
            rate: Some(Bytes::mib(10)),
            quantum: Some(Bytes::mib(64)),
            verify: Verify::ReadBack,
            hours: Some(Hours { from: 1200, to: 390 }),
            ..Draining::default()
        };
        assert_eq!(draining, expected);
        assert!(draining.check().is_ok());
        for (bad, says) in [
            ("threshold = 100", "threshold"),
            ("write = 1", "write"),
            ("alpha = 0", "alpha"),
            ("rate = 0", "rate"),
            ("beat = '1ms'", "beat"),
        ] {
            let draining: Draining = toml::from_str(bad).unwrap();
            assert!(draining.check().unwrap_err().to_string().contains(says), "{bad}");
        }
        for bad in ["order = 'chaos'", "hours = 'night'", "hours = '25:00-01:00'", "hours = '1:00-1:00'"] {
            assert!(toml::from_str::<Draining>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hours_may_reach_over_midnight() {
        for (hours, inside, outside) in
            [("20:00-06:00", [20, 23, 0, 5], [6, 7, 12, 19]), ("06:00-20:00", [6, 7, 12, 19], [20, 23, 0, 5])]
        {
            let hours: Hours = hours.parse().unwrap();
            for (hour, within) in
                inside.iter().map(|hour| (hour, true)).chain(outside.iter().map(|hour| (hour, false)))
            {
                assert_eq!(hours.contain(86_400 * 20_000 + hour * 3600), within, "{hour} {hours}");
            }
        }
    }
}
