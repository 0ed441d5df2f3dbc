//! Overhead of placement on file creation: `cargo run --release -p forebay-backend --example place_overhead
//! [DIR]`.
//!
//! Creates files of one stripe on a stripe set of eight directories (in `/dev/shm` if no other directory is
//! given), with the back end's default layout and with a chosen target, alternating between the two, so that
//! other load affects both. Reports medians over all rounds, of wall-clock and CPU time.

#![allow(clippy::print_stdout, reason = "it prints its results")]

use forebay_backend::{Backend, Creation, Layout, Stripes};
use forebay_model::{Gid, Name, Uid};
use forebay_policy::place::{Job, Ledger, Limits, Pattern, Shape, Topology, Weights, Writer, place};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

const TARGETS: u32 = 8;
const FILES: u32 = 100;
const ROUNDS: usize = 201;

/// Seconds of a clock.
fn at(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let above = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".to_owned());
    let dirs: Vec<tempfile::TempDir> =
        (0..TARGETS).map(|_| tempfile::tempdir_in(&above).expect("a directory")).collect();
    let paths: Vec<&str> = dirs.iter().map(|dir| dir.path().to_str().expect("a path")).collect();
    let backend = Stripes::open(paths.iter().copied()).expect("a stripe set");
    let owner = (Uid(rustix::process::getuid().as_raw()), Gid(rustix::process::getgid().as_raw()));
    let creation = Creation { owner, mode: 0o644, stripes: Some((1, 1 << 20)) };
    let mut ledger = Ledger::new(Arc::new(Topology::flat(TARGETS)), Weights::default(), 1);
    let writer = [Writer { client: None, bytes: None }];
    let job = Job {
        writers: &writer,
        pattern: Pattern::PerProcess,
        file_size: None,
        stripe_count: None,
        stripe_size: None,
        limits: &Limits::STRIPES,
    };
    let mut usual = |path: &[Name]| drop(backend.create(path, &creation).expect("a file"));
    let mut placed = |path: &[Name]| {
        let plan = place(&mut ledger, &job).expect("placement fits");
        let Shape::Striped(stripes) = &plan.files[0].shape else {
            unreachable!("one writer's file is striped")
        };
        let layout = Layout { targets: stripes.targets.clone(), stripe: stripes.size };
        drop(backend.create_on(path, &creation, &layout).expect("a file"));
    };
    let mut rounds = Vec::new();
    for number in 0..ROUNDS {
        // Alternate the order, because the first run warms the caches.
        let (without, with) = if number % 2 == 0 {
            let without = round(&backend, &mut usual);
            (without, round(&backend, &mut placed))
        } else {
            let with = round(&backend, &mut placed);
            (round(&backend, &mut usual), with)
        };
        rounds.push((without, with));
    }
    println!(
        "a file of one stripe, of {TARGETS} targets below {above}: medians of {ROUNDS} rounds, microseconds"
    );
    println!("                 default layout            placed    × (median of the rounds' ratios)");
    for (clock, name) in [(0, "wall-clock time"), (1, "CPU time")] {
        let of = |side: fn(&Pair) -> &[f64; 2]| median(rounds.iter().map(|pair| side(pair)[clock]).collect());
        let ratio = median(rounds.iter().map(|(without, with)| with[clock] / without[clock]).collect());
        let each = 1e6 / f64::from(FILES);
        let (without, with) = (of(|pair| &pair.0) * each, of(|pair| &pair.1) * each);
        println!("{name:<16} {without:>21.1} {with:>9.1} {ratio:>8.2}");
    }
}

/// Duration of a round without placement and with it: wall-clock and CPU time.
type Pair = ([f64; 2], [f64; 2]);

fn round(backend: &Stripes, create: &mut dyn FnMut(&[Name])) -> [f64; 2] {
    let path = |number: u32| vec![Name::new(format!("f{number}").as_bytes()).expect("a name")];
    let clocks = || [at(ClockId::Monotonic), at(ClockId::ProcessCPUTime)];
    let before = clocks();
    (0..FILES).for_each(|number| create(&path(number)));
    let after = clocks();
    for number in 0..FILES {
        backend.unlink(&path(number)).expect("it is there");
    }
    [after[0] - before[0], after[1] - before[1]]
}
