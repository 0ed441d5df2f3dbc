//! Concurrent writes on every route: all reads of a file can be explained by some order of the writes.

use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::Bytes;
use forebay_proof::{By, Drains, Host, Plan, Seeded, rounds};
use forebay_server::{Medium, Mode};
use forebay_testkit::Rng;
use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
/// Maximum length of a file.
const LARGEST: usize = 300_000;

/// One operation on a file; every operation writes a different byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Put { at: usize, len: usize, byte: u8 },
    Append { len: usize, byte: u8 },
    Truncate { size: usize },
    Punch { at: usize, len: usize },
}

/// The operations of one client, with the offset of each append.
type Done = Vec<(Act, usize)>;

impl Act {
    fn any(rng: &mut Rng, byte: u8) -> Act {
        // Few offsets, so that they overlap; zero bytes are as frequent as others.
        let (at, len) = (rng.index(5) * 8000, 1 + rng.index(3) * 16_000);
        match rng.below(8) {
            0 => Act::Truncate { size: at },
            1 => Act::Punch { at, len },
            2 | 3 => Act::Append { len, byte },
            _ => Act::Put { at, len, byte },
        }
    }

    /// Performs it; returns the offset of an append.
    fn perform(self, file: &File) -> usize {
        match self {
            Act::Put { at, len, byte } => file.pwrite(at as u64, &vec![byte; len]).unwrap(),
            Act::Append { len, byte } => return file.append(&vec![byte; len]).unwrap() as usize,
            Act::Truncate { size } => file.truncate(size as u64).unwrap(),
            Act::Punch { at, len } => file.punch(at as u64, len as u64).unwrap(),
        }
        0
    }

    /// Applies it to a model; false if an append does not match its real offset.
    fn apply(self, bytes: &mut Vec<u8>, offset: usize) -> bool {
        match self {
            Act::Put { at, len, byte } => {
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].fill(byte);
            }
            Act::Append { len, byte } => {
                if bytes.len() != offset {
                    return false;
                }
                bytes.resize(offset + len, byte);
            }
            Act::Truncate { size } => bytes.resize(size, 0),
            Act::Punch { at, len } => {
                let end = bytes.len().min(at + len);
                bytes[at.min(end)..end].fill(0);
            }
        }
        true
    }
}

/// All interleavings of the given numbers of operations per client, as the order of clients.
fn orders(left: &mut [usize], so_far: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    if left.iter().all(|&left| left == 0) {
        all.push(so_far.clone());
    }
    for who in 0..left.len() {
        if left[who] > 0 {
            left[who] -= 1;
            so_far.push(who);
            orders(left, so_far, all);
            so_far.pop();
            left[who] += 1;
        }
    }
}

/// All intermediate states of the interleavings that end in `end` and match the offsets of the appends.
fn explained(start: &[u8], acts: &[Done], end: &[u8]) -> HashSet<Vec<u8>> {
    let (mut all, mut states) = (Vec::new(), HashSet::new());
    orders(&mut acts.iter().map(Vec::len).collect::<Vec<_>>(), &mut Vec::new(), &mut all);
    for order in all {
        let (mut bytes, mut next) = (start.to_vec(), vec![0; acts.len()]);
        let mut seen = vec![bytes.clone()];
        let fits = order.iter().all(|&who| {
            let (act, offset) = acts[who][next[who]];
            next[who] += 1;
            let fits = act.apply(&mut bytes, offset);
            seen.push(bytes.clone());
            fits
        });
        if fits && bytes == end {
            states.extend(seen);
        }
    }
    states
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![7; LARGEST + 1];
    let len = file.pread(0, &mut bytes).unwrap();
    assert!(len <= LARGEST);
    bytes.truncate(len);
    bytes
}

/// Three clients write, append, truncate and punch concurrently, and one reads meanwhile.
fn race(files: &[File; 4], start: &[u8], acts: &[Vec<Act>]) -> (Vec<Done>, Vec<Vec<u8>>) {
    let (barrier, ended) = (Barrier::new(4), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = acts
            .iter()
            .zip(files)
            .map(|(acts, file)| {
                let (barrier, ended) = (&barrier, &ended);
                scope.spawn(move || {
                    barrier.wait();
                    let done: Done = acts.iter().map(|act| (*act, act.perform(file))).collect();
                    ended.fetch_add(1, Ordering::Relaxed);
                    done
                })
            })
            .collect();
        barrier.wait();
        let mut seen = vec![start.to_vec()];
        while ended.load(Ordering::Relaxed) < acts.len() {
            seen.push(read(&files[3]));
        }
        (writers.into_iter().map(|writer| writer.join().expect("writer thread")).collect(), seen)
    })
}

/// Signals the end of a test to other threads, even if it fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn direct(client: &Client) -> u64 {
    let status = client.wait(client.inner().status()).unwrap();
    status.route.map_or(0, |route| route.direct)
}

/// The route changes at any moment, and everything drains meanwhile.
fn play(medium: Medium, part: u64) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let plan = Plan::new(medium, Bytes::mib(64), Bytes::mib(4)).without_rings();
    let plan = Plan { has_backend: true, drain: Drains::Eagerly, route: Mode::Direct, ..plan };
    let mut host = Host::new(PROGRAM, plan);
    let clients = [By::Unix, By::Tcp, By::Unix, By::Tcp].map(|by| host.client(by));
    let (over, mut direct_total) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let (switcher, mut coin, over) = (host.client(By::Unix), seeded.rng(part + 1), &over);
        let _over = Over(over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                // More often direct than buffered, since otherwise hardly any range would be blank.
                let mode = [Mode::Direct, Mode::Direct, Mode::Traffic, Mode::Buffer][coin.index(4)];
                if let Err(error) = switcher.set_route(mode.name()) {
                    assert!(error.kind().is_no_answer(), "{error}");
                }
                std::thread::sleep(Duration::from_micros(coin.below(20_000)));
            }
        });
        for round in rounds(60) {
            let path = format!("/race{}", round % 7);
            let options = OpenOptions { create: true, ..OpenOptions::WRITE };
            let options = OpenOptions { read: true, truncate: rng.one_in(2), ..options };
            let files = [0, 1, 2, 3].map(|who: usize| {
                let truncate = options.truncate && who == 0;
                clients[who].open(&path, OpenOptions { truncate, ..options }).unwrap()
            });
            let mut start = read(&files[3]);
            if start.len() > 60_000 {
                files[0].truncate(0).unwrap();
                start.clear();
            }
            let mut byte = 0;
            let mut act = |rng: &mut Rng| {
                byte += 1;
                Act::any(rng, byte)
            };
            let acts: Vec<Vec<Act>> =
                (0..3).map(|_| (0..1 + rng.below(2)).map(|_| act(&mut rng)).collect()).collect();
            let (done, seen) = race(&files, &start, &acts);
            let end = read(&files[3]);
            let states = explained(&start, &done, &end);
            assert!(!states.is_empty(), "round {round}: no order explains the end of {done:?}");
            for seen in seen {
                assert!(states.contains(&seen), "round {round}: a read saw an impossible state, of {done:?}");
            }
            if rng.one_in(8) {
                direct_total += direct(&clients[0]);
                host.kill();
                host.start();
                assert!(read(&files[3]) == end, "round {round}: after a kill");
            }
        }
        direct_total += direct(&clients[0]);
    });
    assert!(direct_total > 0, "no write bypassed the buffer");
}

#[test]
fn random_concurrent_operations_on_all_routes_are_ordered_in_memory() {
    play(Medium::Memory, 100);
}

#[test]
fn random_concurrent_operations_on_all_routes_are_ordered_on_disk() {
    play(Medium::Disk, 200);
}
