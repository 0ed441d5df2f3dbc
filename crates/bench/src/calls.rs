//! What interception costs: a raw system call of a program whose calls are intercepted, and the search for raw calls when a
//! program starts.

use crate::Outcome;
use crate::near::Near;
use crate::plan::{Party, Socket, Work};
use crate::results::{Results, timed};
use crate::steps;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const CALLS: usize = 200_000;
const STARTS: usize = 20;
/// A program with a megabyte of code that makes no raw call.
const PROGRAM: [&str; 3] = ["bash", "-c", ":"];

pub(crate) fn run(near: &Near, results: &mut Results) -> Outcome {
    let service = near.client(Socket::Unix)?.addresses.to_string();
    steps::raw_calls(Command::new("env"), Party::Plain, CALLS, results)?;
    steps::raw_calls(exec(&service, "dispatch")?, Party::Dispatch, CALLS, results)?;
    let remembered = remembered()?;
    for (how, party) in [
        ("library", Party::NoSearch),
        ("auto", Party::Library),
        // In the round that warms up the results are remembered.
        ("auto", Party::FirstSearch),
    ] {
        let mut took = std::time::Duration::ZERO;
        for _ in 0..STARTS {
            if party == Party::FirstSearch {
                // There is none where the library cannot keep one.
                let _ = std::fs::remove_file(&remembered);
            }
            let mut command = exec(&service, how)?;
            let (ended, time) = timed(|| command.args(PROGRAM).stdin(Stdio::null()).status());
            if !ended?.success() {
                return Err(format!("{}: it failed", PROGRAM.join(" ")).into());
            }
            took += time;
        }
        results.cost(Work::Start, party, took.as_secs_f64() * 1e6 / STARTS as f64);
    }
    Ok(())
}

fn exec(service: &str, how: &str) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["exec", "--config", "/dev/null", "--service", service, "--intercept", how, "--"]);
    Ok(command)
}

/// The file in which the library remembers what it has searched.
fn remembered() -> Outcome<PathBuf> {
    let shown = Command::new(std::env::current_exe()?).arg("library").output()?;
    let library = PathBuf::from(String::from_utf8(shown.stdout)?.trim_end());
    Ok(library.with_file_name("raw-calls"))
}
