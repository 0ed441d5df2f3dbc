//! `bench`: measures throughput and fairness, with real servers and real client processes.
//!
//! ```text
//! frame      shared by all benchmarks: a scenario, a chart, interruption
//! io         comparison with sockets, tmpfs, the page cache and a bare mount (crate `bench`)
//! scenario   reads a scenario
//! stage      servers in a temporary directory
//! run        starts and ends jobs, and samples their service every 100 ms
//! route      compares what to buffer, on modelled disks
//! glimpse    the current state of a run
//! measure    evaluates the samples: shares, variation, time to fairness
//! report     a table, JSON, a chart
//! worker     one process of a job
//! drain      compares drain orders
//! place      compares placements
//! ```

mod drain;
mod frame;
mod glimpse;
mod io;
mod measure;
mod place;
mod report;
mod rng;
mod route;
mod run;
mod scenario;
mod stage;
mod worker;

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::SharedReport;
use clap::{Args, Subcommand};
pub(crate) use drain::drained;
use forebay_policy::share::Discipline;
use forebay_store::Store;
use frame::Frame;
pub(crate) use glimpse::Glimpse;
pub(crate) use io::{Far, Places, Steps};
use measure::measure;
use report::{Report, Reports};
pub(crate) use route::two_jobs;
use run::{Record, Run};
use scenario::Scenario;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
pub(crate) use worker::BenchJob;

/// How often a job runs alone, for its slowdown: the median counts.
const ALONE: usize = 3;

/// Removes the stores in a directory. Each may have mounted memory, so that the directory itself cannot be removed
/// before. A store that cannot be removed stays.
fn remove_stores(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if Store::exists(&entry.path()) {
            let _ = Store::remove(&entry.path());
        }
    }
}

/// Runs a job, and a smaller one that joins it for a while; returns their shares and due shares. `watch` gets
/// the current state.
pub(crate) fn duel(stop: &AtomicBool, watch: &mut dyn FnMut(&[Glimpse])) -> Outcome<Vec<SharedReport>> {
    let scenario = Scenario::duel();
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

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Run a scenario of jobs that share servers, or a directory of scenarios, under the policy and under fifo,
    /// and compare
    Share(Share),
    /// Measure reads, writes, metadata and unmodified programs in comparison with other ways of I/O
    Io(io::Io),
    /// Compare placements of files in a model of shared routers, servers and targets
    Place(place::Place),
    /// Compare what to buffer and what to write directly, with real servers and modelled disks
    Route(route::Route),
    /// Compare direct writes and drain orders, with real servers and data on modelled targets
    Drain(drain::Drain),
}

#[derive(Args)]
pub(crate) struct Share {
    #[command(flatten)]
    frame: Frame,
}

impl Bench {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Bench::Share(share) => share.run(),
            Bench::Io(io) => io.run(),
            Bench::Place(place) => place.run(),
            Bench::Route(route) => route.run(),
            Bench::Drain(drain) => drain.run(),
        }
    }
}

impl Share {
    fn run(&self) -> Outcome {
        let stop = frame::stop()?;
        let Frame { scenario: path, json, .. } = &self.frame;
        if !path.is_dir() {
            let scenario = Scenario::load(path)?;
            return output::show(&self.perform(path, &scenario, &stop)?, *json);
        }
        // Read all scenarios before running the first: errors are reported at once.
        let paths = scenarios(path)?;
        let all = paths.iter().map(|path| Ok((path, Scenario::load(path)?))).collect::<Outcome<Vec<_>>>()?;
        let mut reports = Vec::new();
        for (path, scenario) in &all {
            reports.push(self.perform(path, scenario, &stop)?);
        }
        output::show(&Reports { scenarios: reports }, *json)
    }

    /// Runs a scenario under every scheduler it names, and draws it.
    fn perform(&self, path: &Path, scenario: &Scenario, stop: &AtomicBool) -> Outcome<Report> {
        let mut disciplines = vec![scenario.scheduler];
        disciplines.extend(scenario.compare.iter().filter(|&&other| other != scenario.scheduler));
        let mut records: Vec<(Discipline, Record)> = Vec::new();
        for discipline in disciplines {
            let (title, policy, length) = (&scenario.title, &scenario.policy, scenario.length());
            self.frame.progress(format_args!("{title}: {policy} under {discipline} ({length:.0} s)"));
            let run = Run { scenario, discipline, only: None, stop };
            records.push((discipline, run.perform(&mut |_| {})?));
        }
        let alone = self.alone(scenario, stop)?;
        let report = Report::new(scenario, measure(scenario, &records, &alone));
        if let Some(picture) = self.frame.draw(path, || report::picture(scenario, &records))? {
            self.frame.progress(format_args!("the timeline is in {}", picture.display()));
        }
        Ok(report)
    }

    /// The time that each job with a fixed amount of work takes alone.
    fn alone(&self, scenario: &Scenario, stop: &AtomicBool) -> Outcome<Vec<Option<f64>>> {
        let mut times = Vec::new();
        for (number, job) in scenario.jobs.iter().enumerate() {
            times.push(match job.amount {
                None => None,
                Some(_) => {
                    self.frame.progress(format_args!("job {} alone, {ALONE} times", job.id));
                    let run = Run { scenario, discipline: scenario.scheduler, only: Some(number), stop };
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
fn scenarios(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let list = std::fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let list = list.map_err(|error| Failure::local("read", dir, &error))?;
    let mut paths: Vec<PathBuf> = list.iter().map(std::fs::DirEntry::path).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    if paths.is_empty() {
        return Err(Failure::Failed(format!("there is no scenario (*.toml) in {}", dir.display())));
    }
    Ok(paths)
}
