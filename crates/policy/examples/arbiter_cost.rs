//! Cost of an arbiter's decision: `cargo run --release -p forebay-policy --example arbiter_cost`.
//!
//! 10,000 servers, each with bytes for all of 1,000 targets, in jobs of several sizes. One decision covers
//! all work at the end of a write: freeing the place, choosing the next server and granting it. With an
//! argument, only jobs of that many servers run, because the process keeps the memory of earlier rounds.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints its results")]

use forebay_model::{Bytes, JobId, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::{Arbiter, Grant, Member, Rules};
use forebay_policy::drain::TargetId;
use std::collections::VecDeque;

const SERVERS: u16 = 10_000;
const TARGETS: u32 = 1_000;
const DECISIONS: u32 = 1_000_000;

/// CPU time of this process in seconds, unaffected by other processes.
fn worked() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// Resident memory, in MB.
fn memory() -> f64 {
    let status =
        std::process::Command::new("ps").args(["-o", "rss=", "-p", &std::process::id().to_string()]).output();
    status.ok().and_then(|out| String::from_utf8(out.stdout).ok()?.trim().parse::<f64>().ok()).unwrap_or(0.0)
        / 1e3
}

fn main() {
    println!("{:>16} {:>12} {:>14} {:>10}", "servers a job", "memory MB", "decisions/s", "ns each");
    let only: Option<u16> = std::env::args().nth(1).and_then(|word| word.parse().ok());
    for per_job in [1, 10, 100, 1000, 10_000].into_iter().filter(|size| only.is_none_or(|only| only == *size))
    {
        let mut arbiter = Arbiter::new(Rules { lease: Tick(u64::MAX / 2), ..Rules::default() });
        let bytes: Vec<(TargetId, Bytes)> =
            (0..TARGETS).map(|target| (TargetId(target), Bytes(u64::from(target) + 1))).collect();
        let mut under_way: VecDeque<Grant> = VecDeque::new();
        for server in 0..SERVERS {
            let member = Member { server: ServerId(server), job: JobId(u64::from(server / per_job)) };
            under_way.extend(arbiter.request(Tick(0), member, 1, 0, &bytes).expect("room"));
        }
        let resident = memory();
        let (start, mut done) = (worked(), 0);
        while done < DECISIONS
            && let Some(Grant { member, target, .. }) = under_way.pop_front()
        {
            let now = Tick(u64::from(done));
            under_way.extend(arbiter.done(now, member, target, Bytes(0)));
            done += 1;
        }
        let secs = worked() - start;
        let rate = f64::from(done) / secs;
        println!("{per_job:>16} {resident:>12.0} {rate:>14.0} {:>10.0}", 1e9 / rate);
    }
}
