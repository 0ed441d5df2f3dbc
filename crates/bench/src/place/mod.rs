//! `bench place`: compares placements in a model of shared resources.
//!
//! ```text
//! scenario   reads a scenario: a system, a job, repetitions
//! play       one repetition: other nodes, other competing jobs, each placement in turn
//! real       the same with real data on modelled targets
//! report     a table and JSON
//! picture    charts like the paper's figures
//! ```

mod picture;
mod play;
mod real;
mod report;
mod scenario;

use crate::Charted;
use crate::failure::Outcome;
use report::Report;
use scenario::Scenario;
use std::path::Path;

/// Plays a scenario: every placement on every number of nodes.
///
/// # Errors
///
/// If the scenario is wrong, or its real data cannot be written.
pub fn run(scenario: &Path) -> Outcome<impl Charted> {
    let scenario = Scenario::load(scenario)?;
    let played = play::all(&scenario)?;
    let real = scenario.real.as_ref().map(|real| real::play(real, scenario.pattern, scenario.seed));
    Ok(Report::new(&scenario, played, real.transpose()?.unwrap_or_default()))
}

impl Charted for Report {
    fn picture(&self) -> String {
        picture::picture(self)
    }
}
