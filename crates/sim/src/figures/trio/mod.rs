//! TRIO: targets that several servers write to, with and without arbitration.

mod jobs;

pub(super) use jobs::{eleven, ten, twelve};

use super::{Drawn, Panel, Result, Settings, Style, each, mean, percents, row, rows};
use crate::scenario::{
    Choose, DrainPlan, HopGroup, JobPlan, LayoutPlan, Pattern, Phase, Scenario, Servers, TargetGroup, Way,
};
use crate::{Report, simulate};
use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::{Choice, Rules};
use forebay_policy::drain::{Order, Pipeline, Trigger};
use forebay_policy::route::{self, Full, Mode};
use forebay_policy::share::{Discipline, Policy, Rate, Tick};

const MB: u64 = 1_000_000;
/// Request and stripe size of all experiments.
const REQUEST: Bytes = Bytes(MB);
/// Delay of a process or a server between two requests, so that they do not stay in lockstep.
const PAUSE: Tick = Tick(20_000);
/// Processes and servers start within this time.
const LAG: Tick = Tick::ms(40);

/// A write workload.
#[derive(Clone, Copy)]
struct Load {
    nodes: u16,
    /// Processes per node.
    each: u32,
    bytes: Bytes,
    pattern: Pattern,
    stripes: u32,
    choose: Choose,
}

impl Load {
    fn job(&self, label: u32, way: Way) -> JobPlan {
        let job = Job {
            label: label.to_string(),
            user: "u".into(),
            group: "g".into(),
            nodes: u32::from(self.nodes),
            priority: 1,
        };
        let write = Phase::Write(self.bytes, REQUEST);
        // Direct writers start at random times; buffers have their own lag.
        let phases = match way {
            Way::Direct => vec![Phase::Compute(Tick(LAG.0 / 2), 1.0), write],
            Way::Buffer => vec![write],
        };
        let direct = way == Way::Direct;
        JobPlan {
            together: false,
            depth: if direct { self.stripes } else { 1 },
            pause: if direct { PAUSE } else { Tick(0) },
            via: (direct && self.stripes > 1).then_some(0),
            pattern: self.pattern,
            layout: LayoutPlan { stripes: self.stripes, stripe: REQUEST, choose: self.choose },
            way,
            ..JobPlan::new(job, u32::from(self.nodes) * self.each, phases)
        }
    }

    fn total(&self) -> f64 {
        f64::from(self.nodes) * f64::from(self.each) * self.bytes.0 as f64
    }
}

fn targets(settings: &Settings, count: u32) -> Vec<TargetGroup> {
    vec![TargetGroup { count, device: settings.ost.clone(), via: None }]
}

/// Rate of a process to all targets together: that of one writer at one target.
fn links(settings: &Settings, count: u32) -> Vec<HopGroup> {
    vec![HopGroup { count, rate: settings.ost.curve.rate(1), latency: Tick(0), unrest: 0.0, to: None }]
}

fn buffers(count: u16, order: Order, choice: Choice) -> Servers {
    Servers {
        count,
        // The buffer absorbs a burst in negligible time compared with the drain.
        rate: Rate(1_000_000_000_000_000),
        turns: 1,
        capacity: Bytes(u64::MAX >> 2),
        policy: Policy::FIFO,
        discipline: Discipline::Fifo,
        lambda: None,
        via: None,
        drain: Some(DrainPlan {
            order,
            region: None,
            largest: REQUEST,
            streams: Some(1),
            per_server: Some(1),
            trigger: Trigger::default(),
            pipeline: Pipeline::Off,
            shares_processors: false,
            lag: LAG,
            pause: PAUSE,
            rules: Rules { alpha: 2, choice, patience: Tick::ms(3_600_000), ..Rules::default() },
        }),
        full: Full::Wait,
        mode: Mode::Buffer,
        streams: route::Settings::default(),
    }
}

fn run(settings: &Settings, plan: &Scenario) -> std::result::Result<Report, String> {
    simulate(plan, settings.seed).map_err(|fault| fault.to_string())
}

/// Bytes per second at which a load reaches the targets: direct, or drained in an order.
fn bandwidth(
    settings: &Settings,
    count: u32,
    load: Load,
    order: Option<Order>,
) -> std::result::Result<f64, String> {
    let way = if order.is_some() { Way::Buffer } else { Way::Direct };
    let plan = Scenario {
        hops: links(settings, u32::from(load.nodes) * load.each),
        servers: order.map(|order| buffers(load.nodes, order, Choice::Sjf)),
        targets: targets(settings, count),
        jobs: vec![load.job(1, way)],
        ..Scenario::default()
    };
    let report = run(settings, &plan)?;
    let job = &report.jobs[0];
    let begins = if order.is_some() { job.ended } else { Some(0.0) };
    let (Some(begins), Some(settled)) = (begins, job.settled) else { return Err("it never ended".into()) };
    Ok(load.total() / (settled - begins))
}

fn names<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

const GB: f64 = 1e9;

pub(super) fn one(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let writers = [1_u16, 2, 4, 8, 16, 32];
    let bytes = settings.pick(1024, 4096) * MB;
    let mut ours = Vec::new();
    for &nodes in &writers {
        let load = Load {
            nodes,
            each: 1,
            bytes: Bytes(bytes),
            pattern: Pattern::Segmented,
            stripes: 1,
            choose: Choose::First,
        };
        ours.push(bandwidth(settings, 1, load, None)? / 1e6);
    }
    for (at, paper) in [(0, 356.0), (1, 574.0), (5, 401.0)] {
        drawn.number(format!("{} writers", writers[at]), paper, ours[at], "MB/s");
    }
    drawn.number("from 2 to 32 writers", -0.301, ours[5] / ours[1] - 1.0, "share");
    drawn.claim(
        "two writers are best",
        ours.iter().all(|rate| *rate <= ours[1]),
        format!("{} MB/s", row(&ours, 0)),
    );
    let falls = ours[1..].windows(2).all(|pair| pair[1] <= pair[0]);
    drawn.claim("from there on more writers are slower", falls, "see above");
    let panel = Panel::new("One target", "writers", "MB/s").named(writers);
    drawn.panels.push(panel.values("ours", Style::Line, &ours).with(
        "paper",
        Style::Dots,
        vec![(0.0, 356.0), (1.0, 574.0), (5.0, 401.0)],
    ));
    drawn.note("This figure is one of the two that the device file was fitted to; a process needs 0.02 ms before each request of 1 MB here and everywhere.");
    Ok(drawn)
}

pub(super) fn table(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let scale = settings.pick(16, 4);
    let loads: [(&str, u16, u32, u64, Pattern); 3] = [
        ("BTIO", 4, 16, 13_270, Pattern::Own),
        ("MPI-TILE-IO", 8, 16, 64_000, Pattern::Segmented),
        ("IOR", 16, 1, 128_000, Pattern::Segmented),
    ];
    let job = |number: usize| {
        let (_, nodes, each, total, pattern) = loads[number];
        let bytes = Bytes(total * MB / scale / u64::from(nodes) / u64::from(each));
        Load { nodes, each, bytes, pattern, stripes: 4, choose: Choose::First }
            .job(number as u32 + 1, Way::Direct)
    };
    let times = |jobs: Vec<JobPlan>| {
        let hops = links(settings, jobs.iter().map(|job: &JobPlan| job.processes).sum());
        let plan = Scenario { hops, targets: targets(settings, 4), jobs, ..Scenario::default() };
        let report = run(settings, &plan)?;
        let time = |job: &crate::JobReport| job.ended.unwrap_or(0.0) * scale as f64;
        Ok::<_, String>(report.jobs.iter().map(time).collect::<Vec<f64>>())
    };
    let together = times((0..3).map(job).collect())?;
    let mut after = Vec::new();
    for number in 0..3 {
        after.push(after.last().copied().unwrap_or(0.0) + times(vec![job(number)])?[0]);
    }
    let papers = [[41.0, 121.83, 179.75], [9.79, 72.28, 161.0]];
    for (ours, (paper, way)) in
        [&together, &after].into_iter().zip(papers.iter().zip(["together", "one after the other"]))
    {
        for (at, load) in loads.iter().enumerate() {
            drawn.number(format!("{}, {way}", load.0), paper[at], ours[at], "s");
        }
        drawn.number(format!("average, {way}"), mean(paper), mean(ours), "s");
    }
    let ratio = mean(&together) / mean(&after);
    drawn.number("average together over one after the other", 1.41, ratio, "×");
    drawn.number("BTIO together over alone", 4.18, together[0] / after[0], "×");
    drawn.claim(
        "together takes longer on average than one after the other",
        ratio > 1.0,
        format!("{ratio:.2} ×"),
    );
    let worst = (0..3).map(|at| together[at] / after[at]).fold(0.0, f64::max);
    drawn.claim(
        "the smallest job suffers most",
        together[0] / after[0] >= worst,
        format!("{:.2} × for BTIO", together[0] / after[0]),
    );
    let panel = Panel::new("Time of each job", "", "seconds").named(loads.map(|load| load.0));
    drawn.panels.push(panel.values("together", Style::Bars, &together).values(
        "one after the other",
        Style::Bars,
        &after,
    ));
    drawn.note(format!("1/{scale} of the data, times multiplied accordingly; times from a common start, as the paper's serial row has them."));
    Ok(drawn)
}

pub(super) fn three(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let counts = [8_u16, 16, 32, 64];
    let total = settings.pick(16_384, 131_072) * MB;
    let mut ours: Vec<Vec<f64>> = Vec::new();
    for stripes in [1, 2, 4] {
        let mut line = Vec::new();
        for &nodes in &counts {
            let load = Load {
                nodes,
                each: 1,
                bytes: Bytes(total / u64::from(nodes)),
                pattern: Pattern::Own,
                stripes,
                choose: Choose::Round,
            };
            line.push(bandwidth(settings, 4, load, None)? / GB);
        }
        ours.push(line);
    }
    let gain = |other: &[f64]| {
        mean(&ours[0].iter().zip(other).map(|(one, other)| one / other - 1.0).collect::<Vec<_>>())
    };
    let (two, four) = (gain(&ours[1]), gain(&ours[2]));
    drawn.number("1 target over 2, on average", 0.16, two, "share");
    drawn.number("1 target over 4, on average", 0.26, four, "share");
    let best =
        (0..counts.len()).all(|at| ours[0][at] >= ours[1][at] * 0.999 && ours[0][at] >= ours[2][at] * 0.999);
    drawn.claim(
        "one target a process is always best",
        best,
        format!("{} GB/s", rows(["1 target:", "2:", "4:"], &ours, 2)),
    );
    drawn.claim("two targets are better than four on average", four > two, format!("{two:.2} and {four:.2}"));
    let falls = ours[0].first() > ours[0].last();
    drawn.claim("more processes are slower", falls, format!("{} GB/s", row(&ours[0], 2)));
    let panel = Panel::new("Four targets", "processes", "GB/s").named(counts);
    drawn.panels.push(
        ["1 target", "2 targets", "4 targets"]
            .iter()
            .zip(&ours)
            .fold(panel, |panel, (name, line)| panel.values(*name, Style::Line, line)),
    );
    drawn.note(STREAMS);
    Ok(drawn)
}

/// Direct and drained bandwidth by number of nodes, both patterns.
fn against(
    settings: &Settings,
    nodes: &[u16],
    each: u32,
    bytes: Bytes,
) -> std::result::Result<Vec<Vec<f64>>, String> {
    let mut lines = Vec::new();
    for pattern in [Pattern::Segmented, Pattern::Own] {
        for order in [None, Some(Order::Trio)] {
            let mut line = Vec::new();
            for &nodes in nodes {
                let load = Load { nodes, each, bytes, pattern, stripes: 4, choose: Choose::First };
                line.push(bandwidth(settings, 4, load, order)? / GB);
            }
            lines.push(line);
        }
    }
    Ok(lines)
}

const FOUR: [&str; 4] = ["NOTRIO-N-1", "TRIO-N-1", "NOTRIO-N-N", "TRIO-N-N"];

fn four_lines(panel: Panel, lines: &[Vec<f64>]) -> Panel {
    FOUR.iter().zip(lines).fold(panel, |panel, (name, line)| {
        let style = if name.starts_with("NO") { Style::Dashed } else { Style::Line };
        panel.values(*name, style, line)
    })
}

fn gain(with: &[f64], without: &[f64]) -> f64 {
    mean(&with.iter().zip(without).map(|(with, without)| with / without - 1.0).collect::<Vec<_>>())
}

const STREAMS: &str = "A process that writes straight to several targets has a request under way to each, and sends as fast as one writer \
    brings to one target: 356 MB/s. A server that drains has one write under way.";

const SEEKS: &str = "Where the paper's gap and ours differ: with more than 32 streams our target, as fitted, pays a seek for every \
    write of 1 MB; the paper's targets lost less (1.1 GB/s over four of them with 256 processes).";

pub(super) fn six(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let nodes = [4_u16, 8, 16, 32, 64, 128, 256];
    let lines = against(settings, &nodes, 16, Bytes(settings.pick(32, 256) * MB))?;
    let gains = [gain(&lines[1], &lines[0]), gain(&lines[3], &lines[2])];
    drawn.number("TRIO over direct writes, N-1", 0.77, gains[0], "share");
    drawn.number("TRIO over direct writes, N-N", 1.39, gains[1], "share");
    let better = (0..nodes.len()).all(|at| lines[1][at] > lines[0][at] && lines[3][at] > lines[2][at]);
    drawn.claim(
        "TRIO is faster at every size",
        better,
        format!("{} on average, N-1 and N-N", percents(&gains)),
    );
    let drops = lines[0].last() <= lines[0].first() && lines[2].last() <= lines[2].first();
    drawn.claim_or(
        "direct writes get slower with more processes",
        drops,
        &format!("{} GB/s", row(&lines[0], 2)),
        "64 processes are more than the 32 streams that a target remembers, and its curve is flat from 32 writers on",
    );
    let stable =
        lines[1][1..].iter().all(|rate| (rate / lines[1][1] - 1.0).abs() < 0.1) && lines[1][0] < lines[1][1];
    drawn.claim(
        "TRIO is stable from 8 nodes on, and lower with 4, which cannot fill 4 targets",
        stable,
        format!("{} GB/s", row(&lines[1], 2)),
    );
    drawn
        .panels
        .push(four_lines(Panel::new("16 processes a node, 4 targets", "nodes", "GB/s").named(nodes), &lines));
    drawn.note(format!(
        "{} MB a process instead of 1 GB: the rates are steady. {SEEKS}",
        settings.pick(32, 256)
    ));
    Ok(drawn)
}

pub(super) fn seven(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let ways = [
        ("NAIVE", None),
        ("BUFFER-NOOP", Some(Order::Arrival)),
        ("BUFFER-SEQ", Some(Order::Offset)),
        ("BUFFER-STI", Some(Order::Target)),
        ("BUFFER-TRIO", Some(Order::Trio)),
    ];
    let mut lines = Vec::new();
    for pattern in [Pattern::Segmented, Pattern::Own] {
        let mut line = Vec::new();
        for (_, order) in ways {
            let bytes = Bytes(settings.pick(128, 1024) * MB);
            let load = Load { nodes: 8, each: 16, bytes, pattern, stripes: 4, choose: Choose::First };
            line.push(bandwidth(settings, 4, load, order)? / GB);
        }
        lines.push(line);
    }
    for (name, line) in ["N-1", "N-N"].iter().zip(&lines) {
        let [naive, noop, seq, sti, trio] = line[..] else { return Err("five ways".into()) };
        let detail = format!("{} GB/s", each(ways.map(|way| way.0), line, 2));
        drawn.claim(
            format!("{name}: buffering alone is no better than direct writes"),
            noop <= naive * 1.1,
            &*detail,
        );
        drawn.claim(format!("{name}: by offset it is clearly better"), seq > naive * 1.1, &*detail);
        drawn.claim(format!("{name}: by target is no better than by offset"), sti <= seq * 1.05, &*detail);
        drawn.claim(
            format!("{name}: with the arbiter it is best"),
            line.iter().all(|other| *other <= trio),
            &*detail,
        );
        for ((way, _), rate) in ways.iter().zip(line) {
            drawn.number(format!("{name} {way}"), None, *rate, "GB/s");
        }
    }
    let panel = Panel::new("8 nodes, 128 processes, 4 targets", "", "GB/s")
        .named(["NAIVE", "NOOP", "SEQ", "STI", "TRIO"]);
    drawn.panels.push(panel.values("N-1", Style::Bars, &lines[0]).values("N-N", Style::Bars, &lines[1]));
    drawn.note("The paper gives no numbers for this figure, only their order.");
    drawn.note(STREAMS);
    Ok(drawn)
}

pub(super) fn eight(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let nodes = [4_u16, 8, 16, 32, 64, 128, 256];
    let lines = against(settings, &nodes, 1, Bytes(settings.pick(512, 2048) * MB))?;
    for (what, paper, line, at) in [
        ("TRIO-N-1, 4 processes", 1.4, 1, 0),
        ("TRIO-N-1, 8 processes", 1.7, 1, 1),
        ("TRIO-N-1, 256 processes", 1.8, 1, 6),
        ("NOTRIO-N-1, 8 processes", 1.4, 0, 1),
        ("NOTRIO-N-1, 256 processes", 1.1, 0, 6),
        ("TRIO-N-N, 4 processes", 1.5, 3, 0),
        ("TRIO-N-N, 8 processes", 2.1, 3, 1),
    ] {
        drawn.number(what, paper, lines[line][at], "GB/s");
    }
    let gains = [gain(&lines[1], &lines[0]), gain(&lines[3], &lines[2])];
    drawn.number("TRIO over direct writes, N-1", 0.35, gains[0], "share");
    drawn.claim(
        "TRIO is faster on average",
        gains[0] > 0.0 && gains[1] > 0.0,
        format!("{}, N-1 and N-N", percents(&gains)),
    );
    let stable =
        lines[1][1..].iter().all(|rate| (rate / lines[1][1] - 1.0).abs() < 0.1) && lines[1][0] < lines[1][1];
    drawn.claim(
        "TRIO rises from 4 to 8 processes, then stays",
        stable,
        format!("{} GB/s", row(&lines[1], 2)),
    );
    let peak = lines[0].iter().copied().fold(0.0, f64::max);
    drawn.claim(
        "direct writes fall behind with many processes",
        lines[0][6] < 0.9 * peak,
        format!("{} GB/s", row(&lines[0], 2)),
    );
    drawn.panels.push(four_lines(
        Panel::new("One process a node, 4 targets", "processes", "GB/s").named(nodes),
        &lines,
    ));
    drawn.note(format!(
        "{} MB a process instead of 16 GB: the rates are steady. {SEEKS}",
        settings.pick(512, 2048)
    ));
    Ok(drawn)
}

pub(super) fn nine(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let counts: Vec<u32> = settings.pick(vec![2, 4, 8, 16, 32], vec![2, 4, 8, 16, 32, 64, 128]);
    let bytes = Bytes(settings.pick(256, 1024) * MB);
    let mut lines = Vec::new();
    for pattern in [Pattern::Segmented, Pattern::Own] {
        for order in [None, Some(Order::Trio)] {
            let mut line = Vec::new();
            for &count in &counts {
                let load = Load {
                    nodes: 2 * count as u16,
                    each: 1,
                    bytes,
                    pattern,
                    stripes: count,
                    choose: Choose::First,
                };
                line.push(bandwidth(settings, count, load, order)? / GB);
            }
            lines.push(line);
        }
    }
    let gains = [gain(&lines[1], &lines[0]), gain(&lines[3], &lines[2])];
    drawn.number("TRIO over direct writes, N-1", 0.386, gains[0], "share");
    drawn.number("direct, stripe count 2", 0.81, lines[0][0], "GB/s");
    if counts.len() == 7 {
        drawn.number("direct, stripe count 128", 27.0, lines[0][6], "GB/s");
    }
    let better = (0..counts.len()).all(|at| lines[1][at] > lines[0][at]);
    drawn.claim(
        "TRIO is faster at every stripe count",
        better,
        format!("TRIO {}, direct {} GB/s", row(&lines[1], 2), row(&lines[0], 2)),
    );
    let last = counts.len() - 1;
    let scale = |line: &[f64]| line[last] / line[0] / f64::from(counts[last] / counts[0]);
    let (with, without) = (scale(&lines[1]), scale(&lines[0]));
    drawn.claim(
        "direct writes scale less than linearly, TRIO better",
        without < 1.0 && with > without,
        format!("{without:.2} and {with:.2} of linear"),
    );
    drawn.panels.push(four_lines(
        Panel::new("Twice as many processes as targets", "targets of a file", "GB/s").named(names(&counts)),
        &lines,
    ));
    Ok(drawn)
}
