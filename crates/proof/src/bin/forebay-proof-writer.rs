//! A writer in a process of its own, for tests that kill it: writes a file piece by piece, and says how far it is.

#![forbid(unsafe_code)]

use forebay_client::blocking::Client;
use forebay_client::{ClientConfig, Credential, OpenOptions};
use forebay_model::Error;
use forebay_proof::pattern;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Not a divisor of any stripe.
const PIECE: usize = 10_007;
/// Characters in a line: a pipe holds few of them, so that nobody writes far ahead of who listens.
const LINE: usize = 1000;

fn write(address: &str, key: &str, path: &str) -> Result<(), Error> {
    let config = ClientConfig::new(address.parse()?);
    let client =
        Client::connect(ClientConfig { credential: Credential::File(PathBuf::from(key)), ..config })?;
    let file = client.open(path, OpenOptions::CREATE)?;
    let mut end = 0;
    let mut out = std::io::stdout();
    loop {
        file.pwrite(end, &pattern(end, PIECE))?;
        end += PIECE as u64;
        // Nobody listens any more: the test is over.
        if writeln!(out, "{end:>LINE$}").and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
}

#[expect(clippy::print_stderr, reason = "the test reads it")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, key, path] = &words[..] else {
        eprintln!("cannot understand {words:?}");
        return ExitCode::from(2);
    };
    match write(address, key, path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
