//! A scenario while it runs.

use super::measure::{cost, due};
use super::run::Served;
use super::scenario::Scenario;

/// Most notes that a glimpse looks back on: half a second.
const BACK: usize = 5;

/// A job of a scenario at a moment.
pub(crate) struct Glimpse {
    pub(crate) label: String,
    pub(crate) nodes: u32,
    pub(crate) here: bool,
    /// Nothing while it is not there, nor just after some job has come or gone.
    pub(crate) now: Option<Now>,
}

/// What a job gets.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    /// Bytes a second.
    pub(crate) rate: f64,
    /// Its part of what is served.
    pub(crate) share: f64,
    /// What the policy says that should be.
    pub(crate) due: f64,
}

/// What the jobs that are `here` get, as the notes since the last one came or went tell.
pub(super) fn glimpse(
    scenario: &Scenario,
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
