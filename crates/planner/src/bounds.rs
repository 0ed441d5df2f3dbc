//! Weighted Chernoff bounds on the load: fast and valid, but not tight. For comparison only.

use crate::App;

/// The bounds for one set of applications.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Chernoff {
    mean: f64,
    /// Σ bᵢ²·pᵢ.
    spread: f64,
    largest: f64,
}

impl Chernoff {
    /// Computes the three numbers that the bounds need.
    #[must_use]
    pub fn of(apps: &[App]) -> Chernoff {
        let b = |app: &App| app.b.0 as f64;
        Chernoff {
            mean: apps.iter().map(App::load).sum(),
            spread: apps.iter().map(|app| b(app) * b(app) * app.p.get()).sum(),
            largest: apps.iter().map(b).fold(0.0, f64::max),
        }
    }

    /// At least this much of the distribution lies at or below `x`.
    #[must_use]
    pub fn lower(&self, x: f64) -> f64 {
        let over = x - self.mean;
        if over < 0.0 || self.spread == 0.0 {
            return if over >= 0.0 { 1.0 } else { 0.0 };
        }
        1.0 - (-over * over / (2.0 * (self.spread + self.largest * over / 3.0))).exp()
    }

    /// At most this much of the distribution lies at or below `x`.
    #[must_use]
    pub fn upper(&self, x: f64) -> f64 {
        let under = self.mean - x;
        if under < 0.0 || self.spread == 0.0 {
            return if under <= 0.0 { 1.0 } else { 0.0 };
        }
        (-under * under / (2.0 * self.spread)).exp()
    }
}
