//! Reads a scenario file.

use super::words::{bytes, count, maybe, must, named, or, rate, share, time, truth, word};
use crate::keys::{File, Table, Value};
use forebay_model::{Bytes, Error, Job};
use forebay_policy::arbiter::{Choice, Rules, Until};
use forebay_policy::device::Device;
use forebay_policy::drain::{Order, Pipeline, Trigger};
use forebay_policy::route::{self, Full, Mode};
use forebay_policy::share::{Discipline, Rate, Tick};
use forebay_sim::{
    Choose, DrainPlan, Fault, HopGroup, JobPlan, LayoutPlan, Part, Pattern, Phase, Place, Scenario, Servers,
    Spread, TargetGroup, Way,
};
use std::ops::Range;

/// Larger numbers are taken for typing errors.
const MOST: u32 = 1 << 22;
/// Rounds of a job that ends only at its stop time.
const FOR_EVER: u32 = 1 << 24;

/// A scenario and its job names.
pub struct Read {
    /// What the scenario is called.
    pub title: String,
    /// Names of the jobs.
    pub names: Vec<String>,
    /// The machine and its jobs.
    pub plan: Scenario,
}

/// The device models of targets, by name, as they were read.
pub type Devices = [(&'static str, Result<Device, Error>); 2];

/// Where tables and keys are in the file, for errors that are found later.
#[derive(Default)]
struct Marks(Vec<Mark>);

/// A table, and the keys in it.
struct Mark {
    place: Place,
    /// Number of consecutive jobs that it describes.
    copies: usize,
    path: String,
    span: Range<usize>,
    keys: Vec<(String, Range<usize>)>,
}

impl Mark {
    fn is_of(&self, place: Place) -> bool {
        match (self.place, place) {
            (Place::Job(first), Place::Job(job)) => (first..first + self.copies).contains(&job),
            (one, other) => one == other,
        }
    }
}

impl Marks {
    fn table(&mut self, place: Place, copies: usize, table: &Table<'_>) {
        let keys = table.keys().map(|(key, span)| (key.to_owned(), span)).collect();
        self.0.push(Mark { place, copies, path: table.path.clone(), span: table.span.clone(), keys });
    }

    /// The error at the key if the file has it, at its table otherwise.
    fn complain(&self, file: &File<'_>, fault: &Fault) -> Error {
        let mut of = self.0.iter().filter(|mark| mark.is_of(fault.place));
        let written = |mark: &Mark| mark.keys.iter().find(|one| one.0 == fault.key).map(|one| one.1.clone());
        let found = of.clone().find_map(|mark| Some((mark, written(mark)?)));
        let found = found.or_else(|| of.next().map(|mark| (mark, mark.span.clone())));
        let (path, span) = found.map_or((String::new(), 0..0), |(mark, span)| (mark.path.clone(), span));
        file.wrong(&span, &format!("{path}{}", fault.key), &fault.text)
    }
}

/// Parses a scenario whose targets are some of these devices; `name` is the file name for messages.
pub fn read(name: &str, text: &str, devices: &Devices) -> Result<Read, Error> {
    let file = File { name, text };
    let mut marks = Marks::default();
    let read = whole(&file, devices, &mut marks)?;
    match read.plan.check() {
        Ok(()) => Ok(read),
        Err(fault) => Err(marks.complain(&file, &fault)),
    }
}

fn whole(file: &File<'_>, devices: &Devices, marks: &mut Marks) -> Result<Read, Error> {
    let mut top = Table::top(file)?;
    let title = or(&mut top, "title", "A machine".to_owned(), |value| value.text().map(str::to_owned))?;
    let window = or(&mut top, "window", Tick::ms(1000), time)?;
    let until = maybe(&mut top, "until", time)?;
    let (hop_names, hops) = hops(&mut top, marks)?;
    let (target_names, targets) = targets(&mut top, &hop_names, devices, marks)?;
    let servers = match top.take("servers") {
        None => None,
        Some(value) => {
            let table = value.table("servers: ")?;
            marks.table(Place::Servers, 1, &table);
            Some(servers(table, &hop_names, marks)?)
        }
    };
    let jobs =
        top.take("job").ok_or_else(|| top.missing("job", "write each job as a table headed [[job]]"))?;
    let mut tables = jobs.tables("job")?;
    let mut bases: Vec<String> = Vec::new();
    let mut copies = Vec::new();
    for table in &mut tables {
        let id = must(table, "id", "every job has one", |value| {
            let name = value.name()?.to_string();
            if bases.contains(&name) {
                return Err(value.wrong(format!("there are two jobs {name}")));
            }
            Ok(name)
        })?;
        bases.push(id);
        copies.push(or(table, "copies", 1, count(1 << 16))?);
    }
    let (mut names, mut jobs) = (Vec::new(), Vec::new());
    for (number, table) in tables.into_iter().enumerate() {
        marks.table(Place::Job(names.len()), copies[number] as usize, &table);
        let every = servers.as_ref().map_or(0, |servers| servers.count);
        for plan in copied(job(table, &bases, number, &hop_names)?, copies[number], every) {
            names.push(plan.job.label.clone());
            jobs.push(plan);
        }
    }
    // A job that waits for a job with copies waits for the first copy.
    let first = |base: usize| copies[..base].iter().sum::<u32>() as usize;
    for plan in &mut jobs {
        plan.after = plan.after.map(first);
    }
    let groups: Vec<u32> = targets.iter().map(|group: &TargetGroup| group.count).collect();
    let failures = failures(&mut top, &target_names, &groups, marks)?;
    top.finish("title, window, until, servers, link, router, storage, target, job, failure")?;
    Ok(Read { title, names, plan: Scenario { hops, servers, targets, jobs, failures, window, until } })
}

/// Links, routers and storage servers: each forwards data in order of arrival.
fn hops(top: &mut Table<'_>, marks: &mut Marks) -> Result<(Vec<String>, Vec<HopGroup>), Error> {
    let mut tables = Vec::new();
    for kind in ["link", "router", "storage"] {
        if let Some(value) = top.take(kind) {
            tables.extend(value.tables(kind)?);
        }
    }
    let mut names: Vec<String> = Vec::new();
    for table in &mut tables {
        names.push(must(table, "id", "others name it by that", |value| {
            let name = value.name()?.to_string();
            if names.contains(&name) {
                Err(value.wrong(format!("there are two of the name {name}")))
            } else {
                Ok(name)
            }
        })?);
    }
    let mut hops = Vec::new();
    for (number, mut table) in tables.into_iter().enumerate() {
        marks.table(Place::Hop(number), 1, &table);
        let to = table.take("to");
        hops.push(HopGroup {
            count: or(&mut table, "count", 1, count(MOST))?,
            rate: must(&mut table, "rate", "such as \"12 GB/s\"", rate)?,
            latency: or(&mut table, "latency", Tick(0), time)?,
            unrest: or(&mut table, "unrest", 0.0, share)?,
            to: to.map(|value| named(&names, "link, router or storage server")(&value)).transpose()?,
        });
        table.finish("id, count, rate, latency, unrest, to")?;
    }
    Ok((names, hops))
}

fn targets(
    top: &mut Table<'_>,
    hops: &[String],
    devices: &Devices,
    marks: &mut Marks,
) -> Result<(Vec<String>, Vec<TargetGroup>), Error> {
    let (mut names, mut groups) = (Vec::new(), Vec::new());
    let tables = top.take("target").map_or(Ok(Vec::new()), |value| value.tables("target"))?;
    for (number, mut table) in tables.into_iter().enumerate() {
        marks.table(Place::Target(number), 1, &table);
        names
            .push(must(&mut table, "id", "failures name it by that", |value| Ok(value.name()?.to_string()))?);
        groups.push(TargetGroup {
            count: or(&mut table, "count", 1, count(1 << 16))?,
            device: must(&mut table, "device", "one of scenarios/devices.toml", |value| {
                device(value, devices)
            })?,
            via: maybe(&mut table, "via", named(hops, "link, router or storage server"))?,
        });
        table.finish("id, count, device, via")?;
    }
    Ok((names, groups))
}

fn device(value: &Value<'_>, devices: &Devices) -> Result<Device, Error> {
    let names: Vec<String> = devices.iter().map(|one| one.0.to_owned()).collect();
    let number = named(&names, "device")(value)?;
    devices[number].1.clone().map_err(|error| value.wrong(error))
}

fn servers(mut table: Table<'_>, hops: &[String], marks: &mut Marks) -> Result<Servers, Error> {
    let drain = match table.take("drain") {
        None => None,
        Some(value) => {
            let table = value.table("servers: drain: ")?;
            marks.table(Place::Servers, 1, &table);
            Some(drain(table)?)
        }
    };
    let servers = Servers {
        count: or(&mut table, "count", 1, count(u32::from(u16::MAX)))? as u16,
        rate: Rate(must(&mut table, "rate", "the rate of one server, such as \"2 GB/s\"", rate)? as u64),
        turns: or(&mut table, "turns", 1, count(1024))?,
        capacity: must(&mut table, "capacity", "the buffer of one server, such as \"64 GiB\"", bytes)?,
        policy: must(&mut table, "policy", "such as \"size-fair\"", |value| {
            value.text()?.parse().map_err(|error| value.wrong(error))
        })?,
        discipline: or(&mut table, "scheduler", Discipline::default(), |value| {
            value.text()?.parse().map_err(|error: String| value.wrong(error))
        })?,
        lambda: maybe(&mut table, "lambda", time)?,
        via: maybe(&mut table, "via", named(hops, "link, router or storage server"))?,
        drain,
        full: or(&mut table, "full", Full::Wait, word(&[("wait", Full::Wait), ("bypass", Full::Bypass)]))?,
        mode: or(&mut table, "route", Mode::Buffer, word(MODES))?,
        streams: or(&mut table, "stream", route::Settings::default(), |value| {
            let count = value.whole(2..=route::MOST_REQUESTS as u32)? as usize;
            route::Settings::new(count, route::Marks::default()).map_err(|error| value.wrong(error))
        })?,
    };
    table
        .finish("count, rate, turns, capacity, policy, scheduler, lambda, via, drain, full, route, stream")?;
    Ok(servers)
}

const MODES: &[(&str, Mode)] = &[
    ("buffer", Mode::Buffer),
    ("traffic", Mode::Traffic),
    ("overflow", Mode::Overflow),
    ("direct", Mode::Direct),
];
const ORDERS: &[(&str, Order)] = &[
    ("arrival", Order::Arrival),
    ("offset", Order::Offset),
    ("target", Order::Target),
    ("trio", Order::Trio),
];
const CHOICES: &[(&str, Choice)] = &[("sjf", Choice::Sjf), ("fcfs", Choice::Fcfs)];

fn drain(mut table: Table<'_>) -> Result<DrainPlan, Error> {
    let usual = Rules::default();
    let usual_trigger = Trigger::default();
    let plan = DrainPlan {
        order: or(&mut table, "order", Order::Trio, word(ORDERS))?,
        region: maybe(&mut table, "region", bytes)?,
        largest: or(&mut table, "largest", Bytes::mib(8), bytes)?,
        streams: maybe(&mut table, "streams", count(1024))?,
        per_server: maybe(&mut table, "per_server", count(1024))?,
        trigger: Trigger {
            threshold: or(&mut table, "above", usual_trigger.threshold, share)?,
            age: or(&mut table, "age", usual_trigger.age, time)?,
            when_idle: or(&mut table, "when_idle", usual_trigger.when_idle, truth)?,
        },
        pipeline: or(
            &mut table,
            "pipeline",
            Pipeline::On,
            word(&[("on", Pipeline::On), ("off", Pipeline::Off)]),
        )?,
        shares_processors: or(&mut table, "shares_processors", false, truth)?,
        lag: or(&mut table, "lag", Tick(0), time)?,
        pause: or(&mut table, "pause", Tick(0), time)?,
        rules: Rules {
            alpha: or(&mut table, "alpha", usual.alpha, count(1024))?,
            choice: or(&mut table, "choice", usual.choice, word(CHOICES))?,
            until: maybe(&mut table, "quantum", bytes)?.map_or(Until::All, Until::Quantum),
            patience: or(&mut table, "patience", usual.patience, time)?,
            ..usual
        },
    };
    table.finish(
        "order, region, largest, streams, above, age, when_idle, pipeline, shares_processors, lag, pause, alpha, per_server, choice, quantum, patience",
    )?;
    Ok(plan)
}

const PATTERNS: &[(&str, Pattern)] = &[
    ("own", Pattern::Own),
    ("segmented", Pattern::Segmented),
    ("strided", Pattern::Strided),
    ("random", Pattern::Random),
];
const CHOOSE: &[(&str, Choose)] = &[
    ("first", Choose::First),
    ("round", Choose::Round),
    ("chance", Choose::Chance),
    ("crowded", Choose::Crowded),
    ("balanced", Choose::Balanced),
];

fn job(mut table: Table<'_>, names: &[String], number: usize, hops: &[String]) -> Result<JobPlan, Error> {
    let text = |value: &Value<'_>| Ok(value.name()?.to_string());
    let identity = Job {
        label: names[number].clone(),
        user: or(&mut table, "user", "user".into(), text)?,
        group: or(&mut table, "group", "group".into(), text)?,
        nodes: or(&mut table, "nodes", 1, count(1 << 20))?,
        priority: or(&mut table, "priority", 1, count(1 << 20))?,
    };
    let phases = table
        .take("phase")
        .ok_or_else(|| table.missing("phase", "write each as a table headed [[job.phase]]"))?;
    let phases = phases.tables("phase")?.into_iter().map(phase).collect::<Result<_, _>>()?;
    let stop = maybe(&mut table, "stop", time)?;
    let usual = LayoutPlan::default();
    let plan = JobPlan {
        job: identity,
        processes: or(&mut table, "processes", 1, count(MOST))?,
        after: maybe(&mut table, "after", named(names, "job"))?,
        start: or(&mut table, "start", Tick(0), time)?,
        stop,
        rounds: or(&mut table, "rounds", if stop.is_some() { FOR_EVER } else { 1 }, count(FOR_EVER))?,
        phases,
        together: or(&mut table, "together", true, truth)?,
        depth: or(&mut table, "depth", 1, count(4096))?,
        pause: or(&mut table, "pause", Tick(0), time)?,
        pattern: or(&mut table, "pattern", Pattern::Own, word(PATTERNS))?,
        layout: LayoutPlan {
            stripes: or(&mut table, "stripes", usual.stripes, count(1 << 16))?,
            stripe: or(&mut table, "stripe", usual.stripe, bytes)?,
            choose: or(&mut table, "choose", usual.choose, word(CHOOSE))?,
        },
        way: or(&mut table, "way", Way::Buffer, word(&[("buffer", Way::Buffer), ("direct", Way::Direct)]))?,
        servers: or(&mut table, "servers", Vec::new(), places)?,
        spread: or(&mut table, "spread", Spread::Home, spread)?,
        via: maybe(&mut table, "via", named(hops, "link, router or storage server"))?,
    };
    table.finish(
        "id, copies, user, group, nodes, priority, processes, after, start, stop, rounds, phase, together, depth, pause, pattern, \
         stripes, stripe, choose, way, servers, spread, via",
    )?;
    Ok(plan)
}

/// Copies of a job, each on its own part of the servers.
fn copied(plan: JobPlan, copies: u32, count: u16) -> Vec<JobPlan> {
    if copies == 1 {
        return vec![plan];
    }
    let servers = if plan.servers.is_empty() { (0..count).collect() } else { plan.servers.clone() };
    let part = |copy: u32| {
        let edge = |copy: u32| copy as usize * servers.len() / copies as usize;
        servers[edge(copy)..edge(copy + 1).max(edge(copy) + 1).min(servers.len())].to_vec()
    };
    let one = |copy: u32| JobPlan {
        job: Job { label: format!("{}-{}", plan.job.label, copy + 1), ..plan.job.clone() },
        servers: part(copy),
        ..plan.clone()
    };
    (0..copies).map(one).collect()
}

fn spread(value: &Value<'_>) -> Result<Spread, Error> {
    match value.text()? {
        "home" => Ok(Spread::Home),
        "chance" => Ok(Spread::Chance),
        _ => bytes(value).map(Spread::Stripes),
    }
}

/// Servers by number: `[3, "10-19"]`.
fn places(value: &Value<'_>) -> Result<Vec<u16>, Error> {
    let mut all = Vec::new();
    for text in value.texts()? {
        let bad =
            || value.wrong(format!("\"{text}\" is no server: write a number or a range such as \"10-19\""));
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        let (first, last): (u16, u16) =
            (first.trim().parse().map_err(|_| bad())?, last.trim().parse().map_err(|_| bad())?);
        if first > last {
            return Err(bad());
        }
        all.extend(first..=last);
    }
    Ok(all)
}

fn phase(mut table: Table<'_>) -> Result<Phase, Error> {
    let (compute, write, read) = (table.take("compute"), table.take("write"), table.take("read"));
    let phase = match (&compute, &write, &read) {
        (Some(compute), None, None) => Phase::Compute(time(compute)?, or(&mut table, "jitter", 0.0, share)?),
        (None, Some(amount), None) => {
            Phase::Write(bytes(amount)?, or(&mut table, "request", Bytes::mib(1), bytes)?)
        }
        (None, None, Some(amount)) => {
            Phase::Read(bytes(amount)?, or(&mut table, "request", Bytes::mib(1), bytes)?)
        }
        _ => return Err(table.missing("compute", "a phase has one of compute, write and read")),
    };
    table.finish("compute and jitter; write or read, and request")?;
    Ok(phase)
}

fn failures(
    top: &mut Table<'_>,
    targets: &[String],
    groups: &[u32],
    marks: &mut Marks,
) -> Result<Vec<forebay_sim::Failure>, Error> {
    let tables = top.take("failure").map_or(Ok(Vec::new()), |value| value.tables("failure"))?;
    let mut all = Vec::new();
    for (number, mut table) in tables.into_iter().enumerate() {
        marks.table(Place::Failure(number), 1, &table);
        let part = match (table.take("server"), table.take("target")) {
            (Some(server), None) => Part::Server(server.whole(0..=u32::from(u16::MAX))? as u16),
            (None, Some(target)) => {
                let group = named(targets, "target")(&target)?;
                let one = or(&mut table, "number", 0, |value| value.whole(0..=groups[group] - 1))?;
                Part::Target(groups[..group].iter().sum::<u32>() + one)
            }
            _ => return Err(table.missing("server", "name the server or the target that fails")),
        };
        all.push(forebay_sim::Failure {
            part,
            at: must(&mut table, "at", "such as \"10 s\"", time)?,
            lasts: must(&mut table, "lasts", "such as \"5 s\"", time)?,
        });
        table.finish("server, target, number, at, lasts")?;
    }
    Ok(all)
}
