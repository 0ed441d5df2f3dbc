//! A server in a process of its own, for tests that kill it. Says where it listens on its standard output, and stops
//! in order when its standard input ends: it never outlives the test that started it.

#![forbid(unsafe_code)]

use forebay_backend::{Dir, Fault, Faulty};
use forebay_dice::Seeded;
use forebay_proof::{Drains, Plan, Seat};
use forebay_server::{Mode, Server};
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tracing_subscriber::filter::LevelFilter;

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
    let serves = Arc::new(AtomicBool::new(false));
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(std::io::stderr).init();
    let started = match (config.backend.as_deref().and_then(|name| name.strip_prefix("dir:")), plan.drain) {
        (Some(dir), Drains::WithFaults) => Dir::open(dir).and_then(|dir| {
            let faulty = failing(dir, plan.route, serves.clone(), Plan::calm(&store));
            Server::start_before(config.clone(), Arc::new(faulty))
        }),
        _ => Server::start(config),
    };
    let running = match started {
        Ok(running) => running,
        Err(error) => {
            eprintln!("{:?}: {error}", error.kind());
            return ExitCode::FAILURE;
        }
    };
    println!("ready");
    serves.store(true, Ordering::Relaxed);
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

/// Calls that only the drain makes, and how many of them fail: one in so many.
const DRAIN: ([&str; 9], u64) =
    (["create", "layout", "open_to_write", "set_attr", "symlink", "write", "sync", "link", "set_xattr"], 7);
/// Calls that whoever asks for something waits for, too.
const ALL: ([&str; 10], u64) = (
    ["find", "list", "open", "make_dir", "unlink", "remove_dir", "rename", "truncate", "version", "read"],
    30,
);

/// A back end that fails some of all calls, before or after it has done them, once the server serves and as long as nobody
/// wants it calm: a server that cannot finish what its earlier life began does not start.
fn failing(backend: Dir, route: Mode, serves: Arc<AtomicBool>, calm: PathBuf) -> Faulty<Dir> {
    // What went past the buffer and cannot be synced is told to whoever syncs, for ever.
    let spared = move |call: &str| route != Mode::Buffer && call == "sync";
    let dice = Mutex::new(Seeded::new().dice(0));
    Faulty::new(backend, move |call| {
        let mut dice = dice.lock().unwrap_or_else(PoisonError::into_inner);
        let among = |calls: &[&str]| calls.contains(&call) && !spared(call);
        let fails = (among(&DRAIN.0) && dice.one_in(DRAIN.1)) || (among(&ALL.0) && dice.one_in(ALL.1));
        let fault = if dice.one_in(2) { Fault::Before } else { Fault::After };
        (fails && serves.load(Ordering::Relaxed) && !calm.exists()).then_some(fault)
    })
}
