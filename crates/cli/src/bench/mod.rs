//! `bench`: measures throughput and fairness, with real servers and real client processes (crate `bench`).
//!
//! ```text
//! frame      shared by all benchmarks of scenarios: a scenario, a chart, interruption
//! io         comparison with sockets, tmpfs, the page cache and a bare mount
//! worker     one process of a job
//! ```

mod frame;
mod io;
mod worker;

use crate::failure::Outcome;
use crate::output;
use clap::{Args, Subcommand};
use forebay_bench::{Charted, ShareReport, ShareReports, ShareScenario};
use frame::Frame;
pub(crate) use io::{Far, Places, Steps};
use std::path::Path;
use std::sync::atomic::AtomicBool;
pub(crate) use worker::BenchJob;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Run a scenario of jobs that share servers, or a directory of scenarios, under the policy and under fifo,
    /// and compare
    Share(Share),
    /// Measure reads, writes, metadata and unmodified programs in comparison with other ways of I/O
    Io(io::Io),
    /// Compare placements of files in a model of shared routers, servers and targets
    Place(Place),
    /// Compare what to buffer and what to write directly, with real servers and modelled disks
    Route(Route),
    /// Compare direct writes and drain orders, with real servers and data on modelled targets
    Drain(Drain),
}

#[derive(Args)]
pub(crate) struct Share {
    #[command(flatten)]
    frame: Frame,
}

#[derive(Args)]
pub(crate) struct Place {
    #[command(flatten)]
    frame: Frame,
}

#[derive(Args)]
pub(crate) struct Route {
    #[command(flatten)]
    frame: Frame,
}

#[derive(Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    frame: Frame,
}

impl Bench {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Bench::Share(share) => share.run(),
            Bench::Io(io) => io.run(),
            Bench::Place(place) => place.frame.show(&forebay_bench::place(&place.frame.scenario)?),
            Bench::Route(Route { frame }) => {
                frame.show(&forebay_bench::route(&frame.scenario, &*frame::stop()?)?)
            }
            Bench::Drain(Drain { frame }) => {
                let progress = |text: std::fmt::Arguments<'_>| frame.progress(text);
                frame.show(&forebay_bench::drain(&frame.scenario, &*frame::stop()?, &progress)?)
            }
        }
    }
}

impl Share {
    fn run(&self) -> Outcome {
        let stop = frame::stop()?;
        let Frame { scenario: path, json, .. } = &self.frame;
        if !path.is_dir() {
            let scenario = ShareScenario::load(path)?;
            return output::show(&self.perform(path, &scenario, &stop)?, *json);
        }
        // Read all scenarios before running the first: errors are reported at once.
        let paths = forebay_bench::scenarios(path)?;
        let all =
            paths.iter().map(|path| Ok((path, ShareScenario::load(path)?))).collect::<Outcome<Vec<_>>>()?;
        let mut reports = Vec::new();
        for (path, scenario) in &all {
            reports.push(self.perform(path, scenario, &stop)?);
        }
        output::show(&ShareReports { scenarios: reports }, *json)
    }

    /// Runs a scenario under every scheduler it names, and draws it.
    fn perform(&self, path: &Path, scenario: &ShareScenario, stop: &AtomicBool) -> Outcome<ShareReport> {
        let report = scenario.run(stop, &|text| self.frame.progress(text))?;
        if let Some(picture) = self.frame.draw(path, || report.picture())? {
            self.frame.progress(format_args!("the timeline is in {}", picture.display()));
        }
        Ok(report)
    }
}
