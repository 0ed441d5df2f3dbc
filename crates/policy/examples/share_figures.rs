//! The schedulers side by side in virtual time: `cargo run --release -p forebay-policy --example share_figures`.
//!
//! Deterministic: the same figures on every machine.

#![allow(clippy::print_stdout, reason = "it prints its results")]

use forebay_policy::share::{Discipline, Policy, Rate, Tick};

#[path = "../tests/common/mod.rs"]
mod common;
use common::{Load, World};

const MIB: u64 = 1 << 20;
const RATE: u64 = 400 * MIB;

fn run(discipline: Discipline, policy: &str, loads: &[Load], secs: u64) -> World {
    let policy: Policy = policy.parse().expect("a policy");
    let mut world = World::new(discipline.scheduler(&policy, 7, Rate(RATE)), RATE, loads);
    world.run(Tick::ms(secs * 1_000));
    world
}

fn main() {
    println!("a device of 400 MiB/s, requests of 256 KiB unless noted, 16 outstanding a job");
    steady();
    sizes();
    join();
    neighbour();
}

/// Two jobs of 4 and 1 nodes: error and variation of the smaller one's work.
fn steady() {
    println!(
        "\nsize-fair 4:1, 100 s: error of the small job's share; its standard deviation / mean by window"
    );
    println!("{:<10} {:>9} {:>8} {:>8} {:>8}", "scheduler", "error", "10 ms", "100 ms", "1 s");
    let loads = ["1 a g 4 1", "2 b g 1 1"].map(|words| Load::new(words, MIB / 4));
    let (from, to) = (Tick::ms(20_000), Tick::ms(120_000));
    for discipline in Discipline::ALL {
        let world = run(discipline, "size-fair", &loads, 120);
        let error = world.parts(from, to)[1] / 0.2 - 1.0;
        let [short, middle, long] =
            [10, 100, 1_000].map(|ms| 100.0 * world.variation(1, from, to, Tick::ms(ms)));
        println!("{discipline:<10} {:>8.2}% {short:>7.2}% {middle:>7.2}% {long:>7.2}%", 100.0 * error);
    }
}

/// Small requests against large ones.
fn sizes() {
    println!(
        "\njob-fair, 4 KiB (64 outstanding) against 2 MiB: part of the job with small requests (fair: 50 %)"
    );
    let loads = [Load::new("1 a g 1 1", 4 << 10).depth(64), Load::new("2 b g 1 1", 2 * MIB)];
    for discipline in Discipline::ALL {
        let world = run(discipline, "job-fair", &loads, 60);
        println!("{discipline:<10} {:>7.2}%", 100.0 * world.parts(Tick::ms(20_000), Tick::ms(60_000))[0]);
    }
}

/// The paper's Fig. 12: the second of two equal jobs runs from 15 s to 45 s of 60 s.
fn join() {
    println!(
        "\njob-fair, a second job from 15 s to 45 s of 60 s: throughput of both, of the second job while active,"
    );
    println!("its standard deviation (100 ms), and when a window of 100 ms was first within 5 % of fair");
    println!("{:<10} {:>10} {:>11} {:>12} {:>10}", "scheduler", "both", "second", "deviation", "fair after");
    let loads = [Load::new("1 a g 1 1", MIB / 4), Load::new("2 b g 1 1", MIB / 4).during(15_000, 45_000)];
    for discipline in Discipline::ALL {
        let world = run(discipline, "job-fair", &loads, 60);
        let mib = |work: u64, secs: f64| work as f64 / MIB as f64 / secs;
        let both = world.work(0, Tick(0), Tick::ms(60_000)) + world.work(1, Tick(0), Tick::ms(60_000));
        let (from, to) = (Tick::ms(15_000), Tick::ms(45_000));
        let second = mib(world.work(1, from, to), 30.0);
        let deviation = world.variation(1, from, to, Tick::ms(100)) * second;
        let fair = (0..300).find(|i| {
            let window = world.work(1, Tick::ms(15_000 + 100 * i), Tick::ms(15_100 + 100 * i));
            (mib(window, 0.1) / 200.0 - 1.0).abs() < 0.05
        });
        let fair = fair.map_or("never".to_owned(), |i| format!("{} ms", 100 * (i + 1)));
        println!(
            "{discipline:<10} {:>6.1} MiB {second:>7.1} MiB {deviation:>8.1} MiB {fair:>10}",
            mib(both, 60.0)
        );
    }
}

/// A program on 64 nodes that alternates computing and writing, beside a benchmark on one node that only
/// writes.
fn neighbour() {
    println!(
        "\nsize-fair, 64 nodes computing 20 ms per request of 1 MiB, beside one node with 256 requests outstanding:"
    );
    println!("slowdown of the program, and total throughput compared with fifo");
    let app = Load { think: Tick::ms(20), ..Load::new("1 a g 64 1", MIB).depth(4) };
    let other = Load::new("2 b g 1 1", MIB).depth(256);
    let work = |world: &World, i| world.work(i, Tick::ms(5_000), Tick::ms(60_000)) as f64;
    let alone = work(&run(Discipline::Fifo, "size-fair", std::slice::from_ref(&app), 60), 0);
    let loads = [app, other];
    let fifo = run(Discipline::Fifo, "size-fair", &loads, 60);
    let full = work(&fifo, 0) + work(&fifo, 1);
    for discipline in Discipline::ALL {
        let world = run(discipline, "size-fair", &loads, 60);
        let slowdown = 100.0 * (alone / work(&world, 0) - 1.0);
        let total = 100.0 * (work(&world, 0) + work(&world, 1)) / full;
        println!("{discipline:<10} {slowdown:>8.1}% {total:>8.1}%");
    }
}
