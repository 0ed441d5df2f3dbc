//! A server in a process of its own, for tests that kill it. Says where it listens on its standard output, and stops
//! in order when its standard input ends: it never outlives the test that started it.

#![forbid(unsafe_code)]

use forebay_proof::{Plan, Seat};
use forebay_server::Server;
use std::io::Read;
use std::process::ExitCode;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the test reads both")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (words, seat) = words.split_at(words.len().min(Plan::WORDS));
    let Some((store, plan)) = Plan::from_words(words) else {
        eprintln!("cannot understand {words:?}");
        return ExitCode::from(2);
    };
    let mut config = plan.config(&store);
    if !seat.is_empty() {
        let Some(seat) = Seat::from_words(seat) else {
            eprintln!("cannot understand {seat:?}");
            return ExitCode::from(2);
        };
        seat.apply(&mut config);
    }
    let running = match Server::start(config) {
        Ok(running) => running,
        Err(error) => {
            eprintln!("{:?}: {error}", error.kind());
            return ExitCode::FAILURE;
        }
    };
    println!("ready");
    let stopper = running.stopper();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.stop();
    });
    match running.wait() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{:?}: {error}", error.kind());
            ExitCode::FAILURE
        }
    }
}
