//! Benchmarks: Forebay side by side with its alternatives, in one run on one machine.
//!
//! ```text
//! plan      sections, rounds and sizes
//! far       the server process: a Forebay server, and the bare sockets for comparison
//! near      the client side
//! bare      raw sockets
//! files     tmpfs and the disk's page cache
//! client_io the client's reads and writes
//! names     create, stat, unlink
//! programs  unmodified programs, with the preload library and on the mount
//! steps     small programs of our own: copies in memory, names, small files
//! places    the process that holds the mounts and directories for programs
//! pass      a pass-through mount, for comparison
//! cluster   create, stat, unlink with 1, 2 and 4 servers in one process
//! writers   many writers of one file, and of one file each
//! beyond    more data than the buffer holds
//! deployments  the same work in every deployment, by one process and by several
//! crowd     the processes of that work
//! calls     what interception of system calls costs
//! results   collected figures, medians
//! bars      the target ratios
//! report    the results as text and as JSON
//! page      the results as HTML
//! share     scenarios of jobs that share servers
//! route     scenarios of writes that are buffered, or bypass the buffer
//! drain     scenarios of drain orders
//! place     scenarios of placements
//! servers   the servers of scenarios
//! ```
//!
//! **Invariant**: every ratio is between figures of the same run, measured in turn, so that other load
//! affects both. No figure is dropped, and all files are removed, also when the benchmark is interrupted.
//!
//! **Deliberately absent**: verdicts that fail a build. A benchmark reports figures; machines differ.

#![forbid(unsafe_code)]

mod bare;
mod bars;
mod beyond;
mod calls;
mod client_io;
mod cluster;
mod crowd;
mod deployments;
mod drain;
mod failure;
mod far;
mod files;
mod names;
mod near;
mod page;
mod pass;
mod place;
mod places;
mod plan;
mod programs;
mod report;
mod results;
mod rng;
mod route;
mod servers;
mod share;
mod steps;
mod writers;

pub use crowd::Crowd;
pub use drain::{DrainedReport, drained, run as drain};
pub use failure::Failure;
pub use far::{Far, serve as serve_far};
pub use page::page;
pub use place::run as place;
pub use places::serve as serve_places;
pub use plan::{Plan, SECTIONS, Section};
pub use report::Report;
pub use route::{RoutedReport, run as route, two_jobs};
pub use share::{
    Done, Glimpse, Now, Op, Process, ShareReport, ShareReports, ShareScenario, SharedReport, duel, scenarios,
};
pub use steps::{Step, serve as serve_step};

use crate::deployments::Deployments;
use crate::near::Near;
use crate::programs::Programs;
use crate::results::Results;
use serde::Serialize;
use std::fmt;

/// The result of a scenario: text, JSON and a chart.
pub trait Charted: fmt::Display + Serialize {
    /// The chart, as SVG.
    fn picture(&self) -> String;
}

/// Result of a benchmark; an error ends the run, with a message for the user.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures all planned work in turn, round by round.
///
/// The calling program is started again with the arguments `bench-far`, `bench-places` and `bench-step`, and
/// must then call [`serve_far`], [`serve_places`] or [`serve_step`].
pub fn measure(plan: &Plan) -> Outcome<Report> {
    let near = Near::start(plan, Far::Servers(1))?;
    let programs = if plan.has(Section::Programs) { Some(Programs::start(plan, &near)?) } else { None };
    let services = if plan.has(Section::Servers) { cluster::start(plan)? } else { Vec::new() };
    let little = if plan.has(Section::Beyond) { Some(Near::start(plan, Far::Little)?) } else { None };
    let deployments =
        if plan.has(Section::Deployments) { Some(Deployments::start(plan, &near)?) } else { None };
    let mut results = Results::default();
    for round in 0..=plan.rounds {
        // The first round warms up caches, page tables and untouched regions.
        match round {
            0 => (plan.progress)("warming up and verifying the data"),
            _ => (plan.progress)(&format!("round {round} of {}", plan.rounds)),
        }
        if plan.has(Section::Data) {
            for &size in &plan.sizes {
                data(plan, &near, size, &mut results)?;
            }
        }
        if plan.has(Section::Names) {
            names::run(&near, plan.names, &mut results)?;
        }
        if plan.has(Section::Writers) {
            writers::run(&near, plan.shared, &mut results)?;
        }
        if let Some(programs) = &programs {
            programs.run(plan, round == 0, &mut results)?;
        }
        cluster::run(&services, plan.names, &mut results)?;
        if let Some(little) = &little {
            beyond::run(plan, little, &mut results)?;
        }
        if let Some(deployments) = &deployments {
            deployments.run(plan, &near, &mut results)?;
        }
        if plan.has(Section::Calls) {
            calls::run(&near, &mut results)?;
        }
        if round == 0 {
            results = Results::default();
        }
    }
    Ok(Report::of(plan, &results, near.set_up))
}

fn data(plan: &Plan, near: &Near, size: plan::Size, results: &mut Results) -> Outcome {
    for socket in plan::SOCKETS {
        bare::run(near, socket, size, results)?;
        client_io::run(near, socket, size, results)?;
    }
    files::run(plan, size, results)
}
