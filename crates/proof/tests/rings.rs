//! Writers and readers by shared memory: the later write wins whichever way it came, whoever reads after it sees it, and
//! what was written is there whoever is killed.

use forebay_client::blocking::{Client, File};
use forebay_client::{ClientConfig, OpenOptions};
use forebay_model::{Bytes, Error, ErrorKind};
use forebay_proof::{By, Host, Plan, Seeded, pattern, rounds};
use forebay_server::Medium;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const WRITER: &str = env!("CARGO_BIN_EXE_forebay-proof-writer");
const TURNS: &str = env!("CARGO_BIN_EXE_forebay-proof-turns");

fn host() -> Host {
    Host::new(PROGRAM, Plan::new(Medium::Memory, Bytes::mib(96), Bytes::mib(2)))
}

/// A file that is written by a ring from now on.
fn ringed(client: &Client, path: &str) -> File {
    let file = client.open(path, OpenOptions { create: true, ..OpenOptions::WRITE }).unwrap();
    file.pwrite(0, &vec![0; 100_000]).unwrap();
    file
}

/// How many rings the server has, by the files in its store.
fn rings(host: &Host) -> usize {
    let list = std::fs::read_dir(host.store().join("regions")).unwrap();
    list.filter(|entry| entry.as_ref().unwrap().path().extension() == Some("ring".as_ref())).count()
}

/// Two clients with a ring each, one by TCP, and truncations: each begins when the one before has returned.
#[test]
fn random_overwrites_in_turn_leave_the_last() {
    let (seeded, host) = (Seeded::new(), host());
    let mut dice = seeded.dice(1);
    let clients = [By::Unix, By::Unix, By::Tcp].map(|by| host.client(by));
    let files: Vec<File> = clients.iter().map(|client| ringed(client, "/order")).collect();
    assert_eq!(rings(&host), 2);
    let mut model = vec![0; 100_000];
    for round in rounds(2000) {
        for _ in 0..1 + dice.below(3) {
            let who = dice.index(files.len());
            let (at, len) = (dice.index(100_000), 1 + dice.index(9000));
            match dice.below(12) {
                0 => {
                    files[who].truncate(at as u64).unwrap();
                    model.resize(at, 0);
                }
                1 => {
                    let at = files[who].append(&pattern(round, len)).unwrap() as usize;
                    assert_eq!(at, model.len(), "round {round}");
                    model.extend_from_slice(&pattern(round, len));
                }
                _ => {
                    let bytes = pattern(dice.next(), len);
                    files[who].pwrite(at as u64, &bytes).unwrap();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
            }
        }
        let who = dice.index(files.len());
        let mut seen = vec![1; model.len() + 1];
        let len = files[who].pread(0, &mut seen).unwrap();
        assert!(seen[..len] == model[..], "round {round}: {len} bytes of {}", model.len());
    }
    assert!(!host.log().contains("passed over"), "{}", host.log());
}

/// A process that does as it is told.
struct Obedient {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Obedient {
    fn start(address: &str, host: &Host, path: &str) -> Obedient {
        let mut command = Command::new(TURNS);
        command.arg(address).arg(host.key()).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Obedient { child, lines }
    }

    /// Has something done, and waits until it has returned.
    fn tell(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
        let said = self.lines.next().transpose().unwrap();
        assert_eq!(said.as_deref(), Some("done"), "{order}: {:?}", self.child.try_wait());
    }
}

impl Drop for Obedient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same with processes: each of them begins when the one before has returned, and all write to the same few bytes.
#[test]
fn random_overwrites_by_processes_in_turn_leave_the_last() {
    const LEN: u64 = 20_000;
    let (seeded, host) = (Seeded::new(), host());
    let mut dice = seeded.dice(4);
    let (unix, tcp) = (format!("unix:{}", host.socket().display()), format!("tcp:{}", host.tcp()));
    let mut crew: Vec<Obedient> =
        [&unix, &unix, &tcp].map(|address| Obedient::start(address, &host, "/turns")).into();
    crew.iter_mut().for_each(|one| (0..5).for_each(|_| one.tell(&format!("write 0 {LEN} 1"))));
    assert_eq!(rings(&host), 2, "two of them write by rings");
    let reader = host.client(By::Unix).open("/turns", OpenOptions::READ).unwrap();
    let mut model = pattern(1, LEN as usize);
    for round in rounds(1500) {
        // Ring after ring, ring after TCP, ring after a cut, and the other way round.
        for _ in 0..2 {
            let who = dice.index(crew.len());
            let (at, len, seed) = (dice.below(LEN), 1 + dice.below(5000), dice.next());
            match dice.below(10) {
                0 => {
                    crew[who].tell(&format!("truncate {at}"));
                    model.resize(at as usize, 0);
                }
                1 => {
                    crew[who].tell(&format!("append {len} {seed}"));
                    model.extend_from_slice(&pattern(seed, len as usize));
                }
                _ => {
                    crew[who].tell(&format!("write {at} {len} {seed}"));
                    model.resize(model.len().max((at + len) as usize), 0);
                    model[at as usize..(at + len) as usize].copy_from_slice(&pattern(seed, len as usize));
                }
            }
        }
        let mut seen = vec![1; model.len() + 1];
        let len = reader.pread(0, &mut seen).unwrap();
        assert!(seen[..len] == model[..], "round {round}: {len} bytes of {}", model.len());
        if model.len() > 4 * LEN as usize {
            crew[0].tell(&format!("truncate {LEN}"));
            model.truncate(LEN as usize);
        }
    }
    assert!(!host.log().contains("passed over"), "{}", host.log());
}

/// Two threads overwrite the same bytes at the same time: one of them wins everywhere, and it is the one that the
/// server saw last.
#[test]
fn writes_at_the_same_time_are_whole() {
    let host = host();
    let clients = [host.client(By::Unix), host.client(By::Unix)];
    let files: Vec<File> = clients.iter().map(|client| ringed(client, "/race")).collect();
    for round in 1..200_u8 {
        std::thread::scope(|scope| {
            for (who, file) in files.iter().enumerate() {
                scope.spawn(move || file.pwrite(0, &[round.wrapping_mul(2) + who as u8; 50_000]).unwrap());
            }
        });
        let mut seen = [0; 50_000];
        assert_eq!(files[0].pread(0, &mut seen).unwrap(), seen.len());
        assert!(seen.iter().all(|byte| *byte == seen[0]), "round {round}: a mixture");
    }
}

/// Reads by what was leased, if anything was, else by asking; says which.
fn read_either(client: &Client, file: &forebay_client::File, at: u64, into: &mut [u8]) -> (usize, bool) {
    match file.read_now(at, into) {
        Some(len) => (len, true),
        None => (client.wait(file.pread(at, into)).unwrap(), false),
    }
}

/// Changes of every kind, by rings and by sockets, and after each many reads by clients that were leased the bytes.
#[test]
fn random_changes_end_what_readers_were_leased() {
    const LEN: usize = 100_000;
    let (seeded, mut host) = (Seeded::new(), host());
    let mut dice = seeded.dice(3);
    let clients = [By::Unix, By::Unix, By::Tcp].map(|by| host.client(by));
    let writers: Vec<File> = clients.iter().map(|client| ringed(client, "/leased")).collect();
    let open = |client: &Client, options| client.wait(client.inner().open("/leased", options)).unwrap();
    let readers: Vec<(&Client, forebay_client::File)> = vec![
        (&clients[0], open(&clients[0], OpenOptions::READ)),
        (&clients[1], open(&clients[1], OpenOptions::WRITE)),
    ];
    let (mut model, mut leased) = (vec![0; LEN], 0);
    for round in rounds(150) {
        let (at, len) = (dice.index(LEN), 1 + dice.index(9000));
        let (who, bytes) = (dice.index(writers.len()), pattern(round, len));
        match dice.below(12) {
            0 => {
                writers[who].truncate(at as u64).unwrap();
                model.resize(at, 0);
            }
            1 => {
                writers[who].punch(at as u64, len as u64).unwrap();
                let end = model.len().min(at + len);
                model[at.min(end)..end].fill(0);
            }
            2 => {
                host.kill();
                host.start();
            }
            _ => {
                // Sometimes who reads is who writes.
                match dice.one_in(4) {
                    true => clients[1].wait(readers[1].1.pwrite(at as u64, &bytes)).unwrap(),
                    false => writers[who].pwrite(at as u64, &bytes).unwrap(),
                }
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
        for (client, file) in &readers {
            for _ in 0..80 {
                let at = dice.index(LEN);
                let mut seen = vec![1; 1 + dice.index(2000)];
                let (len, free) = read_either(client, file, at as u64, &mut seen);
                let (from, to) = (at.min(model.len()), model.len().min(at + seen.len()));
                assert!(seen[..len] == model[from..to], "round {round}: {len} bytes at {at}, leased: {free}");
                leased += u64::from(free);
            }
        }
    }
    assert!(leased > 0, "nobody was leased anything");
}

/// A writer that counts, and readers beside it: none of them sees less than what had been written when it began, nor
/// half of anything.
#[test]
fn readers_beside_a_writer_see_what_had_returned_and_no_mixture() {
    const LEN: usize = 70_000;
    let host = host();
    let clients = [host.client(By::Unix), host.client(By::Unix)];
    let writer = ringed(&clients[0], "/count");
    writer.pwrite(0, &[0; LEN]).unwrap();
    let open = |client: &Client| client.wait(client.inner().open("/count", OpenOptions::READ)).unwrap();
    let readers = [(&clients[0], open(&clients[0])), (&clients[1], open(&clients[1]))];
    let (returned, done) = (AtomicU8::new(0), AtomicBool::new(false));
    let leased = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (client, file) in &readers {
            let (returned, done, leased) = (&returned, &done, &leased);
            scope.spawn(move || {
                let mut seen = vec![0; LEN];
                while !done.load(Ordering::Acquire) {
                    let least = returned.load(Ordering::Acquire);
                    let (len, free) = read_either(client, file, 0, &mut seen);
                    assert_eq!(len, LEN);
                    assert!(seen[0] >= least && seen.iter().all(|&byte| byte == seen[0]), "after {least}");
                    leased.fetch_add(u64::from(free), Ordering::Relaxed);
                }
            });
        }
        for count in 1..=60 {
            writer.pwrite(0, &[count; LEN]).unwrap();
            returned.store(count, Ordering::Release);
            // Long enough to be worth a lease, however slow the machine is.
            let before = leased.load(Ordering::Relaxed);
            for _ in 0..50 {
                if leased.load(Ordering::Relaxed) > before + 70 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        done.store(true, Ordering::Release);
    });
}

struct Writing {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    path: String,
    /// How much it said is written.
    acknowledged: u64,
}

impl Writing {
    fn start(host: &Host, path: String) -> Writing {
        let mut command = Command::new(WRITER);
        command.arg(format!("unix:{}", host.socket().display())).arg(host.key()).arg(&path);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Writing { child, lines, path, acknowledged: 0 }
    }

    /// Waits until it has written so much.
    fn reach(&mut self, bytes: u64) {
        while self.acknowledged < bytes {
            let Some(Ok(line)) = self.lines.next() else {
                panic!("{} ended early: {:?}", self.path, self.child.wait())
            };
            self.acknowledged = line.trim_start().parse().unwrap();
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        while let Some(Ok(line)) = self.lines.next() {
            // The last line may be cut.
            if let Ok(bytes) = line.trim_start().parse() {
                self.acknowledged = self.acknowledged.max(bytes);
            }
        }
    }

    fn verify(&self, client: &Client) {
        let file = client.open(&self.path, OpenOptions::READ).unwrap();
        let size = file.stat().unwrap().size;
        assert!(size >= self.acknowledged, "{}: {size} bytes of {}", self.path, self.acknowledged);
        let mut bytes = vec![0; size as usize];
        assert_eq!(file.pread(0, &mut bytes).unwrap(), bytes.len());
        for (number, piece) in bytes.chunks(10_007).enumerate() {
            let at = number as u64 * 10_007;
            assert!(piece == &pattern(at, 10_007)[..piece.len()], "{}: the piece at {at}", self.path);
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills writers, the server, or both, at any moment. Writers that live go on when the server is back.
#[test]
fn random_kills_of_clients_server_and_both_lose_nothing() {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(2);
    let mut host = host();
    for round in rounds(12) {
        let mut writers: Vec<Writing> =
            (0..3).map(|number| Writing::start(&host, format!("/w{round}.{number}"))).collect();
        let least = 200_000 + dice.below(1_500_000);
        writers.iter_mut().for_each(|writer| writer.reach(least));
        assert!(rings(&host) >= writers.len(), "round {round}: they write by rings");
        if dice.one_in(2) {
            writers[0].kill();
        }
        if dice.one_in(2) {
            host.kill();
            if dice.one_in(2) {
                writers[1].kill();
            }
            std::thread::sleep(Duration::from_millis(dice.below(30)));
            host.start();
        }
        let further = writers[2].acknowledged + 300_000;
        writers[2].reach(further);
        writers.iter_mut().for_each(Writing::kill);
        let reader = host.client(By::turn(round));
        writers.iter().for_each(|writer| writer.verify(&reader));
        writers.iter().for_each(|writer| reader.unlink(Path::new(&writer.path)).unwrap());
    }
    let status = host.client(By::Unix).status().unwrap();
    assert_eq!(status.damage, Vec::<String>::new());
}

/// Sixty-four writers in 256 MiB: what they were granted and do not use is there for whoever needs it.
#[test]
fn many_writers_fit_into_a_small_buffer() {
    let host = Host::new(PROGRAM, Plan::new(Medium::Memory, Bytes::mib(256), Bytes::mib(4)));
    let clients: Vec<Client> = (0..64).map(|_| host.client(By::Unix)).collect();
    let files: Vec<File> =
        clients.iter().enumerate().map(|(number, client)| ringed(client, &format!("/m{number}"))).collect();
    assert_eq!(rings(&host), 64);
    let bytes = pattern(3, 64 << 10);
    // Most of the buffer by one of them, which needs what the others hold.
    for at in 0..3500 {
        files[0].pwrite(at * bytes.len() as u64, &bytes).unwrap();
    }
    for file in &files {
        file.pwrite(0, &bytes).unwrap();
        let mut seen = vec![0; bytes.len()];
        assert_eq!(file.pread(0, &mut seen).unwrap(), seen.len());
        assert!(seen == bytes);
    }
}

/// Writes pieces until one fails, or so many are written; returns how many were, and why the next was not.
fn write_pieces(file: &File, from: u64, most: u64) -> (u64, Option<Error>) {
    for number in from..from + most {
        if let Err(error) = file.pwrite(number << 12, &pattern(number, 1 << 12)) {
            return (number - from, Some(error));
        }
    }
    (most, None)
}

fn check_pieces(client: &Client, path: &str, count: u64) {
    let file = client.open(path, OpenOptions::READ).unwrap();
    let mut bytes = vec![0; (count << 12) as usize];
    assert_eq!(file.pread(0, &mut bytes).unwrap(), bytes.len());
    for (number, piece) in (0..).zip(bytes.chunks(1 << 12)) {
        assert!(piece == pattern(number, 1 << 12), "piece {number} of {path}");
    }
}

/// More than a ring holds, so that whoever writes them needs the server.
const MANY: u64 = 3000;

#[test]
fn who_fills_his_ring_while_the_server_is_away_waits_and_is_told_in_the_end() {
    let mut host = host();
    let impatient = ClientConfig { request_timeout: Duration::from_secs(2), ..host.client_config(By::Unix) };
    let (patient, impatient) = (host.client(By::Unix), Client::connect(impatient).unwrap());
    let files = [ringed(&patient, "/patient"), ringed(&impatient, "/impatient")];
    assert_eq!(rings(&host), 2);
    host.kill();
    // Without the server it goes on as far as what it was granted lasts; then it is told what is the matter.
    let (written, why) = write_pieces(&files[1], 0, MANY);
    let why = why.expect("a ring does not hold as much");
    assert_eq!(why.kind(), ErrorKind::Unreachable, "{why}");
    assert!(written > 0 && written < MANY, "{written} pieces and then: {why}");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| write_pieces(&files[0], 0, MANY));
        host.start();
        assert_eq!(waits.join().unwrap(), (MANY, None), "it has only waited");
    });
    // What it was told that it is written is there, and it goes on.
    check_pieces(&patient, "/impatient", written);
    let (mut more, begin) = (0, Instant::now());
    while more < MANY {
        // On a busy machine two seconds are little time.
        let (some, why) = write_pieces(&files[1], written + more, MANY - more);
        more += some;
        assert!(why.is_none() || begin.elapsed() < PATIENCE, "{more} pieces more and then: {why:?}");
    }
    check_pieces(&patient, "/impatient", written + MANY);
    check_pieces(&patient, "/patient", MANY);
    assert!(!host.log().contains("passed over"), "{}", host.log());
}

/// Nothing takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Changes a byte of what a file of the store holds, as a client can that has mapped it.
fn spoil(host: &Host, bytes: &[u8]) {
    for entry in std::fs::read_dir(host.store().join("regions")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() != Some("data".as_ref()) {
            continue;
        }
        let held = std::fs::read(&path).unwrap();
        if let Some(at) = held.windows(bytes.len()).position(|window| window == bytes) {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[!bytes[0]], at as u64).unwrap();
            return;
        }
    }
    panic!("no region holds the bytes");
}

/// `ends` of the file are written once more, so that what was changed leaves without them.
fn change_after_writing(ends: bool) {
    let plan = Plan { before: true, ..Plan::new(Medium::Memory, Bytes::mib(96), Bytes::mib(2)) };
    let host = Host::new(PROGRAM, plan);
    let client = host.client(By::Unix);
    let (bad, good) = (ringed(&client, "/bad"), ringed(&client, "/good"));
    assert_eq!(rings(&host), 2);
    for (file, seed) in [(&bad, 7), (&good, 8)] {
        file.pwrite(0, &pattern(seed, 100_000)).unwrap();
        file.sync().unwrap();
    }
    if ends {
        let bytes = pattern(7, 100_000);
        bad.pwrite(0, &bytes[..1]).unwrap();
        bad.pwrite(99_999, &bytes[99_999..]).unwrap();
        bad.sync().unwrap();
    }
    spoil(&host, &pattern(7, 100_000)[50_000..50_100]);
    let drained = |path: &str| host.behind().join(path).metadata().map_or(0, |found| found.len());
    client.drain(None, None).unwrap();
    let begin = Instant::now();
    while !host.log().contains("the checksum of file") || drained("good") < 100_000 {
        assert!(begin.elapsed() < PATIENCE, "nothing is told: {} {:?}", host.log(), client.status());
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut seen = vec![0; 100_000];
    let refused = bad.pread(0, &mut seen).unwrap_err();
    assert!(refused.kind() == ErrorKind::Io && refused.to_string().contains("checksum"), "{refused}");
    let damage = client.status().unwrap().damage;
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(good.pread(0, &mut seen).unwrap(), seen.len());
    assert!(seen == pattern(8, 100_000));
    let left = std::fs::read(host.behind().join("bad")).unwrap_or_default();
    let inner = left.get(1..99_999.min(left.len())).unwrap_or_default();
    assert!(inner.iter().all(|&byte| byte == 0), "it has a length behind, and nothing of it has left");
}

#[test]
fn bytes_that_a_client_changed_after_it_wrote_them_are_an_error_of_that_file_and_told() {
    [false, true].into_iter().for_each(change_after_writing);
}
