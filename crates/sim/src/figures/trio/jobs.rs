//! TRIO's jobs of unequal size: the order in which they drain.

use super::{Load, MB, buffers, links, targets};
use crate::figures::{Drawn, Panel, Result, Settings, Style, mean, row, rows};
use crate::scenario::{Choose, JobPlan, Pattern, Scenario, Way};
use crate::simulate;
use forebay_model::Bytes;
use forebay_policy::arbiter::Choice;
use forebay_policy::drain::Order;
use forebay_policy::share::Tick;

/// How data leaves the nodes.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    /// Drained, at most two servers at a target, each at one target at a time.
    Granted(Choice),
    /// Drained, first come first served, any number of servers at a target, each at this many targets at a
    /// time.
    Crowd(u32),
    /// Written directly.
    Straight,
}

/// The compared variants and their names.
const WAYS: [&str; 3] = ["TRIO_SJF", "TRIO_FCFS", "NOTRIO"];
const THREE: [Leaves; 3] = [Leaves::Granted(Choice::Sjf), Leaves::Granted(Choice::Fcfs), Leaves::Straight];

/// Times of eight jobs, smallest first, averaged over repetitions.
type Times = std::result::Result<Vec<f64>, String>;

/// Eight jobs of 16 processes, each twice as large as the one before, with the given number of processes per
/// target.
fn eight_jobs(settings: &Settings, per_target: u32, leaves: Leaves) -> Times {
    let (repeat, scale) = (settings.pick(3, 15), settings.pick(8, 4));
    let mut times = vec![0.0; 8];
    for round in 0..repeat {
        let plan = machine(settings, per_target, leaves, scale);
        let report = simulate(&plan, settings.seed + round).map_err(|fault| fault.to_string())?;
        for (job, time) in report.jobs.iter().zip(times.iter_mut()) {
            *time += (job.settled.unwrap_or(0.0) - BEGIN.secs()) * scale as f64 / repeat as f64;
        }
    }
    Ok(times)
}

fn machine(settings: &Settings, per_target: u32, leaves: Leaves, scale: u64) -> Scenario {
    let way = if leaves == Leaves::Straight { Way::Direct } else { Way::Buffer };
    let jobs = (0..8).map(|job: usize| {
        let bytes = Bytes((128 * MB / scale) << job);
        let load =
            Load { nodes: 16, each: 1, bytes, pattern: Pattern::Own, stripes: 4, choose: Choose::Round };
        JobPlan {
            start: BEGIN,
            servers: (0..16).map(|node| (16 * job + node) as u16).collect(),
            ..load.job(job as u32 + 1, way)
        }
    });
    let choice = if leaves == Leaves::Granted(Choice::Sjf) { Choice::Sjf } else { Choice::Fcfs };
    let mut servers = buffers(128, Order::Trio, choice);
    if let Some(drain) = &mut servers.drain {
        // All have their data at once; the order of their requests is random, not by size.
        drain.lag = Tick::ms(1);
        if let Leaves::Crowd(at_once) = leaves {
            (drain.rules.alpha, drain.per_server) = (128, Some(at_once));
        }
    }
    Scenario {
        hops: links(settings, 128),
        servers: (way == Way::Buffer).then_some(servers),
        targets: targets(settings, 128 / per_target),
        jobs: jobs.collect(),
        ..Scenario::default()
    }
}

/// Start time of all eight jobs.
const BEGIN: Tick = Tick::ms(1000);

const WORKLOADS: [u32; 4] = [2, 4, 8, 16];

pub(in crate::figures) fn ten(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let mut lines = [const { Vec::new() }; 3];
    for per_target in WORKLOADS {
        for (line, leaves) in lines.iter_mut().zip(THREE) {
            line.push(mean(&eight_jobs(settings, per_target, leaves)?));
        }
    }
    let crowd = [1, 4].map(|at_once| eight_jobs(settings, 16, Leaves::Crowd(at_once)));
    let [one, four] = crowd.map(|times| times.map(|times| mean(&times)));
    let (one, four) = (one?, four?);
    let part =
        |other: &[f64]| mean(&lines[0].iter().zip(other).map(|(one, other)| one / other).collect::<Vec<_>>());
    let (fcfs, direct) = (part(&lines[1]), part(&lines[2]));
    drawn.number("smallest first, of first come first served", 0.57, fcfs, "share");
    drawn.number("smallest first, of direct writes", 0.63, direct, "share");
    let best = (0..4).all(|at| lines[0][at] < lines[1][at] && lines[0][at] < lines[2][at]);
    drawn.claim_or(
        "smallest first is shortest on average under every workload",
        best,
        &format!("{} s", rows(WAYS, &lines, 0)),
        FEW,
    );
    let idle = part(&lines[1]) <= part(&lines[2]);
    drawn.claim_or(
        "first come first served brings nothing over direct writes",
        idle,
        &format!("{} s", rows(WAYS, &lines, 0)),
        &format!(
            "under WL4 it takes {:.0} s, {one:.0} s without a limit on a target's writers, {four:.0} s if each server also writes to its \
             four targets at once as a direct writer does, which takes {:.0} s. So what it saves is what many streams cost a target, \
             in seeks above all, and it does that whatever the order of jobs",
            lines[1][3], lines[2][3]
        ),
    );
    drawn.number("first come first served, WL4", None, lines[1][3], "s");
    drawn.number("the same without a limit on a target's writers", None, one, "s");
    drawn.number("and with four targets at a time for each server", None, four, "s");
    let panel = Panel::new("Average time of a job", "", "seconds").named(["WL1", "WL2", "WL3", "WL4"]);
    drawn.panels.push(
        WAYS.iter().zip(&lines).fold(panel, |panel, (name, line)| panel.values(*name, Style::Bars, line)),
    );
    drawn.note(NOTE);
    Ok(drawn)
}

const FEW: &str = "with two and four processes a target nearly every server has a place at once and no order helps, while a direct writer \
    uses its four targets together, and a server that drains one after the other";

const NOTE: &str = "Less data, times multiplied accordingly; the order of the servers' requests is random, averages over repetitions. \
    Each file lies over 4 targets, so that all jobs share every target.";

pub(in crate::figures) fn eleven(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let mut eight = Vec::new();
    for leaves in THREE {
        eight.push(eight_jobs(settings, 16, leaves)?);
    }
    let mut panel = Panel::new("Jobs that are through, WL4", "seconds", "share of jobs").in_percent();
    for (name, times) in WAYS.iter().zip(&eight) {
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let mut points = vec![(0.0, 0.0)];
        for (at, time) in sorted.iter().enumerate() {
            points.extend([(*time, at as f64 / 8.0), (*time, (at + 1) as f64 / 8.0)]);
        }
        panel = panel.with(*name, Style::Line, points);
    }
    drawn.panels.push(panel);
    let early = |times: &[f64]| times.iter().filter(|time| **time <= 80.0).count();
    let counts: Vec<usize> = eight.iter().map(|times| early(times)).collect();
    drawn.number("jobs through within 80 s, smallest first", 7.0, counts[0] as f64, "jobs");
    drawn.claim_or(
        "7 of 8 jobs are through within 80 s",
        counts[0] >= 7,
        &format!("{} s", row(&eight[0], 0)),
        "the seventh is through shortly after",
    );
    drawn.claim(
        "with the other two far fewer are",
        counts[1] < counts[0] && counts[2] < counts[0],
        format!(
            "{} jobs with {}, {} with {}, {} with {}",
            counts[0], WAYS[0], counts[1], WAYS[1], counts[2], WAYS[2]
        ),
    );
    drawn.note(NOTE);
    Ok(drawn)
}

pub(in crate::figures) fn twelve(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let mut lines = [const { Vec::new() }; 3];
    for per_target in WORKLOADS {
        for (line, leaves) in lines.iter_mut().zip(THREE) {
            line.push(eight_jobs(settings, per_target, leaves)?.into_iter().fold(0.0, f64::max));
        }
    }
    let same = (0..4).all(|at| (lines[0][at] / lines[1][at] - 1.0).abs() < 0.1);
    drawn.claim_or(
        "the order of jobs does not matter for all of them together",
        same,
        &format!("{} s", rows(WAYS, &lines[..2], 0)),
        "smallest first leaves the largest job for the end, whose 16 servers then have the targets for themselves, one at a time",
    );
    let longer = (0..4).all(|at| lines[2][at] > lines[0][at] && lines[2][at] > lines[1][at]);
    drawn.claim_or("direct writes take longer", longer, &format!("{} s", rows(WAYS, &lines, 0)), FEW);
    let ratio: Vec<f64> = (0..4).map(|at| lines[2][at] / lines[0][at]).collect();
    drawn.claim(
        "the more so the heavier the workload",
        ratio[3] > ratio[0],
        format!("{} times as long as TRIO_SJF", row(&ratio, 2)),
    );
    let panel = Panel::new("Time of all jobs", "", "seconds").named(["WL1", "WL2", "WL3", "WL4"]);
    drawn.panels.push(
        WAYS.iter().zip(&lines).fold(panel, |panel, (name, line)| panel.values(*name, Style::Bars, line)),
    );
    drawn.note(NOTE);
    Ok(drawn)
}
