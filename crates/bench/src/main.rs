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
//! places    the process that holds mounts and directories for it
//! pass      the plainest mount, for comparison
//! several   create, stat, unlink with 1, 2 and 4 servers in one process
//! writers   many writers of one file, and of one each
//! board     figures gathered, medians
//! report    tables, bars, JSON
//! ```
//!
//! **Invariant**: every ratio is between figures of the same run, measured in turn, so that whatever else the machine
//! does disturbs both. Nothing is left behind, also when the benchmark is interrupted.
//!
//! **Deliberately absent**: verdicts that fail a build. A benchmark says what it measured; machines differ.

#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "figures are for the person who asked for them"
)]

mod bare;
mod board;
mod far;
mod files;
mod names;
mod near;
mod pass;
mod places;
mod plan;
mod programs;
mod report;
mod several;
mod through;
mod writers;

use crate::board::Board;
use crate::near::Near;
use crate::plan::{Plan, Section};
use crate::programs::Programs;
use std::process::ExitCode;

/// What can go wrong in a benchmark ends it, with words for a person.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str =
    "usage: forebay-bench io [--quick] [--json] [data] [names] [writers] [programs] [servers]";

enum Command {
    Io { plan: Plan, json: bool },
    FarSide { servers: u16 },
    Places { service: String },
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let command = match parse(&words) {
        Ok(command) => command,
        Err(why) => {
            eprintln!("forebay-bench: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match command {
        Command::Io { plan, json } => io(&plan, json),
        Command::FarSide { servers } => far::serve(servers),
        Command::Places { service } => places::serve(&service),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("forebay-bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> Result<Command, String> {
    match words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("io", rest)) => {
            let (mut quick, mut json, mut sections) = (false, false, Vec::new());
            for word in rest {
                match word.as_str() {
                    "--quick" => quick = true,
                    "--json" => json = true,
                    "data" => sections.push(Section::Data),
                    "names" => sections.push(Section::Names),
                    "writers" => sections.push(Section::Writers),
                    "programs" => sections.push(Section::Programs),
                    "servers" => sections.push(Section::Servers),
                    other => return Err(format!("unknown word {other:?}")),
                }
            }
            Ok(Command::Io { plan: Plan::new(quick, sections), json })
        }
        Some((far::WORD, [servers])) => match servers.parse() {
            Ok(servers) => Ok(Command::FarSide { servers }),
            Err(_) => Err(format!("{servers:?} is not a number of servers")),
        },
        Some((places::WORD, [service])) => Ok(Command::Places { service: service.clone() }),
        Some((other, _)) => Err(format!("there is no benchmark {other:?}")),
        None => Err("which benchmark?".to_owned()),
    }
}

fn io(plan: &Plan, json: bool) -> Outcome {
    let near = Near::start(1)?;
    let programs = if plan.has(Section::Programs) { Programs::start(&near)? } else { None };
    let services = if plan.has(Section::Servers) { several::start()? } else { Vec::new() };
    let mut board = Board::default();
    for round in 0..=plan.rounds {
        // The first warms up: caches, page tables, regions that were never touched.
        match round {
            0 => eprintln!("warming up"),
            _ => eprintln!("round {round} of {}", plan.rounds),
        }
        if plan.has(Section::Data) {
            for &size in &plan.sizes {
                data(&near, size, &mut board)?;
            }
        }
        if plan.has(Section::Names) {
            names::run(&near, plan.names, &mut board)?;
        }
        if plan.has(Section::Writers) {
            writers::run(&near, plan.shared, &mut board)?;
        }
        if let Some(programs) = &programs {
            plan.sizes.iter().try_for_each(|&size| programs.run(size, &mut board))?;
        }
        several::run(&services, plan.names, &mut board)?;
        if round == 0 {
            board = Board::default();
        }
    }
    if json {
        println!("{}", report::json(&board));
    } else {
        print!("{}", report::text(&board));
    }
    Ok(())
}

fn data(near: &Near, size: plan::Size, board: &mut Board) -> Outcome {
    for socket in plan::SOCKETS {
        bare::run(near, socket, size, board)?;
        through::run(near, socket, size, board)?;
    }
    files::run(size, board)
}
