//! `forebay sim`: simulates a machine with the daemon's own policies.

use crate::failure::{Failure, Outcome};
use crate::output;
use forebay_report::sim::{Devices, Read, Report, read};
use forebay_sim::World;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The device models of targets.
pub(crate) fn devices() -> Devices {
    ["ost", "hdd"].map(|name| (name, forebay_backend::device(name)))
}

/// Simulate a scenario in virtual time: jobs, servers, drains, targets, failures
#[derive(clap::Args)]
pub(crate) struct Sim {
    /// The scenario, in TOML
    scenario: PathBuf,
    /// Seed of the random generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write report.json, series.csv and charts into a directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl Sim {
    /// Runs the simulation.
    pub(crate) fn run(self) -> Outcome {
        let text = std::fs::read_to_string(&self.scenario)
            .map_err(|error| Failure::local("read", &self.scenario, &error))?;
        let name = self.scenario.display().to_string();
        let Read { title, names, plan } = read(&name, &text, &devices()).map_err(Failure::misread)?;
        let start = Instant::now();
        let mut world = World::new(&plan, self.seed).map_err(|fault| Failure::Failed(fault.to_string()))?;
        while world.step() {}
        let seen = world.report();
        let took = start.elapsed().as_secs_f64();
        let report = Report::new(title, self.seed, names, &seen);
        if let Some(dir) = &self.out {
            std::fs::create_dir_all(dir).map_err(|error| Failure::local("create", dir, &error))?;
            let files = report.files(&seen);
            let files = files.map_err(|error| Failure::Failed(format!("cannot write as JSON: {error}")))?;
            for (name, text) in files {
                write(&dir.join(name), &text)?;
            }
        }
        output::show(&report, self.json)?;
        if !self.json {
            let rate = seen.events as f64 / took / 1e6;
            output::note(format_args!(
                "{} events in {took:.1} s, {rate:.2} million per second; peak memory: {}",
                seen.events,
                memory()
            ));
        }
        Ok(())
    }
}

/// The peak memory of this process.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("unknown".into(), |text| text.trim().to_owned())
}

fn write(path: &Path, text: &str) -> Outcome {
    std::fs::write(path, text).map_err(|error| Failure::local("write", path, &error))
}
