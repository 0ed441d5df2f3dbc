//! `bench route`: what it is worth to buffer only what disks do not like, with real servers before modelled disks.
//!
//! ```text
//! scenario   what a file says: disks, a network, patterns, and what is varied
//! play       one run: a server, writers, bursts
//! report     a table, JSON, a picture
//! two        two jobs, for the demo
//! ```

mod play;
mod report;
mod scenario;
mod two;

use crate::failure::{Failure, Outcome};
use crate::{output, signals};
use clap::Args;
use report::{Report, Run};
use scenario::Scenario;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use two::two_jobs;

#[derive(Args)]
pub(crate) struct Route {
    /// The scenario: a TOML file with ways, writers, capacities and bursts
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Where to put the picture (SCENARIO.svg); here, unless JSON is printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Route {
    pub(super) fn run(&self) -> Outcome {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        signals::on_stop(move || stopped.store(true, Ordering::Relaxed))?;
        let scenario = Scenario::load(&self.scenario)?;
        let mut runs = Vec::new();
        for point in scenario.points() {
            for &way in &scenario.ways {
                let ran = play::run(&scenario, point, way, &stop)?;
                runs.push(Run::new(&scenario, point, way, &ran));
            }
        }
        let report = Report::new(&scenario, runs);
        let dir = match (&self.out, self.json) {
            (Some(dir), _) => dir.clone(),
            (None, false) => PathBuf::from("."),
            (None, true) => return output::show(&report, true),
        };
        let name = self.scenario.file_stem().unwrap_or_default();
        let picture = dir.join(name).with_added_extension("svg");
        std::fs::create_dir_all(&dir).map_err(|error| Failure::local("make", &dir, &error))?;
        std::fs::write(&picture, report.picture())
            .map_err(|error| Failure::local("write", &picture, &error))?;
        output::show(&report, self.json)
    }
}
