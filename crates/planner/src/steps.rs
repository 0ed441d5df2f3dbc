//! Moves of the occupancy in one time unit: one law while the buffer drains, one while it does not. Index `i`
//! of a law is a move of `i − bandwidth`.

use crate::{App, Distribution, Error, MAX_STATES, Route, Units};

/// Even below the threshold a time unit drains the buffer with this probability: every state then leads to
/// the empty buffer, and the chain has exactly one stationary distribution.
pub const RESTLESS: f64 = 0.01;

/// One law, with its sums from either end: differences of sums would lose rare events.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Law {
    pub(crate) mass: Vec<f64>,
    /// `head[i]` sums `mass[..i]`.
    pub(crate) head: Vec<f64>,
    /// `tail[i]` sums `mass[i..]`.
    pub(crate) tail: Vec<f64>,
}

impl Law {
    fn new(mass: Vec<f64>) -> Law {
        let mut head = vec![0.0; mass.len() + 1];
        let mut tail = head.clone();
        for i in 0..mass.len() {
            head[i + 1] = head[i] + mass[i];
        }
        for i in (0..mass.len()).rev() {
            tail[i] = tail[i + 1] + mass[i];
        }
        Law { mass, head, tail }
    }

    /// The same law with everything from `keep` on merged into the last move kept.
    fn cut(&self, keep: usize) -> Law {
        let mut mass = self.mass[..keep].to_vec();
        mass[keep - 1] += self.tail[keep];
        Law::new(mass)
    }
}

/// The two laws.
#[derive(Clone, PartialEq, Debug)]
pub struct Steps {
    pub(crate) bandwidth: usize,
    pub(crate) eager: Law,
    pub(crate) lazy: Law,
    /// Mean amount written into the buffer in a time unit without a stall.
    pub(crate) stored: f64,
    /// Mean direct traffic above the bandwidth: it waits, because it may not be buffered.
    pub(crate) refused: f64,
}

impl Steps {
    /// Splits the load by route and combines the parts: direct traffic uses the back end first, overflowing
    /// traffic uses the rest of its bandwidth, the excess and all buffered traffic is stored, and the
    /// remaining bandwidth drains the buffer.
    pub fn of(apps: &[App], bandwidth: Units) -> Result<Steps, Error> {
        let part = |route| Distribution::of(apps.iter().filter(|app| app.effective_route() == route));
        let (direct, overflow, buffered) =
            (part(Route::Direct)?, part(Route::Overflow)?, part(Route::Buffer)?);
        let b = bandwidth.0;
        if b == 0 {
            return Err(Error::NoBandwidth);
        }
        let states = overflow.max() + buffered.max() + b;
        if states > MAX_STATES {
            return Err(Error::TooLarge { states, limit: MAX_STATES });
        }
        // Overflowing load minus the bandwidth left by direct traffic.
        let mut excess = convolve(overflow.mass(), &taken(direct.mass(), b));
        excess.resize(excess.len().max(b + 1), 0.0);
        let mut kept = excess.clone();
        let fell: f64 = kept[..b].iter().sum();
        kept[..b].fill(0.0);
        kept[b] += fell;
        let eager = convolve(&excess, buffered.mass());
        let patient = convolve(&kept, buffered.mass());
        let lazy = eager.iter().zip(&patient).map(|(e, p)| RESTLESS * e + (1.0 - RESTLESS) * p).collect();
        let mean_up =
            |law: &[f64]| law.iter().enumerate().skip(b).map(|(i, m)| (i - b) as f64 * m).sum::<f64>();
        let refused =
            direct.mass().iter().enumerate().skip(b).fold(0.0, |sum, (k, m)| sum + (k - b) as f64 * m);
        Ok(Steps {
            bandwidth: b,
            stored: mean_up(&patient),
            refused,
            eager: Law::new(eager),
            lazy: Law::new(lazy),
        })
    }

    /// The same laws without moves whose total probability is below `negligible`.
    pub(crate) fn without(&self, negligible: f64) -> Steps {
        let rare = |i: &usize| self.eager.tail[*i] <= negligible && self.lazy.tail[*i] <= negligible;
        // At least one move upwards stays: without any, the chain would not be connected.
        let keep = (self.bandwidth + 2..self.eager.mass.len()).find(rare).unwrap_or(self.eager.mass.len());
        Steps { eager: self.eager.cut(keep), lazy: self.lazy.cut(keep), ..self.clone() }
    }

    /// Bandwidth of the back end.
    #[must_use]
    pub fn bandwidth(&self) -> usize {
        self.bandwidth
    }

    /// The share of time that applications stall however large the buffer is: inflow and drain must balance,
    /// and a stalled unit drains one bandwidth.
    #[must_use]
    pub fn unavoidable_idle(&self) -> f64 {
        let drift: f64 =
            self.eager.mass.iter().enumerate().map(|(i, m)| (i as f64 - self.bandwidth as f64) * m).sum();
        drift.max(0.0) / (drift.max(0.0) + self.bandwidth as f64)
    }

    /// The longest move upwards.
    pub(crate) fn reach(&self) -> usize {
        (self.eager.mass.len() - 1).saturating_sub(self.bandwidth)
    }
}

/// The law of min(direct load, bandwidth): the bandwidth that direct traffic uses.
fn taken(direct: &[f64], bandwidth: usize) -> Vec<f64> {
    let mut law = direct[..direct.len().min(bandwidth + 1)].to_vec();
    let top = law.len() - 1;
    law[top] += direct[law.len()..].iter().rev().sum::<f64>();
    law
}

fn convolve(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; a.len() + b.len() - 1];
    for (i, x) in a.iter().enumerate().filter(|(_, x)| **x != 0.0) {
        for (o, y) in out[i..].iter_mut().zip(b) {
            *o += x * y;
        }
    }
    out
}
