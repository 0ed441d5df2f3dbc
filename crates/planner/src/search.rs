//! Inverse problems: the smallest buffer for a target idle time, the best threshold for given weights.

use crate::{Chain, Error, Fraction, Metrics, Steps, Units};

/// Weights of idle time and quiet time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Weights {
    /// Penalty of idle time.
    pub idle: f64,
    /// Reward of quiet time.
    pub quiet: f64,
}

impl Default for Weights {
    /// Idle time stalls every application, quiet time only spares devices.
    fn default() -> Weights {
        Weights { idle: 10.0, quiet: 1.0 }
    }
}

impl Weights {
    fn score(&self, metrics: &Metrics) -> f64 {
        self.quiet * metrics.quiet - self.idle * metrics.idle
    }
}

/// A threshold and its metrics.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// Share of the capacity.
    pub threshold: Fraction,
    /// The chain's metrics with it.
    pub metrics: Metrics,
}

/// Solves one capacity and threshold with precomputed laws.
pub fn solve_at(steps: &Steps, capacity: Units, threshold: Fraction) -> Result<Metrics, Error> {
    Metrics::of(&Chain::with(steps.clone(), capacity, threshold.of(capacity))?)
}

/// The smallest capacity up to `limit` whose idle time is at most `target`, if there is one. Doubles, then
/// bisects: idle time falls with the capacity.
pub fn smallest_capacity(
    steps: &Steps,
    threshold: Fraction,
    target: f64,
    limit: Units,
) -> Result<Option<Units>, Error> {
    let fits =
        |capacity: usize| Ok::<bool, Error>(solve_at(steps, Units(capacity), threshold)?.idle <= target);
    if fits(0)? {
        return Ok(Some(Units(0)));
    }
    // With more load than bandwidth, this idle time remains however large the buffer is.
    if steps.unavoidable_idle() > target {
        return Ok(None);
    }
    let (mut low, mut high) = (0, (4 * steps.bandwidth()).clamp(1, limit.0.max(1)));
    while !fits(high)? {
        if high >= limit.0 {
            return Ok(None);
        }
        (low, high) = (high, (high * 2).min(limit.0));
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle)? { high = middle } else { low = middle }
    }
    Ok(Some(Units(high)))
}

/// The threshold with the best score among those that keep idle time within `most_idle`, in steps of one
/// percent: first every fifth, then the neighbours of the best. Ties go to the smallest.
pub fn best_threshold(
    steps: &Steps,
    capacity: Units,
    weights: &Weights,
    most_idle: Option<f64>,
) -> Result<Choice, Error> {
    let at = |percent: u32| -> Result<Choice, Error> {
        let threshold = Fraction::new(f64::from(percent) / 100.0)?;
        Ok(Choice { threshold, metrics: solve_at(steps, capacity, threshold)? })
    };
    let mut best = at(0)?;
    let mut percents: Vec<u32> = (5..=100).step_by(5).collect();
    for _ in 0..2 {
        for percent in percents {
            let choice = at(percent)?;
            let better = weights.score(&choice.metrics) > weights.score(&best.metrics) + 1e-12;
            if better && most_idle.is_none_or(|most| choice.metrics.idle <= most) {
                best = choice;
            }
        }
        let near = (best.threshold.get() * 100.0).round() as u32;
        percents = (near.saturating_sub(4)..=(near + 4).min(100)).filter(|p| p % 5 != 0).collect();
    }
    Ok(best)
}
