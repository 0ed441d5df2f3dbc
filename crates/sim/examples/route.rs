//! What routing is worth: `cargo run -p forebay-sim --example route`.
//!
//! SSDUP's three series on one of its two I/O nodes, in virtual time: straight to the disk, and with the paper's marks; by
//! the number of writers, and by the size of the buffer.

#![allow(clippy::print_stdout, reason = "it measures, and says so")]

use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::Rules;
use forebay_policy::device::{Curve, Device};
use forebay_policy::drain::Order;
use forebay_policy::route::{Mode, Settings};
use forebay_policy::share::{Discipline, Policy, Rate, Tick};
use forebay_sim::{
    Choose, DrainPlan, Full, HopGroup, JobPlan, LayoutPlan, Pattern, Phase, Scenario, Servers, Spread,
    TargetGroup, When, simulate,
};

const REQUEST: Bytes = Bytes::kib(128);
const SERIES: [(Pattern, Bytes); 3] = [
    (Pattern::Segmented, Bytes::mib(1024)),
    (Pattern::Strided, Bytes::mib(1024)),
    (Pattern::Random, Bytes::mib(512)),
];

fn main() {
    for (writers, percent) in
        [8, 16, 32, 64, 128].map(|writers| (writers, 100)).into_iter().chain([(32, 20), (32, 40), (128, 20)])
    {
        let (plain, _) = run(writers, percent, Mode::Direct);
        let (traffic, buffered) = run(writers, percent, Mode::Traffic);
        println!(
            "{writers:4} writers, {percent:3} %: direct {plain:5.1} MB/s, traffic {traffic:5.1} ({:+.0} %, {:.0} % buffered)",
            (traffic / plain - 1.0) * 100.0,
            buffered * 100.0,
        );
    }
}

/// MB/s while writers wrote, and the share of their data that was buffered.
fn run(writers: u32, percent: u64, mode: Mode) -> (f64, f64) {
    let total: u64 = SERIES.iter().map(|(_, bytes)| bytes.0).sum();
    let capacity = Bytes(total * percent / 100);
    let drain = DrainPlan {
        order: Order::Offset,
        region: Some(Bytes(capacity.0 / 2)),
        largest: Bytes::mib(1),
        streams: 64,
        when: When::Above(0.0),
        lag: Tick(0),
        pause: Tick(0),
        rules: Rules::default(),
    };
    let servers = Servers {
        count: 1,
        rate: Rate(205_000_000),
        turns: 1,
        capacity,
        policy: Policy::FIFO,
        discipline: Discipline::Fifo,
        lambda: None,
        via: Some(0),
        drain: Some(drain),
        full: Full::Wait,
        mode,
        streams: Settings::default(),
    };
    let curve = Curve::new(&[(1, Bytes(185_000_000))]).expect("a curve");
    let device = Device { curve, seek: Tick(1_870_000), streams: 1, queue: 128 };
    let plan = Scenario {
        hops: vec![HopGroup { count: 1, rate: 117.5e6, latency: Tick(0), unrest: 1.0, to: None }],
        servers: Some(servers),
        targets: vec![TargetGroup { count: 1, device, via: None }],
        jobs: SERIES.iter().enumerate().map(|(number, series)| job(number, writers, *series)).collect(),
        ..Scenario::default()
    };
    let report = simulate(&plan, 1).expect("a scenario that works");
    let time: f64 = report.jobs.iter().map(|job| job.ended.unwrap_or(0.0) - job.started.unwrap_or(0.0)).sum();
    let written: u64 = report.jobs.iter().map(|job| job.written).sum();
    (written as f64 / time / 1e6, 1.0 - report.ledger.direct as f64 / written as f64)
}

fn job(number: usize, writers: u32, (pattern, bytes): (Pattern, Bytes)) -> JobPlan {
    let job = Job { label: number.to_string(), user: "u".into(), group: "g".into(), nodes: 8, priority: 1 };
    let each = (bytes.0 / u64::from(writers) / REQUEST.0).max(1) * REQUEST.0;
    JobPlan {
        after: number.checked_sub(1),
        pattern,
        pause: Tick::ms(10),
        together: false,
        layout: LayoutPlan { stripes: 1, stripe: Bytes::mib(1), choose: Choose::First },
        spread: Spread::Home,
        ..JobPlan::new(job, writers, vec![Phase::Write(Bytes(each), REQUEST)])
    }
}
