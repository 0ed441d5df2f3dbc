//! Writers and readers through shared memory: the later write wins whichever path it took, later reads see it, and
//! written data survives kills of clients and server.

use forebay_client::blocking::{Client, File};
use forebay_client::{ClientConfig, OpenOptions};
use forebay_model::{Bytes, Error, ErrorKind};
use forebay_proof::{By, Host, Plan, Seeded, pattern, rounds};
use forebay_server::Medium;
use forebay_testkit::until;
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

/// A file that is written through a ring from now on.
fn ringed(client: &Client, path: &str) -> File {
    let file = client.open(path, OpenOptions { create: true, ..OpenOptions::WRITE }).unwrap();
    file.pwrite(0, &vec![0; 100_000]).unwrap();
    file
}

/// Number of rings of the server, by the files in its store.
fn rings(host: &Host) -> usize {
    let list = std::fs::read_dir(host.store().join("regions")).unwrap();
    list.filter(|entry| entry.as_ref().unwrap().path().extension() == Some("ring".as_ref())).count()
}

/// Two clients with a ring each, one on TCP, and truncations: each call begins after the previous one has returned.
#[test]
fn random_sequential_overwrites_leave_the_last() {
    let (seeded, host) = (Seeded::new(), host());
    let mut rng = seeded.rng(1);
    let clients = [By::Unix, By::Unix, By::Tcp].map(|by| host.client(by));
    let files: Vec<File> = clients.iter().map(|client| ringed(client, "/order")).collect();
    assert_eq!(rings(&host), 2);
    let mut model = vec![0; 100_000];
    for round in rounds(2000) {
        for _ in 0..1 + rng.below(3) {
            let who = rng.index(files.len());
            let (at, len) = (rng.index(100_000), 1 + rng.index(9000));
            match rng.below(12) {
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
                    let bytes = pattern(rng.next(), len);
                    files[who].pwrite(at as u64, &bytes).unwrap();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
            }
        }
        let who = rng.index(files.len());
        let mut seen = vec![1; model.len() + 1];
        let len = files[who].pread(0, &mut seen).unwrap();
        assert!(seen[..len] == model[..], "round {round}: {len} bytes of {}", model.len());
    }
    assert!(!host.log().contains("skipped malformed"), "{}", host.log());
}

/// A client process that executes commands.
struct CommandedClient {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl CommandedClient {
    fn start(address: &str, host: &Host, path: &str) -> CommandedClient {
        let mut command = Command::new(TURNS);
        command.arg(address).arg(host.key()).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        CommandedClient { child, lines }
    }

    /// Executes a command, and waits until it has returned.
    fn execute(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        let reply = self.lines.next().transpose().unwrap();
        assert_eq!(reply.as_deref(), Some("done"), "{command}: {:?}", self.child.try_wait());
    }
}

impl Drop for CommandedClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same with processes: each call begins after the previous one has returned, and all write to the same few bytes.
#[test]
fn random_sequential_overwrites_by_processes_leave_the_last() {
    const LEN: u64 = 20_000;
    let (seeded, host) = (Seeded::new(), host());
    let mut rng = seeded.rng(4);
    let (unix, tcp) = (format!("unix:{}", host.socket().display()), format!("tcp:{}", host.tcp()));
    let mut clients: Vec<CommandedClient> =
        [&unix, &unix, &tcp].map(|address| CommandedClient::start(address, &host, "/turns")).into();
    clients.iter_mut().for_each(|one| (0..5).for_each(|_| one.execute(&format!("write 0 {LEN} 1"))));
    assert_eq!(rings(&host), 2, "two of them write through rings");
    let reader = host.client(By::Unix).open("/turns", OpenOptions::READ).unwrap();
    let mut model = pattern(1, LEN as usize);
    for round in rounds(1500) {
        // Ring after ring, ring after TCP, ring after truncation, and the other way round.
        for _ in 0..2 {
            let who = rng.index(clients.len());
            let (at, len, seed) = (rng.below(LEN), 1 + rng.below(5000), rng.next());
            match rng.below(10) {
                0 => {
                    clients[who].execute(&format!("truncate {at}"));
                    model.resize(at as usize, 0);
                }
                1 => {
                    clients[who].execute(&format!("append {len} {seed}"));
                    model.extend_from_slice(&pattern(seed, len as usize));
                }
                _ => {
                    clients[who].execute(&format!("write {at} {len} {seed}"));
                    model.resize(model.len().max((at + len) as usize), 0);
                    model[at as usize..(at + len) as usize].copy_from_slice(&pattern(seed, len as usize));
                }
            }
        }
        let mut seen = vec![1; model.len() + 1];
        let len = reader.pread(0, &mut seen).unwrap();
        assert!(seen[..len] == model[..], "round {round}: {len} bytes of {}", model.len());
        if model.len() > 4 * LEN as usize {
            clients[0].execute(&format!("truncate {LEN}"));
            model.truncate(LEN as usize);
        }
    }
    assert!(!host.log().contains("skipped malformed"), "{}", host.log());
}

/// Two threads overwrite the same bytes concurrently: one of them wins everywhere, namely the one that the server saw
/// last.
#[test]
fn concurrent_writes_are_not_torn() {
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
        assert!(seen.iter().all(|byte| *byte == seen[0]), "round {round}: a torn write");
    }
}

/// Reads through a lease, if there is one, else with a request; returns which.
fn read_either(client: &Client, file: &forebay_client::File, at: u64, into: &mut [u8]) -> (usize, bool) {
    match file.read_now(at, into) {
        Some(len) => (len, true),
        None => (client.wait(file.pread(at, into)).unwrap(), false),
    }
}

/// Changes of every kind, through rings and sockets, each followed by many reads of clients with leases.
#[test]
fn random_changes_revoke_the_leases_of_readers() {
    const LEN: usize = 100_000;
    let (seeded, mut host) = (Seeded::new(), host());
    let mut rng = seeded.rng(3);
    let clients = [By::Unix, By::Unix, By::Tcp].map(|by| host.client(by));
    let writers: Vec<File> = clients.iter().map(|client| ringed(client, "/leased")).collect();
    let open = |client: &Client, options| client.wait(client.inner().open("/leased", options)).unwrap();
    let readers: Vec<(&Client, forebay_client::File)> = vec![
        (&clients[0], open(&clients[0], OpenOptions::READ)),
        (&clients[1], open(&clients[1], OpenOptions::WRITE)),
    ];
    let (mut model, mut leased) = (vec![0; LEN], 0);
    for round in rounds(150) {
        let (at, len) = (rng.index(LEN), 1 + rng.index(9000));
        let (who, bytes) = (rng.index(writers.len()), pattern(round, len));
        match rng.below(12) {
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
                // Sometimes the reader is the writer.
                match rng.one_in(4) {
                    true => clients[1].wait(readers[1].1.pwrite(at as u64, &bytes)).unwrap(),
                    false => writers[who].pwrite(at as u64, &bytes).unwrap(),
                }
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
        for (client, file) in &readers {
            for _ in 0..80 {
                let at = rng.index(LEN);
                let mut seen = vec![1; 1 + rng.index(2000)];
                let (len, leased_read) = read_either(client, file, at as u64, &mut seen);
                let (from, to) = (at.min(model.len()), model.len().min(at + seen.len()));
                assert!(
                    seen[..len] == model[from..to],
                    "round {round}: {len} bytes at {at}, leased: {leased_read}"
                );
                leased += u64::from(leased_read);
            }
        }
    }
    assert!(leased > 0, "no read used a lease");
}

/// A writer that counts, and concurrent readers: no reader sees less than what had returned when it began, nor a torn
/// write.
#[test]
fn concurrent_readers_see_returned_writes_and_no_torn_ones() {
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
                    let (len, leased_read) = read_either(client, file, 0, &mut seen);
                    assert_eq!(len, LEN);
                    assert!(seen[0] >= least && seen.iter().all(|&byte| byte == seen[0]), "after {least}");
                    leased.fetch_add(u64::from(leased_read), Ordering::Relaxed);
                }
            });
        }
        for count in 1..=60 {
            writer.pwrite(0, &[count; LEN]).unwrap();
            returned.store(count, Ordering::Release);
            // Long enough to be worth a lease, however slow the host is.
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
    /// Bytes that it has reported as written.
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

    /// Waits until it has written the given number of bytes.
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

/// Kills writers, the server, or both, at any moment. Surviving writers continue when the server is back.
#[test]
fn random_kills_of_clients_server_and_both_lose_nothing() {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(2);
    let mut host = host();
    for round in rounds(12) {
        let mut writers: Vec<Writing> =
            (0..3).map(|number| Writing::start(&host, format!("/w{round}.{number}"))).collect();
        let least = 200_000 + rng.below(1_500_000);
        writers.iter_mut().for_each(|writer| writer.reach(least));
        assert!(rings(&host) >= writers.len(), "round {round}: they write through rings");
        if rng.one_in(2) {
            writers[0].kill();
        }
        if rng.one_in(2) {
            host.kill();
            if rng.one_in(2) {
                writers[1].kill();
            }
            std::thread::sleep(Duration::from_millis(rng.below(30)));
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

/// 64 writers in 256 MiB: other writers can use the slabs that a writer was granted and does not use.
#[test]
fn many_writers_fit_into_a_small_buffer() {
    let host = Host::new(PROGRAM, Plan::new(Medium::Memory, Bytes::mib(256), Bytes::mib(4)));
    let clients: Vec<Client> = (0..64).map(|_| host.client(By::Unix)).collect();
    let files: Vec<File> =
        clients.iter().enumerate().map(|(number, client)| ringed(client, &format!("/m{number}"))).collect();
    assert_eq!(rings(&host), 64);
    let bytes = pattern(3, 64 << 10);
    // One writer fills most of the buffer and needs the unused slabs of the others.
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

/// Writes pieces until one fails, or `most` are written; returns their number, and the error.
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

/// More than a ring holds, so that the writer needs the server.
const MANY: u64 = 3000;

#[test]
fn writer_with_a_full_ring_waits_for_the_server_and_times_out() {
    let mut host = host();
    let impatient = ClientConfig { request_timeout: Duration::from_secs(2), ..host.client_config(By::Unix) };
    let (patient, impatient) = (host.client(By::Unix), Client::connect(impatient).unwrap());
    let files = [ringed(&patient, "/patient"), ringed(&impatient, "/impatient")];
    assert_eq!(rings(&host), 2);
    host.kill();
    // Without the server it continues as far as its slabs last; then it gets an error.
    let (written, why) = write_pieces(&files[1], 0, MANY);
    let why = why.expect("the ring is full");
    assert!(why.kind().is_no_answer(), "{why}");
    assert!(written > 0 && written < MANY, "{written} pieces and then: {why}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| write_pieces(&files[0], 0, MANY));
        host.start();
        assert_eq!(waiting.join().unwrap(), (MANY, None), "the patient writer only waits");
    });
    // Its acknowledged pieces are readable, and it continues.
    check_pieces(&patient, "/impatient", written);
    let (mut more, begin) = (0, Instant::now());
    while more < MANY {
        // On a busy host two seconds are little time.
        let (some, why) = write_pieces(&files[1], written + more, MANY - more);
        more += some;
        assert!(why.is_none() || begin.elapsed() < PATIENCE, "{more} pieces more and then: {why:?}");
    }
    check_pieces(&patient, "/impatient", written + MANY);
    check_pieces(&patient, "/patient", MANY);
    assert!(!host.log().contains("skipped malformed"), "{}", host.log());
}

/// Upper limit for every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Changes a byte of a region file, as a client can that has mapped it.
fn damage(host: &Host, bytes: &[u8]) {
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

/// With `ends`, both ends of the file are written again, so that the damaged part drains separately.
fn change_after_writing(ends: bool) {
    let plan = Plan { has_backend: true, ..Plan::new(Medium::Memory, Bytes::mib(96), Bytes::mib(2)) };
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
    damage(&host, &pattern(7, 100_000)[50_000..50_100]);
    let drained = |path: &str| host.backing_dir().join(path).metadata().map_or(0, |found| found.len());
    client.drain(None, None).unwrap();
    until("the damage is reported", || {
        host.log().contains("the checksum of file") && drained("good") >= 100_000
    });
    let mut seen = vec![0; 100_000];
    let refused = bad.pread(0, &mut seen).unwrap_err();
    assert!(refused.kind() == ErrorKind::Io && refused.to_string().contains("checksum"), "{refused}");
    let damage = client.status().unwrap().damage;
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(good.pread(0, &mut seen).unwrap(), seen.len());
    assert!(seen == pattern(8, 100_000));
    let left = std::fs::read(host.backing_dir().join("bad")).unwrap_or_default();
    let inner = left.get(1..99_999.min(left.len())).unwrap_or_default();
    assert!(inner.iter().all(|&byte| byte == 0), "the damaged bytes are not drained");
}

#[test]
fn bytes_changed_after_the_write_are_a_checksum_error_of_that_file() {
    [false, true].into_iter().for_each(change_after_writing);
}
