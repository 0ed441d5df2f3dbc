//! Cost of a scheduling decision: `cargo run --release -p forebay-policy --example share_cost`.
//!
//! One decision covers all work of a request: arrival, choice and completion. All jobs always have waiting
//! requests, so every decision chooses between all of them.
//!
//! With a scheduler, a policy and a number of jobs as arguments it runs just that case once, for tools that
//! count instructions, which do not depend on other load (`decide` makes 400,000 decisions): `valgrind
//! --tool=callgrind --toggle-collect='*decide*' target/release/examples/share_cost tbf size-fair 10000`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints its results")]

use forebay_model::{Job, JobId, ServerId};
use forebay_policy::share::{
    Cost, Discipline, Next, Policy, Presence, Rate, Scheduler, Tick, Ticket, divide,
};
use std::time::Instant;

const REQUEST: Cost = Cost(256 << 10);
const RATE: Rate = Rate(400 << 20);
const ROUNDS: u64 = 400_000;

fn job(i: u64) -> Job {
    Job {
        label: i.to_string(),
        user: format!("u{}", i % 500),
        group: format!("g{}", i % 20),
        nodes: 1 + (i % 64) as u32,
        priority: 1,
    }
}

/// Nanoseconds per decision: the fastest of several runs, because other load only adds time.
fn decision(discipline: Discipline, policy: &Policy, jobs: u64, runs: u32) -> f64 {
    (0..runs)
        .map(|_| {
            let mut scheduler = discipline.scheduler(policy, 1, RATE);
            for i in 0..jobs {
                scheduler.join(&job(i)).expect("room for a job");
                scheduler.arrive(JobId(i), REQUEST, Ticket(2 * i));
                scheduler.arrive(JobId(i), REQUEST, Ticket(2 * i + 1));
            }
            let start = Instant::now();
            decide(scheduler.as_mut(), jobs);
            start.elapsed().as_nanos() as f64 / ROUNDS as f64
        })
        .fold(f64::INFINITY, f64::min)
}

#[inline(never)]
fn decide(scheduler: &mut dyn Scheduler, jobs: u64) {
    // The job of a ticket, without a table: ticket numbers repeat with a period of 2 · jobs.
    let (mut now, mut done) = (Tick(0), 0);
    while done < ROUNDS {
        match scheduler.next(now) {
            Next::Turn(ticket) => {
                let id = JobId(ticket.0 % (2 * jobs) / 2);
                scheduler.done(id, REQUEST, REQUEST);
                scheduler.arrive(id, REQUEST, Ticket(ticket.0 + 2 * jobs));
                now = now.after(Tick(625_000));
                done += 1;
            }
            Next::NotBefore(then) => now = then,
            Next::Idle => unreachable!("requests wait"),
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [discipline, policy, jobs] = &words[..] {
        let discipline = discipline.parse().expect("a scheduler");
        let policy = policy.parse().expect("a policy");
        println!("{:.0}", decision(discipline, &policy, jobs.parse().expect("a number"), 1));
        return;
    }
    println!("nanoseconds a decision (arrive + next + done)");
    println!("{:<10} {:<22} {:>8} {:>8} {:>8}", "scheduler", "policy", "1 job", "100", "10,000");
    for (discipline, name) in [
        (Discipline::Fifo, "fifo"),
        (Discipline::Stride, "size-fair"),
        (Discipline::Stride, "group-user-size-fair"),
        (Discipline::Tokens, "size-fair"),
        (Discipline::Tokens, "group-user-size-fair"),
        (Discipline::Draws, "size-fair"),
        (Discipline::Gift, "size-fair"),
        (Discipline::Tbf, "size-fair"),
    ] {
        let policy: Policy = name.parse().expect("a policy");
        let cost = [1, 100, 10_000].map(|jobs| decision(discipline, &policy, jobs, 9));
        println!("{discipline:<10} {name:<22} {:>8.0} {:>8.0} {:>8.0}", cost[0], cost[1], cost[2]);
    }
    println!();
    println!("milliseconds to divide all servers between all jobs, each job on up to 4 of them");
    let policy: Policy = "group-user-size-fair".parse().expect("a policy");
    for (servers, jobs) in [(2_u64, 10), (16, 1_000), (128, 10_000)] {
        let capacities: Vec<(ServerId, f64)> = (0..servers as u16).map(|s| (ServerId(s), 1.0)).collect();
        let present: Vec<Presence> = (0..jobs)
            .map(|i| {
                let on = (0..1 + i % 4).map(|k| ServerId(((i * 7 + k * k * 13) % servers) as u16));
                Presence { job: job(i), servers: on.collect() }
            })
            .collect();
        let start = Instant::now();
        let allotment = divide(&policy, &capacities, &present);
        let took = start.elapsed().as_secs_f64() * 1e3;
        println!("{servers:>4} servers {jobs:>6} jobs {took:>10.2} ms  ({} shares)", allotment.jobs.len());
    }
}
