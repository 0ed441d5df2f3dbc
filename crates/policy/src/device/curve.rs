//! Bandwidth of a target.

use forebay_model::{Bytes, Error, ErrorKind, Result};

/// Bandwidth by the number of concurrent writers: linear between the points, constant after the last.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// Writers and bytes per second.
    points: Vec<(u32, f64)>,
}

impl Curve {
    /// A curve through measured points.
    pub fn new(points: &[(u32, Bytes)]) -> Result<Curve> {
        let rising = points.is_sorted_by(|one, other| one.0 < other.0);
        let sane = points.iter().all(|&(writers, rate)| writers > 0 && rate.0 > 0);
        if points.is_empty() || !rising || !sane {
            let text = "a bandwidth curve needs points with increasing numbers of writers, the first at least 1, and positive bandwidths";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Curve { points: points.iter().map(|&(writers, rate)| (writers, rate.0 as f64)).collect() })
    }

    /// The target of TRIO's Fig. 1: 356, 574 and 401 MB/s with 1, 2 and 32 writers.
    #[must_use]
    pub fn trio() -> Curve {
        Curve { points: vec![(1, 356e6), (2, 574e6), (32, 401e6)] }
    }

    /// Bytes per second with the given number of writers.
    #[must_use]
    pub fn rate(&self, writers: u32) -> f64 {
        let after = self.points.partition_point(|&(count, _)| count < writers);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (Some((one, low)), Some(&(other, high))) => {
                low + (high - low) * f64::from(writers - one) / f64::from(other - one)
            }
            (None, Some(&(_, rate))) | (Some((_, rate)), None) => rate,
            (None, None) => unreachable!("a curve has points"),
        }
    }

    /// The same curve, `times` times slower.
    pub(super) fn slower(&self, times: f64) -> Curve {
        Curve { points: self.points.iter().map(|&(writers, rate)| (writers, rate / times)).collect() }
    }

    /// The number of writers with the highest bandwidth, and that bandwidth.
    #[must_use]
    pub fn best(&self) -> (u32, f64) {
        self.points
            .iter()
            .copied()
            .reduce(|best, next| if next.1 > best.1 { next } else { best })
            .expect("a curve has points")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trio_curve_has_the_published_points_and_peaks_at_two() {
        let curve = Curve::trio();
        for (writers, rate) in [(1, 356e6), (2, 574e6), (32, 401e6), (17, 487.5e6), (1000, 401e6), (0, 356e6)]
        {
            assert!((curve.rate(writers) - rate).abs() < 1.0, "{writers}: {}", curve.rate(writers));
        }
        assert_eq!(curve.best(), (2, 574e6));
        for bad in [&[][..], &[(0, Bytes(5))], &[(2, Bytes(5)), (2, Bytes(6))], &[(3, Bytes(0))]] {
            assert!(Curve::new(bad).is_err(), "{bad:?}");
        }
    }
}
