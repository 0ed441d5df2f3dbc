//! TAPP-IO: placement of new files, on a model of Titan and one of its file systems.

use super::{Drawn, Panel, Result, Settings, Style, deviation, mean, percents, row, rows};
use crate::scenario::{Choose, HopGroup, JobPlan, LayoutPlan, Pattern, Phase, Scenario, TargetGroup, Way};
use crate::simulate;
use forebay_model::{Bytes, Job};
use forebay_policy::share::Tick;

const MIB: u64 = 1 << 20;
/// One of the two file systems of Spider II: 1008 targets on 144 servers, reached through routers.
const TARGETS: u32 = 1008;
const SERVERS: u32 = 144;
const ROUTERS: u32 = 72;
/// Half of 1 TB/s over the servers of a file system, and over its routers.
const SERVER: f64 = 500e9 / SERVERS as f64;
const ROUTER: f64 = 500e9 / ROUTERS as f64;

/// How targets are chosen: by the file system under load, or balanced.
const WAYS: [Choose; 2] = [Choose::Crowded, Choose::Balanced];
const NAMES: [&str; 2] = ["default", "TAPP-IO"];

/// A job whose processes write the given bytes each.
fn job(processes: u32, bytes: Bytes, pattern: Pattern, layout: LayoutPlan) -> JobPlan {
    let job = Job { label: "1".into(), user: "u".into(), group: "g".into(), nodes: processes, priority: 1 };
    JobPlan {
        together: false,
        pattern,
        layout,
        way: Way::Direct,
        ..JobPlan::new(
            job,
            processes,
            vec![Phase::Compute(Tick::ms(5), 1.0), Phase::Write(bytes, Bytes(MIB))],
        )
    }
}

/// Bytes per second until the last process is done, with the file system's choices from this seed; and the
/// bytes of the fullest target.
fn bandwidth(settings: &Settings, plan: JobPlan, seed: u64) -> std::result::Result<(f64, u64), String> {
    let hop = |count, rate, to| HopGroup { count, rate, latency: Tick(0), unrest: 0.0, to };
    let scenario = Scenario {
        hops: vec![hop(ROUTERS, ROUTER, None), hop(SERVERS, SERVER, Some(0))],
        targets: vec![TargetGroup { count: TARGETS, device: settings.ost.clone(), via: Some(1) }],
        jobs: vec![plan],
        ..Scenario::default()
    };
    let report = simulate(&scenario, seed).map_err(|fault| fault.to_string())?;
    let fullest = report.targets.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
    Ok((report.ledger.taken as f64 / report.ended, fullest))
}

fn own(choose: Choose) -> LayoutPlan {
    LayoutPlan { stripes: 1, stripe: Bytes(MIB), choose }
}

/// Bytes that a process writes in place of 4 GB.
fn amount(settings: &Settings) -> Bytes {
    Bytes(settings.pick(64, 256) * MIB)
}

/// Repeated runs of file per process, both ways: GB/s.
fn repeated(
    settings: &Settings,
    nodes: u32,
    bytes: Bytes,
    repeat: u64,
) -> std::result::Result<[Vec<f64>; 2], String> {
    let mut both = [Vec::new(), Vec::new()];
    for round in 0..repeat {
        for (rates, choose) in both.iter_mut().zip(WAYS) {
            let plan = job(nodes, bytes, Pattern::Own, own(choose));
            rates.push(bandwidth(settings, plan, settings.seed + round)?.0 / 1e9);
        }
    }
    Ok(both)
}

const MODEL: &str = "A model, not a measurement: 1008 targets on 144 servers behind 72 routers, processes on nodes of their own. The file \
    system's own choice is round and round over the targets while others make as many files as the job; TAPP-IO's is the daemon's \
    placement policy. POSIX, MPI-IO and HDF5 are the same here.";

pub(super) fn four(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    for (nodes, paper) in [(64, None), (512, None), (2048, Some(0.40)), (4096, Some(0.50))] {
        let [usual, balanced] = repeated(settings, nodes, amount(settings), settings.pick(6, 30))?;
        let gains: Vec<f64> =
            usual.iter().zip(&balanced).map(|(usual, balanced)| balanced / usual - 1.0).collect();
        drawn.number(format!("{nodes} nodes, average gain"), paper, mean(&gains), "share");
        drawn.claim(
            format!("{nodes} nodes: balanced is never slower"),
            gains.iter().all(|gain| *gain >= -0.01),
            percents(&gains),
        );
        let panel = Panel::new(format!("{nodes} nodes"), "run", "gain").in_percent().named(1..=gains.len());
        drawn.panels.push(panel.values("TAPP-IO over default", Style::Bars, &gains));
    }
    drawn.note(MODEL);
    Ok(drawn)
}

const NODES: [u32; 6] = [8, 32, 128, 512, 2048, 4096];

pub(super) fn five(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    for mebibytes in [settings.pick(16, 64), settings.pick(64, 256)] {
        let mut lines = [Vec::new(), Vec::new()];
        for nodes in NODES {
            let both = repeated(settings, nodes, Bytes(mebibytes * MIB), settings.pick(3, 10))?;
            lines.iter_mut().zip(&both).for_each(|(line, rates)| line.push(mean(rates)));
        }
        let better = (1..NODES.len()).all(|at| lines[1][at] > lines[0][at]);
        drawn.claim(
            format!("{mebibytes} MiB a process: faster from 32 nodes on"),
            better,
            format!("{} GB/s", rows(NAMES, &lines, 1)),
        );
        let panel = Panel::new(format!("{mebibytes} MiB a process"), "nodes", "GB/s").named(NODES);
        drawn.panels.push(panel.values("default", Style::Line, &lines[0]).values(
            "TAPP-IO",
            Style::Line,
            &lines[1],
        ));
        if drawn.panels.len() == 2 {
            drawn.number("4096 nodes, TAPP-IO", 202.7, lines[1][5], "GB/s");
            drawn.number("4096 nodes, gain", 0.54, lines[1][5] / lines[0][5] - 1.0, "share");
        }
    }
    drawn.note(MODEL);
    drawn.note("The paper's absolute rates are those of a busy machine; ours has the targets for itself.");
    Ok(drawn)
}

/// Mean rates and their spread, both ways, for all numbers of nodes.
fn all(settings: &Settings) -> std::result::Result<Vec<[Vec<f64>; 2]>, String> {
    NODES.iter().map(|&nodes| repeated(settings, nodes, amount(settings), settings.pick(4, 20))).collect()
}

/// Files on the fullest target by the file system's own choice: the least and the most over all runs, for all
/// numbers of nodes. Their size does not matter.
fn fullest(settings: &Settings) -> std::result::Result<Vec<(u64, u64)>, String> {
    let files = |nodes: u32, round: u64| {
        let plan = job(nodes, Bytes(MIB), Pattern::Own, own(Choose::Crowded));
        bandwidth(settings, plan, settings.seed + round).map(|(_, fullest)| fullest / MIB)
    };
    let all = NODES.iter().map(|&nodes| {
        let mut range = (u64::MAX, 0);
        for round in 0..settings.pick(4, 20) {
            let files = files(nodes, round)?;
            range = (range.0.min(files), range.1.max(files));
        }
        Ok(range)
    });
    all.collect()
}

pub(super) fn six(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let runs = all(settings)?;
    let gains: Vec<f64> = runs.iter().map(|[usual, balanced]| mean(balanced) / mean(usual) - 1.0).collect();
    drawn.number("4096 nodes, POSIX", 0.54, gains[5], "share");
    drawn.number("4096 nodes, MPI-IO", 0.51, gains[5], "share");
    drawn.number("4096 nodes, HDF5", 0.32, gains[5], "share");
    drawn.claim(
        "balanced is faster on average at every size",
        gains.iter().all(|gain| *gain > -0.01),
        percents(&gains),
    );
    let fullest = fullest(settings)?;
    let spread = |rates: &[f64]| deviation(rates) / mean(rates);
    let spreads: [Vec<f64>; 2] = [0, 1].map(|way| runs.iter().map(|run| spread(&run[way])).collect());
    drawn.claim_or(
        "and varies far less from run to run",
        spreads[0].iter().zip(&spreads[1]).skip(2).all(|(usual, balanced)| *balanced < 0.5 * usual),
        &format!("deviation over the mean: {}", rows(NAMES, &spreads, 3)),
        &format!(
            "a run is over when its fullest target is. By the default that has {} files from run to run, from 8 nodes to 4096: where \
             that does not change, the default cannot vary either, and there is nothing to be had",
            fullest.iter().map(|(least, most)| format!("{least} to {most}")).collect::<Vec<_>>().join(", ")
        ),
    );
    let panel = Panel::new("Average gain", "nodes", "gain").in_percent().named(NODES);
    drawn.panels.push(panel.values("TAPP-IO over default", Style::Bars, &gains));
    drawn.note(MODEL);
    Ok(drawn)
}

pub(super) fn seven(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let runs = all(settings)?;
    // Time for 4 GB per process at these rates.
    let time = |rates: &[f64], nodes: u32| 4.0 * f64::from(nodes) / mean(rates);
    let both: [Vec<f64>; 2] =
        [0, 1].map(|way| runs.iter().zip(NODES).map(|(run, nodes)| time(&run[way], nodes)).collect());
    let shorter = both[0].iter().zip(&both[1]).all(|(usual, balanced)| balanced <= &(usual * 1.01));
    drawn.claim(
        "balanced placement shortens the run at every size",
        shorter,
        format!("{} s", rows(NAMES, &both, 1)),
    );
    let panel = Panel::new("Time to write 4 GB a process", "nodes", "seconds").named(NODES);
    drawn.panels.push(panel.values("default", Style::Bars, &both[0]).values(
        "TAPP-IO",
        Style::Bars,
        &both[1],
    ));
    drawn.note(MODEL);
    Ok(drawn)
}

/// Layout of a shared file, by the number of writers and the bytes of each.
type Shape = fn(u32, Bytes) -> LayoutPlan;

pub(super) fn eight(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let nodes = [8_u32, 32, 128, 256, 512];
    let bytes = amount(settings);
    let ways: [(&str, Shape); 3] = [
        ("default", |_, _| LayoutPlan { stripes: 4, stripe: Bytes(MIB), choose: Choose::Crowded }),
        ("optimised", |nodes, bytes| LayoutPlan { stripes: nodes, stripe: bytes, choose: Choose::Crowded }),
        ("TAPP-IO", |nodes, bytes| LayoutPlan { stripes: nodes, stripe: bytes, choose: Choose::Balanced }),
    ];
    let mut lines = Vec::new();
    for (_, layout) in ways {
        let mut line = Vec::new();
        for nodes in nodes {
            let plan = job(nodes, bytes, Pattern::Segmented, layout(nodes, bytes));
            line.push(bandwidth(settings, plan, settings.seed)?.0 / 1e9);
        }
        lines.push(line);
    }
    let gain = lines[2][3] / lines[1][3] - 1.0;
    drawn.number("256 nodes, over the optimised layout", 0.758, gain, "share");
    let throttles = (1..nodes.len()).all(|at| lines[0][at] < 0.5 * lines[1][at]);
    drawn.claim(
        "the default layout throttles",
        throttles,
        format!("default {}, optimised {} GB/s", row(&lines[0], 1), row(&lines[1], 1)),
    );
    let better = gain > 0.1;
    let why = "a file's own stripes never share a target, however they are chosen, and servers and routers have spare bandwidth: what made the paper's \
        optimised layout slow (other jobs on the same targets) is not in this model";
    drawn.claim_or(
        "balanced targets beat the optimised layout",
        better,
        &format!("{} faster with 256 nodes", percents(&[gain])),
        why,
    );
    let panel = Panel::new("One shared file", "nodes", "GB/s").named(nodes);
    drawn.panels.push(
        ways.iter().zip(&lines).fold(panel, |panel, (way, line)| panel.values(way.0, Style::Line, line)),
    );
    drawn.note(MODEL);
    Ok(drawn)
}

pub(super) fn nine(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let nodes: Vec<u32> = settings.pick(vec![128, 256, 512, 1024], vec![128, 256, 512, 1024, 2048, 4096]);
    let mut gains = Vec::new();
    for &nodes in &nodes {
        let rates = repeated(settings, 16 * nodes, Bytes(8 * MIB), settings.pick(2, 5))?;
        gains.push(mean(&rates[1]) / mean(&rates[0]) - 1.0);
    }
    drawn.claim(
        "S3D's checkpoints gain at every size",
        gains.iter().all(|gain| *gain > 0.0),
        percents(&gains),
    );
    let panel = Panel::new("16 processes a node, 8 MiB each", "nodes", "gain").in_percent().named(nodes);
    drawn.panels.push(panel.values("TAPP-IO over default", Style::Bars, &gains));
    drawn.note(MODEL);
    Ok(drawn)
}
