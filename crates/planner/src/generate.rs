//! Random sets of applications: shares of time uniform up to a maximum, rates uniform and rescaled to a given
//! mean load, periods that keep bursts near one time unit.

use crate::{App, Error, Rng, Units};

/// Parameters of a set.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recipe {
    /// Number of applications.
    pub count: usize,
    /// Largest share of time an application spends on I/O.
    pub p_max: f64,
    /// Target mean load.
    pub load: f64,
    /// The shortest period times `p_max`: how many time units a long burst lasts.
    pub burst: f64,
    /// Noise on bursts and pauses.
    pub jitter: f64,
}

impl Recipe {
    /// Generates one set. Rates are rounded to whole units one after the other with the error carried over,
    /// so that the mean load stays within half an application's unit of the target.
    pub fn generate(&self, rng: &mut Rng) -> Result<Vec<App>, Error> {
        if self.count == 0 {
            return Err(Error::NoApplication);
        }
        if !(self.p_max > 0.0 && self.p_max <= 1.0) {
            return Err(Error::Probability(self.p_max));
        }
        let draws: Vec<(f64, f64)> =
            (0..self.count).map(|_| (rng.between(0.0, self.p_max), rng.unit())).collect();
        let raw: f64 = draws.iter().map(|(p, b)| p * b).sum();
        let shortest = self.burst / self.p_max;
        let mut owed = 0.0;
        let mut apps = Vec::with_capacity(self.count);
        for (i, (p, b)) in draws.into_iter().enumerate() {
            let exact = b * self.load / raw;
            let rounded = (exact + if p > 0.0 { (owed / p).clamp(-0.5, 0.5) } else { 0.0 }).round().max(0.0);
            owed += (exact - rounded) * p;
            let mut app = App::new(format!("app{:02}", i + 1), p, 0)?;
            app.b = Units(rounded as usize);
            app.period = Some(rng.between(shortest, 2.0 * shortest));
            app.jitter = self.jitter;
            apps.push(app);
        }
        Ok(apps)
    }
}
