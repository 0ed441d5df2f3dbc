//! `bench place`: what placement is worth, in a model of resources that are shared.
//!
//! ```text
//! scenario   what a file says: a system, a job, how often
//! play       one repetition: other nodes, other jobs in the way, each placement in turn
//! real       the same with real bytes on modelled targets
//! report     a table and JSON
//! picture    in the manner of the paper's figures
//! ```

mod picture;
mod play;
mod real;
mod report;
mod scenario;

use crate::failure::{Failure, Outcome};
use crate::output;
use clap::Args;
use report::Report;
use scenario::Scenario;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Place {
    /// The scenario: a TOML file with a pattern, numbers of nodes and a system
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Where to put the picture (SCENARIO.svg); here, unless JSON is printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Place {
    pub(super) fn run(&self) -> Outcome {
        let scenario = Scenario::load(&self.scenario)?;
        let played = play::all(&scenario)?;
        let real = scenario.real.as_ref().map(|real| real::play(real, scenario.pattern, scenario.seed));
        let report = Report::new(&scenario, played, real.transpose()?.unwrap_or_default());
        let dir = match (&self.out, self.json) {
            (Some(dir), _) => dir.clone(),
            (None, false) => PathBuf::from("."),
            (None, true) => return output::show(&report, true),
        };
        let name = self.scenario.file_stem().unwrap_or_default();
        let picture = dir.join(name).with_added_extension("svg");
        std::fs::create_dir_all(&dir).map_err(|error| Failure::local("make", &dir, &error))?;
        std::fs::write(&picture, picture::picture(&report))
            .map_err(|error| Failure::local("write", &picture, &error))?;
        output::show(&report, self.json)
    }
}
