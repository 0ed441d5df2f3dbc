//! The chain against Monte Carlo simulation, the extensions against it, and properties of every plan.

mod common;

use common::{apps, close, platform, random_system};
use forebay_planner::{
    App, Chain, Content, Cost, Effort, Fraction, Metrics, Platform, Prices, Recipe, Rng, Route, Steps,
    Throws, Units, Weights, best_threshold, mean_idle, sensitivity, simulate, smallest_capacity, solve_at,
    split, throw,
};

fn solved(apps: &[App], platform: &Platform) -> Metrics {
    Metrics::of(&Chain::of(apps, platform).unwrap()).unwrap()
}

fn twenty(seed: u64, p_max: f64, alpha: f64) -> Vec<App> {
    let recipe = Recipe { count: 20, p_max, load: alpha * 100.0, burst: 2.0, jitter: 1.0 };
    recipe.generate(&mut Rng::new(seed)).unwrap()
}

#[test]
fn generator_matches_its_parameters() {
    for (count, p_max, alpha) in [(10, 0.1, 1.0), (20, 0.5, 0.8), (20, 1.0, 1.2), (10, 0.05, 0.9)] {
        for seed in 0..20 {
            let recipe = Recipe { count, p_max, load: alpha * 100.0, burst: 2.0, jitter: 0.3 };
            let apps = recipe.generate(&mut Rng::new(seed)).unwrap();
            assert_eq!(apps.len(), count);
            close(forebay_planner::expected_load(&apps), alpha * 100.0, 0.5, "mean load");
            for app in &apps {
                assert!(app.p.get() < p_max);
                let shortest = 2.0 / p_max;
                assert!((shortest..2.0 * shortest).contains(&app.cycle()), "{app:?}");
            }
            assert_eq!(apps, recipe.generate(&mut Rng::new(seed)).unwrap());
        }
    }
}

/// Monte Carlo simulation of the chain: the interval of 15 runs must contain the chain's result about 95
/// times in 100.
#[test]
fn monte_carlo_agrees_with_the_chain() {
    let (mut inside, mut all) = (0, 0);
    for seed in 0..24 {
        let (mut apps, platform) = random_system(seed);
        for (i, app) in apps.iter_mut().enumerate() {
            app.route =
                [Route::Overflow, Route::Buffer, Route::Overflow, Route::Direct][(i + seed as usize) % 4];
        }
        let chain = solved(&apps, &platform);
        let throws = Throws { runs: 15, units: 4_000, warm_up: 500, reserve: None };
        let seen = throw(&apps, &platform, &throws, &mut Rng::new(seed + 1000)).unwrap().observed;
        for (estimate, exact) in
            [(seen.idle, chain.idle), (seen.quiet, chain.quiet), (seen.occupancy, chain.mean_occupancy)]
        {
            all += 1;
            inside += usize::from(estimate.holds(exact) || (estimate.mean - exact).abs() < 1e-5);
            let far = (estimate.mean - exact).abs() / (estimate.half_width + 1e-5);
            assert!(far < 3.5, "seed {seed}: {estimate:?} is far from {exact} ({platform:?} {apps:?})");
        }
    }
    assert!(inside * 100 >= all * 88, "only {inside} of {all} inside their intervals");
}

#[test]
fn lazy_monte_carlo_agrees_with_the_chain() {
    for (seed, threshold) in [(5, 0.2), (6, 0.5), (7, 1.0)] {
        let (apps, platform) = (twenty(seed, 0.5, 0.9), platform(100, 300, threshold));
        let chain = solved(&apps, &platform);
        let seen = throw(&apps, &platform, &Throws::default(), &mut Rng::new(seed)).unwrap().observed;
        close(seen.idle.mean, chain.idle, 2.0 * seen.idle.half_width + 1e-4, "idle");
        close(seen.quiet.mean, chain.quiet, 2.0 * seen.quiet.half_width + 1e-4, "quiet");
    }
}

/// Without a threshold more capacity never hurts, a higher threshold never reduces stalls, and more load
/// never helps.
#[test]
fn more_capacity_helps_and_more_load_hurts() {
    for seed in 0..60 {
        let (apps, base) = random_system(seed);
        let at = |capacity, threshold| {
            solved(
                &apps,
                &Platform { capacity: Units(capacity), threshold: Fraction::new(threshold).unwrap(), ..base },
            )
        };
        let idles: Vec<f64> = (0..40).map(|s| at(s, 0.0).idle).collect();
        for (s, pair) in idles.windows(2).enumerate() {
            assert!(
                pair[1] <= pair[0] + 1e-12,
                "seed {seed}: idle rises from {} to {} at S = {}",
                pair[0],
                pair[1],
                s + 1
            );
        }
        let mut busier = apps.clone();
        for app in &mut busier {
            app.p = forebay_planner::Probability::new(app.p.get() * 0.8 + 0.19).unwrap();
        }
        let (calm, busy) = (
            at(20, 0.0),
            solved(&busier, &Platform { capacity: Units(20), threshold: Fraction::default(), ..base }),
        );
        assert!(busy.idle >= calm.idle - 1e-12, "seed {seed}: {} < {}", busy.idle, calm.idle);
    }
}

#[test]
fn smallest_capacity_is_minimal() {
    for (seed, p_max, alpha, target) in
        [(1, 0.5, 0.8, 0.01), (2, 0.2, 0.9, 0.02), (3, 1.0, 0.7, 0.001), (4, 0.3, 0.5, 0.0)]
    {
        let apps = twenty(seed, p_max, alpha);
        let steps = Steps::of(&apps, Units(100)).unwrap();
        let none = Fraction::default();
        let idle = |s: usize| solve_at(&steps, Units(s), none).unwrap().idle;
        match smallest_capacity(&steps, none, target, Units(20_000)).unwrap() {
            Some(Units(s)) => {
                assert!(idle(s) <= target);
                assert!(s == 0 || idle(s - 1) > target, "seed {seed}: {} would do", s - 1);
            }
            None => assert!(target == 0.0, "seed {seed} has an answer"),
        }
    }
    let overloaded = Steps::of(&twenty(1, 0.5, 1.3), Units(100)).unwrap();
    assert_eq!(smallest_capacity(&overloaded, Fraction::default(), 0.01, Units(20_000)).unwrap(), None);
}

#[test]
fn best_threshold_beats_every_other_within_the_idle_limit() {
    for (seed, p_max, alpha) in [(1, 0.5, 0.6), (2, 0.2, 0.9), (3, 1.0, 0.8)] {
        let steps = Steps::of(&twenty(seed, p_max, alpha), Units(100)).unwrap();
        let weights = Weights { idle: 10.0, quiet: 1.0 };
        let best = best_threshold(&steps, Units(300), &weights, None).unwrap();
        let score = |m: &Metrics| m.quiet - 10.0 * m.idle;
        for percent in (0..=100).step_by(5) {
            let other =
                solve_at(&steps, Units(300), Fraction::new(f64::from(percent) / 100.0).unwrap()).unwrap();
            assert!(score(&best.metrics) >= score(&other) - 1e-9, "seed {seed}: {percent} % is better");
        }
        let bound = best.metrics.idle * 0.9 + 1e-9;
        let careful = best_threshold(&steps, Units(300), &weights, Some(bound)).unwrap();
        assert!(careful.metrics.idle <= bound || careful.threshold == Fraction::default());
    }
}

#[test]
fn sensitivity_finds_the_dominant_application() {
    let apps = apps(&[(0.05, 300), (0.5, 40), (0.5, 40), (0.0, 50)]);
    let platform = platform(100, 150, 0.0);
    let base = solved(&apps, &platform).idle;
    let found = sensitivity(&apps, &platform).unwrap();
    let relief = |i: usize| base - found[i].idle_without;
    assert!(relief(0) > relief(1) && relief(1) > 0.0, "{found:?}");
    close(relief(3), 0.0, 1e-15, "a silent application");
    close(found.iter().map(|f| f.load_share).sum(), 1.0, 1e-12, "shares");
    for influence in &found {
        assert!(influence.idle_more >= base - 1e-12 && influence.idle_without <= base + 1e-12);
    }
}

#[test]
fn one_buffer_is_better_than_several() {
    let apps = twenty(3, 0.3, 0.8);
    let whole = platform(100, 400, 0.0);
    let one = split(&apps, &whole, 1).unwrap();
    close(mean_idle(&one), solved(&apps, &whole).idle, 1e-15, "one part is the whole");
    let mut last = mean_idle(&one);
    for count in [2, 4] {
        let parts = split(&apps, &whole, count).unwrap();
        assert_eq!(parts.iter().map(|p| p.platform.capacity.0).sum::<usize>(), 400);
        assert_eq!(parts.iter().map(|p| p.platform.bandwidth.0).sum::<usize>(), 100);
        assert_eq!(parts.iter().map(|p| p.members.len()).sum::<usize>(), 20);
        assert!(mean_idle(&parts) > last, "{count} buffers");
        last = mean_idle(&parts);
    }
}

#[test]
fn superseded_checkpoints_free_space() {
    let mut apps = twenty(9, 0.3, 1.0);
    let platform = platform(100, 300, 0.2);
    let kept = throw(&apps, &platform, &Throws::default(), &mut Rng::new(1)).unwrap();
    close(
        kept.observed.idle.mean,
        solved(&apps, &platform).idle,
        3.0 * kept.observed.idle.half_width,
        "idle",
    );
    assert!(kept.dropped.mean == 0.0);
    for app in &mut apps {
        app.content = Content::Checkpoint;
    }
    let dropped = throw(&apps, &platform, &Throws::default(), &mut Rng::new(1)).unwrap();
    assert!(dropped.dropped.mean > 0.02, "{dropped:?}");
    assert!(
        dropped.observed.idle.mean + dropped.observed.idle.half_width < kept.observed.idle.mean,
        "{dropped:?}"
    );
}

/// Prefetching with reserved space is never better than with shared space, and never worse than no
/// prefetching.
#[test]
fn prefetching_absorbs_bursts_that_reads_on_demand_cannot() {
    let mut apps = twenty(4, 0.5, 0.9);
    for app in apps.iter_mut().step_by(2) {
        app.content = Content::PrefetchedRead;
    }
    let platform = platform(100, 400, 0.0);
    let chain = solved(&apps, &platform);
    let shared = throw(&apps, &platform, &Throws::default(), &mut Rng::new(2)).unwrap();
    close(shared.observed.idle.mean, chain.idle, 3.0 * shared.observed.idle.half_width + 1e-4, "idle");
    let reserve = Some(Fraction::new(0.5).unwrap());
    let apart = throw(&apps, &platform, &Throws { reserve, ..Throws::default() }, &mut Rng::new(2)).unwrap();
    assert!(apart.observed.idle.mean > shared.observed.idle.mean);
    for app in apps.iter_mut().step_by(2) {
        app.content = Content::Read;
    }
    let demand = solved(&apps, &platform);
    assert!(chain.direct_wait == 0.0 && demand.direct_wait > 0.0);
}

/// Buffered traffic is stored in full, overflowing traffic only in part, direct traffic never; with eager
/// draining the route of an application does not change how full the buffer gets.
#[test]
fn routes_change_the_bytes_written_into_the_buffer() {
    let mut apps = apps(&[(0.4, 30), (0.3, 50), (0.5, 20)]);
    let platform = platform(40, 60, 0.0);
    let overflow = solved(&apps, &platform);
    apps.iter_mut().for_each(|app| app.route = Route::Buffer);
    let buffered = solved(&apps, &platform);
    close(buffered.idle, overflow.idle, 1e-14, "idle");
    close(
        buffered.written,
        forebay_planner::expected_load(&apps) * (1.0 - buffered.idle),
        1e-12,
        "all is stored",
    );
    assert!(overflow.written < buffered.written && overflow.written > 0.0);
    apps.iter_mut().for_each(|app| app.route = Route::Direct);
    let direct = solved(&apps, &platform);
    assert!(direct.written == 0.0 && direct.idle == 0.0 && direct.direct_wait > 0.0);
}

#[test]
fn cost_adds_up() {
    let apps = apps(&[(0.5, 100)]);
    let platform = platform(40, 100, 0.0);
    let metrics = solved(&apps, &platform);
    let prices = Prices { per_tb: 80.0, endurance: Some(1000.0), unit_bytes: 1e10, unit_seconds: 10.0 };
    let cost = Cost::of(platform.capacity, &metrics, &prices);
    close(cost.terabytes, 1.0, 1e-12, "size");
    close(cost.price, 80.0, 1e-9, "price");
    close(cost.written_per_day, metrics.written * 0.01 * 8640.0, 1e-6, "written");
    close(cost.years.unwrap() * 365.25 * cost.drive_writes_per_day, 1000.0, 1e-6, "life");
    assert_eq!(Cost::of(platform.capacity, &metrics, &Prices { endurance: None, ..prices }).years, None);
}

/// No load, no noise: event sequences that can be computed by hand.
#[test]
fn discrete_events_by_hand() {
    // One burst of 2 units in every 10, 30 per unit against 10: it leaves 40, drained in 4 of the 8 pauses.
    let mut app = App::new("a", 0.2, 30).unwrap();
    app.period = Some(10.0);
    let effort = Effort { runs: 3, length: 10_000.0 };
    let run = |capacity, jitter| {
        let apps = [App { jitter, ..app.clone() }];
        simulate(&apps, &platform(10, capacity, 0.0), &effort, &mut Rng::new(1)).unwrap()
    };
    let roomy = run(40, 0.0);
    assert!(roomy.idle.mean == 0.0);
    close(roomy.quiet.mean, 0.6, 1e-3, "filling and empty time");
    close(roomy.occupancy.mean, (40.0 + 80.0) / 10.0, 0.05, "area under the triangle");
    // 40 in 35: one stop of one unit in each cycle of then 11 units.
    close(run(35, 0.0).idle.mean, 1.0 / 11.0, 1e-3, "one stop a cycle");
    // No capacity at all: four stalls in each cycle.
    close(run(0, 0.0).idle.mean, 4.0 / 14.0, 1e-3, "four stops a cycle");
}
