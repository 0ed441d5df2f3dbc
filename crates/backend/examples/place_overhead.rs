//! What placement adds to the creation of files: `cargo run --release -p forebay-backend --example place_overhead [DIR]`.
//!
//! Files of one stripe on a stripe set of eight directories (in `/dev/shm` if no other directory is given), created as the
//! back end likes and with a target that is chosen for each, in turns; the fastest of several rounds counts, because
//! whatever else the machine does only adds.

#![allow(clippy::print_stdout, reason = "it prints what it found")]

use forebay_backend::{Backend, Creation, Layout, Stripes};
use forebay_model::{Gid, Name, Uid};
use forebay_policy::place::{Job, Ledger, Limits, Pattern, Shape, Topology, Weights, Writer, place};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TARGETS: u32 = 8;
const FILES: u32 = 2000;
const ROUNDS: u32 = 7;

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
        let plan = place(&mut ledger, &job).expect("there is room");
        let Shape::Striped(stripes) = &plan.files[0].shape else {
            unreachable!("one writer's file is striped")
        };
        let layout = Layout { targets: stripes.targets.clone(), stripe: stripes.size };
        drop(backend.create_on(path, &creation, &layout).expect("a file"));
    };
    let (mut without, mut with) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        without = without.min(round(&backend, &mut usual));
        with = with.min(round(&backend, &mut placed));
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(FILES);
    println!("a file of one stripe, of {TARGETS} targets below {above}: microseconds");
    println!("as the back end likes {:>8.1}", each(without));
    println!(
        "placed                {:>8.1}  {:.2} ×",
        each(with),
        with.as_secs_f64() / without.as_secs_f64()
    );
}

fn round(backend: &Stripes, create: &mut dyn FnMut(&[Name])) -> Duration {
    let path = |number: u32| vec![Name::new(format!("f{number}").as_bytes()).expect("a name")];
    let start = Instant::now();
    (0..FILES).for_each(|number| create(&path(number)));
    let took = start.elapsed();
    for number in 0..FILES {
        backend.unlink(&path(number)).expect("it is there");
    }
    took
}
