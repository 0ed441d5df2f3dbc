//! The Markov chain of the occupancy. States 0 … S are normal; states above S are overflows, in which every
//! application stalls for a time unit while the buffer drains at full bandwidth.
//!
//! An overflow state has exactly one successor, so the solver only sees the normal states: a move that ends
//! above S is followed down, bandwidth by bandwidth, to the first normal state. The overflow states are added
//! back afterwards.

use crate::steps::Law;
use crate::{App, Error, MAX_STATES, Platform, Steps, Units};

/// The chain of one platform and one set of applications.
#[derive(Clone, PartialEq, Debug)]
pub struct Chain {
    steps: Steps,
    capacity: usize,
    threshold: usize,
}

impl Chain {
    /// Builds the chain; with a threshold of 0 for eager draining, otherwise for lazy draining.
    pub fn of(apps: &[App], platform: &Platform) -> Result<Chain, Error> {
        if apps.is_empty() {
            return Err(Error::NoApplication);
        }
        Chain::with(Steps::of(apps, platform.bandwidth)?, platform.capacity, platform.threshold_units())
    }

    /// Builds the chain from precomputed laws, so that a sweep computes them once.
    pub fn with(steps: Steps, capacity: Units, threshold: Units) -> Result<Chain, Error> {
        let states = capacity.0.saturating_add(steps.reach()).saturating_add(1);
        if states > MAX_STATES {
            return Err(Error::TooLarge { states, limit: MAX_STATES });
        }
        Ok(Chain { steps, capacity: capacity.0, threshold: threshold.0.min(capacity.0) })
    }

    /// The occupancy above which the buffer overflows.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bandwidth of the back end.
    #[must_use]
    pub fn bandwidth(&self) -> usize {
        self.steps.bandwidth
    }

    /// Number of states: normal and overflow.
    #[must_use]
    pub fn states(&self) -> usize {
        self.capacity + 1 + self.steps.reach()
    }

    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// The law of moves from normal state `from`.
    pub(crate) fn law(&self, from: usize) -> &Law {
        if from < self.threshold { &self.steps.lazy } else { &self.steps.eager }
    }

    /// Row `from` of the transition matrix over all states.
    #[must_use]
    pub fn row(&self, from: usize) -> Vec<f64> {
        let mut row = vec![0.0; self.states()];
        if from > self.capacity {
            row[from.saturating_sub(self.bandwidth())] = 1.0;
        } else {
            for (i, m) in self.law(from).mass.iter().enumerate() {
                row[(from + i).saturating_sub(self.bandwidth())] += m;
            }
        }
        row
    }

    /// The first normal state on the way down from `state`.
    pub(crate) fn landing(&self, state: usize) -> usize {
        let over = state.saturating_sub(self.capacity);
        state.saturating_sub(over.div_ceil(self.bandwidth()) * self.bandwidth())
    }

    /// The move `from` + `i` − bandwidth, followed down to a normal state.
    fn target(&self, from: usize, i: usize) -> usize {
        self.landing((from + i).saturating_sub(self.bandwidth()))
    }

    /// Lowest and highest normal state that normal state `from` may lead to in one move.
    pub(crate) fn span(&self, from: usize) -> (usize, usize) {
        let low = from.saturating_sub(self.bandwidth());
        let high = from + self.steps.reach();
        if high <= self.capacity { (low, high) } else { (low.min(self.lowest_landing()), self.capacity) }
    }

    fn lowest_landing(&self) -> usize {
        (self.capacity + 1).saturating_sub(self.bandwidth())
    }

    /// Adds the moves of `weight`, spread over states `first` …, to `into`, which starts at state `base` and
    /// covers all reachable states.
    pub(crate) fn scatter(
        &self,
        first: usize,
        weight: &[f64],
        base: usize,
        into: &mut [f64],
        wide: &mut Vec<f64>,
    ) {
        let b = self.bandwidth();
        let reach = self.steps.eager.mass.len();
        wide.clear();
        wide.resize(weight.len() + reach - 1, 0.0);
        let lazy = self.threshold.saturating_sub(first).min(weight.len());
        spread(&weight[..lazy], &self.steps.lazy.mass, wide);
        spread(&weight[lazy..], &self.steps.eager.mass, &mut wide[lazy..]);
        // `wide[x]` is the probability that arrives at state first + x − b.
        let floor = (b + 1).saturating_sub(first).min(wide.len());
        let ceiling = (self.capacity + 1 + b).saturating_sub(first).min(wide.len()).max(floor);
        if floor > 0 {
            into[0] += wide[..floor].iter().sum::<f64>();
        }
        let plain = &wide[floor..ceiling];
        if !plain.is_empty() {
            let start = first + floor - b - base;
            for (to, from) in into[start..].iter_mut().zip(plain) {
                *to += from;
            }
        }
        for (x, m) in wide.iter().enumerate().skip(ceiling) {
            into[self.landing(first + x - b) - base] += m;
        }
    }

    /// The moves of one state within `low..=high`, added to `into`.
    pub(crate) fn fill(&self, from: usize, low: usize, high: usize, into: &mut [f64]) {
        let b = self.bandwidth();
        let law = &self.law(from).mass;
        // Moves that stay at or below the capacity fill [low, high] as one run; only 0 and the landings
        // accumulate more.
        let plain_low = if low == 0 { 0 } else { (low + b).saturating_sub(from) };
        let plain_high = (high.min(self.capacity) + b + 1).saturating_sub(from).min(law.len());
        for (i, m) in law.iter().enumerate().take(plain_high).skip(plain_low) {
            into[(from + i).saturating_sub(b) - low] += m;
        }
        if high >= self.lowest_landing() && self.capacity + b < from + law.len() {
            for (i, m) in law.iter().enumerate().skip(self.capacity + 1 + b - from) {
                let to = self.target(from, i);
                if (low..=high).contains(&to) {
                    into[to - low] += m;
                }
            }
        }
    }

    /// The probability that one move from normal state `from` ends outside `low..=high`.
    pub(crate) fn outside(&self, from: usize, low: usize, high: usize) -> f64 {
        let b = self.bandwidth();
        let law = self.law(from);
        let under = (low + b).saturating_sub(from).min(law.mass.len());
        let under = if low == 0 { 0.0 } else { law.head[under] };
        let over = (high + b + 1 - from).min(law.mass.len());
        if high < self.lowest_landing() {
            return under + law.tail[over];
        }
        let escapes = |i: &usize| !(low..=high).contains(&self.target(from, *i));
        under + (over..law.mass.len()).filter(escapes).map(|i| law.mass[i]).sum::<f64>()
    }

    /// The same chain without moves whose total probability is below `negligible`.
    pub(crate) fn without(&self, negligible: f64) -> Chain {
        Chain { steps: self.steps.without(negligible), ..*self }
    }
}

/// `out[x + i] += weight[x] · law[i]`, four sources at a time to save passes over `out`.
fn spread(weight: &[f64], law: &[f64], out: &mut [f64]) {
    let mut chunks = weight.chunks_exact(4);
    let mut x = 0;
    let n = law.len();
    for w in &mut chunks {
        if w.iter().any(|w| *w != 0.0) && n > 3 {
            let (a, b, c, d) = (w[0], w[1], w[2], w[3]);
            let out = &mut out[x..x + n + 3];
            for k in 0..3 {
                // The partial ends: out[k] for k < 3 and out[n + k].
                out[k] += (0..=k).map(|s| w[s] * law[k - s]).sum::<f64>();
                out[n + k] += (k + 1..4).map(|s| w[s] * law[n + k - s]).sum::<f64>();
            }
            let middle = &mut out[3..n];
            let (l0, l1, l2, l3) = (&law[3..], &law[2..n - 1], &law[1..n - 2], &law[..n - 3]);
            for ((((o, p), q), r), s) in middle.iter_mut().zip(l0).zip(l1).zip(l2).zip(l3) {
                *o += a * p + b * q + c * r + d * s;
            }
        } else {
            scalar(w, law, &mut out[x..]);
        }
        x += 4;
    }
    scalar(chunks.remainder(), law, &mut out[x..]);
}

fn scalar(weight: &[f64], law: &[f64], out: &mut [f64]) {
    for (x, w) in weight.iter().enumerate().filter(|(_, w)| **w != 0.0) {
        for (o, m) in out[x..].iter_mut().zip(law) {
            *o += w * m;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_convolution_equals_the_scalar_one() {
        for n in 1..9 {
            for len in 0..11 {
                let law: Vec<f64> = (0..n).map(|i| f64::from(i + 1)).collect();
                let weight: Vec<f64> = (0..len).map(|i| f64::from(i * i % 7)).collect();
                let mut fast = vec![0.0; law.len() + weight.len()];
                let mut slow = fast.clone();
                spread(&weight, &law, &mut fast);
                scalar(&weight, &law, &mut slow);
                assert_eq!(fast, slow, "{n} {len}");
            }
        }
    }
}
