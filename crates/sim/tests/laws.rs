//! Laws that hold in every machine: nothing is lost, nothing is made up, and the same seed tells the same story.

use forebay_dice::{Dice, rounds, seed};
use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::{Rules, Until};
use forebay_policy::device::{Curve, Device};
use forebay_policy::drain::Order;
use forebay_policy::route::{Marks, Mode, Settings};
use forebay_policy::share::{Discipline, Rate, Tick};
use forebay_sim::{
    Choose, DrainPlan, Failure, Full, HopGroup, JobPlan, LayoutPlan, Part, Pattern, Phase, Scenario, Servers,
    Spread, TargetGroup, Way, When, World, simulate,
};

fn device() -> Device {
    Device { curve: Curve::trio(), seek: Tick::ms(5), streams: 8, queue: 0 }
}

fn job(id: usize, nodes: u32) -> Job {
    Job { label: (id + 1).to_string(), user: format!("u{}", id % 3), group: "g".into(), nodes, priority: 1 }
}

/// One of several, by chance.
fn one<T: Copy>(dice: &mut Dice, of: &[T]) -> T {
    *dice.pick(of)
}

/// The seeds of a driver: from that of the run on.
fn seeds(usual: u64) -> impl Iterator<Item = u64> {
    rounds(usual).map(|round| seed().wrapping_add(round))
}

fn drain(dice: &mut Dice) -> DrainPlan {
    let until = one(dice, &[Until::All, Until::Quantum(Bytes::mib(3))]);
    DrainPlan {
        order: one(dice, &[Order::Arrival, Order::Offset, Order::Target, Order::Trio]),
        region: one(dice, &[None, None, Some(Bytes::mib(2))]),
        largest: Bytes::mib(1 + dice.below(4)),
        streams: 1 + dice.below(3) as u32,
        when: one(dice, &[When::Above(0.0), When::Above(0.5), When::Between]),
        lag: Tick::ms(dice.below(3) * 10),
        pause: Tick(dice.below(3) * 100_000),
        rules: Rules { alpha: 1 + dice.below(3) as u32, until, ..Rules::default() },
    }
}

fn random_job(dice: &mut Dice, id: usize, servers: u16) -> JobPlan {
    let request = Bytes::kib(one(dice, &[64, 256, 1000]));
    let bytes = Bytes(request.0 * (1 + dice.below(12)) + one(dice, &[0, 7]));
    let way = one(dice, &[Way::Buffer, Way::Buffer, Way::Direct]);
    let mut phases = vec![Phase::Compute(Tick::ms(dice.below(40)), 0.5), Phase::Write(bytes, request)];
    if way == Way::Buffer && dice.below(2) == 0 {
        phases.push(Phase::Read(bytes, request));
    }
    JobPlan {
        start: Tick::ms(dice.below(100)),
        stop: (dice.below(4) == 0).then(|| Tick::ms(100 + dice.below(400))),
        rounds: 1 + dice.below(3) as u32,
        together: dice.below(2) == 0,
        depth: 1 + dice.below(4) as u32,
        pause: Tick(dice.below(3) * 100_000),
        pattern: one(dice, &[Pattern::Own, Pattern::Segmented, Pattern::Strided, Pattern::Random]),
        layout: LayoutPlan {
            stripes: 1 + dice.below(4) as u32,
            stripe: Bytes::kib(one(dice, &[64, 1024])),
            choose: one(
                dice,
                &[Choose::First, Choose::Round, Choose::Chance, Choose::Crowded, Choose::Balanced],
            ),
        },
        way,
        servers: if dice.below(3) == 0 { vec![dice.below(u64::from(servers)) as u16] } else { vec![] },
        spread: one(dice, &[Spread::Home, Spread::Stripes(Bytes::mib(1)), Spread::Chance]),
        via: (dice.below(2) == 0).then_some(0),
        ..JobPlan::new(job(id, 1 + dice.below(9) as u32), 1 + dice.below(9) as u32, phases)
    }
}

fn random_scenario(dice: &mut Dice) -> Scenario {
    let count = 1 + dice.below(4) as u16;
    let hop = |count, to| HopGroup { count, rate: 1e9, latency: Tick(1000), unrest: 0.5, to };
    let failures = (0..dice.below(4)).map(|_| {
        let part = match dice.below(2) {
            0 => Part::Server(dice.below(u64::from(count)) as u16),
            _ => Part::Target(dice.below(4) as u32),
        };
        Failure { part, at: Tick::ms(dice.below(300)), lasts: Tick::ms(1 + dice.below(200)) }
    });
    let failures: Vec<Failure> = failures.collect();
    // Two failures of one part must not overlap: the first to be mended would mend both.
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
            turns: 1 + dice.below(4) as u32,
            capacity: Bytes::mib(1 + dice.below(60)),
            policy: one(dice, &["fifo", "size-fair", "user-then-job-fair"]).parse().expect("a policy"),
            discipline: one(dice, &Discipline::ALL),
            lambda: (dice.below(2) == 0).then_some(Tick::ms(50)),
            via: (dice.below(2) == 0).then_some(1),
            drain: Some(drain(dice)),
            full: one(dice, &[Full::Wait, Full::Direct]),
            mode: one(dice, &[Mode::Buffer, Mode::Buffer, Mode::Traffic, Mode::Overflow, Mode::Direct]),
            streams: Settings::new(16, Marks::default()).expect("a stream"),
        }),
        targets: vec![TargetGroup { count: 4, device: device(), via: Some(1) }],
        jobs: (0..1 + dice.below(5) as usize).map(|id| random_job(dice, id, count)).collect(),
        failures,
        window: Tick::ms(10),
        until: None,
    }
}

#[test]
fn random_machines_lose_nothing_and_make_nothing_up() {
    for seed in seeds(60) {
        let plan = random_scenario(&mut Dice::new(seed));
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
        let behind: u64 = report.targets.iter().map(|target| target.0).sum();
        assert_eq!(behind, ledger.direct + ledger.drained, "seed {seed}");
        for (number, job) in report.jobs.iter().enumerate() {
            assert!(job.settled.is_some() && job.settled >= job.ended, "seed {seed}: {job:?}");
            let counted: u64 = report.series.job(number).iter().sum();
            assert_eq!(counted, job.written + job.read, "seed {seed}: {job:?}");
        }
    }
}

#[test]
fn random_machines_tell_the_same_story_twice() {
    for seed in seeds(12) {
        let plan = random_scenario(&mut Dice::new(seed));
        let [one, two] =
            [0, 0].map(|_| simulate(&plan, seed).unwrap_or_else(|fault| panic!("{seed}: {fault}")));
        assert_eq!(one, two, "seed {seed}");
    }
}
