//! Schedulers with a device in virtual time: long-run shares, short windows, request sizes, joins, bounds.

use forebay_policy::share::{Cost, Discipline, Next, Policy, Rate, Rng, Scheduler, Tick, Ticket, shares};

mod common;
use common::{Load, World, job, random_jobs, random_policy, seed};

const MIB: u64 = 1 << 20;
const RATE: u64 = 400 * MIB;
/// All schedulers whose work follows the shares.
const FAIR: [Discipline; 5] =
    [Discipline::Stride, Discipline::Tokens, Discipline::Gift, Discipline::GiftSlow, Discipline::Tbf];

fn policy(text: &str) -> Policy {
    text.parse().expect("a policy")
}

fn world(discipline: Discipline, policy: &Policy, loads: &[Load]) -> World {
    World::new(discipline.scheduler(policy, seed(201), Rate(RATE)), RATE, loads)
}

/// Parts of the work between 20 s and `secs`, compared with the policy's shares.
fn check_long_run(discipline: Discipline, name: &str, loads: &[Load], secs: u64) {
    let policy = policy(name);
    let jobs: Vec<_> = loads.iter().map(|load| load.job.clone()).collect();
    let wanted = shares(&policy, &jobs);
    let mut world = world(discipline, &policy, loads);
    world.run(Tick::ms(secs * 1_000));
    let parts = world.parts(Tick::ms(20_000), Tick::ms(secs * 1_000));
    for (i, (part, wanted)) in parts.iter().zip(&wanted).enumerate() {
        let error = (part / wanted - 1.0).abs();
        let draws = (secs - 20) as f64 * RATE as f64 / loads[0].size.0 as f64;
        let luck = 4.0 * ((1.0 - wanted) / wanted / draws).sqrt();
        let by_chance = matches!(discipline, Discipline::Tokens | Discipline::Draws);
        let room = if by_chance { luck } else { 0.005 };
        assert!(error < room, "{discipline} {name}: job {i} has {part:.4} instead of {wanted:.4}");
    }
}

#[test]
fn long_run_shares_follow_the_policy() {
    let four = ["1 a g 1 1", "2 a g 2 2", "3 b g 4 3", "4 b g 6 4"].map(|words| Load::new(words, MIB / 4));
    for discipline in FAIR {
        for name in ["job-fair", "size-fair", "priority-fair", "user-fair", "user-then-size-fair"] {
            check_long_run(discipline, name, &four, 100);
        }
    }
    let tree = [
        "1 u1 g1 1 1",
        "2 u1 g1 2 1",
        "3 u2 g2 2 1",
        "4 u2 g2 3 1",
        "5 u2 g2 2 1",
        "6 u3 g2 1 1",
        "7 u3 g2 3 1",
        "8 u4 g2 5 1",
    ];
    for discipline in [Discipline::Stride, Discipline::Gift, Discipline::Tbf] {
        check_long_run(discipline, "group-user-size-fair", &tree.map(|words| Load::new(words, MIB / 4)), 120);
    }
}

#[test]
fn lottery_shares_converge_to_half_a_percent() {
    let loads = ["1 a g 4 1", "2 b g 1 1"].map(|words| Load::new(words, MIB / 4));
    let mut world = world(Discipline::Tokens, &policy("size-fair"), &loads);
    world.run(Tick::ms(2_000_000));
    let part = world.parts(Tick(0), Tick::ms(2_000_000))[1];
    assert!((part / 0.2 - 1.0).abs() < 0.005, "{part:.5}");
}

#[test]
fn published_lottery_is_fair_for_equal_requests() {
    let loads = ["1 a g 4 1", "2 b g 1 1"].map(|words| Load::new(words, MIB / 4));
    check_long_run(Discipline::Draws, "size-fair", &loads, 100);
}

#[test]
fn mixed_request_sizes_are_fair_except_in_the_published_lottery() {
    let loads = [Load::new("1 a g 1 1", 4 << 10).depth(64), Load::new("2 b g 1 1", 2 * MIB)];
    for discipline in FAIR {
        let mut world = world(discipline, &policy("job-fair"), &loads);
        world.run(Tick::ms(60_000));
        let part = world.parts(Tick::ms(20_000), Tick::ms(60_000))[0];
        let room = if discipline == Discipline::Tokens { 0.02 } else { 0.005 };
        assert!((part - 0.5).abs() < room, "{discipline}: the job with small requests has {part:.4}");
    }
    let mut world = world(Discipline::Draws, &policy("job-fair"), &loads);
    world.run(Tick::ms(60_000));
    let part = world.parts(Tick::ms(20_000), Tick::ms(60_000))[0];
    assert!(part < 0.01, "a lottery per request starves small ones: {part:.4}");
}

#[test]
fn job_with_one_request_at_a_time_gets_its_share() {
    let loads = [Load::new("1 a g 1 1", 64 << 10).depth(1), Load::new("2 b g 1 1", MIB / 2).depth(64)];
    for discipline in [Discipline::Stride, Discipline::Tokens] {
        let mut world = world(discipline, &policy("job-fair"), &loads);
        world.run(Tick::ms(60_000));
        let part = world.parts(Tick::ms(1_000), Tick::ms(60_000))[0];
        assert!((part - 0.5).abs() < 0.02, "{discipline}: {part:.4}");
    }
}

#[test]
fn short_windows_vary_far_less_with_stride_than_with_a_lottery() {
    let loads = ["1 a g 4 1", "2 b g 1 1"].map(|words| Load::new(words, MIB / 4));
    let variation = |discipline| {
        let mut world = world(discipline, &policy("size-fair"), &loads);
        world.run(Tick::ms(60_000));
        world.variation(1, Tick::ms(10_000), Tick::ms(60_000), Tick::ms(100))
    };
    let (stride, tokens) = (variation(Discipline::Stride), variation(Discipline::Tokens));
    assert!(stride < tokens / 5.0, "stride {stride:.4}, tokens {tokens:.4}");
}

#[test]
fn join_and_leave_take_effect_at_once_and_waste_nothing() {
    let loads = [Load::new("1 a g 4 1", MIB / 4), Load::new("2 b g 1 1", MIB / 4).during(5_000, 10_000)];
    for discipline in [Discipline::Stride, Discipline::Tokens, Discipline::Gift, Discipline::Tbf] {
        let mut world = world(discipline, &policy("size-fair"), &loads);
        world.run(Tick::ms(15_000));
        // Steady after two intervals of the slowest; schedulers without intervals at once.
        let wait = if matches!(discipline, Discipline::Gift | Discipline::Tbf) { 1_500 } else { 0 };
        let part = world.parts(Tick::ms(5_000 + wait), Tick::ms(10_000))[1];
        let room = if discipline == Discipline::Tokens { 0.03 } else { 0.005 };
        assert!((part - 0.2).abs() < room, "{discipline}: {part:.4}");
        for (from, to) in [(1_000, 5_000), (5_000 + wait, 10_000), (10_000 + wait, 15_000)] {
            let work =
                world.work(0, Tick::ms(from), Tick::ms(to)) + world.work(1, Tick::ms(from), Tick::ms(to));
            let all = RATE as f64 * (to - from) as f64 / 1e3;
            assert!(work as f64 > 0.99 * all, "{discipline}: {:.4} of the device", work as f64 / all);
        }
    }
}

#[test]
fn idle_share_goes_to_the_same_user_first() {
    // Half for each user; while one job of the first user is idle, the other has that half.
    let loads = [
        Load::new("1 a g 1 1", MIB / 4).during(0, 10_000),
        Load::new("2 a g 1 1", MIB / 4),
        Load::new("3 b g 1 1", MIB / 4),
    ];
    for (discipline, room) in [(Discipline::Stride, 0.002), (Discipline::Tokens, 0.03)] {
        let mut world = world(discipline, &policy("user-then-job-fair"), &loads);
        world.run(Tick::ms(30_000));
        for (from, to, wanted) in [(0, 10_000, [0.25, 0.25, 0.5]), (10_100, 30_000, [0.0, 0.5, 0.5])] {
            let parts = world.parts(Tick::ms(from), Tick::ms(to));
            for (part, wanted) in parts.iter().zip(wanted) {
                assert!((part - wanted).abs() < room, "{discipline}: {parts:?}");
            }
        }
    }
}

#[test]
fn policy_can_change_while_requests_wait() {
    let loads = ["1 a g 4 1", "2 b g 1 1"].map(|words| Load::new(words, MIB / 4));
    for discipline in FAIR {
        let mut world = world(discipline, &policy("job-fair"), &loads);
        world.run(Tick::ms(20_000));
        world.scheduler.set_policy(&policy("size-fair"));
        world.run(Tick::ms(60_000));
        let (before, after) =
            (world.parts(Tick(0), Tick::ms(20_000))[1], world.parts(Tick::ms(30_000), Tick::ms(60_000))[1]);
        assert!(
            (before - 0.5).abs() < 0.02 && (after - 0.2).abs() < 0.01,
            "{discipline}: {before:.4} {after:.4}"
        );
    }
}

#[test]
fn assigned_shares_replace_the_policys_and_can_be_removed() {
    let loads = ["1 a g 4 1", "2 b g 1 1"].map(|words| Load::new(words, MIB / 4));
    for discipline in FAIR {
        let mut world = world(discipline, &policy("size-fair"), &loads);
        let shares = [(world.id(0), 0.3), (world.id(1), 0.7)];
        world.scheduler.assign(&shares);
        world.run(Tick(1));
        world.scheduler.assign(&shares);
        world.run(Tick::ms(30_000));
        world.scheduler.assign(&[]);
        world.run(Tick::ms(90_000));
        let (agreed, own) = (
            world.parts(Tick::ms(10_000), Tick::ms(30_000))[1],
            world.parts(Tick::ms(50_000), Tick::ms(90_000))[1],
        );
        assert!(
            (agreed - 0.7).abs() < 0.02 && (own - 0.2).abs() < 0.01,
            "{discipline}: {agreed:.4} {own:.4}"
        );
    }
}

#[test]
fn random_jobs_under_random_policies_get_their_shares_in_virtual_time() {
    let seed = seed(202);
    let mut rng = Rng::new(seed);
    for round in 0..40 {
        let policy = random_policy(&mut rng);
        let count = 1 + rng.below(12) as usize;
        let jobs = random_jobs(&mut rng, count);
        let loads: Vec<Load> = jobs
            .iter()
            .map(|job| Load { job: job.clone(), ..Load::new("0 u g 1 1", (4 << 10) << rng.below(9)) })
            .collect();
        let wanted = shares(&policy, &jobs);
        let mut world = World::new(Discipline::Stride.scheduler(&policy, 0, Rate(RATE)), RATE, &loads);
        world.run(Tick::ms(30_000));
        let parts = world.parts(Tick(0), Tick::ms(30_000));
        for (part, wanted) in parts.iter().zip(&wanted) {
            // At most one request of the largest size can be missing at the end.
            let room = 0.005 * wanted + 4.0 * MIB as f64 / (RATE as f64 * 30.0);
            assert!(
                (part - wanted).abs() < room,
                "seed {seed} round {round} {policy}: {parts:?} for {wanted:?}"
            );
        }
    }
}

#[test]
fn random_loads_wait_no_longer_than_the_bound() {
    let seed = seed(203);
    let mut rng = Rng::new(seed);
    for round in 0..12 {
        let count = 2 + rng.below(8) as usize;
        let loads: Vec<Load> = (0..count)
            .map(|i| {
                let size = (4 << 10) << rng.below(10);
                let load = Load::new(&format!("{i} u{i} g {} 1", 1 + rng.below(32)), size);
                let start = rng.below(1_000);
                Load { think: Tick(rng.below(3) * 500_000), ..load.depth(1 + rng.below(20) as usize) }
                    .during(start, 6_000)
            })
            .collect();
        let jobs: Vec<_> = loads.iter().map(|load| load.job.clone()).collect();
        let wanted = shares(&policy("size-fair"), &jobs);
        let largest = loads.iter().map(|load| load.size.0).max().expect("a load") as f64;
        for discipline in [Discipline::Stride, Discipline::Tokens, Discipline::Gift, Discipline::Tbf] {
            let mut world =
                World::new(discipline.scheduler(&policy("size-fair"), seed, Rate(RATE)), RATE, &loads);
            world.run(Tick::ms(6_000));
            for (i, share) in wanted.iter().enumerate() {
                let n = count as f64;
                let slice = forebay_policy::share::SLICE.0 as f64;
                let bound = match discipline {
                    Discipline::Stride => largest / share + n * largest,
                    Discipline::Tokens => {
                        let rounds = (largest / slice).ceil() + 1.0;
                        rounds * (16.0 / share + n) * slice + n * (largest + slice)
                    }
                    Discipline::Gift => largest / share + n * largest + RATE as f64 / 2.0,
                    _ => largest / share + n * largest + RATE as f64,
                };
                let passed = world.passed_over(i) as f64;
                assert!(
                    passed <= bound,
                    "seed {seed} round {round} {discipline}: job {i}, {passed} beyond {bound}"
                );
            }
        }
    }
}

#[test]
fn random_hierarchies_keep_the_bound_of_stride() {
    let seed = seed(204);
    let mut rng = Rng::new(seed);
    for round in 0..12 {
        let policy = policy("group-user-size-fair");
        let count = 2 + rng.below(12) as usize;
        let jobs = random_jobs(&mut rng, count);
        let loads: Vec<Load> = jobs
            .iter()
            .map(|job| {
                let load = Load::new("0 u g 1 1", (4 << 10) << rng.below(10));
                let think = Tick(rng.below(3) * 500_000);
                Load { job: job.clone(), think, ..load.depth(1 + rng.below(20) as usize) }
            })
            .collect();
        let largest = loads.iter().map(|load| load.size.0).max().expect("a load") as f64;
        let mut world = World::new(Discipline::Stride.scheduler(&policy, 0, Rate(RATE)), RATE, &loads);
        world.run(Tick::ms(6_000));
        for (i, share) in shares(&policy, &jobs).iter().enumerate() {
            let bound = 3.0 * (largest / share + count as f64 * largest);
            let passed = world.passed_over(i) as f64;
            assert!(passed <= bound, "seed {seed} round {round}: job {i}, {passed} beyond {bound}");
        }
    }
}

#[test]
fn ten_thousand_concurrent_jobs_are_all_served() {
    for discipline in [Discipline::Stride, Discipline::Tokens, Discipline::Gift, Discipline::Tbf] {
        let loads: Vec<Load> = (0..10_000)
            .map(|i| Load::new(&format!("{i} u{} g{} 1 1", i % 500, i % 20), MIB / 4).depth(2))
            .collect();
        let rate = 40 * RATE;
        let policy = policy("group-user-job-fair");
        let mut world = World::new(discipline.scheduler(&policy, 5, Rate(rate)), rate, &loads);
        // The first requests of all jobs are a sixth of a second's work; a lottery serves most of them, not
        // yet all.
        world.run(Tick::ms(3_000));
        let served = (0..loads.len()).filter(|&i| !world.done[i].is_empty()).count();
        let least = if discipline == Discipline::Tokens { 9_990 } else { 10_000 };
        assert!(served >= least, "{discipline}: {served} jobs served");
    }
}

#[test]
fn vanished_job_costs_other_jobs_nothing() {
    for discipline in FAIR {
        let mut scheduler = discipline.scheduler(&policy("job-fair"), 3, Rate(RATE));
        let (a, b) = (job("1 a g 1 1"), job("2 b g 1 1"));
        scheduler.join(&a).expect("room");
        scheduler.join(&b).expect("room");
        for ticket in 0..4 {
            scheduler.arrive(a.id(), Cost(MIB), Ticket(ticket));
        }
        scheduler.leave(a.id());
        // Its waiting requests still get their turn, and do nothing.
        let mut now = Tick(0);
        let mut taken = 0;
        while scheduler.waiting() > 0 {
            match scheduler.next(now) {
                Next::Turn(_) => {
                    taken += 1;
                    scheduler.done(a.id(), Cost(MIB), Cost(0));
                }
                Next::NotBefore(then) => now = then,
                Next::Idle => panic!("{discipline}: requests wait"),
            }
        }
        assert_eq!(taken, 4, "{discipline}");
        // Completions of unknown requests change nothing.
        scheduler.done(a.id(), Cost(MIB), Cost(MIB));
        scheduler.leave(a.id());
        scheduler.arrive(b.id(), Cost(1), Ticket(9));
        let mut next = scheduler.next(now);
        if let Next::NotBefore(then) = next {
            next = scheduler.next(then);
        }
        assert_eq!(next, Next::Turn(Ticket(9)), "{discipline}");
        assert_eq!(scheduler.next(now), Next::Idle, "{discipline}");
    }
}

#[test]
fn unannounced_jobs_share_the_weight_of_one_job() {
    for discipline in FAIR {
        let mut scheduler = discipline.scheduler(&policy("user-then-size-fair"), 3, Rate(RATE));
        let known = job("1 a g 1 1");
        scheduler.join(&known).expect("room");
        let mut ticket = 0;
        let mut arrive = |scheduler: &mut dyn Scheduler, id| {
            ticket += 1;
            let id = forebay_model::JobId(if id == 0 { 1 } else { 1_000 + ticket % 50 });
            scheduler.arrive(id, Cost(MIB / 4), Ticket(2 * ticket + u64::from(id.0 == 1)));
            id
        };
        for _ in 0..16 {
            arrive(scheduler.as_mut(), 0);
            arrive(scheduler.as_mut(), 1);
        }
        let mut ours = 0_u32;
        let mut now = Tick(0);
        for _ in 0..40_000 {
            match scheduler.next(now) {
                Next::Turn(Ticket(number)) => {
                    ours += u32::from(number % 2 == 1);
                    now = now.after(Tick(625_000));
                    let id = arrive(scheduler.as_mut(), u64::from(number % 2 == 0));
                    scheduler.done(id, Cost(MIB / 4), Cost(MIB / 4));
                }
                Next::NotBefore(then) => now = then,
                Next::Idle => panic!("requests wait"),
            }
        }
        assert!((18_500..21_500).contains(&ours), "{discipline}: {ours} of 40,000");
    }
}

#[test]
fn scheduler_takes_over_the_requests_of_another() {
    for from in Discipline::ALL {
        for to in Discipline::ALL {
            let make = |discipline: Discipline| discipline.scheduler(&policy("size-fair"), 3, Rate(RATE));
            let (mut old, mut new) = (make(from), make(to));
            old.join(&job("1 a g 1 1")).expect("room");
            for ticket in 0..20 {
                old.arrive(forebay_model::JobId(ticket % 3), Cost(MIB), Ticket(ticket));
            }
            let first = old.next(Tick(0)).ticket();
            let rest = old.take_all();
            assert_eq!(rest.len(), 20 - usize::from(first.is_some()));
            assert!(rest.is_sorted_by_key(|request| request.ticket), "{from}");
            assert!(rest.iter().all(|request| request.job.0 == request.ticket.0 % 3), "{from}");
            assert_eq!((old.waiting(), old.next(Tick::ms(5))), (0, Next::Idle), "{from}");
            rest.iter().for_each(|request| new.arrive(request.job, request.cost, request.ticket));
            assert_eq!(new.waiting(), rest.len(), "{from} to {to}");
        }
    }
}
