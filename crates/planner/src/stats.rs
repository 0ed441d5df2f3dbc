//! Means of repeated runs, with 95 % confidence intervals.

/// A mean and the half-width of its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The mean over the runs.
    pub mean: f64,
    /// The interval is `mean ± half_width`.
    pub half_width: f64,
}

impl Estimate {
    /// Student's interval for the mean of independent runs; infinitely wide for one run.
    #[must_use]
    pub fn of(runs: &[f64]) -> Estimate {
        let n = runs.len() as f64;
        let mean = runs.iter().sum::<f64>() / n;
        if runs.len() < 2 {
            return Estimate { mean, half_width: f64::INFINITY };
        }
        let variance = runs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Estimate { mean, half_width: student(runs.len() - 1) * (variance / n).sqrt() }
    }

    /// Whether `value` lies inside the interval.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (value - self.mean).abs() <= self.half_width
    }
}

/// The 97.5 % quantile of Student's distribution, by its expansion around the normal one; the first four degrees of
/// freedom, where that is too coarse, are tabulated.
fn student(freedom: usize) -> f64 {
    const FIRST: [f64; 4] = [12.706_205, 4.302_653, 3.182_446, 2.776_445];
    if let Some(value) = FIRST.get(freedom - 1) {
        return *value;
    }
    let z: f64 = 1.959_963_985;
    let v = freedom as f64;
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * v.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_quantiles_match_the_tables() {
        for (freedom, expected) in
            [(1, 12.706), (4, 2.776), (5, 2.571), (9, 2.262), (14, 2.145), (30, 2.042), (1000, 1.962)]
        {
            assert!((student(freedom) - expected).abs() < 4e-3, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn intervals_contain_their_mean_and_shrink() {
        let few = Estimate::of(&[1.0, 3.0]);
        assert!(few.mean == 2.0 && few.holds(2.0) && few.holds(14.0) && !few.holds(15.0));
        assert!(Estimate::of(&[1.0; 5]).half_width == 0.0);
        assert!(Estimate::of(&[1.0]).half_width.is_infinite());
    }
}
