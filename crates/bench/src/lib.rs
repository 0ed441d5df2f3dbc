//! Benchmarks: Forebay side by side with what it competes with, in one run on one machine.
//!
//! ```text
//! plan      what is measured, how often, how much
//! far       the other process: a server, and the bare sockets it is compared with
//! near      our side of it
//! bare      a socket with nothing but bytes on it
//! files     tmpfs and the disk's page cache
//! through   the client's reads and writes
//! names     create, stat, unlink
//! programs  an unmodified program, through the preload library and the mount
//! steps     small programs of our own: copies in memory, names, small files
//! places    the process that holds mounts and directories for them
//! pass      the plainest mount, for comparison
//! several   create, stat, unlink with 1, 2 and 4 servers in one process
//! writers   many writers of one file, and of one each
//! beyond    more than the buffer holds
//! board     figures gathered, medians
//! bars      the ratios that are promised
//! report    what came of it, as words and as JSON
//! page      the same to look at
//! ```
//!
//! **Invariant**: every ratio is between figures of the same run, measured in turn, so that whatever else the machine
//! does disturbs both. No figure is dropped, and nothing is left behind, also when the benchmark is interrupted.
//!
//! **Deliberately absent**: verdicts that fail a build. A benchmark says what it measured; machines differ.

#![forbid(unsafe_code)]

mod bare;
mod bars;
mod beyond;
mod board;
mod far;
mod files;
mod names;
mod near;
mod page;
mod pass;
mod places;
mod plan;
mod programs;
mod report;
mod several;
mod steps;
mod through;
mod writers;

pub use far::{Far, serve as serve_far};
pub use page::page;
pub use places::serve as serve_places;
pub use plan::{Plan, SECTIONS, Section};
pub use report::Report;
pub use steps::{Step, serve as serve_step};

use crate::board::Board;
use crate::near::Near;
use crate::programs::Programs;

/// What can go wrong in a benchmark ends it, with words for a person.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures everything that is planned, in turn, again and again.
///
/// The program that calls this is started again with the words `bench-far`, `bench-places` and `bench-step`, and must then
/// call [`serve_far`], [`serve_places`] or [`serve_step`].
pub fn measure(plan: &Plan) -> Outcome<Report> {
    let near = Near::start(plan, Far::Servers(1))?;
    let programs = if plan.has(Section::Programs) { Some(Programs::start(plan, &near)?) } else { None };
    let services = if plan.has(Section::Servers) { several::start(plan)? } else { Vec::new() };
    let little = if plan.has(Section::Beyond) { Some(Near::start(plan, Far::Little)?) } else { None };
    let mut board = Board::default();
    for round in 0..=plan.rounds {
        // The first warms up: caches, page tables, regions that were never touched.
        match round {
            0 => (plan.say)("warming up, and checking what is read back"),
            _ => (plan.say)(&format!("round {round} of {}", plan.rounds)),
        }
        if plan.has(Section::Data) {
            for &size in &plan.sizes {
                data(plan, &near, size, &mut board)?;
            }
        }
        if plan.has(Section::Names) {
            names::run(&near, plan.names, &mut board)?;
        }
        if plan.has(Section::Writers) {
            writers::run(&near, plan.shared, &mut board)?;
        }
        if let Some(programs) = &programs {
            programs.run(plan, round == 0, &mut board)?;
        }
        several::run(&services, plan.names, &mut board)?;
        if let Some(little) = &little {
            beyond::run(plan, little, &mut board)?;
        }
        if round == 0 {
            board = Board::default();
        }
    }
    Ok(Report::of(plan, &board, near.set_up))
}

fn data(plan: &Plan, near: &Near, size: plan::Size, board: &mut Board) -> Outcome {
    for socket in plan::SOCKETS {
        bare::run(near, socket, size, board)?;
        through::run(near, socket, size, board)?;
    }
    files::run(plan, size, board)
}
