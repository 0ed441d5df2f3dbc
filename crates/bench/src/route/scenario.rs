//! Reads a scenario: disks, a network, patterns, and the varied parameters.

use crate::failure::{Failure, Outcome};
use forebay_model::{Bytes, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

const MOST_WRITERS: u32 = 1024;
const MOST_SERVERS: u16 = 16;
/// Maximum number of requests of one run; all are recorded.
const MOST_REQUESTS: u64 = 1 << 20;

/// The order and position of the requests of a burst in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pattern {
    /// Each writer has a segment, and writes it from its beginning to its end.
    SegmentedContiguous,
    /// The writers' requests alternate.
    Strided,
    /// Each writer has a segment, and writes it in random order.
    SegmentedRandom,
    /// The writers' requests alternate, with a gap after each.
    Noncontiguous,
}

/// How a server routes writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    /// Writers write to the disks directly, without Forebay.
    Plain,
    /// Nothing is buffered.
    Direct,
    /// Everything is buffered while there is space, and drained after the burst.
    Buffer,
    /// Everything is buffered, and drained meanwhile; writers wait for space.
    BufferPipeline,
    /// Random streams are buffered while there is space, and drained after the burst.
    TrafficNoPipeline,
    /// Random streams are buffered, and drained meanwhile; writers wait for space.
    Traffic,
    /// Writes that the disks cannot take at once are buffered.
    Overflow,
}

/// One burst of writes, to a file of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Burst {
    pub(super) pattern: Pattern,
    #[serde(deserialize_with = "size")]
    pub(super) bytes: Bytes,
    /// Gap between two requests.
    #[serde(default = "nothing", deserialize_with = "size")]
    pub(super) spacing: Bytes,
}

/// A scenario. Lists are varied, in all combinations. Sizes are modelled; a real byte stands for `grain`
/// modelled ones.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) title: String,
    /// A device of `scenarios/devices.toml`.
    #[serde(default = "hdd")]
    pub(super) device: String,
    #[serde(default = "one")]
    pub(super) disks: u32,
    /// Servers that every file is striped over, each with its part of the buffer.
    #[serde(default = "alone")]
    pub(super) servers: u16,
    /// Factor by which everything is slowed down.
    #[serde(default = "unslowed")]
    pub(super) slower: f64,
    #[serde(default = "one")]
    pub(super) grain: u32,
    /// Network bandwidth of each server.
    #[serde(deserialize_with = "rate")]
    pub(super) link: Bytes,
    #[serde(deserialize_with = "size")]
    pub(super) request: Bytes,
    /// Mean of the random pause of a writer before each request.
    #[serde(default)]
    pub(super) pause_ms: u64,
    #[serde(default = "seed")]
    pub(super) seed: u64,
    pub(super) ways: Vec<Way>,
    pub(super) writers: Vec<u32>,
    /// Capacity of the buffer, as a percentage of the data.
    #[serde(default = "plenty")]
    pub(super) capacity: Vec<u32>,
    /// Pause between two bursts, in milliseconds.
    #[serde(default = "none")]
    pub(super) compute_ms: Vec<u64>,
    /// Requests that the disk sorts, and that form one stream.
    #[serde(default = "queue")]
    pub(super) queue: Vec<usize>,
    #[serde(rename = "burst")]
    pub(super) bursts: Vec<Burst>,
}

/// One run of a scenario.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Point {
    pub(super) writers: u32,
    /// As a percentage of the data.
    pub(super) capacity: u32,
    pub(super) compute_ms: u64,
    pub(super) queue: usize,
}

fn hdd() -> String {
    "hdd".to_owned()
}

fn one() -> u32 {
    1
}

fn alone() -> u16 {
    1
}

fn unslowed() -> f64 {
    1.0
}

fn seed() -> u64 {
    8
}

fn plenty() -> Vec<u32> {
    vec![100]
}

fn none() -> Vec<u64> {
    vec![0]
}

fn queue() -> Vec<usize> {
    vec![128]
}

fn nothing() -> Bytes {
    Bytes(0)
}

fn size<'de, D: serde::Deserializer<'de>>(input: D) -> std::result::Result<Bytes, D::Error> {
    String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
}

fn rate<'de, D: serde::Deserializer<'de>>(input: D) -> std::result::Result<Bytes, D::Error> {
    forebay_server::parse_rate(&String::deserialize(input)?).map_err(serde::de::Error::custom)
}

impl Scenario {
    pub(super) fn load(path: &Path) -> Outcome<Scenario> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::local("read", path, error))?;
        Scenario::read(&text).map_err(|error| Failure::misread(error.within(path.display())))
    }

    fn read(text: &str) -> Result<Scenario> {
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        let scenario: Scenario = toml::from_str(text).map_err(|error| invalid(error.to_string()))?;
        let all =
            [scenario.ways.len(), scenario.writers.len(), scenario.capacity.len(), scenario.queue.len()];
        if all.contains(&0) || scenario.compute_ms.is_empty() || scenario.bursts.is_empty() {
            let text = "there is nothing to do: ways, writers, capacity, compute_ms, queue and burst need one each at least";
            return Err(invalid(text.to_owned()));
        }
        if let Some(count) = scenario.writers.iter().find(|count| !(1..=MOST_WRITERS).contains(*count)) {
            return Err(invalid(format!("writers: {count} is not from 1 to {MOST_WRITERS}")));
        }
        if let Some(queue) = scenario.queue.iter().find(|queue| !(2..=4096).contains(*queue)) {
            return Err(invalid(format!("queue: {queue} is not from 2 to 4096")));
        }
        if !(1..=4 << 20).contains(&scenario.request.0) {
            return Err(invalid(format!("request: {} is not from 1 byte to 4 MiB", scenario.request)));
        }
        if !(0.01..=1000.0).contains(&scenario.slower) || !(1..=64).contains(&scenario.disks) {
            return Err(invalid("slower is from 0.01 to 1000, and disks from 1 to 64".to_owned()));
        }
        if !(1..=MOST_SERVERS).contains(&scenario.servers) {
            return Err(invalid(format!("servers: {} is not from 1 to {MOST_SERVERS}", scenario.servers)));
        }
        let request = scenario.real_bytes(scenario.request);
        let narrow = |burst: &Burst| burst.spacing.0 > 0 && scenario.real_bytes(burst.spacing) == 0;
        if request == 0 || scenario.bursts.iter().any(narrow) {
            return Err(invalid(format!(
                "grain: a request or a gap is smaller than a grain of {}",
                scenario.grain
            )));
        }
        if scenario.bytes() / request > MOST_REQUESTS {
            return Err(invalid(format!("more than {MOST_REQUESTS} requests: write less, or larger ones")));
        }
        Ok(scenario)
    }

    /// All data, in real bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bursts.iter().map(|burst| self.real_bytes(burst.bytes)).sum()
    }

    /// A modelled size in real bytes.
    pub(super) fn real_bytes(&self, size: Bytes) -> u64 {
        size.0 / u64::from(self.grain.max(1))
    }

    /// All combinations of the varied parameters.
    pub(super) fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &queue in &self.queue {
            for &compute_ms in &self.compute_ms {
                for &capacity in &self.capacity {
                    let point = |&writers| Point { writers, capacity, compute_ms, queue };
                    points.extend(self.writers.iter().map(point));
                }
            }
        }
        points
    }

    /// The address prefix of the modelled back end.
    pub(super) fn model(&self, queue: usize) -> String {
        format!("model:{},queue={queue},slower={},grain={}", self.device, self.slower, self.grain)
    }

    /// Network bandwidth, in real bytes per second.
    pub(super) fn through(&self) -> Bytes {
        Bytes((self.real_bytes(self.link) as f64 / self.slower) as u64)
    }

    pub(super) fn compute(&self, point: Point) -> Duration {
        Duration::from_millis(point.compute_ms).mul_f64(self.slower)
    }
}

impl Burst {
    /// The requests of one writer, in order. All sizes in real bytes.
    pub(super) fn requests(
        &self,
        (bytes, request, spacing): (u64, u64, u64),
        (writer, writers): (u64, u64),
        rng: &mut impl FnMut(u64) -> u64,
    ) -> Vec<u64> {
        let each = (bytes / request / writers).max(1);
        let mut numbers: Vec<u64> = match self.pattern {
            Pattern::SegmentedContiguous | Pattern::SegmentedRandom => {
                (writer * each..(writer + 1) * each).collect()
            }
            Pattern::Strided | Pattern::Noncontiguous => {
                (0..each).map(|number| number * writers + writer).collect()
            }
        };
        if self.pattern == Pattern::SegmentedRandom {
            for place in (1..numbers.len()).rev() {
                numbers.swap(place, rng(place as u64 + 1) as usize);
            }
        }
        numbers.iter().map(|number| number * (request + spacing)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "title = 'x'\nlink = '100MB/s'\nrequest = '4KiB'\nways = ['direct', 'traffic-no-pipeline']\n\
                        writers = [2, 4]\ncapacity = [0, 50]\n[[burst]]\npattern = 'strided'\nbytes = '64KiB'\n";

    #[test]
    fn scenario_is_read_and_varied() {
        let scenario = Scenario::read(TEXT).unwrap();
        assert_eq!(scenario.ways, [Way::Direct, Way::TrafficNoPipeline]);
        let points: Vec<_> =
            scenario.points().iter().map(|point| (point.writers, point.capacity, point.queue)).collect();
        assert_eq!(points, [(2, 0, 128), (4, 0, 128), (2, 50, 128), (4, 50, 128)]);
        for (from, to, expected) in [
            ("writers = [2, 4]", "writers = [0]", "writers"),
            ("'4KiB'", "'5MiB'", "request"),
            ("title = 'x'", "title = 'x'\nservers = 17", "servers"),
            ("'strided'", "'chaotic'", "chaotic"),
            ("title", "titel", "titel"),
            ("capacity = [0, 50]", "capacity = []", "nothing"),
            ("'64KiB'", "'64TiB'", "requests"),
            ("100MB/s", "fast", "fast"),
            ("title = 'x'", "title = 'x'\ngrain = 8192", "grain"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = Scenario::read(&TEXT.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn every_pattern_writes_every_request_once() {
        for (pattern, second) in [
            (Pattern::SegmentedContiguous, Some(vec![40, 50, 60, 70])),
            (Pattern::Strided, Some(vec![10, 40, 70, 100])),
            (Pattern::SegmentedRandom, None),
            (Pattern::Noncontiguous, Some(vec![13, 52, 91, 130])),
        ] {
            let spacing = Bytes(if pattern == Pattern::Noncontiguous { 3 } else { 0 });
            let burst = Burst { pattern, bytes: Bytes(120), spacing };
            let mut rng = forebay_testkit::Rng::new(1);
            let mut rng = |below: u64| rng.below(below);
            let all: Vec<Vec<u64>> =
                (0..3).map(|writer| burst.requests((120, 10, spacing.0), (writer, 3), &mut rng)).collect();
            if let Some(second) = second {
                assert_eq!(all[1], second, "{pattern:?}");
            }
            let mut sorted = all.concat();
            sorted.sort_unstable();
            let expected: Vec<u64> = (0..12).map(|number| number * (10 + spacing.0)).collect();
            assert_eq!(sorted, expected, "{pattern:?}");
        }
    }
}
