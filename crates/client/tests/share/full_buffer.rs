//! Two jobs on the server's machine that write by shared memory. A full buffer is shared by policy, and no job waits
//! for an absent job, or while there is space.
//!
//! The back end accepts a write only when the test permits it, and the test does so only while the compared jobs wait
//! for space. So the speed of the machine does not matter.

use crate::site::job;
use forebay_backend::{Faulty, Memory};
use forebay_client::blocking::{Client, File};
use forebay_client::{Address, ClientConfig, Credential, OpenOptions};
use forebay_model::Bytes;
use forebay_server::{Config, Draining, Medium, Running, Server};
use forebay_testkit::until;
use forebay_wire::Status;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Size of one write; a slab of these buffers has space for several.
const PIECE: usize = 16 << 10;
/// Maximum size of one write to the back end.
const BEHIND: u64 = 256 << 10;
const LARGE: &str = "large ada astro 3";
const SMALL: &str = "small bob bio 1";

/// Permits a given number of writes to the back end at a time.
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

    fn permit(&self, writes: u64) {
        *self.left.lock().unwrap() = writes;
        self.moved.notify_all();
    }

    fn is_shut(&self) -> bool {
        *self.left.lock().unwrap() == 0
    }
}

struct LocalService {
    config: Config,
    gate: Arc<Gate>,
    over: AtomicBool,
    _running: Running,
    _dir: TempDir,
}

impl Drop for LocalService {
    fn drop(&mut self) {
        self.end();
    }
}

impl LocalService {
    fn new(capacity: Bytes) -> LocalService {
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
        let backend = {
            let gate = gate.clone();
            Faulty::new(Memory::default(), move |call| {
                if call == "write" {
                    gate.pass();
                }
                None
            })
        };
        let running = Server::start_before(config.clone(), Arc::new(backend)).unwrap();
        LocalService { config, gate, over: AtomicBool::new(false), _running: running, _dir: dir }
    }

    fn client(&self, described: &str) -> Client {
        let config = ClientConfig {
            job: job(described),
            credential: Credential::File(self.config.key_path()),
            ..ClientConfig::new(Address::Unix(self.config.socket_path()))
        };
        Client::connect(config).unwrap()
    }

    /// Permits all remaining writes.
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.gate.permit(u64::MAX);
    }

    /// Permits some writes if `holds` returns true and all writes permitted before are done.
    fn permit_writes_if(&self, holds: impl FnOnce() -> bool) {
        if self.gate.is_shut() && holds() {
            self.gate.permit(2);
        }
    }
}

/// Waits until `holds` returns true.
/// Permits all writes when it is dropped, so that no writer hangs if a test fails.
struct PermitAllOnDrop<'a>(&'a LocalService);

impl Drop for PermitAllOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Writes at most `most` bytes until it is stopped, and counts the written bytes.
fn write_until_stopped(file: &File, most: u64, stops: [&AtomicBool; 2], count: &AtomicU64) {
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

/// The jobs with writers that wait for space.
fn waiting(client: &Client) -> Vec<String> {
    status(client).route.unwrap().waiting.into_iter().map(|(label, _)| label).collect()
}

/// Runs two jobs with one writer each, of at most `most` bytes. `judge` gets a client, the number of bytes that each
/// job has written, and the flag that stops the large job.
fn two_jobs(
    world: &LocalService,
    most: u64,
    judge: impl FnOnce(&Client, &dyn Fn() -> [u64; 2], &AtomicBool),
) {
    let observer = world.client("observer u g 1");
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let stops = [AtomicBool::new(false), AtomicBool::new(false)];
    let clients = [LARGE, SMALL].map(|described| world.client(described));
    std::thread::scope(|scope| {
        let _permit_all = PermitAllOnDrop(world);
        for (number, client) in clients.iter().enumerate() {
            let (count, stop) = (&counts[number], &stops[number]);
            let file = client.open(format!("/{number}"), OpenOptions::CREATE).unwrap();
            scope.spawn(move || write_until_stopped(&file, most, [stop, &world.over], count));
        }
        let written = || [0, 1].map(|number: usize| counts[number].load(Ordering::Relaxed));
        judge(&observer, &written, &stops[0]);
    });
    // By shared memory one request covers more than one piece.
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
fn full_buffer_is_shared_by_policy() {
    const WINDOW: u64 = 12 << 20;
    let world = LocalService::new(Bytes::mib(16));
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
            // Never frees half of the buffer at once: then there would be space for both jobs.
            let taken = || freed() - freed_before <= got().iter().sum::<u64>() + (4 << 20);
            world.permit_writes_if(|| both() && taken());
            got().iter().sum::<u64>() >= WINDOW
        });
        let [large, small] = got();
        let part = large as f64 / (large + small) as f64;
        assert!((0.7..=0.8).contains(&part), "{large} and {small} bytes, where three to one are due: {part}");
    });
}

#[test]
fn unused_share_of_a_job_goes_to_the_other() {
    const WINDOW: u64 = 24 << 20;
    let world = LocalService::new(Bytes::mib(16));
    two_jobs(&world, u64::MAX, |observer, written, stop| {
        let both = || waiting(observer).len() == 2;
        until("both wait", both);
        // The job with the larger share stops, and the other gets everything.
        stop.store(true, Ordering::Relaxed);
        let small = || waiting(observer) == ["small"];
        until("the small job waits alone", || {
            world.permit_writes_if(|| waiting(observer) == ["large"] || both());
            small()
        });
        let freed = || status(observer).drain.unwrap().freed;
        let (before, freed_before) = (written()[1], freed());
        until("the small job has written the window", || {
            world.permit_writes_if(small);
            written()[1] >= before + WINDOW
        });
        let freed = freed() - freed_before;
        // While the stopped job may return, half of the buffer stays free for it.
        assert!(freed <= WINDOW + (12 << 20), "{freed} bytes were freed for {WINDOW}");
    });
}

#[test]
fn no_writer_waits_while_there_is_space() {
    const EACH: u64 = 12 << 20;
    let world = LocalService::new(Bytes::mib(64));
    two_jobs(&world, EACH, |observer, written, _| {
        // The back end accepts no write meanwhile.
        until("all is written", || written() == [EACH; 2]);
        let seen = status(observer);
        assert_eq!(seen.route.unwrap().waits, 0);
        assert_eq!(seen.drain.unwrap().freed, 0);
    });
}
