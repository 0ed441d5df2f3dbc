//! `bench drain`: compares drain orders, with real servers and real data on modelled targets.
//!
//! ```text
//! scenario   reads a scenario: targets, processes, jobs, and the variants to compare
//! variant    a variant: direct to the targets, or drained in some order
//! ground     targets in memory, and which process writes which part of which file
//! direct     every process writes to the targets directly
//! nodes      assigns servers to nodes: each buffers what the processes of its node write
//! buffered   everything is written to servers, and drained
//! report     a table, JSON, a chart
//! bars       checks of the results
//! ```
//!
//! **Invariant**: all variants of a scenario write the same data to files of the same layout, on targets with
//! the same
//! model; bandwidths and times are those of the modelled world.

mod bars;
mod buffered;
mod direct;
mod ground;
mod nodes;
mod report;
mod scenario;
mod variant;

use crate::Charted;
use crate::failure::Outcome;
use forebay_report::keys::File;
pub use report::DrainedReport;
use report::Report;
use scenario::{Point, Scenario};
use std::fmt::Arguments;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use variant::Variant;

/// Three jobs of very different sizes, for the demo: large enough that the order matters more than start and
/// end.
const DEMO: &str = "compare = ['arrival', 'trio quantum=8MiB']\ntargets = 4\nprocesses = 16\ngrain = 64\n\
                    [[job]]\nsize = '12MiB'\n[[job]]\nsize = '48MiB'\n[[job]]\nsize = '192MiB'\n";

/// Drains the same data of three jobs in order of arrival, and as the arbiter chooses.
///
/// # Errors
///
/// If a run fails or is stopped.
pub fn drained(stop: &AtomicBool) -> Outcome<Vec<DrainedReport>> {
    let scenario = scenario::read(&File { name: "the demo", text: DEMO })?;
    let mut measured = Vec::new();
    for point in scenario.points() {
        for variant in &scenario.compare {
            measured.push(measure(&scenario, point, variant, stop)?);
        }
    }
    Ok(Report::new(&scenario, &measured).summary())
}

/// The result of one run, in the time and bytes of this machine.
struct Ran {
    /// Seconds from the drain request of each job until it was drained.
    jobs: Vec<f64>,
    bytes: u64,
}

/// All runs of a variant at a point.
struct Measured {
    point: Point,
    variant: Variant,
    runs: Vec<Ran>,
}

/// Runs a scenario: every variant at every point, each announced to `progress`.
///
/// # Errors
///
/// If the scenario is wrong, or a run of it fails or is stopped.
pub fn run(scenario: &Path, stop: &AtomicBool, progress: &dyn Fn(Arguments<'_>)) -> Outcome<impl Charted> {
    let scenario = Scenario::load(scenario)?;
    let mut measured = Vec::new();
    for point in scenario.points() {
        for variant in &scenario.compare {
            let Point { pattern, targets, processes, servers } = point;
            let word = pattern.word();
            progress(format_args!(
                "{word}, {processes} processes a job, {servers} servers, {targets} targets: {variant}"
            ));
            measured.push(measure(&scenario, point, variant, stop)?);
        }
    }
    Ok(Report::new(&scenario, &measured))
}

fn measure(scenario: &Scenario, point: Point, variant: &Variant, stop: &AtomicBool) -> Outcome<Measured> {
    let run = |turn| match variant {
        Variant::Direct => direct::run(scenario, point),
        Variant::Drain(way) => buffered::run(scenario, point, way, turn, stop),
    };
    // Direct writers run concurrently, so there is no job order to vary.
    let turns = if *variant == Variant::Direct { 1 } else { scenario.orders };
    let runs = (0..turns).map(run).collect::<Outcome<Vec<Ran>>>()?;
    Ok(Measured { point, variant: variant.clone(), runs })
}
