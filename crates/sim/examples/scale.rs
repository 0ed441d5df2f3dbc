//! How fast the simulator is: `cargo run --release -p forebay-sim --example scale`.
//!
//! 100,000 processes in 100 jobs write checkpoints to 10,000 servers, which share by policy and drain to 1,000 targets
//! under one arbiter.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it measures, and says so"
)]

use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::Rules;
use forebay_policy::device::{Curve, Device};
use forebay_policy::drain::Order;
use forebay_policy::route::{Mode, Settings};
use forebay_policy::share::{Discipline, Rate, Tick};
use forebay_sim::{
    Choose, DrainPlan, Full, JobPlan, LayoutPlan, Phase, Scenario, Servers, TargetGroup, When, simulate,
};
use std::time::Instant;

fn main() {
    let rounds: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2);
    let job = |id: u32| Job {
        label: (id + 1).to_string(),
        user: format!("user{}", id % 30),
        group: format!("group{}", id % 7),
        nodes: 100,
        priority: 1,
    };
    let jobs = (0..100).map(|id| JobPlan {
        rounds,
        start: Tick::ms(u64::from(id) * 37),
        layout: LayoutPlan { stripes: 1, stripe: Bytes::mib(4), choose: Choose::Round },
        servers: (0..200_u32).map(|k| ((id * 100 + k) % 10_000) as u16).collect(),
        ..JobPlan::new(
            job(id),
            1000,
            vec![Phase::Compute(Tick::ms(5_000), 0.1), Phase::Write(Bytes::mib(64), Bytes::mib(4))],
        )
    });
    let plan = Scenario {
        servers: Some(Servers {
            count: 10_000,
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
                streams: 1,
                when: When::Above(0.0),
                lag: Tick(0),
                pause: Tick(0),
                rules: Rules::default(),
            }),
            full: Full::Wait,
            mode: Mode::Buffer,
            streams: Settings::default(),
        }),
        targets: vec![TargetGroup {
            count: 1000,
            device: Device { curve: Curve::trio(), seek: Tick::ms(5), streams: 16, queue: 0 },
            via: None,
        }],
        jobs: jobs.collect(),
        ..Scenario::default()
    };
    let start = Instant::now();
    let report = simulate(&plan, 1).expect("a good scenario");
    let took = start.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("unknown").trim();
    println!(
        "{} events in {took:.2} s: {:.2} million a second; peak memory {peak}; {:.0} s of virtual time; {:?}",
        report.events,
        report.events as f64 / took / 1e6,
        report.ended,
        report.ledger
    );
    println!(
        "most planned {}, requests {}, writes {}",
        report.most_planned, report.most_requests, report.most_writes
    );
}
