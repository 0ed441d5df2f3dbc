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

use super::frame::{self, Frame};
use crate::failure::Outcome;
use crate::output;
use clap::Args;
use report::{Report, Run};
use scenario::Scenario;
pub(crate) use two::two_jobs;

#[derive(Args)]
pub(crate) struct Route {
    #[command(flatten)]
    frame: Frame,
}

impl Route {
    pub(super) fn run(&self) -> Outcome {
        let stop = frame::stop()?;
        let scenario = Scenario::load(&self.frame.scenario)?;
        let mut runs = Vec::new();
        for point in scenario.points() {
            for &way in &scenario.ways {
                let ran = play::run(&scenario, point, way, &stop)?;
                runs.push(Run::new(&scenario, point, way, &ran));
            }
        }
        let report = Report::new(&scenario, runs);
        self.frame.draw(&self.frame.scenario, || report.picture())?;
        output::show(&report, self.frame.json)
    }
}
