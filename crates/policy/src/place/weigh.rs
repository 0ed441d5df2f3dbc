//! Weights of the resources of a path.

use serde::{Deserialize, Serialize};

/// Tolerance of the sum of weights, for values written with a few digits.
const SLACK: f64 = 1e-6;

/// The weight of each kind of resource on a path; they sum to one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Weights {
    /// The busiest router on the path.
    pub router: f64,
    /// The server that has the target.
    pub server: f64,
    /// The target itself.
    pub target: f64,
    /// The target, in proportion to its free space.
    pub space: f64,
}

impl Default for Weights {
    /// Targets are the scarcest and slowest resource; free space does not count by default.
    fn default() -> Weights {
        Weights { router: 0.25, server: 0.25, target: 0.5, space: 0.0 }
    }
}

impl Weights {
    /// Checks that no weight is negative and that they sum to one.
    pub fn checked(self) -> Result<Weights, String> {
        let all = [self.router, self.server, self.target, self.space];
        if let Some(wrong) = all.iter().find(|weight| !(0.0..=1.0).contains(*weight)) {
            return Err(format!("{wrong} is not a weight: it must be between 0 and 1"));
        }
        let sum: f64 = all.iter().sum();
        if (sum - 1.0).abs() > SLACK {
            return Err(format!("the weights sum to {sum}: together they must be 1"));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_must_sum_to_one() {
        let of = |router, server, target, space| Weights { router, server, target, space }.checked();
        assert_eq!(Weights::default().checked(), Ok(Weights::default()));
        assert!(of(0.1, 0.2, 0.3, 0.4).is_ok());
        for (bad, says) in [
            (of(0.5, 0.5, 0.5, 0.0), "sum to 1.5"),
            (of(0.0, 0.0, 0.0, 0.0), "sum to 0"),
            (of(-0.5, 0.5, 0.5, 0.5), "-0.5"),
            (of(f64::NAN, 0.5, 0.5, 0.0), "NaN"),
            (of(f64::INFINITY, 0.0, 0.0, 0.0), "inf"),
        ] {
            let why = bad.expect_err(says);
            assert!(why.contains(says), "{why}");
        }
    }
}
