//! A client process that executes commands one by one and confirms each.
//!
//! Commands are lines: `write AT LEN SEED`, `truncate SIZE`, `append LEN SEED`. The first error ends the process.

#![forbid(unsafe_code)]

use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{Error, ErrorKind};
use forebay_proof::{pattern, process};
use std::io::{BufRead, Write};
use std::process::ExitCode;

fn invalid(command: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("invalid command {command:?}"))
}

fn execute(file: &File, command: &str) -> Result<(), Error> {
    let (what, rest) = command.split_once(' ').ok_or_else(|| invalid(command))?;
    let numbers: Result<Vec<u64>, _> = rest.split(' ').map(str::parse).collect();
    match (what, &numbers.map_err(|_| invalid(command))?[..]) {
        ("write", &[at, len, seed]) => file.pwrite(at, &pattern(seed, len as usize)),
        ("truncate", &[size]) => file.truncate(size),
        ("append", &[len, seed]) => file.append(&pattern(seed, len as usize)).map(drop),
        _ => Err(invalid(command)),
    }
}

fn serve(client: &Client, path: &str) -> Result<(), Error> {
    let file = client.open(path, OpenOptions { create: true, ..OpenOptions::WRITE })?;
    let mut out = std::io::stdout();
    for command in std::io::stdin().lock().lines() {
        let command = command.map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        execute(&file, &command)?;
        // The pipe is closed: the test is over.
        if writeln!(out, "done").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    process(serve)
}
