//! A client in a process of its own that does as it is told, one thing after the other, and says when it is done.
//!
//! Orders are lines: `write AT LEN SEED`, `truncate SIZE`, `append LEN SEED`. Whatever goes wrong ends it.

#![forbid(unsafe_code)]

use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{Error, ErrorKind};
use forebay_proof::{pattern, process};
use std::io::{BufRead, Write};
use std::process::ExitCode;

fn unclear(order: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("cannot understand {order:?}"))
}

fn obey(file: &File, order: &str) -> Result<(), Error> {
    let (what, rest) = order.split_once(' ').ok_or_else(|| unclear(order))?;
    let numbers: Result<Vec<u64>, _> = rest.split(' ').map(str::parse).collect();
    match (what, &numbers.map_err(|_| unclear(order))?[..]) {
        ("write", &[at, len, seed]) => file.pwrite(at, &pattern(seed, len as usize)),
        ("truncate", &[size]) => file.truncate(size),
        ("append", &[len, seed]) => file.append(&pattern(seed, len as usize)).map(drop),
        _ => Err(unclear(order)),
    }
}

fn serve(client: &Client, path: &str) -> Result<(), Error> {
    let file = client.open(path, OpenOptions { create: true, ..OpenOptions::WRITE })?;
    let mut out = std::io::stdout();
    for order in std::io::stdin().lock().lines() {
        let order = order.map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        obey(&file, &order)?;
        // Nobody listens any more: the test is over.
        if writeln!(out, "done").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    process(serve)
}
