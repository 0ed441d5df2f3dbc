//! What all benchmarks of a scenario share: the file, the chart, and interruption.

use crate::failure::{Failure, Outcome};
use crate::{output, signals};
use clap::Args;
use forebay_bench::Charted;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Args)]
pub(super) struct Frame {
    /// The scenario: a TOML file, such as those in the directory scenarios
    #[arg(value_name = "SCENARIO")]
    pub(super) scenario: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Directory for the chart (SCENARIO.svg); the current one unless JSON is printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Frame {
    /// Writes the chart of a scenario and returns its path; `None` if no chart is requested.
    pub(super) fn draw(&self, scenario: &Path, picture: impl FnOnce() -> String) -> Outcome<Option<PathBuf>> {
        let dir = match (&self.out, self.json) {
            (Some(dir), _) => dir.clone(),
            (None, false) => PathBuf::from("."),
            (None, true) => return Ok(None),
        };
        let path = dir.join(scenario.file_stem().unwrap_or_default()).with_added_extension("svg");
        std::fs::create_dir_all(&dir).map_err(|error| Failure::local("make", &dir, &error))?;
        std::fs::write(&path, picture()).map_err(|error| Failure::local("write", &path, &error))?;
        Ok(Some(path))
    }

    /// Draws and prints the result of the scenario.
    pub(super) fn show(&self, report: &impl Charted) -> Outcome {
        self.draw(&self.scenario, || report.picture())?;
        output::show(report, self.json)
    }

    /// Prints progress, unless JSON is printed.
    pub(super) fn progress(&self, text: std::fmt::Arguments<'_>) {
        if !self.json {
            output::note(text);
        }
    }
}

/// A flag that is set when the process is asked to stop.
pub(super) fn stop() -> Outcome<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    signals::on_stop(move || stopped.store(true, Ordering::Relaxed))?;
    Ok(stop)
}
