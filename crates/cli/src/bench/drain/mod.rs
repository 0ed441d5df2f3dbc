//! `bench drain`: what the order of a drain is worth, with real servers and real bytes on modelled targets.
//!
//! ```text
//! scenario   what a file says: targets, processes, jobs, and the ways that are compared
//! variant    a way: straight to the targets, or drained in some order
//! ground     targets in memory, and who writes what of which file
//! direct     every process writes to the targets itself
//! nodes      which server is whose: each buffers what the processes of its node write
//! buffered   everything is written to servers, and drained
//! report     a table, JSON, a picture
//! bars       whether it is as good as it should be
//! ```
//!
//! **Invariant**: all ways of a scenario write the same bytes to files of the same layout, on targets that are modelled the
//! same; bandwidths and times are those of the modelled world.

mod bars;
mod buffered;
mod direct;
mod ground;
mod nodes;
mod report;
mod scenario;
mod variant;

use super::frame::{self, Frame};
use crate::failure::Outcome;
use crate::keys::File;
use crate::output;
use crate::view::DrainedReport;
use clap::Args;
use report::Report;
use scenario::{Point, Scenario};
use std::sync::atomic::AtomicBool;
use variant::Variant;

/// Three jobs of very different sizes, for the demo: large enough that the order shows, and not the time to begin and end.
const DEMO: &str = "compare = ['arrival', 'trio quantum=8MiB']\ntargets = 4\nprocesses = 16\ngrain = 64\n\
                    [[job]]\nsize = '12MiB'\n[[job]]\nsize = '48MiB'\n[[job]]\nsize = '192MiB'\n";

/// The same data of three jobs drained as it came, and as the arbiter likes.
pub(crate) fn drained(stop: &AtomicBool) -> Outcome<Vec<DrainedReport>> {
    let scenario = scenario::read(&File { name: "the demo", text: DEMO })?;
    let mut measured = Vec::new();
    for point in scenario.points() {
        for variant in &scenario.compare {
            measured.push(measure(&scenario, point, variant, stop)?);
        }
    }
    Ok(Report::new(&scenario, &measured).told())
}

#[derive(Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    frame: Frame,
}

/// What one run came to, in the time and bytes of this machine.
struct Ran {
    /// From when each job's bytes were asked to leave until they were out, in seconds.
    jobs: Vec<f64>,
    bytes: u64,
}

/// All runs of a way at a point.
struct Measured {
    point: Point,
    variant: Variant,
    runs: Vec<Ran>,
}

impl Drain {
    pub(super) fn run(&self) -> Outcome {
        let stop = frame::stop()?;
        let scenario = Scenario::load(&self.frame.scenario)?;
        let mut measured = Vec::new();
        for point in scenario.points() {
            for variant in &scenario.compare {
                let Point { pattern, targets, processes, servers } = point;
                let word = pattern.word();
                self.frame.say(format_args!(
                    "{word}, {processes} processes a job, {servers} servers, {targets} targets: {variant}"
                ));
                measured.push(measure(&scenario, point, variant, &stop)?);
            }
        }
        let report = Report::new(&scenario, &measured);
        self.frame.draw(&self.frame.scenario, || report.picture())?;
        output::show(&report, self.frame.json)
    }
}

fn measure(scenario: &Scenario, point: Point, variant: &Variant, stop: &AtomicBool) -> Outcome<Measured> {
    let run = |turn| match variant {
        Variant::Direct => direct::run(scenario, point),
        Variant::Drain(way) => buffered::run(scenario, point, way, turn, stop),
    };
    // Whoever writes at once comes in no order.
    let turns = if *variant == Variant::Direct { 1 } else { scenario.orders };
    let runs = (0..turns).map(run).collect::<Outcome<Vec<Ran>>>()?;
    Ok(Measured { point, variant: variant.clone(), runs })
}
