//! Metrics from the stationary distribution.

use crate::{Chain, Error, Stationary, stationary};

/// The metrics of one chain, as shares of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Metrics {
    /// Time in overflow states: every application stalls.
    pub idle: f64,
    /// Time in which the buffer does not drain: its occupancy stays or grows.
    pub quiet: f64,
    /// Probability that a time unit takes the buffer from a normal state into an overflow.
    pub overflow: f64,
    /// Mean occupancy, including the excess of overflow states.
    pub mean_occupancy: f64,
    /// Mean stored amount: never more than the capacity.
    pub mean_stored: f64,
    /// Mean amount written into the buffer per time unit.
    pub written: f64,
    /// Direct traffic above the bandwidth, as extra time that it needs.
    pub direct_wait: f64,
    /// The stationary distribution.
    pub stationary: Stationary,
}

impl Metrics {
    /// Solves the chain and computes the metrics.
    pub fn of(chain: &Chain) -> Result<Metrics, Error> {
        let stationary = stationary(chain)?;
        let (s, b, steps) = (chain.capacity(), chain.bandwidth(), chain.steps());
        let (normal, over) = stationary.pi.split_at(s + 1);
        let idle = over.iter().rev().fold(0.0, |sum, pi| sum + pi);
        let weighted =
            |f: &dyn Fn(usize) -> f64| normal.iter().enumerate().map(|(k, pi)| pi * f(k)).sum::<f64>();
        let quiet = weighted(&|k| if k == 0 { 1.0 } else { chain.law(k).tail[b] });
        let overflow = weighted(&|k| chain.law(k).tail[(s + 1 + b - k).min(chain.law(k).mass.len())]);
        let stored = weighted(&|k| k as f64);
        let waiting: f64 = over.iter().enumerate().map(|(x, pi)| pi * (s + 1 + x) as f64).sum();
        Ok(Metrics {
            idle,
            quiet,
            overflow,
            mean_occupancy: stored + waiting,
            mean_stored: stored + idle * s as f64,
            written: normal.iter().sum::<f64>() * steps.stored,
            direct_wait: steps.refused / b as f64,
            stationary,
        })
    }

    /// The smallest occupancy that is not exceeded with probability `q`.
    #[must_use]
    pub fn quantile(&self, q: f64) -> usize {
        let mut sum = 0.0;
        let reached = self.stationary.pi.iter().position(|pi| {
            sum += pi;
            // Rounding makes a sum of many terms fall short of the true one.
            sum >= q - 1e-12
        });
        reached.unwrap_or(self.stationary.pi.len() - 1)
    }
}
