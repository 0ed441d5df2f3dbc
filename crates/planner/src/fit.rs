//! Fits application profiles to recorded I/O: rates, burst lengths and periods.

use std::collections::BTreeMap;

/// One record: `job` moved `bytes` more at `time` (seconds).
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Seconds since an arbitrary start.
    pub time: f64,
    /// The job.
    pub job: String,
    /// Number of bytes.
    pub bytes: f64,
}

/// I/O profile of one job, in seconds and bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// The job.
    pub job: String,
    /// Bytes per second within a burst.
    pub rate: f64,
    /// Length of a burst in seconds.
    pub burst: f64,
    /// Seconds from burst to burst.
    pub period: f64,
    /// Relative spread of the periods.
    pub jitter: f64,
    /// Number of bursts.
    pub bursts: usize,
}

impl Profile {
    /// Share of time with I/O. A job that never pauses gets the largest valid share.
    #[must_use]
    pub fn share(&self) -> f64 {
        (self.burst / self.period).min(0.999)
    }
}

/// Gaps longer than this many times the usual gap separate bursts.
const APART: f64 = 3.0;

/// Fits every job that moved data, in the order of their names. Records of a job in close succession are one
/// burst; a job whose records are all equally far apart wrote one burst per record, each of `shortest`
/// seconds.
#[must_use]
pub fn fit(samples: &[Sample], shortest: f64) -> Vec<Profile> {
    let mut jobs: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples.iter().filter(|s| s.bytes > 0.0) {
        jobs.entry(&sample.job).or_default().push((sample.time, sample.bytes));
    }
    let observed =
        samples.iter().map(|s| s.time).fold((f64::MAX, f64::MIN), |(a, b), t| (a.min(t), b.max(t)));
    let whole = (observed.1 - observed.0).max(shortest);
    jobs.into_iter().map(|(job, records)| profile(job, records, shortest, whole)).collect()
}

fn profile(job: &str, mut records: Vec<(f64, f64)>, shortest: f64, whole: f64) -> Profile {
    records.sort_by(|a, b| a.0.total_cmp(&b.0));
    let bytes: f64 = records.iter().map(|r| r.1).sum();
    let bursts = cluster(&records.iter().map(|r| r.0).collect::<Vec<_>>());
    // A burst lasts until its last record is over; a record lasts as long as the records are apart.
    let lengths: Vec<f64> = bursts
        .iter()
        .map(|times| {
            let (first, last, count) = (times[0], times[times.len() - 1], times.len() as f64);
            if times.len() > 1 { (last - first) * count / (count - 1.0) } else { shortest }
        })
        .collect();
    let burst = (lengths.iter().sum::<f64>() / lengths.len() as f64).max(f64::MIN_POSITIVE);
    let periods: Vec<f64> = bursts.windows(2).map(|pair| pair[1][0] - pair[0][0]).collect();
    let period = if periods.is_empty() { whole } else { median(&periods) }.max(burst);
    let spread = periods.iter().map(|p| (p - period).abs()).sum::<f64>() / periods.len().max(1) as f64;
    Profile {
        job: job.to_owned(),
        rate: bytes / lengths.iter().sum::<f64>().max(f64::MIN_POSITIVE),
        burst,
        period,
        // Uniform noise of half-width u has a mean distance of u/2.
        jitter: (2.0 * spread / period).min(1.0),
        bursts: bursts.len(),
    }
}

/// Groups sorted times into bursts, at the widest relative jump between one gap length and the next longer
/// one.
fn cluster(times: &[f64]) -> Vec<Vec<f64>> {
    let mut gaps: Vec<f64> = times.windows(2).map(|w| w[1] - w[0]).filter(|gap| *gap > 0.0).collect();
    gaps.sort_by(f64::total_cmp);
    let jump = gaps.windows(2).max_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
    let limit = match jump {
        Some(pair) if pair[1] / pair[0] >= APART => (pair[0] * pair[1]).sqrt(),
        _ => 0.0,
    };
    let mut bursts: Vec<Vec<f64>> = Vec::new();
    for time in times {
        match bursts.last_mut() {
            Some(burst) if time - burst[burst.len() - 1] <= limit => burst.push(*time),
            _ => bursts.push(vec![*time]),
        }
    }
    bursts
}

/// The median; 0 for an empty list.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(seconds of burst, period, bytes per record, records a second, bursts)`.
    fn job(name: &str, burst: usize, period: usize, bytes: f64, bursts: usize) -> Vec<Sample> {
        let record = |t: usize| Sample { time: t as f64, job: name.to_owned(), bytes };
        (0..bursts).flat_map(|k| (0..burst).map(move |s| k * period + s)).map(record).collect()
    }

    #[test]
    fn bursts_rates_and_periods_are_recovered() {
        for (burst, period, bytes, bursts) in
            [(5, 60, 1e9, 10), (30, 600, 2e9, 8), (2, 11, 5e6, 30), (1, 600, 7e9, 12), (10, 25, 1e3, 40)]
        {
            let found = &fit(&job("j", burst, period, bytes, bursts), 1.0)[0];
            let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{found:?}: {a} is not {b}");
            close(found.burst, burst as f64);
            close(found.period, period as f64);
            close(found.rate, bytes);
            assert!(found.bursts == bursts && found.jitter < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn job_without_pauses_has_a_share_below_one() {
        let found = &fit(&job("j", 100, 100, 1e6, 1), 1.0)[0];
        assert!(found.share() < 1.0 && found.share() > 0.99, "{found:?}");
    }

    #[test]
    fn jobs_are_fitted_separately_and_silent_ones_skipped() {
        let mut samples = job("b", 5, 60, 1e9, 10);
        samples.extend(job("a", 2, 30, 1e6, 20));
        samples.push(Sample { time: 1.0, job: "silent".into(), bytes: 0.0 });
        let names: Vec<String> = fit(&samples, 1.0).into_iter().map(|p| p.job).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(fit(&[], 1.0).is_empty());
    }
}
