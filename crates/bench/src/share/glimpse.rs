//! The current state of a running scenario.

use super::measure::{cost, due};
use super::run::Served;
use super::scenario::ShareScenario;

/// Maximum number of samples used: half a second.
const BACK: usize = 5;

/// A job of a scenario at one time.
pub struct Glimpse {
    /// Its name.
    pub label: String,
    /// Nodes that it has.
    pub nodes: u32,
    /// Whether it runs.
    pub here: bool,
    /// `None` while it is not running, and just after a job has started or ended.
    pub now: Option<Now>,
}

/// The current throughput of a job.
#[derive(Clone, Copy)]
pub struct Now {
    /// Bytes per second.
    pub rate: f64,
    /// Its share of the bytes served.
    pub share: f64,
    /// The share that the policy gives it.
    pub due: f64,
}

/// The throughput of the jobs that are `here`, from the samples since the last job started or ended.
pub(super) fn glimpse(
    scenario: &ShareScenario,
    notes: &[(f64, Vec<Served>)],
    here: &[usize],
    changed: f64,
) -> Vec<Glimpse> {
    let recent = &notes[notes.len().saturating_sub(BACK + 1)..];
    let recent = &recent[recent.iter().take_while(|(time, _)| *time < changed).count()..];
    let span = recent.first().zip(recent.last()).filter(|(first, last)| last.0 > first.0);
    let due = due(scenario, here);
    let done = |job: usize| {
        let ((from, before), (to, after)) = span?;
        let bytes = after[job].bytes - before[job].bytes;
        Some((bytes / (to - from), cost(after[job]) - cost(before[job])))
    };
    let whole: f64 = here.iter().filter_map(|&job| done(job)).map(|(_, cost)| cost).sum();
    let jobs = scenario.jobs.iter().enumerate();
    jobs.map(|(number, plan)| {
        let place = here.iter().position(|&job| job == number);
        let now = place.zip(done(number)).map(|(place, (rate, cost))| Now {
            rate,
            share: cost / whole.max(1.0),
            due: due[place],
        });
        Glimpse { label: plan.id.to_string(), nodes: plan.job.nodes, here: place.is_some(), now }
    })
    .collect()
}
