//! `bench route`: compares buffering only what disks are slow at with other modes, with real servers and
//! modelled disks.
//!
//! ```text
//! scenario   reads a scenario: disks, a network, patterns, and the varied parameters
//! play       one run: a server, writers, bursts
//! report     a table, JSON, a chart
//! two        two jobs, for the demo
//! ```

mod play;
mod report;
mod scenario;
mod two;

use crate::Charted;
use crate::failure::Outcome;
use report::{Report, Run};
use scenario::Scenario;
use std::path::Path;
use std::sync::atomic::AtomicBool;
pub use two::{RoutedReport, two_jobs};

/// Runs a scenario: every way at every point.
///
/// # Errors
///
/// If the scenario is wrong, or a run of it fails or is stopped.
pub fn run(scenario: &Path, stop: &AtomicBool) -> Outcome<impl Charted> {
    let scenario = Scenario::load(scenario)?;
    let mut runs = Vec::new();
    for point in scenario.points() {
        for &way in &scenario.ways {
            let ran = play::run(&scenario, point, way, stop)?;
            runs.push(Run::new(&scenario, point, way, &ran));
        }
    }
    Ok(Report::new(&scenario, runs))
}
