//! `bench share`: jobs that share servers, by real servers and real client processes.
//!
//! ```text
//! scenario   reads a scenario
//! stage      servers in a temporary directory
//! run        starts and ends jobs, and samples their service every 100 ms
//! glimpse    the current state of a run
//! measure    evaluates the samples: shares, variation, time to fairness
//! report     a table, JSON, a chart
//! process    one process of a job
//! ```

mod glimpse;
mod measure;
mod process;
mod report;
mod run;
mod scenario;
mod stage;

use crate::Charted;
use crate::failure::{Failure, Outcome};
use forebay_policy::share::Discipline;
pub use glimpse::{Glimpse, Now};
use measure::measure;
pub use process::{Done, Process};
pub use report::{ShareReport, ShareReports};
use run::{Record, Run};
pub use scenario::{Op, ShareScenario};
use serde::Serialize;
use std::fmt::Arguments;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// How often a job runs alone, for its slowdown: the median counts.
const ALONE: usize = 3;

/// A job that shared the service with another job.
#[derive(Serialize)]
pub struct SharedReport {
    /// Its name.
    pub label: String,
    /// Nodes that it has.
    pub nodes: u32,
    /// Bytes per second.
    pub throughput: f64,
    /// Its share of the bytes served while both jobs ran.
    pub share: f64,
    /// The share that the policy gives it.
    pub due: f64,
}

/// Runs a job, and a smaller one that joins it for a while; returns their shares and due shares. `watch` gets
/// the current state.
///
/// # Errors
///
/// If the run fails or is stopped.
pub fn duel(stop: &AtomicBool, watch: &mut dyn FnMut(&[Glimpse])) -> Outcome<Vec<SharedReport>> {
    let scenario = ShareScenario::duel();
    let run = Run { scenario: &scenario, discipline: scenario.scheduler, only: None, stop };
    let records = [(scenario.scheduler, run.perform(watch)?)];
    let measured = measure(&scenario, &records, &[None, None]).remove(0);
    let reports = scenario.jobs.iter().zip(measured.jobs).map(|(plan, job)| SharedReport {
        label: job.id,
        nodes: plan.job.nodes,
        throughput: job.throughput,
        share: job.share.unwrap_or(0.0),
        due: job.due.unwrap_or(0.0),
    });
    Ok(reports.collect())
}

impl ShareScenario {
    /// Runs the scenario under every scheduler it names; each run is announced to `progress`.
    ///
    /// # Errors
    ///
    /// If a run fails or is stopped.
    pub fn run(&self, stop: &AtomicBool, progress: &dyn Fn(Arguments<'_>)) -> Outcome<ShareReport> {
        let mut disciplines = vec![self.scheduler];
        disciplines.extend(self.compare.iter().filter(|&&other| other != self.scheduler));
        let mut records: Vec<(Discipline, Record)> = Vec::new();
        for discipline in disciplines {
            let (title, policy, length) = (&self.title, &self.policy, self.length());
            progress(format_args!("{title}: {policy} under {discipline} ({length:.0} s)"));
            let run = Run { scenario: self, discipline, only: None, stop };
            records.push((discipline, run.perform(&mut |_| {})?));
        }
        let alone = self.alone(stop, progress)?;
        Ok(ShareReport::new(self, measure(self, &records, &alone), &records))
    }

    /// The time that each job with a fixed amount of work takes alone.
    fn alone(&self, stop: &AtomicBool, progress: &dyn Fn(Arguments<'_>)) -> Outcome<Vec<Option<f64>>> {
        let mut times = Vec::new();
        for (number, job) in self.jobs.iter().enumerate() {
            times.push(match job.amount {
                None => None,
                Some(_) => {
                    progress(format_args!("job {} alone, {ALONE} times", job.id));
                    let run = Run { scenario: self, discipline: self.scheduler, only: Some(number), stop };
                    let once = |_| Ok(run.perform(&mut |_| {})?.own[number].map(|own| own.seconds));
                    let mut took = (0..ALONE).map(once).collect::<Outcome<Vec<_>>>()?;
                    took.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
                    took[ALONE / 2]
                }
            });
        }
        Ok(times)
    }
}

/// The scenarios in a directory, sorted by name.
///
/// # Errors
///
/// If the directory cannot be read or has none.
pub fn scenarios(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let list = std::fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let list = list.map_err(|error| Failure::local("read", dir, error))?;
    let mut paths: Vec<PathBuf> = list.iter().map(std::fs::DirEntry::path).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    if paths.is_empty() {
        return Err(Failure::Failed(format!("there is no scenario (*.toml) in {}", dir.display())));
    }
    Ok(paths)
}

impl Charted for ShareReport {
    fn picture(&self) -> String {
        self.picture.clone()
    }
}
