//! Cost of placing a job: `cargo run --release -p forebay-policy --example place_cost`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints its results")]

use forebay_policy::place::{
    Client, Description, Job, Ledger, Limits, Pattern, Router, Routers, Server, State, Target, Topology,
    Weights, Writer, place,
};
use std::sync::Arc;
use std::time::Instant;

/// A large installation: each router leads to a part of the servers, each client is near one router of each
/// part.
fn description(clients: usize, routers: usize, servers: usize, targets: usize) -> Description {
    let parts = 4;
    let router = |i: usize| Router {
        name: format!("r{i}"),
        capacity: 1.0,
        leads_to: Some((0..servers).filter(|s| s % parts == i % parts).map(|s| format!("s{s}")).collect()),
    };
    let target = |i: usize| Target {
        name: format!("t{i}"),
        server: format!("s{}", i % servers),
        index: i as u32,
        capacity: 1.0,
        free: None,
        state: State::Active,
    };
    let client = |i: usize| {
        let cabinet = i * routers / parts / clients * parts;
        let near = (0..parts).map(|part| (format!("r{}", cabinet + part), 1)).collect();
        Client { name: format!("c{i}"), routers: Routers::Near(near) }
    };
    Description {
        routers: (0..routers).map(router).collect(),
        servers: (0..servers).map(|i| Server { name: format!("s{i}"), capacity: None }).collect(),
        targets: (0..targets).map(target).collect(),
        clients: (0..clients).map(client).collect(),
    }
}

/// CPU time of this thread in seconds, unaffected by other processes.
fn spent() -> f64 {
    let found = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    found.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

fn main() {
    println!("{:>8} writers {:>6} targets   described        placed   processor  max  min", "", "");
    for (writers, flat) in [(1_000, false), (10_000, false), (100_000, false), (100_000, true)] {
        let start = Instant::now();
        let topology = match flat {
            true => Topology::flat(2016),
            false => Topology::new(description(18_688, 440, 288, 2016)).expect("valid topology"),
        };
        let described = start.elapsed();
        let all: Vec<Writer> = (0..writers)
            .map(|i| Writer { client: (!flat).then_some((i % 18_688) as u32), bytes: Some(8 << 20) })
            .collect();
        let job = Job {
            writers: &all,
            pattern: Pattern::PerProcess,
            file_size: None,
            stripe_count: None,
            stripe_size: None,
            limits: &Limits::LUSTRE,
        };
        let mut ledger = Ledger::new(Arc::new(topology), Weights::default(), 1);
        let (start, before) = (Instant::now(), spent());
        let plan = place(&mut ledger, &job).expect("placement fits");
        let (took, work) = (start.elapsed(), spent() - before);
        let (most, least) = (plan.load.target.iter().max(), plan.load.target.iter().min());
        println!(
            "{writers:>8} writers {:>6} targets {:>9.1} ms {:>10.1} ms {:>8.1} ms {:>4} {:>4}{}",
            2016,
            described.as_secs_f64() * 1e3,
            took.as_secs_f64() * 1e3,
            work * 1e3,
            most.expect("targets"),
            least.expect("targets"),
            if flat { "  (flat)" } else { "" }
        );
    }
}
