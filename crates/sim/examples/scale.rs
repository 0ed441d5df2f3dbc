//! Speed of the simulator: `cargo run --release -p forebay-sim --example scale [ROUNDS [SERVERS]]`.
//!
//! Up to 100,000 processes in 100 jobs write checkpoints to 10,000 servers, which share by policy and drain
//! to 1,000 targets under one arbiter.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it measures and prints"
)]

use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::Rules;
use forebay_policy::device::{Curve, Device};
use forebay_policy::drain::{Order, Pipeline, Trigger};
use forebay_policy::route::{Full, Mode, Settings};
use forebay_policy::share::{Discipline, Rate, Tick};
use forebay_sim::{Choose, DrainPlan, JobPlan, LayoutPlan, Phase, Scenario, Servers, TargetGroup, simulate};
use std::time::Instant;

fn main() {
    let number = |place| std::env::args().nth(place).and_then(|text| text.parse::<u32>().ok());
    let (rounds, only) = (number(1).unwrap_or(2), number(2));
    let sizes = [(100, 10, 1), (1_000, 100, 10), (10_000, 1_000, 100)];
    for (servers, targets, jobs) in sizes.into_iter().filter(|size| only.is_none_or(|only| size.0 == only)) {
        let plan = machine(servers, targets, jobs, rounds);
        let (start, before) = (Instant::now(), on_core());
        let report = simulate(&plan, 1).expect("a good scenario");
        let (took, core) = (start.elapsed().as_secs_f64(), on_core() - before);
        println!(
            "{servers} servers, {targets} targets, {} processes: {} events in {core:.2} s on a core ({took:.2} s in all), \
             {:.2} million a second",
            jobs * 1000,
            report.events,
            report.events as f64 / core / 1e6
        );
        println!(
            "  {:.0} s of virtual time, at most {} events planned, {} requests and {} writes under way; {}",
            report.ended,
            report.most_planned,
            report.most_requests,
            report.most_writes,
            memory()
        );
        assert!(report.ledger.is_balanced() && report.ledger.held == 0, "{:?}", report.ledger);
    }
}

/// CPU time of this process in seconds.
fn on_core() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// Peak memory.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("unknown");
    format!("most memory so far {}", peak.trim())
}

fn machine(servers: u32, targets: u32, jobs: u32, rounds: u32) -> Scenario {
    let job = |id: u32| Job {
        label: (id + 1).to_string(),
        user: format!("user{}", id % 30),
        group: format!("group{}", id % 7),
        nodes: 100,
        priority: 1,
    };
    let job = |id: u32| JobPlan {
        rounds,
        start: Tick::ms(u64::from(id) * 37),
        layout: LayoutPlan { stripes: 1, stripe: Bytes::mib(4), choose: Choose::Round },
        servers: (0..200.min(servers)).map(|k| ((id * 100 + k) % servers) as u16).collect(),
        ..JobPlan::new(
            job(id),
            1000,
            vec![Phase::Compute(Tick::ms(5_000), 0.1), Phase::Write(Bytes::mib(64), Bytes::mib(4))],
        )
    };
    Scenario {
        servers: Some(Servers {
            count: servers as u16,
            rate: Rate(2 << 30),
            turns: 2,
            capacity: Bytes(64 << 30),
            policy: "user-then-size-fair".parse().expect("a policy"),
            discipline: Discipline::Stride,
            lambda: None,
            via: None,
            drain: Some(DrainPlan {
                order: Order::Trio,
                region: None,
                largest: Bytes::mib(8),
                streams: Some(1),
                per_server: Some(1),
                trigger: Trigger { threshold: 0.0, ..Trigger::default() },
                pipeline: Pipeline::On,
                shares_processors: false,
                lag: Tick(0),
                pause: Tick(0),
                rules: Rules::default(),
            }),
            full: Full::Wait,
            mode: Mode::Buffer,
            streams: Settings::default(),
        }),
        targets: vec![TargetGroup {
            count: targets,
            device: Device { curve: Curve::trio(), seek: Tick::ms(5), streams: 16, queue: 0 },
            via: None,
        }],
        jobs: (0..jobs).map(job).collect(),
        ..Scenario::default()
    }
}
