//! Laws of every machine: no bytes are lost or invented, and equal seeds give equal reports.

use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::{Rules, Until};
use forebay_policy::device::{Curve, Device};
use forebay_policy::drain::{Order, Pipeline, Trigger};
use forebay_policy::route::{Full, Marks, Mode, Settings};
use forebay_policy::share::{Discipline, Rate, Tick};
use forebay_sim::{
    Choose, DrainPlan, Failure, HopGroup, JobPlan, LayoutPlan, Part, Pattern, Phase, Scenario, Servers,
    Spread, TargetGroup, Way, World, simulate,
};
use forebay_testkit::{Rng, rounds, seed};

fn device() -> Device {
    Device { curve: Curve::trio(), seek: Tick::ms(5), streams: 8, queue: 0 }
}

fn job(id: usize, nodes: u32) -> Job {
    Job { label: (id + 1).to_string(), user: format!("u{}", id % 3), group: "g".into(), nodes, priority: 1 }
}

/// A random element.
fn one<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    *rng.pick(of)
}

/// The seeds of a random driver, starting from the seed of the run.
fn seeds(default: u64) -> impl Iterator<Item = u64> {
    rounds(default).map(|round| seed().wrapping_add(round))
}

fn drain(rng: &mut Rng) -> DrainPlan {
    let until = one(rng, &[Until::All, Until::Quantum(Bytes::mib(3))]);
    DrainPlan {
        order: one(rng, &[Order::Arrival, Order::Offset, Order::Target, Order::Trio]),
        region: one(rng, &[None, None, Some(Bytes::mib(2))]),
        largest: Bytes::mib(1 + rng.below(4)),
        streams: one(rng, &[None, Some(1), Some(3)]),
        per_server: one(rng, &[None, None, Some(1)]),
        trigger: Trigger {
            threshold: one(rng, &[0.0, 0.5]),
            age: one(rng, &[Tick::ms(20), Tick::ms(600_000)]),
            when_idle: rng.below(4) == 0,
        },
        pipeline: one(rng, &[Pipeline::On, Pipeline::On, Pipeline::Off]),
        shares_processors: rng.below(3) == 0,
        lag: Tick::ms(rng.below(3) * 10),
        pause: Tick(rng.below(3) * 100_000),
        rules: Rules { alpha: 1 + rng.below(3) as u32, until, ..Rules::default() },
    }
}

fn random_job(rng: &mut Rng, id: usize, servers: u16) -> JobPlan {
    let request = Bytes::kib(one(rng, &[64, 256, 1000]));
    let bytes = Bytes(request.0 * (1 + rng.below(12)) + one(rng, &[0, 7]));
    let way = one(rng, &[Way::Buffer, Way::Buffer, Way::Direct]);
    let mut phases = vec![Phase::Compute(Tick::ms(rng.below(40)), 0.5), Phase::Write(bytes, request)];
    if way == Way::Buffer && rng.below(2) == 0 {
        phases.push(Phase::Read(bytes, request));
    }
    JobPlan {
        start: Tick::ms(rng.below(100)),
        stop: (rng.below(4) == 0).then(|| Tick::ms(100 + rng.below(400))),
        rounds: 1 + rng.below(3) as u32,
        together: rng.below(2) == 0,
        depth: 1 + rng.below(4) as u32,
        pause: Tick(rng.below(3) * 100_000),
        pattern: one(rng, &[Pattern::Own, Pattern::Segmented, Pattern::Strided, Pattern::Random]),
        layout: LayoutPlan {
            stripes: 1 + rng.below(4) as u32,
            stripe: Bytes::kib(one(rng, &[64, 1024])),
            choose: one(
                rng,
                &[Choose::First, Choose::Round, Choose::Chance, Choose::Crowded, Choose::Balanced],
            ),
        },
        way,
        servers: if rng.below(3) == 0 { vec![rng.below(u64::from(servers)) as u16] } else { vec![] },
        spread: one(rng, &[Spread::Home, Spread::Stripes(Bytes::mib(1)), Spread::Chance]),
        via: (rng.below(2) == 0).then_some(0),
        ..JobPlan::new(job(id, 1 + rng.below(9) as u32), 1 + rng.below(9) as u32, phases)
    }
}

fn random_scenario(rng: &mut Rng) -> Scenario {
    let count = 1 + rng.below(4) as u16;
    let hop = |count, to| HopGroup { count, rate: 1e9, latency: Tick(1000), unrest: 0.5, to };
    let failures = (0..rng.below(4)).map(|_| {
        let part = match rng.below(2) {
            0 => Part::Server(rng.below(u64::from(count)) as u16),
            _ => Part::Target(rng.below(4) as u32),
        };
        Failure { part, at: Tick::ms(rng.below(300)), lasts: Tick::ms(1 + rng.below(200)) }
    });
    let failures: Vec<Failure> = failures.collect();
    // Two failures of one part must not overlap: the end of the first would end both.
    let mut parts = Vec::new();
    let failures = failures.into_iter().filter(|one| {
        let fresh = !parts.contains(&one.part);
        parts.push(one.part);
        fresh
    });
    let failures = failures.collect();
    Scenario {
        hops: vec![hop(6, Some(1)), hop(2, None)],
        servers: Some(Servers {
            count,
            rate: Rate(1 << 30),
            turns: 1 + rng.below(4) as u32,
            capacity: Bytes::mib(1 + rng.below(60)),
            policy: one(rng, &["fifo", "size-fair", "user-then-job-fair"]).parse().expect("a policy"),
            discipline: one(rng, &Discipline::ALL),
            lambda: (rng.below(2) == 0).then_some(Tick::ms(50)),
            via: (rng.below(2) == 0).then_some(1),
            drain: Some(drain(rng)),
            full: one(rng, &[Full::Wait, Full::Bypass]),
            mode: one(rng, &[Mode::Buffer, Mode::Buffer, Mode::Traffic, Mode::Overflow, Mode::Direct]),
            streams: Settings::new(16, Marks::default()).expect("a stream"),
        }),
        targets: vec![TargetGroup { count: 4, device: device(), via: Some(1) }],
        jobs: (0..1 + rng.below(5) as usize).map(|id| random_job(rng, id, count)).collect(),
        failures,
        window: Tick::ms(10),
        until: None,
    }
}

#[test]
fn random_machines_neither_lose_nor_invent_bytes() {
    for seed in seeds(60) {
        let plan = random_scenario(&mut Rng::new(seed));
        let mut world = World::new(&plan, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        let mut steps = 0_u64;
        while world.step() {
            steps += 1;
            assert!(steps < 5_000_000, "seed {seed}: it never ends");
            if steps.is_multiple_of(64) {
                assert!(
                    world.ledger().is_balanced(),
                    "seed {seed}: {:?} at {:?}",
                    world.ledger(),
                    world.now()
                );
            }
        }
        let report = world.report();
        let ledger = report.ledger;
        assert!(ledger.is_balanced() && ledger.held == 0, "seed {seed}: {ledger:?}");
        let written: u64 = report.jobs.iter().map(|job| job.written).sum();
        assert_eq!(written, ledger.taken, "seed {seed}");
        let stored: u64 = report.targets.iter().map(|target| target.0).sum();
        assert_eq!(stored, ledger.direct + ledger.drained, "seed {seed}");
        for (number, job) in report.jobs.iter().enumerate() {
            assert!(job.settled.is_some() && job.settled >= job.ended, "seed {seed}: {job:?}");
            let counted: u64 = report.series.job(number).iter().sum();
            assert_eq!(counted, job.written + job.read, "seed {seed}: {job:?}");
        }
    }
}

#[test]
fn random_machines_give_the_same_report_twice() {
    for seed in seeds(12) {
        let plan = random_scenario(&mut Rng::new(seed));
        let [one, two] =
            [0, 0].map(|_| simulate(&plan, seed).unwrap_or_else(|fault| panic!("{seed}: {fault}")));
        assert_eq!(one, two, "seed {seed}");
    }
}
