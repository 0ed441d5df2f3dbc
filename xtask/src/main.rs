//! Chores of the workspace: `cargo xtask test`, `soak`, `verify`, `bench`, `book`.
//!
//! **Invariant**: each chore works in a fresh clone and says what it does; `verify` changes nothing but `target/`.
//! Exit codes: 0 all is well, 1 something failed, 2 the command line made no sense.
//!
//! **Deliberately absent**: knowledge about what Forebay does. Chores know files, names and other programs only.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "chores talk to the person who started them")]

mod args;
mod bench;
mod book;
mod embedded;
mod machine;
mod markdown;
mod runner;
mod rust;
mod seed;
mod shell;
mod skips;
mod soak;
mod suite;
mod tree;
mod verify;

use args::Command;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let command = match args::parse(&words) {
        Ok(command) => command,
        Err(why) => {
            eprintln!("xtask: {why}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    let outcome = match command {
        Command::Help => {
            println!("{}", args::USAGE);
            Ok(())
        }
        Command::Test(options) => suite::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Verify(only) => verify::run(&only),
        Command::Bench(words) => bench::run(&words),
        Command::Book { html } => book::run(html),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
