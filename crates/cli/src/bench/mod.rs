//! `bench`: how fast Forebay is and how fairly it is shared, with real servers and real client processes.
//!
//! ```text
//! frame      what all of them have: a scenario, a picture, an end
//! io         side by side with sockets, tmpfs, the page cache and a bare mount (crate `bench`)
//! scenario   what a file says
//! stage      servers in a temporary directory
//! run        jobs come and go, and what they are served is noted every 100 ms
//! route      what it is worth to buffer only what disks do not like
//! glimpse    what goes on just now
//! measure    what the notes mean: shares, variation, time to fairness
//! report     a table, JSON, a picture
//! worker     one process of a job
//! drain      what the order of a drain is worth
//! place      what placement is worth
//! ```

mod drain;
mod frame;
mod glimpse;
mod io;
mod lot;
mod measure;
mod place;
mod report;
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

/// How often a job is run alone, for its slowdown: the middle one counts.
const ALONE: usize = 3;

/// A job, and a smaller one that joins it for a while: what each got, and what it was due. `watch` is shown what goes
/// on.
pub(crate) fn duel(stop: &AtomicBool, watch: &mut dyn FnMut(&[Glimpse])) -> Outcome<Vec<SharedReport>> {
    let scenario = Scenario::duel();
    let run = Run { scenario: &scenario, discipline: scenario.scheduler, only: None, stop };
    let records = [(scenario.scheduler, run.perform(watch)?)];
    let measured = measure(&scenario, &records, &[None, None]).remove(0);
    let told = scenario.jobs.iter().zip(measured.jobs).map(|(plan, job)| SharedReport {
        label: job.id,
        nodes: plan.job.nodes,
        throughput: job.throughput,
        share: job.share.unwrap_or(0.0),
        due: job.due.unwrap_or(0.0),
    });
    Ok(told.collect())
}

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Run a scenario of jobs that share servers, or a directory of them, by policy and under fifo, and compare
    Share(Share),
    /// Measure reads, writes, names and unmodified programs side by side with what they compete with
    Io(io::Io),
    /// Compare placements of files over targets in a model of routers, servers and targets that are shared
    Place(place::Place),
    /// Compare what to buffer and what to send on, with real servers before modelled disks
    Route(route::Route),
    /// Compare direct writes and orders of draining, with real servers and bytes on modelled targets
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
        // All are read before the first is run: a typo is told at once.
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
            self.frame.say(format_args!("{title}: {policy} under {discipline} ({length:.0} s)"));
            let run = Run { scenario, discipline, only: None, stop };
            records.push((discipline, run.perform(&mut |_| {})?));
        }
        let alone = self.alone(scenario, stop)?;
        let report = Report::new(scenario, measure(scenario, &records, &alone));
        if let Some(picture) = self.frame.draw(path, || report::picture(scenario, &records))? {
            self.frame.say(format_args!("the timeline is in {}", picture.display()));
        }
        Ok(report)
    }

    /// How long each job with a fixed amount of work takes when it is alone.
    fn alone(&self, scenario: &Scenario, stop: &AtomicBool) -> Outcome<Vec<Option<f64>>> {
        let mut times = Vec::new();
        for (number, job) in scenario.jobs.iter().enumerate() {
            times.push(match job.amount {
                None => None,
                Some(_) => {
                    self.frame.say(format_args!("job {} alone, {ALONE} times", job.id));
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

/// The scenarios in a directory, by name.
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
