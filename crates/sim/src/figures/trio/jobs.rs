//! TRIO's jobs of unequal size: whose data leaves first.

use super::{Load, MB, buffers, links, targets};
use crate::figures::{Drawn, Panel, Result, Settings, Style, mean};
use crate::scenario::{Choose, JobPlan, Pattern, Scenario, Way};
use crate::simulate;
use forebay_model::Bytes;
use forebay_policy::arbiter::Choice;
use forebay_policy::drain::Order;
use forebay_policy::share::Tick;

/// Times of the eight jobs: TRIO with the smallest first, with the first first, and direct.
struct Eight {
    /// Each a list of the times of the eight jobs, smallest first, averaged over repetitions.
    ways: [Vec<f64>; 3],
}

const WAYS: [&str; 3] = ["TRIO_SJF", "TRIO_FCFS", "NOTRIO"];

/// Eight jobs of 16 processes, each twice as large as the one before, with so many processes a target.
fn eight_jobs(settings: &Settings, per_target: u32) -> std::result::Result<Eight, String> {
    let (count, repeat) = (128 / per_target, settings.pick(3, 15));
    let scale = settings.pick(8, 4);
    let mut ways = [vec![0.0; 8], vec![0.0; 8], vec![0.0; 8]];
    for round in 0..repeat {
        for (number, times) in ways.iter_mut().enumerate() {
            let way = if number == 2 { Way::Direct } else { Way::Buffer };
            let choice = if number == 0 { Choice::Sjf } else { Choice::Fcfs };
            let jobs = (0..8).map(|job: usize| {
                let bytes = Bytes((128 * MB / scale) << job);
                let load = Load {
                    nodes: 16,
                    each: 1,
                    bytes,
                    pattern: Pattern::Own,
                    stripes: 4,
                    choose: Choose::Round,
                };
                JobPlan {
                    start: BEGIN,
                    servers: (0..16).map(|node| (16 * job + node) as u16).collect(),
                    ..load.job(job as u32 + 1, way)
                }
            });
            let plan = Scenario {
                hops: links(settings, 128),
                servers: (way == Way::Buffer).then(|| {
                    let mut servers = buffers(128, Order::Trio, choice);
                    if let Some(drain) = &mut servers.drain {
                        // All have their data at once; who asks first is a matter of chance, not of size.
                        drain.lag = Tick::ms(1);
                    }
                    servers
                }),
                targets: targets(settings, count),
                jobs: jobs.collect(),
                ..Scenario::default()
            };
            let report = simulate(&plan, settings.seed + round).map_err(|fault| fault.to_string())?;
            for (job, time) in report.jobs.iter().zip(times.iter_mut()) {
                *time += (job.settled.unwrap_or(0.0) - BEGIN.secs()) * scale as f64 / repeat as f64;
            }
        }
    }
    Ok(Eight { ways })
}

/// When all eight begin.
const BEGIN: Tick = Tick::ms(1000);

const WORKLOADS: [u32; 4] = [2, 4, 8, 16];

pub(in crate::figures) fn ten(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let mut lines = [const { Vec::new() }; 3];
    for per_target in WORKLOADS {
        let eight = eight_jobs(settings, per_target)?;
        for (line, times) in lines.iter_mut().zip(&eight.ways) {
            line.push(mean(times));
        }
    }
    let part =
        |other: &[f64]| mean(&lines[0].iter().zip(other).map(|(one, other)| one / other).collect::<Vec<_>>());
    let (fcfs, direct) = (part(&lines[1]), part(&lines[2]));
    drawn.number("smallest first, of first come first served", 0.57, fcfs, "share");
    drawn.number("smallest first, of direct writes", 0.63, direct, "share");
    let best = (0..4).all(|at| lines[0][at] < lines[1][at] && lines[0][at] < lines[2][at]);
    drawn.claim_or(
        "smallest first is shortest on average under every workload",
        best,
        &format!("{lines:.0?} s"),
        FEW,
    );
    let idle = part(&lines[1]) <= part(&lines[2]);
    drawn.claim_or(
        "first come first served brings nothing over direct writes",
        idle,
        &format!("{:.0?} and {:.0?} s", lines[1], lines[2]),
        "here it is the limit on a target's writers that pays where there are many, and first come first served keeps to \
         it too",
    );
    let panel = Panel::new("Average time of a job", "", "seconds").named(["WL1", "WL2", "WL3", "WL4"]);
    drawn.panels.push(
        WAYS.iter().zip(&lines).fold(panel, |panel, (name, line)| panel.values(*name, Style::Bars, line)),
    );
    drawn.note(NOTE);
    Ok(drawn)
}

const FEW: &str = "with two and four processes a target nearly everybody has a place at once and no order helps, while a direct writer \
    uses its four targets together, and a server that drains one after the other";

const NOTE: &str = "Less data, times multiplied accordingly; the order in which servers ask is by chance, averages over repetitions. \
    Each file lies over 4 targets, so that all jobs share every target.";

pub(in crate::figures) fn eleven(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let eight = eight_jobs(settings, 16)?;
    let mut panel = Panel::new("Jobs that are through, WL4", "seconds", "share of jobs").in_percent();
    for (name, times) in WAYS.iter().zip(&eight.ways) {
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
    let counts: Vec<usize> = eight.ways.iter().map(|times| early(times)).collect();
    drawn.number("jobs through within 80 s, smallest first", 7.0, counts[0] as f64, "jobs");
    drawn.claim_or(
        "7 of 8 jobs are through within 80 s",
        counts[0] >= 7,
        &format!("{:.0?} s", eight.ways[0]),
        "the seventh is through shortly after",
    );
    drawn.claim(
        "with the other two far fewer are",
        counts[1] < counts[0] && counts[2] < counts[0],
        format!("{counts:?} jobs"),
    );
    drawn.note(NOTE);
    Ok(drawn)
}

pub(in crate::figures) fn twelve(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let mut lines = [const { Vec::new() }; 3];
    for per_target in WORKLOADS {
        let eight = eight_jobs(settings, per_target)?;
        for (line, times) in lines.iter_mut().zip(&eight.ways) {
            line.push(times.iter().copied().fold(0.0, f64::max));
        }
    }
    let same = (0..4).all(|at| (lines[0][at] / lines[1][at] - 1.0).abs() < 0.1);
    drawn.claim_or(
        "the order of jobs does not matter for all of them together",
        same,
        &format!("{:.0?} and {:.0?} s", lines[0], lines[1]),
        "smallest first leaves the largest job for the end, whose 16 servers then have the targets for themselves, one at a time",
    );
    let longer = (0..4).all(|at| lines[2][at] > lines[0][at] && lines[2][at] > lines[1][at]);
    drawn.claim_or("direct writes take longer", longer, &format!("{:.0?} s", lines[2]), FEW);
    let ratio: Vec<f64> = (0..4).map(|at| lines[2][at] / lines[0][at]).collect();
    drawn.claim("the more so the heavier the workload", ratio[3] > ratio[0], format!("{ratio:.2?} ×"));
    let panel = Panel::new("Time of all jobs", "", "seconds").named(["WL1", "WL2", "WL3", "WL4"]);
    drawn.panels.push(
        WAYS.iter().zip(&lines).fold(panel, |panel, (name, line)| panel.values(*name, Style::Bars, line)),
    );
    drawn.note(NOTE);
    Ok(drawn)
}
