//! What every benchmark of a scenario has: its file, where its picture goes, and an end when somebody asks for one.

use crate::failure::{Failure, Outcome};
use crate::{output, signals};
use clap::Args;
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
    /// Where to put the picture (SCENARIO.svg); here, unless JSON is printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Frame {
    /// Puts the picture of a scenario where it belongs, and says where that is; without a place there is none.
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

    /// A word for a person who waits.
    pub(super) fn say(&self, text: std::fmt::Arguments<'_>) {
        if !self.json {
            output::note(text);
        }
    }
}

/// True once somebody wants this to end.
pub(super) fn stop() -> Outcome<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    signals::on_stop(move || stopped.store(true, Ordering::Relaxed))?;
    Ok(stop)
}
