//! The command line.

mod plan;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

/// Forebay: a burst-buffer file system.
#[derive(Parser, Debug)]
#[command(name = "forebay", version)]
enum Forebay {
    /// How large must the buffer be, and when should it empty?
    Plan(plan::PlanArgs),
}

fn main() -> ExitCode {
    let Forebay::Plan(args) = Forebay::parse();
    match plan::run(&args) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "forebay: {error}");
            ExitCode::FAILURE
        }
    }
}
