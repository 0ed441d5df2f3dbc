//! `bench`: how fairly a service is shared, with real servers and real client processes.
//!
//! ```text
//! scenario   what a file says
//! stage      servers in a temporary directory
//! run        jobs come and go, and what they are served is noted every 100 ms
//! measure    what the notes mean: shares, variation, time to fairness
//! report     a table, JSON, a picture
//! worker     one process of a job
//! ```

mod measure;
mod report;
mod run;
mod scenario;
mod stage;
mod worker;

use crate::failure::{Failure, Outcome};
use crate::view::SharedReport;
use crate::{output, signals};
use clap::{Args, Subcommand};
use forebay_policy::share::Discipline;
use measure::measure;
use report::Report;
use run::{Record, Run};
use scenario::Scenario;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use worker::BenchJob;

/// Two jobs of unequal size at once, for a short while: what each got, and what it was due.
pub(crate) fn duel(stop: &AtomicBool) -> Outcome<Vec<SharedReport>> {
    let scenario = Scenario::duel();
    let run = Run { scenario: &scenario, discipline: scenario.scheduler, only: None, stop };
    let records = [(scenario.scheduler, run.perform()?)];
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
    /// Run a scenario of jobs that share servers, by policy and under fifo, and compare
    Share(Share),
}

#[derive(Args)]
pub(crate) struct Share {
    /// The scenario: a TOML file with policy, device_rate and tables named job
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Where to put the picture (SCENARIO.svg); here, unless JSON is printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn run(&self) -> Outcome {
        let Bench::Share(share) = self;
        share.run()
    }
}

impl Share {
    fn run(&self) -> Outcome {
        let scenario = Scenario::load(&self.scenario)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        signals::on_stop(move || stopped.store(true, Ordering::Relaxed))?;
        let mut disciplines = vec![scenario.scheduler];
        disciplines.extend(scenario.compare.iter().filter(|&&other| other != scenario.scheduler));
        let mut records: Vec<(Discipline, Record)> = Vec::new();
        for discipline in disciplines {
            self.say(format_args!("{} under {discipline} ({:.0} s)", scenario.policy, scenario.length()));
            let run = Run { scenario: &scenario, discipline, only: None, stop: &stop };
            records.push((discipline, run.perform()?));
        }
        let alone = self.alone(&scenario, &stop)?;
        let report = Report::new(&scenario, measure(&scenario, &records, &alone));
        output::show(&report, self.json)?;
        let dir = match (&self.out, self.json) {
            (Some(dir), _) => dir.clone(),
            (None, false) => PathBuf::from("."),
            (None, true) => return Ok(()),
        };
        let stem = self.scenario.file_stem().unwrap_or_default();
        let path = dir.join(stem).with_added_extension("svg");
        std::fs::create_dir_all(&dir).map_err(|error| Failure::local("make", &dir, &error))?;
        let picture = report::picture(&scenario, &records);
        std::fs::write(&path, picture).map_err(|error| Failure::local("write", &path, &error))?;
        self.say(format_args!("the timeline is in {}", path.display()));
        Ok(())
    }

    /// How long each job with a fixed amount of work takes when it is alone.
    fn alone(&self, scenario: &Scenario, stop: &AtomicBool) -> Outcome<Vec<Option<f64>>> {
        let mut times = Vec::new();
        for (number, job) in scenario.jobs.iter().enumerate() {
            times.push(match job.amount {
                None => None,
                Some(_) => {
                    self.say(format_args!("job {} alone", job.id));
                    let discipline = scenario.scheduler;
                    let run = Run { scenario, discipline, only: Some(number), stop };
                    run.perform()?.took[number]
                }
            });
        }
        Ok(times)
    }

    fn say(&self, text: std::fmt::Arguments<'_>) {
        if !self.json {
            output::note(text);
        }
    }
}
