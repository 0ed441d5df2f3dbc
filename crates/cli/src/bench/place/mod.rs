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

use super::frame::Frame;
use crate::failure::Outcome;
use crate::output;
use clap::Args;
use report::Report;
use scenario::Scenario;

#[derive(Args)]
pub(crate) struct Place {
    #[command(flatten)]
    frame: Frame,
}

impl Place {
    pub(super) fn run(&self) -> Outcome {
        let scenario = Scenario::load(&self.frame.scenario)?;
        let played = play::all(&scenario)?;
        let real = scenario.real.as_ref().map(|real| real::play(real, scenario.pattern, scenario.seed));
        let report = Report::new(&scenario, played, real.transpose()?.unwrap_or_default());
        self.frame.draw(&self.frame.scenario, || picture::picture(&report))?;
        output::show(&report, self.frame.json)
    }
}
