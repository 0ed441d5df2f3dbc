//! Two jobs on the server's machine that write by shared memory. A full buffer is shared by policy, and nobody is held
//! back for a job that does not come, or while there is room.
//!
//! The back end takes a write when it is let, and it is let only when those who are compared wait for room: how fast
//! anybody is does not matter.

use crate::site::job;
use forebay_backend::{Faulty, Memory};
use forebay_client::blocking::{Client, File};
use forebay_client::{Address, ClientConfig, Credential, OpenOptions};
use forebay_model::Bytes;
use forebay_server::{Config, Draining, Medium, Running, Server};
use forebay_wire::Status;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What is written at once: a slab of these buffers has room for several.
const PIECE: usize = 16 << 10;
/// Most of one write behind.
const BEHIND: u64 = 256 << 10;
/// Whatever has not happened by then never will.
const PATIENCE: Duration = Duration::from_secs(120);
const LARGE: &str = "large ada astro 3";
const SMALL: &str = "small bob bio 1";

/// Lets writes through to the back end, so many at a time.
#[derive(Default)]
struct Gate {
    left: Mutex<u64>,
    moved: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut left = self.moved.wait_while(self.left.lock().unwrap(), |left| *left == 0).unwrap();
        *left -= 1;
    }

    fn let_in(&self, writes: u64) {
        *self.left.lock().unwrap() = writes;
        self.moved.notify_all();
    }

    fn is_shut(&self) -> bool {
        *self.left.lock().unwrap() == 0
    }
}

struct Near {
    config: Config,
    gate: Arc<Gate>,
    over: AtomicBool,
    _running: Running,
    _dir: TempDir,
}

impl Drop for Near {
    fn drop(&mut self) {
        self.end();
    }
}

impl Near {
    fn new(capacity: Bytes) -> Near {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            capacity,
            region: Some(Bytes::kib(512)),
            medium: Medium::Disk,
            listen: "127.0.0.1:0".parse().unwrap(),
            policy: "size-fair".parse().unwrap(),
            drain: Draining {
                write: Bytes(BEHIND),
                patience: Duration::from_secs(600),
                ..Draining::default()
            },
            ..Config::for_store(dir.path().join("store"))
        };
        let gate = Arc::new(Gate::default());
        let behind = {
            let gate = gate.clone();
            Faulty::new(Memory::default(), move |call| {
                if call == "write" {
                    gate.pass();
                }
                None
            })
        };
        let running = Server::start_before(config.clone(), Arc::new(behind)).unwrap();
        Near { config, gate, over: AtomicBool::new(false), _running: running, _dir: dir }
    }

    fn client(&self, described: &str) -> Client {
        let config = ClientConfig {
            job: job(described),
            credential: Credential::File(self.config.key_path()),
            ..ClientConfig::new(Address::Unix(self.config.socket_path()))
        };
        Client::connect(config).unwrap()
    }

    /// Everybody finishes what it has begun.
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.gate.let_in(u64::MAX);
    }

    /// Lets some room be made if this holds, once what was let in before is in.
    fn make_room_if(&self, holds: impl FnOnce() -> bool) {
        if self.gate.is_shut() && holds() {
            self.gate.let_in(2);
        }
    }
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "it never came to that: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends everything also when a test fails: nobody waits for room then.
struct Ending<'a>(&'a Near);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Writes on, so much at most, until it is told to stop, and counts what was written.
fn write_on(file: &File, most: u64, stops: [&AtomicBool; 2], count: &AtomicU64) {
    let (bytes, mut at) = (vec![7; PIECE], 0);
    while at < most && !stops.iter().any(|stop| stop.load(Ordering::Relaxed)) {
        file.pwrite(at, &bytes).unwrap();
        at += PIECE as u64;
        count.store(at, Ordering::Relaxed);
    }
}

fn status(client: &Client) -> Status {
    client.status().unwrap()
}

/// The jobs of which somebody waits for room.
fn waiting(client: &Client) -> Vec<String> {
    status(client).route.unwrap().waiting.into_iter().map(|(label, _)| label).collect()
}

/// Two jobs with one writer each, of so much at most; `judge` is told of the service and of what each has written, and how
/// to stop the large one.
fn two_jobs(world: &Near, most: u64, judge: impl FnOnce(&Client, &dyn Fn() -> [u64; 2], &AtomicBool)) {
    let observer = world.client("observer u g 1");
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let stops = [AtomicBool::new(false), AtomicBool::new(false)];
    let clients = [LARGE, SMALL].map(|described| world.client(described));
    std::thread::scope(|scope| {
        let _ending = Ending(world);
        for (number, client) in clients.iter().enumerate() {
            let (count, stop) = (&counts[number], &stops[number]);
            let file = client.open(format!("/{number}"), OpenOptions::CREATE).unwrap();
            scope.spawn(move || write_on(&file, most, [stop, &world.over], count));
        }
        let written = || [0, 1].map(|number: usize| counts[number].load(Ordering::Relaxed));
        judge(&observer, &written, &stops[0]);
    });
    // By shared memory a request is for more than a piece.
    let listed = status(&observer).jobs;
    let requests: u64 = ["large", "small"]
        .iter()
        .flat_map(|label| listed.iter().find(|seen| seen.job.label == *label))
        .map(|seen| seen.requests)
        .sum();
    let pieces = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() / PIECE as u64;
    assert!(requests > 0 && requests < pieces / 2, "{requests} requests for {pieces} pieces");
}

#[test]
fn a_full_buffer_is_shared_by_policy() {
    const WINDOW: u64 = 12 << 20;
    let world = Near::new(Bytes::mib(16));
    two_jobs(&world, u64::MAX, |observer, written, _| {
        let both = || waiting(observer).len() == 2;
        until("both wait", both);
        let before = written();
        let got = || {
            let now = written();
            [now[0] - before[0], now[1] - before[1]]
        };
        let freed = || status(observer).drain.unwrap().freed;
        let freed_before = freed();
        until("the window is written", || {
            // Never half of the buffer at once: there would be room for everybody.
            let taken = || freed() - freed_before <= got().iter().sum::<u64>() + (4 << 20);
            world.make_room_if(|| both() && taken());
            got().iter().sum::<u64>() >= WINDOW
        });
        let [large, small] = got();
        let part = large as f64 / (large + small) as f64;
        assert!((0.7..=0.8).contains(&part), "{large} and {small} bytes, where three to one are due: {part}");
    });
}

#[test]
fn room_that_a_job_does_not_come_for_is_the_others() {
    const WINDOW: u64 = 24 << 20;
    let world = Near::new(Bytes::mib(16));
    two_jobs(&world, u64::MAX, |observer, written, stop| {
        let both = || waiting(observer).len() == 2;
        until("both wait", both);
        // The one that is due more stops in the middle of it: the other gets all there is.
        stop.store(true, Ordering::Relaxed);
        let small = || waiting(observer) == ["small"];
        until("the small job waits alone", || {
            world.make_room_if(|| waiting(observer) == ["large"] || both());
            small()
        });
        let freed = || status(observer).drain.unwrap().freed;
        let (before, freed_before) = (written()[1], freed());
        until("the small job has written the window", || {
            world.make_room_if(small);
            written()[1] >= before + WINDOW
        });
        let freed = freed() - freed_before;
        // As long as the other may come back, half of the buffer stays free for it.
        assert!(freed <= WINDOW + (12 << 20), "{freed} bytes were freed for {WINDOW}");
    });
}

#[test]
fn nobody_waits_while_there_is_room() {
    const EACH: u64 = 12 << 20;
    let world = Near::new(Bytes::mib(64));
    two_jobs(&world, EACH, |observer, written, _| {
        // Nothing at all leaves meanwhile.
        until("all is written", || written() == [EACH; 2]);
        let seen = status(observer);
        assert_eq!(seen.route.unwrap().waits, 0);
        assert_eq!(seen.drain.unwrap().freed, 0);
    });
}
