//! Computes the answer to a plan.

use super::input::Plan;
use super::sweep::{Key, Sweep};
use forebay_planner::{
    Chain, Chernoff, Choice, Content, Cost, Distribution, Effort, Error, Fraction, Influence, Metrics,
    Observed, Part, Platform, Prices, Rng, Steps, Thrown, Throws, Units, best_threshold, sensitivity,
    simulate, smallest_capacity, split, throw,
};

/// The largest capacity a recommendation may have, in units.
const LARGEST: Units = Units(100_000);
/// The quantiles of occupancy that are reported.
pub(super) const QUANTILES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

/// Optional parts of the answer.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// Whether events are simulated too.
    pub simulate: bool,
    /// Whether the influence of each application is computed.
    pub sensitivity: bool,
    /// A parameter to vary.
    pub sweep: Option<Sweep>,
    /// Seed of the simulation.
    pub seed: u64,
}

/// One point of a sweep.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    pub(super) at: f64,
    pub(super) idle: f64,
    pub(super) quiet: f64,
    pub(super) overflow: f64,
    pub(super) mean_occupancy: f64,
}

/// The recommendation.
#[derive(Clone, PartialEq, Debug)]
pub struct Recommended {
    /// The smallest capacity that keeps idle time within the target, if there is one.
    pub(super) capacity: Option<Units>,
    pub(super) choice: Choice,
    pub(super) cost: Option<Cost>,
}

/// The whole answer.
pub struct Answer {
    pub(super) load: Distribution,
    pub(super) bounds: Chernoff,
    pub(super) over_bandwidth: f64,
    pub(super) over_buffer: Option<f64>,
    pub(super) metrics: Metrics,
    pub(super) unavoidable: f64,
    pub(super) recommended: Recommended,
    pub(super) sweep: Option<(Key, Vec<Point>)>,
    pub(super) simulated: Option<Observed>,
    /// A Monte Carlo simulation with superseding checkpoints, if there are any or if a simulation was requested.
    pub(super) monte_carlo: Option<Thrown>,
    pub(super) parts: Option<Vec<Part>>,
    pub(super) cost: Option<Cost>,
    pub(super) influences: Option<Vec<Influence>>,
}

/// Computes the answer.
pub fn answer(plan: &Plan, options: &Options) -> Result<Answer, Error> {
    let (apps, platform) = (&plan.apps, &plan.platform);
    let load = Distribution::of(apps)?;
    let metrics = Metrics::of(&Chain::of(apps, platform)?)?;
    let steps = Steps::of(apps, platform.bandwidth)?;
    let sweep = match &options.sweep {
        Some(sweep) => Some((sweep.key, points(plan, &steps, sweep)?)),
        None => None,
    };
    let simulated = match options.simulate {
        true => Some(simulate(apps, platform, &Effort::default(), &mut Rng::new(options.seed))?),
        false => None,
    };
    let superseding = apps.iter().any(|app| app.content == Content::Checkpoint);
    let monte_carlo = match options.simulate || superseding {
        true => Some(throw(apps, platform, &Throws::default(), &mut Rng::new(options.seed))?),
        false => None,
    };
    Ok(Answer {
        bounds: Chernoff::of(apps),
        over_bandwidth: load.above(platform.bandwidth.0),
        over_buffer: plan.buffer_bandwidth.map(|most| load.above(most.0)),
        unavoidable: steps.unavoidable_idle(),
        recommended: recommend(plan, &steps)?,
        sweep,
        simulated,
        monte_carlo,
        parts: if plan.buffers > 1 { Some(split(apps, platform, plan.buffers)?) } else { None },
        cost: bill(plan, platform.capacity, &metrics),
        influences: if options.sensitivity { Some(sensitivity(apps, platform)?) } else { None },
        load,
        metrics,
    })
}

fn bill(plan: &Plan, capacity: Units, metrics: &Metrics) -> Option<Cost> {
    let prices = Prices {
        per_tb: plan.price_per_tb?,
        endurance: plan.endurance,
        unit_bytes: plan.scale.bytes,
        unit_seconds: plan.scale.seconds,
    };
    Some(Cost::of(capacity, metrics, &prices))
}

/// The smallest capacity for the target idle time, then the threshold with the best weighted result that keeps
/// the target.
fn recommend(plan: &Plan, steps: &Steps) -> Result<Recommended, Error> {
    let capacity = smallest_capacity(steps, plan.platform.threshold, plan.target_idle, LARGEST)?;
    let most_idle = capacity.map(|_| plan.target_idle);
    let choice = best_threshold(steps, capacity.unwrap_or(plan.platform.capacity), &plan.weights, most_idle)?;
    let cost = capacity.and_then(|capacity| bill(plan, capacity, &choice.metrics));
    Ok(Recommended { capacity, choice, cost })
}

/// The sweep's points, computed on every core.
pub fn points(plan: &Plan, steps: &Steps, sweep: &Sweep) -> Result<Vec<Point>, Error> {
    let solve = |at: &f64| -> Result<Point, Error> {
        let platform = place(&plan.platform, sweep.key, *at)?;
        let metrics = match sweep.key {
            Key::Bandwidth => Metrics::of(&Chain::of(&plan.apps, &platform)?)?,
            Key::Capacity | Key::Threshold => {
                Metrics::of(&Chain::with(steps.clone(), platform.capacity, platform.threshold_units())?)?
            }
        };
        Ok(Point {
            at: *at,
            idle: metrics.idle,
            quiet: metrics.quiet,
            overflow: metrics.overflow,
            mean_occupancy: metrics.mean_occupancy,
        })
    };
    each(&sweep.values(), solve).into_iter().collect()
}

/// The platform with one parameter changed.
pub(super) fn place(platform: &Platform, key: Key, at: f64) -> Result<Platform, Error> {
    let units = Units(at.round() as usize);
    Ok(match key {
        Key::Capacity => Platform { capacity: units, ..*platform },
        Key::Bandwidth => Platform { bandwidth: units, ..*platform },
        Key::Threshold => Platform { threshold: Fraction::new(at.min(1.0))?, ..*platform },
    })
}

/// Maps every item, in order, on all cores.
pub(super) fn each<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len().max(1));
    let mut results: Vec<Option<R>> = std::iter::repeat_with(|| None).take(items.len()).collect();
    std::thread::scope(|scope| {
        let f = &f;
        // Interleave the items, so that all threads share the costly end of a sweep.
        let workers: Vec<_> = (0..threads)
            .map(|t| {
                scope.spawn(move || {
                    (t..items.len()).step_by(threads).map(|i| (i, f(&items[i]))).collect::<Vec<_>>()
                })
            })
            .collect();
        for (i, r) in workers.into_iter().flat_map(|worker| worker.join().expect("a solver does not panic")) {
            results[i] = Some(r);
        }
    });
    results.into_iter().map(|r| r.expect("every item was computed")).collect()
}
