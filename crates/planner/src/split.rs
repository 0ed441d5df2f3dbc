//! Several buffers instead of one: each has its share of capacity and bandwidth and serves its own
//! applications.

use crate::{App, Chain, Error, Metrics, Platform, Units};

/// One of several buffers.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// The applications it serves.
    pub members: Vec<usize>,
    /// Its share of the platform.
    pub platform: Platform,
    /// Its mean load.
    pub load: f64,
    /// Its metrics; `None` if it serves no application.
    pub metrics: Option<Metrics>,
}

/// Splits the platform into `count` equal buffers. Assigns the applications, heaviest first, to the buffer
/// with the least load.
pub fn split(apps: &[App], platform: &Platform, count: usize) -> Result<Vec<Part>, Error> {
    let share = |whole: Units, i: usize| Units(whole.0 * (i + 1) / count - whole.0 * i / count);
    let mut parts: Vec<Part> = (0..count)
        .map(|i| {
            let platform = Platform {
                bandwidth: share(platform.bandwidth, i),
                capacity: share(platform.capacity, i),
                threshold: platform.threshold,
            };
            Part { members: Vec::new(), platform, load: 0.0, metrics: None }
        })
        .collect();
    let mut order: Vec<usize> = (0..apps.len()).collect();
    order.sort_by(|a, b| apps[*b].load().total_cmp(&apps[*a].load()));
    for app in order {
        let least = parts.iter_mut().min_by(|a, b| a.load.total_cmp(&b.load)).ok_or(Error::NoBandwidth)?;
        least.load += apps[app].load();
        least.members.push(app);
    }
    for part in parts.iter_mut().filter(|part| !part.members.is_empty()) {
        let members: Vec<App> = part.members.iter().map(|i| apps[*i].clone()).collect();
        part.metrics = Some(Metrics::of(&Chain::of(&members, &part.platform)?)?);
    }
    Ok(parts)
}

/// The mean idle time of an application, weighted by load.
#[must_use]
pub fn mean_idle(parts: &[Part]) -> f64 {
    let total: f64 = parts.iter().map(|part| part.load).sum();
    let idle = parts.iter().filter_map(|part| part.metrics.as_ref().map(|m| m.idle * part.load));
    if total > 0.0 { idle.sum::<f64>() / total } else { 0.0 }
}
