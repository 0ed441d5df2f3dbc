//! The exact distribution of the load of one time unit.

use crate::{App, Error, MAX_STATES};

/// Probabilities of the loads 0, 1, …; they sum to one.
#[derive(Clone, PartialEq, Debug)]
pub struct Distribution {
    mass: Vec<f64>,
}

impl Distribution {
    /// Adds the applications one after the other. Every step only mixes non-negative numbers, so each entry
    /// is exact to a few units in the last place, however small it is.
    pub fn of<'a>(apps: impl IntoIterator<Item = &'a App>) -> Result<Distribution, Error> {
        let mut mass = vec![1.0];
        for app in apps {
            let (p, b, old) = (app.p.get(), app.b.0, mass.len());
            if b == 0 || p == 0.0 {
                continue;
            }
            let states = old.saturating_add(b);
            if states > MAX_STATES {
                return Err(Error::TooLarge { states, limit: MAX_STATES });
            }
            mass.resize(states, 0.0);
            // Downwards, so that no entry includes this application twice.
            for k in (0..mass.len()).rev() {
                let with = if k >= b { p * mass[k - b] } else { 0.0 };
                mass[k] = (1.0 - p) * mass[k] + with;
            }
        }
        Ok(Distribution { mass })
    }

    /// The probabilities, by load.
    #[must_use]
    pub fn mass(&self) -> &[f64] {
        &self.mass
    }

    /// The largest possible load.
    #[must_use]
    pub fn max(&self) -> usize {
        self.mass.len() - 1
    }

    /// P(load > x), summed from the small end.
    #[must_use]
    pub fn above(&self, x: usize) -> f64 {
        self.mass.iter().skip(x.saturating_add(1)).rev().fold(0.0, |sum, m| sum + m)
    }

    /// P(load ≤ x) for every x.
    #[must_use]
    pub fn cumulative(&self) -> Vec<f64> {
        let mut sum = 0.0;
        self.mass
            .iter()
            .map(|m| {
                sum += m;
                sum
            })
            .collect()
    }

    /// The mean load.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mass.iter().enumerate().map(|(k, m)| k as f64 * m).sum()
    }
}
