//! The exact solution against independent references: subsets, dense solves, closed forms.

mod common;

use common::{answers, apps, by_definition, close, dense, matrix, platform, random_system, subsets};
use forebay_planner::{
    App, Chain, Chernoff, Distribution, Error, Fraction, Metrics, Platform, Probability, RESIDUAL, Recipe,
    Rng, Units, stationary,
};

#[test]
fn distribution_equals_the_sum_over_all_subsets() {
    for seed in 0..300 {
        let (apps, _) = random_system(seed);
        let ours = Distribution::of(&apps).unwrap();
        close(ours.mass().iter().sum(), 1.0, 1e-12, &format!("seed {seed}: sum"));
        for (k, expected) in subsets(&apps).iter().enumerate() {
            close(
                ours.mass().get(k).copied().unwrap_or(0.0),
                *expected,
                1e-14,
                &format!("seed {seed}: load {k}"),
            );
        }
    }
}

#[test]
fn chernoff_bounds_are_never_violated() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let recipe = Recipe {
            count: 1 + seed as usize % 20,
            p_max: [0.05, 0.2, 0.5, 1.0][seed as usize % 4],
            load: 100.0,
            burst: 1.0,
            jitter: 0.0,
        };
        let apps = recipe.generate(&mut rng).unwrap();
        let bounds = Chernoff::of(&apps);
        for (x, exact) in Distribution::of(&apps).unwrap().cumulative().iter().enumerate() {
            let (low, high) = (bounds.lower(x as f64), bounds.upper(x as f64));
            assert!((0.0..=1.0).contains(&low) && (0.0..=1.0).contains(&high), "seed {seed} x {x}");
            assert!(low <= exact + 1e-12, "seed {seed}: P(load <= {x}) = {exact} < {low}");
            assert!(high >= exact - 1e-12, "seed {seed}: P(load <= {x}) = {exact} > {high}");
        }
    }
}

#[test]
fn every_row_of_every_chain_sums_to_one() {
    for seed in 0..200 {
        let (apps, platform) = random_system(seed);
        let chain = Chain::of(&apps, &platform).unwrap();
        let reference = matrix(&apps, &platform);
        for (state, expected) in reference.iter().enumerate().take(chain.states()) {
            let row = chain.row(state);
            close(row.iter().sum(), 1.0, 1e-12, &format!("seed {seed} row {state}"));
            for (to, p) in row.iter().enumerate() {
                close(*p, expected[to], 1e-14, &format!("seed {seed} row {state} column {to}"));
            }
        }
    }
}

#[test]
fn random_small_systems_agree_with_a_dense_solve() {
    for seed in 0..400 {
        let (apps, platform) = random_system(seed);
        let rows = matrix(&apps, &platform);
        let expected = by_definition(&rows, &dense(&rows), platform.capacity.0);
        let ours = answers(&Metrics::of(&Chain::of(&apps, &platform).unwrap()).unwrap());
        for ((a, b), what) in ours.iter().zip(expected).zip(["idle", "quiet", "overflow", "mean"]) {
            close(*a, b, 1e-9, &format!("seed {seed}: {what} ({platform:?} {apps:?})"));
        }
    }
}

/// Systems large enough for the block iteration, checked against a dense solve of the same matrix.
#[test]
fn block_iteration_agrees_with_a_dense_solve() {
    for (seed, p_max, alpha, capacity, threshold) in
        [(1, 0.2, 0.9, 600, 0.0), (2, 0.2, 1.1, 500, 0.3), (3, 0.3, 0.8, 700, 1.0)]
    {
        let recipe = Recipe { count: 10, p_max, load: alpha * 60.0, burst: 1.0, jitter: 0.0 };
        let apps = recipe.generate(&mut Rng::new(seed)).unwrap();
        let platform = platform(60, capacity, threshold);
        let chain = Chain::of(&apps, &platform).unwrap();
        let found = Metrics::of(&chain).unwrap();
        assert!(found.stationary.residual <= RESIDUAL);
        // The reference over the reachable states; the chain's own rows are checked elsewhere.
        let rows: Vec<Vec<f64>> = (0..chain.states()).map(|j| chain.row(j)).collect();
        let expected = by_definition(&rows, &dense(&rows), capacity);
        for ((a, b), what) in answers(&found).iter().zip(expected).zip(["idle", "quiet", "overflow", "mean"])
        {
            close(*a, b, 1e-9 * b.max(1.0), &format!("seed {seed}: {what}"));
        }
    }
}

#[test]
fn both_methods_are_used_and_leave_no_residual() {
    let mut rounds = Vec::new();
    for (seed, p_max, capacity) in [(1, 0.5, 200), (2, 0.1, 4000), (3, 1.0, 6000), (4, 0.05, 3000)] {
        let recipe = Recipe { count: 20, p_max, load: 95.0, burst: 1.0, jitter: 0.0 };
        let apps = recipe.generate(&mut Rng::new(seed)).unwrap();
        let found = stationary(&Chain::of(&apps, &platform(100, capacity, 0.2)).unwrap()).unwrap();
        assert!(found.residual <= RESIDUAL, "seed {seed}: residual {}", found.residual);
        close(found.pi.iter().sum(), 1.0, 1e-12, "total probability");
        assert!(found.pi.iter().all(|p| *p >= 0.0));
        rounds.push(found.rounds);
    }
    assert!(rounds[0] == 0 && rounds[1] > 0, "{rounds:?}");
}

/// One application of rate b > B and no buffer: a burst overflows by b − B and stalls for ⌈(b − B)/B⌉ units.
#[test]
fn one_application_without_a_buffer_has_a_closed_form() {
    for (p, b, bandwidth) in [(0.3, 7, 5), (0.5, 10, 5), (0.01, 100, 7), (0.9, 4, 5), (0.25, 5, 5)] {
        let apps = apps(&[(p, b)]);
        let found = Metrics::of(&Chain::of(&apps, &platform(bandwidth, 0, 0.0)).unwrap()).unwrap();
        let stops = b.saturating_sub(bandwidth).div_ceil(bandwidth) as f64;
        let overflows = if b > bandwidth { p } else { 0.0 };
        let idle = overflows * stops / (1.0 + overflows * stops);
        close(found.idle, idle, 1e-14, "idle");
        close(found.overflow, overflows * (1.0 - idle), 1e-14, "overflow");
        close(found.quiet, 1.0 - idle, 1e-14, "quiet");
    }
}

/// A load of 0 or 2 against a bandwidth of 1 is a walk of ±1: its stationary distribution is geometric.
#[test]
fn single_step_walk_has_a_geometric_distribution() {
    for p in [0.1f64, 0.3, 0.45, 0.5] {
        let capacity = 30;
        let found = Metrics::of(&Chain::of(&apps(&[(p, 2)]), &platform(1, capacity, 0.0)).unwrap()).unwrap();
        let ratio = p / (1.0 - p);
        for k in 0..capacity {
            let (here, next) = (found.stationary.pi[k], found.stationary.pi[k + 1]);
            close(next / here, ratio, 1e-9, &format!("p {p} state {k}"));
        }
    }
}

/// With more load than bandwidth no buffer helps: in the long run 1 − idle = B / load, once the buffer is
/// never empty.
#[test]
fn overload_leaves_the_excess_as_idle_time() {
    for (alpha, count) in [(1.2, 20), (1.5, 20), (2.0, 10)] {
        let recipe = Recipe { count, p_max: 0.5, load: alpha * 100.0, burst: 1.0, jitter: 0.0 };
        let apps = recipe.generate(&mut Rng::new(11)).unwrap();
        let load = forebay_planner::expected_load(&apps);
        let found = Metrics::of(&Chain::of(&apps, &platform(100, 20_000, 0.0)).unwrap()).unwrap();
        close(found.idle, 1.0 - 100.0 / load, 1e-6, &format!("alpha {alpha}"));
    }
}

#[test]
fn thresholds_are_rounded_down_and_zero_is_eager() {
    for (fraction, capacity, units) in
        [(0.2, 500, 100), (0.29, 100, 29), (0.999, 10, 9), (1.0, 7, 7), (0.5, 1, 0)]
    {
        assert_eq!(
            Fraction::new(fraction).unwrap().of(Units(capacity)),
            Units(units),
            "{fraction} of {capacity}"
        );
    }
    let apps = apps(&[(0.4, 9), (0.3, 6)]);
    let eager = Metrics::of(&Chain::of(&apps, &platform(5, 20, 0.0)).unwrap()).unwrap();
    let rounded = Metrics::of(&Chain::of(&apps, &platform(5, 20, 0.049)).unwrap()).unwrap();
    assert_eq!(eager, rounded);
}

#[test]
fn invalid_input_is_refused_with_a_reason() {
    for p in [1.0, -0.1, 1.5, f64::NAN, f64::INFINITY] {
        assert!(matches!(Probability::new(p), Err(Error::Probability(_))), "{p}");
    }
    for f in [-0.01, 1.01, f64::NAN] {
        assert!(matches!(Fraction::new(f), Err(Error::Fraction(_))), "{f}");
    }
    let one = apps(&[(0.5, 3)]);
    let none: Vec<App> = Vec::new();
    let huge = apps(&[(0.5, 3_000_000)]);
    let zero = Platform { bandwidth: Units(0), ..platform(1, 1, 0.0) };
    for (apps, platform, expected) in [
        (&none, platform(1, 1, 0.0), "no application"),
        (&one, zero, "bandwidth is 0"),
        (&huge, platform(1, 1, 0.0), "larger unit"),
        (&one, platform(1, 9_000_000, 0.0), "larger unit"),
    ] {
        let error = Chain::of(apps, &platform).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
