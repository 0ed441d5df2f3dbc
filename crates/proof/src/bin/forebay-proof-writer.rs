//! A writer process for tests that kill it: writes a file piece by piece, and prints its progress.

#![forbid(unsafe_code)]

use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::Error;
use forebay_proof::{pattern, process};
use std::io::Write;
use std::process::ExitCode;

/// Not a divisor of any stripe.
const PIECE: usize = 10_007;
/// Characters in a line: a pipe holds few of them, so that the writer is never far ahead of the reader.
const LINE: usize = 1000;

fn write(client: &Client, path: &str) -> Result<(), Error> {
    let file = client.open(path, OpenOptions::CREATE)?;
    let mut end = 0;
    let mut out = std::io::stdout();
    loop {
        file.pwrite(end, &pattern(end, PIECE))?;
        end += PIECE as u64;
        // The pipe is closed: the test is over.
        if writeln!(out, "{end:>LINE$}").and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
}

fn main() -> ExitCode {
    process(write)
}
