//! A server process for tests that kill it. Prints `ready` on its standard output, and shuts down when its standard
//! input ends, so that it never outlives its test.

#![forbid(unsafe_code)]

use forebay_backend::{Dir, Fault, Faulty};
use forebay_proof::{ClusterConfig, Drains, Plan};
use forebay_server::{Mode, Server};
use forebay_testkit::Seeded;
use parking_lot::Mutex;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the test reads both")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (words, cluster) = words.split_at(words.len().min(Plan::WORDS));
    let Some((store, plan)) = Plan::from_words(words) else {
        eprintln!("invalid arguments: {words:?}");
        return ExitCode::from(2);
    };
    let mut config = plan.config(&store);
    if !cluster.is_empty() {
        let Some(cluster) = ClusterConfig::from_words(cluster) else {
            eprintln!("invalid cluster arguments: {cluster:?}");
            return ExitCode::from(2);
        };
        cluster.apply(&mut config);
    }
    let serves = Arc::new(AtomicBool::new(false));
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(std::io::stderr).init();
    let started = match (config.backend.as_deref().and_then(|name| name.strip_prefix("dir:")), plan.drain) {
        (Some(dir), Drains::WithFaults) => Dir::open(dir).and_then(|dir| {
            let faulty = failing(dir, plan.route, serves.clone(), Plan::fault_pause_file(&store));
            Server::start_before(config.clone(), Arc::new(faulty))
        }),
        (Some(dir), Drains::Stalling) => Dir::open(dir).and_then(|dir| {
            let stalling = stalling(dir, Plan::stall_file(&store));
            Server::start_before(config.clone(), Arc::new(stalling))
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

/// Calls that only the drain makes; one in this many fails.
const DRAIN: ([&str; 9], u64) =
    (["create", "layout", "open_to_write", "set_attr", "symlink", "write", "sync", "link", "set_xattr"], 7);
/// Calls that requests wait for, too.
const ALL: ([&str; 10], u64) = (
    ["find", "list", "open", "make_dir", "unlink", "remove_dir", "rename", "truncate", "version", "read"],
    30,
);

/// A back end that answers no call while this file exists.
fn stalling(backend: Dir, stall: PathBuf) -> Faulty<Dir> {
    Faulty::new(backend, move |_| {
        while stall.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    })
}

/// A back end that fails some calls, before or after they take effect, once the server serves and unless the faults are
/// suspended: a server that cannot resolve the operations of its previous run does not start.
fn failing(backend: Dir, route: Mode, serves: Arc<AtomicBool>, calm: PathBuf) -> Faulty<Dir> {
    // A failed sync of direct writes is reported to all later syncs, so it is not injected.
    let spared = move |call: &str| route != Mode::Buffer && call == "sync";
    let rng = Mutex::new(Seeded::new().rng(0));
    Faulty::new(backend, move |call| {
        let mut rng = rng.lock();
        let among = |calls: &[&str]| calls.contains(&call) && !spared(call);
        let fails = (among(&DRAIN.0) && rng.one_in(DRAIN.1)) || (among(&ALL.0) && rng.one_in(ALL.1));
        let fault = if rng.one_in(2) { Fault::Before } else { Fault::After };
        (fails && serves.load(Ordering::Relaxed) && !calm.exists()).then_some(fault)
    })
}
