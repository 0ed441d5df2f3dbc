//! Reads a scenario: targets, processes, and the variants to compare.

use super::variant::Variant;
use crate::failure::{Failure, Outcome};
use forebay_model::{Bytes, Error};
use forebay_report::keys::{File, Table, Value};
use std::path::Path;

const MOST_TARGETS: u32 = 256;
const MOST_PROCESSES: u32 = 1024;
const MOST_SERVERS: u32 = 16;
const MOST_JOBS: usize = 64;
const MOST_SLOWER: u32 = 1 << 20;
/// Maximum of the data of all processes, in real bytes.
const MOST_BYTES: u64 = 8 << 30;

/// How processes divide data between files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// Every process has a file.
    PerProcess,
    /// The processes of a job each have a segment of one file.
    Shared,
}

impl Pattern {
    pub(super) fn word(self) -> &'static str {
        match self {
            Pattern::PerProcess => "N:N",
            Pattern::Shared => "N:1",
        }
    }
}

/// A job of a scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobPlan {
    /// Its processes, if they differ from those of the point.
    pub(super) processes: Option<u32>,
    /// Modelled bytes that each process writes.
    pub(super) size: Bytes,
}

/// A scenario. Sizes are modelled; a real byte stands for `grain` modelled ones.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) title: String,
    pub(super) device: String,
    /// One value per number of targets.
    slower: Vec<f64>,
    pub(super) grain: u32,
    /// One value per number of processes.
    servers: Vec<u16>,
    pub(super) patterns: Vec<Pattern>,
    pub(super) compare: Vec<Variant>,
    /// The numbers of targets, one point after the other.
    pub(super) targets: Vec<u32>,
    pub(super) processes: Vec<u32>,
    /// Targets per file; all if not given.
    pub(super) stripes: Option<u32>,
    pub(super) stripe: Bytes,
    pub(super) request: Bytes,
    pub(super) jobs: Vec<JobPlan>,
    /// Number of repetitions, each with another order of the jobs.
    pub(super) orders: u32,
    pub(super) seed: u64,
}

/// The parameters of a measurement, except the variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    pub(super) pattern: Pattern,
    pub(super) targets: u32,
    pub(super) processes: u32,
    pub(super) servers: u16,
}

impl Scenario {
    pub(super) fn load(path: &Path) -> Outcome<Scenario> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::local("read", path, error))?;
        let name = path.display().to_string();
        read(&File { name: &name, text: &text }).map_err(Failure::misread)
    }

    pub(super) fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &pattern in &self.patterns {
            for &targets in &self.targets {
                let crowds = self.processes.iter().zip(&self.servers);
                points.extend(crowds.map(|(&processes, &servers)| Point {
                    pattern,
                    targets,
                    processes,
                    servers,
                }));
            }
        }
        points
    }

    /// A modelled size in real bytes.
    pub(super) fn real_bytes(&self, size: Bytes) -> u64 {
        size.0 / u64::from(self.grain)
    }

    /// The data written at a point, in real bytes.
    pub(super) fn bytes(&self, point: Point) -> u64 {
        let job =
            |job: &JobPlan| u64::from(job.processes.unwrap_or(point.processes)) * self.real_bytes(job.size);
        self.jobs.iter().map(job).sum()
    }

    /// The factor by which everything at a point is slower than the device.
    pub(super) fn slower(&self, point: Point) -> f64 {
        let places = self.targets.iter().position(|&targets| targets == point.targets);
        places.and_then(|place| self.slower.get(place)).copied().unwrap_or(1.0)
    }

    /// The address prefix of the modelled targets of a point, without the back end that stores their data.
    pub(super) fn model(&self, point: Point) -> String {
        format!("model:{},slower={},grain={}", self.device, self.slower(point), self.grain)
    }
}

pub(super) fn read(file: &File<'_>) -> Result<Scenario, Error> {
    let mut top = Table::top(file)?;
    let text = |value: Option<Value<'_>>, usual: &str| {
        value.map_or(Ok(usual.to_owned()), |value| value.text().map(str::to_owned))
    };
    let title = text(top.take("title"), "Draining")?;
    let device = top.take("device");
    if let Some(value) = &device {
        forebay_backend::device(value.text()?).map_err(|error| value.wrong(error))?;
    }
    let device = text(device, "ost")?;
    let patterns = top.take("patterns").map_or(Ok(vec![Pattern::PerProcess]), |value| patterns(&value))?;
    let compare =
        top.take("compare").ok_or_else(|| top.missing("compare", "a list such as [\"direct\", \"trio\"]"))?;
    let variant = |word: &String| word.parse::<Variant>().map_err(|error| compare.wrong(error));
    let compare = compare.texts()?.iter().map(variant).collect::<Result<Vec<_>, _>>()?;
    let size = top.take("size").map(|value| bytes(&value)).transpose()?;
    let jobs = match (top.take("job"), size) {
        (Some(jobs), _) => {
            jobs.tables("job")?.into_iter().map(|table| job(table, size)).collect::<Result<Vec<_>, _>>()?
        }
        (None, Some(size)) => vec![JobPlan { processes: None, size }],
        (None, None) => return Err(top.missing("size", "what each process writes, or tables headed [[job]]")),
    };
    let count = |value: Option<Value<'_>>, usual: u32, most: u32| {
        value.map_or(Ok(usual), |value| value.whole(1..=most))
    };
    let targets = counts(top.take("targets"), 4, MOST_TARGETS)?;
    let processes = counts(top.take("processes"), 16, MOST_PROCESSES)?;
    let servers = for_each(top.take("servers"), MOST_SERVERS, processes.len(), "number of processes")?;
    let scenario = Scenario {
        title,
        device,
        slower: match top.take("slower") {
            Some(value) if value.texts().is_err() => vec![value.above_zero()?; targets.len()],
            value => for_each(value, MOST_SLOWER, targets.len(), "number of targets")?
                .into_iter()
                .map(f64::from)
                .collect(),
        },
        grain: count(top.take("grain"), 1, 1 << 20)?,
        servers: servers.into_iter().map(|servers| u16::try_from(servers).expect("few")).collect(),
        patterns,
        compare,
        targets,
        processes,
        stripes: top.take("stripes").map(|value| value.whole(1..=MOST_TARGETS)).transpose()?,
        stripe: top.take("stripe").map_or(Ok(Bytes::mib(1)), |value| bytes(&value))?,
        request: top.take("request").map_or(Ok(Bytes::mib(1)), |value| bytes(&value))?,
        jobs,
        orders: count(top.take("orders"), 1, 1000)?,
        seed: top.take("seed").map_or(Ok(1), |value| value.whole(0..=u32::MAX))?.into(),
    };
    sound(&scenario, &top)?;
    top.finish(
        "title, device, slower, grain, servers, patterns, compare, targets, processes, stripes, stripe, request, size, orders, seed, job",
    )?;
    Ok(scenario)
}

/// Checks that the values fit together.
fn sound(scenario: &Scenario, top: &Table<'_>) -> Result<(), Error> {
    let wrong = |key: &str, text: String| Err(top.at(&(0..0), key, text));
    if !(1..=MOST_JOBS).contains(&scenario.jobs.len()) {
        return wrong("job", format!("1 to {MOST_JOBS} of them"));
    }
    for (key, size) in [("stripe", scenario.stripe), ("request", scenario.request)] {
        if scenario.real_bytes(size) < 512 {
            return wrong(
                key,
                format!("{size} in grains of {} are less than 512 real bytes", scenario.grain),
            );
        }
    }
    if let Some(job) = scenario.jobs.iter().find(|job| job.size.0 < scenario.request.0) {
        return wrong("size", format!("{} are less than one request of {}", job.size, scenario.request));
    }
    match scenario.points().into_iter().map(|point| scenario.bytes(point)).max() {
        Some(most) if most > MOST_BYTES => wrong(
            "size",
            format!(
                "{} of real data are more than {}: choose a larger grain",
                Bytes(most),
                Bytes(MOST_BYTES)
            ),
        ),
        _ => Ok(()),
    }
}

fn bytes(value: &Value<'_>) -> Result<Bytes, Error> {
    value.text()?.parse::<Bytes>().map_err(|error| value.wrong(error))
}

fn job(mut table: Table<'_>, usual: Option<Bytes>) -> Result<JobPlan, Error> {
    let size = table.take("size").map(|value| bytes(&value)).transpose()?.or(usual);
    let size = size.ok_or_else(|| table.missing("size", "what each process writes"))?;
    let processes = table.take("processes").map(|value| value.whole(1..=MOST_PROCESSES)).transpose()?;
    table.finish("processes, size")?;
    Ok(JobPlan { processes, size })
}

fn patterns(value: &Value<'_>) -> Result<Vec<Pattern>, Error> {
    let one = |word: &String| {
        let known = [Pattern::PerProcess, Pattern::Shared].into_iter().find(|pattern| pattern.word() == word);
        known.ok_or_else(|| value.wrong(format!("\"{word}\" is no pattern here: write N:N or N:1")))
    };
    value.texts()?.iter().map(one).collect()
}

/// A number or a list of numbers.
fn counts(value: Option<Value<'_>>, usual: u32, most: u32) -> Result<Vec<u32>, Error> {
    let Some(value) = value else { return Ok(vec![usual]) };
    match value.texts() {
        Ok(words) if !words.is_empty() => counts_of(&value, most),
        _ => value.whole(1..=most).map(|count| vec![count]),
    }
}

fn counts_of(value: &Value<'_>, most: u32) -> Result<Vec<u32>, Error> {
    let one = |word: &String| match word.parse::<u32>() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(value.wrong(format!("{word} is not a whole number from 1 to {most}"))),
    };
    value.texts()?.iter().map(one).collect()
}

/// One number for each of `count` things, or one for all of them.
fn for_each(value: Option<Value<'_>>, most: u32, count: usize, of: &str) -> Result<Vec<u32>, Error> {
    let Some(value) = value else { return Ok(vec![1; count]) };
    let numbers = match value.texts().is_ok() {
        true => value,
        false => return Ok(vec![value.whole(1..=most)?; count]),
    };
    let list = counts_of(&numbers, most)?;
    match list.len() == count {
        true => Ok(list),
        false => Err(numbers.wrong(format!("one for each {of}, {count} of them, or one for all"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(text: &str) -> Result<Scenario, Error> {
        read(&File { name: "s.toml", text })
    }

    #[test]
    fn scenario_is_read() {
        let text = "compare = ['direct', 'trio fcfs']\npatterns = ['N:1', 'N:N']\nsize = '256MiB'\ngrain = 64\n\
                    targets = [4, 8]\nslower = [2, 3]\nprocesses = 32\nservers = 2\n[[job]]\n[[job]]\nprocesses = 2\nsize = '1GiB'\n";
        let read = scenario(text).unwrap();
        assert_eq!(read.points().len(), 4);
        let point = read.points()[3];
        assert_eq!(point, Point { pattern: Pattern::PerProcess, targets: 8, processes: 32, servers: 2 });
        assert_eq!(read.bytes(point), 32 * (4 << 20) + 2 * (16 << 20));
        assert_eq!(read.model(point), "model:ost,slower=3,grain=64");
    }

    #[test]
    fn invalid_scenarios_are_reported() {
        let base = "compare = ['trio']\nsize = '4MiB'\n";
        for (text, expected) in [
            ("size = '4MiB'".to_owned(), "compare: missing"),
            ("compare = ['trio']".to_owned(), "size: missing"),
            (format!("{base}device = 'floppy'"), "unknown modelled device"),
            (format!("{base}patterns = ['N:M']"), "N:M"),
            (format!("{base}targets = [0]"), "0 is not a whole number from 1"),
            (format!("{base}targets = [4, 8]\nslower = [2]"), "one for each number of targets"),
            (format!("{base}servers = [2, 4]"), "one for each number of processes"),
            (format!("{base}servers = 17"), "17 is not a whole number from 1 to 16"),
            (format!("{base}grain = 4096"), "less than 512 real bytes"),
            (format!("{base}request = '8MiB'"), "less than one request"),
            (format!("{base}processes = 1024\n[[job]]\nsize = '1GiB'"), "larger grain"),
            (format!("{base}speed = 1"), "not a known key"),
            ("compare = ['fast']\nsize = '4MiB'".to_owned(), "fast"),
        ] {
            let error = scenario(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
