//! Reads a scenario: servers, a policy, and jobs that start and end.

use crate::failure::{Failure, Outcome};
use forebay_model::{Bytes, Error, Job, MAX_LABEL};
use forebay_policy::share::{Discipline, Policy};
use forebay_report::keys::{File, Name, Table, Value};
use forebay_report::quantity;
use std::path::Path;
use std::time::Duration;

const MOST_SERVERS: u32 = 16;
const MOST_JOBS: usize = 64;
/// Longest scenario, in seconds.
const LONGEST: f64 = 3600.0;

/// A scenario.
pub struct ShareScenario {
    pub(super) title: String,
    pub(super) policy: Policy,
    pub(super) scheduler: Discipline,
    pub(super) rate: Bytes,
    pub(super) servers: u16,
    pub(super) lambda: Duration,
    /// Further schedulers to run, for comparison.
    pub(super) compare: Vec<Discipline>,
    pub(super) jobs: Vec<JobPlan>,
}

/// The operation that a job repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Writes requests.
    Write,
    /// Reads a file again and again.
    Read,
    /// Writes 10 MB, and reads them back.
    Cycle,
    /// Writes a request, and reads it back.
    WriteRead,
    /// Looks up random names.
    Stat,
    /// Creates files, and removes them.
    Create,
    /// Reads ahead of a computation.
    Prefetch,
}

const OPS: [(&str, Op); 7] = [
    ("write", Op::Write),
    ("read", Op::Read),
    ("cycle", Op::Cycle),
    ("write-read", Op::WriteRead),
    ("stat", Op::Stat),
    ("create", Op::Create),
    ("prefetch", Op::Prefetch),
];

impl Op {
    pub(super) fn word(self) -> &'static str {
        OPS.iter().find(|(_, op)| *op == self).map_or("?", |(word, _)| word)
    }
}

impl std::str::FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Op, String> {
        let known: Vec<&str> = OPS.iter().map(|(word, _)| *word).collect();
        let found = OPS.iter().find(|(word, _)| *word == text).map(|(_, op)| *op);
        found.ok_or_else(|| format!("\"{text}\" is not an operation: write one of {}", known.join(", ")))
    }
}

/// A job of a scenario.
#[derive(Clone)]
pub(super) struct JobPlan {
    pub(super) id: Name,
    pub(super) job: Job,
    /// When it starts, in seconds.
    pub(super) start: f64,
    /// How long it runs, in seconds.
    pub(super) length: f64,
    /// It ends after this number of bytes.
    pub(super) amount: Option<Bytes>,
    /// Computation time after each request.
    pub(super) pause: Duration,
    pub(super) request: Bytes,
    pub(super) processes: u32,
    /// Concurrent requests of each process.
    pub(super) streams: u32,
    pub(super) op: Op,
    /// The servers that have its files, from 0.
    pub(super) servers: Vec<u16>,
}

/// A job of four nodes, and one of one node that joins it for a while.
const DUEL: &str = "policy = 'size-fair'\ndevice_rate = '64MiB/s'\n\
    [[job]]\nid = 'large'\nuser = 'ada'\nnodes = 4\nlength = 5\nrequest = '256KiB'\nstreams = 8\n\
    [[job]]\nid = 'small'\nuser = 'bob'\nnodes = 1\nstart = 1.5\nlength = 2.5\nrequest = '256KiB'\nstreams = 8\n";

impl ShareScenario {
    /// The scenario of the demo.
    pub(super) fn duel() -> ShareScenario {
        ShareScenario::of(DUEL)
    }

    /// A built-in scenario.
    pub(super) fn of(text: &str) -> ShareScenario {
        read(&File { name: "scenario", text }).expect("the built-in scenario is valid")
    }

    /// Reads a scenario.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or has an invalid value.
    pub fn load(path: &Path) -> Outcome<ShareScenario> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::local("read", path, error))?;
        let name = path.display().to_string();
        read(&File { name: &name, text: &text })
    }

    /// When the last job ends.
    pub(super) fn length(&self) -> f64 {
        self.jobs.iter().map(|job| job.start + job.length).fold(0.0, f64::max)
    }
}

fn read(file: &File<'_>) -> Outcome<ShareScenario> {
    let mut top = Table::top(file).map_err(Failure::misread)?;
    let policy = top
        .take("policy")
        .ok_or_else(|| Failure::misread(top.missing("policy", "write one such as \"size-fair\"")))?;
    let text = policy.text().map_err(Failure::misread)?.to_owned();
    let policy = text.parse().map_err(|error| Failure::Pointed(policy.wrong(error).to_string()))?;
    scenario(top, policy).map_err(Failure::misread)
}

fn scenario(mut top: Table<'_>, policy: Policy) -> Result<ShareScenario, Error> {
    let servers = top.take("servers").map_or(Ok(1), |value| value.whole(1..=MOST_SERVERS))?;
    let discipline =
        |value: &Value<'_>, text: &str| text.parse::<Discipline>().map_err(|error| value.wrong(error));
    let scheduler = top.take("scheduler");
    let scheduler = scheduler.map_or(Ok(Discipline::default()), |value| discipline(&value, value.text()?))?;
    let compare = match top.take("compare") {
        None => vec![Discipline::Fifo],
        Some(value) => {
            value.texts()?.iter().map(|text| discipline(&value, text)).collect::<Result<_, _>>()?
        }
    };
    let rate = top.take("device_rate").ok_or_else(|| top.missing("device_rate", "such as \"64MiB/s\""))?;
    let rate = forebay_server::parse_rate(rate.text()?).map_err(|error| rate.wrong(error))?;
    let lambda = top.take("lambda").map_or(Ok(0.5), |value| value.human(quantity::seconds))?;
    let title =
        top.take("title").map_or(Ok("Sharing".to_owned()), |value| value.text().map(str::to_owned))?;
    let jobs =
        top.take("job").ok_or_else(|| top.missing("job", "write each job as a table headed [[job]]"))?;
    let jobs = jobs.tables("job")?;
    if jobs.len() > MOST_JOBS {
        return Err(top.missing("job", &format!("at most {MOST_JOBS} of them")));
    }
    top.finish("title, policy, scheduler, compare, device_rate, servers, lambda, job")?;
    let jobs = jobs.into_iter().map(|table| job(table, servers)).collect::<Result<Vec<_>, _>>()?;
    let servers = u16::try_from(servers).expect("few");
    let lambda = Duration::from_secs_f64(lambda);
    Ok(ShareScenario { title, policy, scheduler, rate, servers, lambda, compare, jobs })
}

fn job(mut table: Table<'_>, servers: u32) -> Result<JobPlan, Error> {
    let id = table.take("id").ok_or_else(|| table.missing("id", "every job has one"))?;
    let name = id.name()?;
    let text = |value: Option<Value<'_>>, usual: &str| match value {
        None => Ok(usual.to_owned()),
        Some(value) => value.name().map(|name| name.to_string()),
    };
    let count = |value: Option<Value<'_>>, usual: u32, most: u32| {
        value.map_or(Ok(usual), |value| value.whole(1..=most))
    };
    let bytes = |value: Value<'_>| value.text()?.parse::<Bytes>().map_err(|error| value.wrong(error));
    let seconds = |value: Option<Value<'_>>, usual: f64| {
        value.map_or(Ok(usual), |value| match value.amount()? {
            time if time <= LONGEST => Ok(time),
            time => Err(value.wrong(format!("{time} s is longer than {LONGEST} s"))),
        })
    };
    let job = Job {
        label: name.to_string(),
        user: text(table.take("user"), "user")?,
        group: text(table.take("group"), "group")?,
        nodes: count(table.take("nodes"), 1, 1 << 20)?,
        priority: count(table.take("priority"), 1, 1 << 20)?,
    };
    if let Some(fault) = job.fault() {
        return Err(id.wrong(format!("{fault} (labels have at most {MAX_LABEL} bytes)")));
    }
    let on = table.take("servers").map_or(Ok((0..servers).collect()), |value| places(&value, servers))?;
    let op = table.take("op");
    let op =
        op.map_or(Ok(Op::Write), |value| value.text()?.parse().map_err(|error: String| value.wrong(error)))?;
    let plan = JobPlan {
        id: name,
        job,
        start: seconds(table.take("start"), 0.0)?,
        length: seconds(table.take("length"), 5.0)?,
        amount: table.take("amount").map(bytes).transpose()?,
        pause: Duration::from_secs_f64(seconds(table.take("pause"), 0.0)?),
        request: table.take("request").map_or(Ok(Bytes::mib(1)), bytes)?,
        processes: count(table.take("processes"), 1, 64)?,
        streams: count(table.take("streams"), 4, 64)?,
        op,
        servers: on.into_iter().map(|number| u16::try_from(number).expect("few")).collect(),
    };
    if !(1..=64 << 20).contains(&plan.request.0) {
        return Err(table.missing("request", "1 B to 64 MiB"));
    }
    table.finish(
        "id, user, group, nodes, priority, start, length, amount, pause, request, processes, streams, op, servers",
    )?;
    Ok(plan)
}

/// Server numbers, counted from 0.
fn places(value: &Value<'_>, servers: u32) -> Result<Vec<u32>, Error> {
    let place = |text: &String| match text.parse::<u32>() {
        Ok(number) if (1..=servers).contains(&number) => Ok(number - 1),
        _ => Err(value.wrong(format!("server {text} is not one of 1 to {servers}"))),
    };
    value.texts()?.iter().map(place).collect()
}
