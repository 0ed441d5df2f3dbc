//! The data of five figures of the sizing model, and checks of the claims about each.
//!
//! Bandwidth 100; random sets of applications by the largest share of time `p_max` and the load factor
//! `alpha` = mean load / bandwidth.

use crate::{
    App, Chain, Chernoff, Distribution, Effort, Error, Estimate, Fraction, Metrics, Platform, Recipe, Rng,
    Steps, Units, simulate, solve_at,
};

/// Bandwidth in all figures.
pub const FIGURE_BANDWIDTH: usize = 100;
/// Random sets over which idle and quiet times are averaged.
const SETS: u64 = 3;
/// `p_max` and the shortest period times `p_max` at which bursts match the chain's independent time units
/// best.
pub const SUITABLE: [(f64, f64); 4] = [(0.1, 1.25), (0.2, 1.5), (0.5, 2.25), (1.0, 5.0)];

/// A claim about a figure, and whether the data confirms it.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// Which figure.
    pub figure: u8,
    /// The claim.
    pub text: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// The numbers.
    pub detail: String,
}

/// The distribution of the load and its bounds for one `p_max`.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadPanel {
    /// Largest share of time.
    pub p_max: f64,
    /// P(load ≤ x) for x = 0, 1, ….
    pub exact: Vec<f64>,
    /// Lower bounds.
    pub lower: Vec<f64>,
    /// Upper bounds.
    pub upper: Vec<f64>,
    /// Variance of the load.
    pub variance: f64,
}

/// Curves for one pair of parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel<P> {
    /// Largest share of time.
    pub p_max: f64,
    /// Load factor.
    pub alpha: f64,
    /// The points.
    pub points: Vec<P>,
}

/// Idle time predicted and simulated at one capacity.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fit {
    /// The capacity.
    pub capacity: usize,
    /// The chain's idle time.
    pub chain: f64,
    /// The simulator's.
    pub simulated: Estimate,
}

/// Idle and quiet time at one threshold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lazy {
    /// Share of the capacity.
    pub threshold: f64,
    /// Idle time.
    pub idle: f64,
    /// Quiet time.
    pub quiet: f64,
}

fn set(count: usize, p_max: f64, alpha: f64, burst: f64, seed: u64) -> Result<Vec<App>, Error> {
    let recipe = Recipe { count, p_max, load: alpha * FIGURE_BANDWIDTH as f64, burst, jitter: 1.0 };
    recipe.generate(&mut Rng::new(seed))
}

fn claim(figure: u8, text: &'static str, holds: bool, detail: String) -> Claim {
    Claim { figure, text, holds, detail }
}

/// Figure 2: the exact distribution of the load against the bounds, 10 applications, mean load = bandwidth.
pub fn figure2(seed: u64) -> Result<Vec<LoadPanel>, Error> {
    [0.1, 0.2, 0.5, 1.0]
        .into_iter()
        .map(|p_max| {
            let apps = set(10, p_max, 1.0, 1.0, seed)?;
            let (load, bounds) = (Distribution::of(&apps)?, Chernoff::of(&apps));
            let mean = load.mean();
            let xs = 0..load.mass().len();
            Ok(LoadPanel {
                p_max,
                exact: load.cumulative(),
                lower: xs.clone().map(|x| bounds.lower(x as f64)).collect(),
                upper: xs.map(|x| bounds.upper(x as f64)).collect(),
                variance: load.mass().iter().enumerate().map(|(k, m)| (k as f64 - mean).powi(2) * m).sum(),
            })
        })
        .collect()
}

/// The claims about figure 2.
#[must_use]
pub fn claims2(panels: &[LoadPanel]) -> Vec<Claim> {
    let right = panels.iter().all(|p| {
        let within = |(x, exact): (usize, &f64)| p.lower[x] <= exact + 1e-12 && p.upper[x] >= exact - 1e-12;
        p.exact.iter().enumerate().all(within)
    });
    let widest = |p: &LoadPanel| p.lower.iter().zip(&p.upper).map(|(l, u)| u - l).fold(0.0, f64::max);
    let gaps: Vec<f64> = panels.iter().map(widest).collect();
    let variances: Vec<f64> = panels.iter().map(|p| p.variance).collect();
    let rare = &panels[0];
    let above = |x: usize| 1.0 - rare.exact.get(x).copied().unwrap_or(1.0);
    vec![
        claim(2, "the bounds are always right", right, format!("{} panels", panels.len())),
        claim(
            2,
            "the bounds are very imprecise",
            gaps.iter().all(|g| *g > 0.5),
            format!("widest gap {}", listed(gaps.iter().map(|gap| format!("{gap:.2}")))),
        ),
        claim(
            2,
            "rare bursts mean more variance",
            variances.windows(2).all(|w| w[0] > w[1]),
            format!("variance {}", listed(variances.iter().map(|variance| format!("{variance:.0}")))),
        ),
        claim(
            2,
            "with rare bursts the load is mostly 0, yet twice the bandwidth is not negligible",
            rare.exact[0] > 0.3 && above(2 * FIGURE_BANDWIDTH) > 0.01,
            format!("P(0) = {:.3}, P(> 2B) = {:.3}", rare.exact[0], above(2 * FIGURE_BANDWIDTH)),
        ),
    ]
}

/// Figure 3: idle time against capacity, 20 applications.
pub fn figure3(seed: u64) -> Result<Vec<Panel<(f64, f64)>>, Error> {
    let mut panels = Vec::new();
    for alpha in [0.6, 0.8, 0.9, 1.0, 1.2] {
        for p_max in [0.1, 0.2, 0.5, 1.0] {
            let mut points: Vec<(f64, f64)> =
                [0, 25, 50, 100, 150, 200, 300, 400, 600, 800, 1200, 2400, 4800]
                    .map(|s| (f64::from(s), 0.0))
                    .to_vec();
            for k in 0..SETS {
                let steps = Steps::of(&set(20, p_max, alpha, 1.0, seed + k)?, Units(FIGURE_BANDWIDTH))?;
                for (s, idle) in &mut points {
                    *idle += solve_at(&steps, Units(*s as usize), Fraction::default())?.idle / SETS as f64;
                }
            }
            panels.push(Panel { p_max, alpha, points });
        }
    }
    Ok(panels)
}

/// The claims about figure 3.
#[must_use]
pub fn claims3(panels: &[Panel<(f64, f64)>]) -> Vec<Claim> {
    let falls = panels.iter().all(|p| p.points.windows(2).all(|w| w[1].1 <= w[0].1 + 1e-12));
    let last = |p: &Panel<(f64, f64)>| p.points[p.points.len() - 1].1;
    let light = panels.iter().filter(|p| p.alpha < 1.0).map(last).fold(0.0, f64::max);
    let heavy: Vec<&Panel<_>> = panels.iter().filter(|p| p.alpha > 1.0).collect();
    let limit = heavy.iter().map(|p| (last(p) - (1.0 - 1.0 / p.alpha)).abs()).fold(0.0, f64::max);
    let needs =
        |p: &&Panel<(f64, f64)>| p.points.iter().find(|(_, idle)| *idle <= 0.01).map_or(f64::MAX, |x| x.0);
    let order: Vec<f64> = panels.iter().filter(|p| p.alpha == 0.8).map(|p| needs(&p)).collect();
    vec![
        claim(3, "idle time falls as the buffer grows", falls, format!("{} curves", panels.len())),
        claim(
            3,
            "below full load it falls to 0",
            light < 1e-3,
            format!("largest idle time at S = 4800: {light:.1e}"),
        ),
        claim(
            3,
            "above full load it falls to what the excess load costs",
            limit < 0.01,
            format!("distance from 1 - 1/alpha at S = 4800: {limit:.1e}"),
        ),
        claim(
            3,
            "rarer, stronger bursts need larger buffers",
            order.windows(2).all(|w| w[0] >= w[1]) && order[0] > order[order.len() - 1],
            format!(
                "capacities for 1 % at alpha 0.8, by rising p_max: {}",
                listed(order.iter().map(ToString::to_string))
            ),
        ),
    ]
}

/// Figure 4: the chain against discrete events, 20 applications, 15 runs of 1000 time units. `stretch`
/// multiplies the suitable periods, to show the effect of unsuitable ones.
pub fn figure4(seed: u64, stretch: f64) -> Result<Vec<Panel<Fit>>, Error> {
    let mut panels = Vec::new();
    for (p_max, burst) in SUITABLE {
        for alpha in [0.8, 1.0, 1.2] {
            let apps = set(20, p_max, alpha, burst * stretch, seed)?;
            let mut points = Vec::new();
            for capacity in [100, 200, 300, 400, 500] {
                let platform = Platform {
                    bandwidth: Units(FIGURE_BANDWIDTH),
                    capacity: Units(capacity),
                    threshold: Fraction::default(),
                };
                let chain = Metrics::of(&Chain::of(&apps, &platform)?)?.idle;
                let mut rng = Rng::new(seed ^ (capacity as u64) << 32);
                let simulated = simulate(&apps, &platform, &Effort::default(), &mut rng)?.idle;
                points.push(Fit { capacity, chain, simulated });
            }
            panels.push(Panel { p_max, alpha, points });
        }
    }
    Ok(panels)
}

/// The claims about figure 4.
#[must_use]
pub fn claims4(suitable: &[Panel<Fit>], unsuitable: &[Panel<Fit>]) -> Vec<Claim> {
    let cells: Vec<&Fit> = suitable.iter().flat_map(|p| &p.points).collect();
    let inside = cells.iter().filter(|fit| fit.simulated.holds(fit.chain)).count();
    let off = |fit: &&Fit| (fit.simulated.mean - fit.chain).abs();
    let farthest = cells.iter().map(off).fold(0.0, f64::max);
    let distance = |panels: &[Panel<Fit>]| {
        let all: Vec<f64> =
            panels.iter().flat_map(|p| &p.points).map(|f| (f.simulated.mean - f.chain).abs()).collect();
        all.iter().sum::<f64>() / all.len() as f64
    };
    let (near, far) = (distance(suitable), distance(unsuitable));
    vec![
        claim(
            4,
            "chain and simulation fit closely for suitable periods",
            near < 0.01,
            format!("mean distance {near:.4}"),
        ),
        claim(
            4,
            "the chain is inside the 95 % interval in most cells",
            inside * 2 > cells.len(),
            format!("{inside} of {}; nowhere are they more than {farthest:.4} apart", cells.len()),
        ),
        claim(
            4,
            "with unsuitable periods the fit is lost",
            far > 2.0 * near,
            format!("periods four times as long: mean distance {far:.4}"),
        ),
    ]
}

/// Figures 5 and 6: idle and quiet time against the threshold, 20 applications, capacity 500.
pub fn figure56(seed: u64) -> Result<Vec<Panel<Lazy>>, Error> {
    let mut panels = Vec::new();
    for alpha in [0.5, 0.8, 1.0, 1.2] {
        for p_max in [0.1, 0.2, 0.5, 1.0] {
            let mut points: Vec<Lazy> = (0..=10)
                .map(|tenth| Lazy { threshold: f64::from(tenth) / 10.0, idle: 0.0, quiet: 0.0 })
                .collect();
            for k in 0..SETS {
                let steps = Steps::of(&set(20, p_max, alpha, 1.0, seed + k)?, Units(FIGURE_BANDWIDTH))?;
                for point in &mut points {
                    let m = solve_at(&steps, Units(500), Fraction::new(point.threshold)?)?;
                    point.idle += m.idle / SETS as f64;
                    point.quiet += m.quiet / SETS as f64;
                }
            }
            panels.push(Panel { p_max, alpha, points });
        }
    }
    Ok(panels)
}

/// The claims about figures 5 and 6.
#[must_use]
pub fn claims56(panels: &[Panel<Lazy>]) -> Vec<Claim> {
    let at = |p: &Panel<Lazy>, tenth: usize| p.points[tenth];
    let rises = panels.iter().all(|p| p.points.windows(2).all(|w| w[1].idle >= w[0].idle - 1e-9));
    let price = |tenth: usize| panels.iter().map(|p| at(p, tenth).idle - at(p, 0).idle).fold(0.0, f64::max);
    let low_load = panels.iter().filter(|p| p.alpha <= 0.5 && p.p_max >= 0.2);
    let low_load = low_load.map(|p| at(p, 4).idle - at(p, 0).idle).fold(0.0, f64::max);
    let gains: Vec<(f64, f64, f64)> =
        panels.iter().map(|p| (p.alpha, p.p_max, at(p, 2).quiet - at(p, 0).quiet)).collect();
    let gain = |g: &&(f64, f64, f64)| g.2 > 0.01;
    let helped = gains.iter().filter(gain).count();
    let busiest = gains.iter().find(|g| g.0 == 1.2 && g.1 == 1.0).map_or(0.0, |g| g.2);
    vec![
        claim(5, "a higher threshold never shortens idle time", rises, format!("{} curves", panels.len())),
        claim(
            5,
            "20 % costs almost no idle time, much more than that does",
            price(2) < 0.02 && price(8) > 2.0 * price(2),
            format!(
                "largest rise at 20 %: {:.4}, at 40 %: {:.4}, at 80 %: {:.4}",
                price(2),
                price(4),
                price(8)
            ),
        ),
        claim(
            5,
            "with a low load even a higher threshold costs nothing",
            low_load < 0.005,
            format!("largest rise at 40 % and alpha 0.5: {low_load:.1e}"),
        ),
        claim(
            6,
            "in most cases a threshold of 20 % lengthens quiet time",
            helped * 2 > gains.len(),
            format!("{helped} of {} by more than a hundredth", gains.len()),
        ),
        claim(
            6,
            "not when load and p_max are high: the buffer is always full",
            busiest < 0.01,
            format!("gain at alpha 1.2, p_max 1: {busiest:.4}"),
        ),
    ]
}

/// The numbers, separated by commas.
fn listed(numbers: impl Iterator<Item = String>) -> String {
    numbers.collect::<Vec<_>>().join(", ")
}
