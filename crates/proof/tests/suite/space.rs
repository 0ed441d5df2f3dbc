//! Endless overwriting, a full buffer, and space freed by deletion, through the server.

use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::{Bytes, ErrorKind};
use forebay_proof::{By, Fate, Host, Ledger, Plan, Rng, Seeded, pattern, rounds};
use forebay_server::Medium;
use forebay_testkit::until;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const CAPACITY: u64 = 16;
const WRITERS: u64 = 4;
/// Slots of one writer; all writers together fill three quarters of the buffer.
const SLOT: u64 = 256 << 10;
const SLOTS: usize = ((CAPACITY << 20) * 3 / 4 / WRITERS / SLOT) as usize;

fn host(medium: Medium) -> Host {
    Host::new(PROGRAM, Plan::new(medium, Bytes::mib(CAPACITY), Bytes::mib(1)))
}

/// Overwrites a file in random order, in whole slots and in pieces, until 20 capacities are written. Returns the
/// acknowledged writes.
fn overwrite(client: &Client, writer: u64, mut rng: Rng) -> Ledger {
    let file = client.open(format!("/o{writer}"), OpenOptions::CREATE).unwrap();
    let mut ledger = Ledger::new(writer, SLOT, SLOTS);
    ledger.emptied(Fate::Done);
    let (mut written, share) = (0, 20 * (CAPACITY << 20) / WRITERS);
    while written < share {
        let slot = rng.below(SLOTS as u64) as usize;
        let block = ledger.block(slot);
        let bytes = block.bytes();
        let start = slot as u64 * SLOT;
        if rng.one_in(4) {
            // The same bytes in small pieces, so that many records die one by one.
            for (index, piece) in bytes.chunks(20_000).enumerate() {
                file.pwrite(start + index as u64 * 20_000, piece).unwrap();
            }
        } else {
            file.pwrite(start, &bytes).unwrap();
        }
        ledger.wrote(block, Fate::Done);
        written += SLOT;
    }
    compare(client, writer, &mut ledger);
    ledger
}

/// Every slot holds the last acknowledged version: nothing was in flight.
fn compare(client: &Client, writer: u64, ledger: &mut Ledger) {
    let file = client.open(format!("/o{writer}"), OpenOptions::READ).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    assert_eq!(file.pread(0, &mut bytes).unwrap(), bytes.len());
    ledger.reconcile(Some(&bytes)).unwrap();
}

fn overwrite_all(medium: Medium) {
    let seeded = Seeded::new();
    for round in rounds(1) {
        overwrite_once(host(medium), &seeded, 500 + round * WRITERS);
    }
}

fn overwrite_once(mut host: Host, seeded: &Seeded, part: u64) {
    let mut ledgers: Vec<Ledger> = std::thread::scope(|scope| {
        let writers = (0..WRITERS).map(|writer| {
            let (client, rng) = (host.client(By::turn(writer)), seeded.rng(part + writer));
            scope.spawn(move || overwrite(&client, writer, rng))
        });
        let writers: Vec<_> = writers.collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let client = host.client(By::Unix);
    // Records that the cleaner is moving exist twice.
    until("three quarters are live", || client.statfs().unwrap().live <= (CAPACITY << 20) * 3 / 4);
    host.kill();
    host.start();
    for (writer, ledger) in (0..).zip(&mut ledgers) {
        compare(&client, writer, ledger);
    }
}

#[test]
fn random_overwriting_of_twenty_capacities_works_in_memory() {
    overwrite_all(Medium::Memory);
}

#[test]
fn random_overwriting_of_twenty_capacities_works_on_disk() {
    overwrite_all(Medium::Disk);
}

/// Writes until there is no space; returns how many pieces fit.
fn fill(client: &Client, path: &str) -> u64 {
    let file = client.open(path, OpenOptions::CREATE).unwrap();
    for piece in 0.. {
        match file.pwrite(piece << 18, &pattern(piece, 1 << 18)) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return piece;
            }
        }
    }
    unreachable!("the buffer is not infinite")
}

fn check_pieces(client: &Client, path: &str, pieces: u64) {
    let file = client.open(path, OpenOptions::READ).unwrap();
    for piece in 0..pieces {
        let mut bytes = vec![0; 1 << 18];
        file.pread(piece << 18, &mut bytes).unwrap();
        assert!(bytes == pattern(piece, 1 << 18), "piece {piece} of {path}");
    }
}

fn full(medium: Medium) {
    let host = host(medium);
    let clients: Vec<Client> = (0..WRITERS).map(|number| host.client(By::turn(number))).collect();
    let other = host.client(By::Unix);
    for round in 0..3 {
        let before = other.statfs().unwrap();
        let pieces: Vec<u64> = std::thread::scope(|scope| {
            let clients = clients.iter().enumerate();
            let threads =
                clients.map(|(number, client)| scope.spawn(move || fill(client, &format!("/f{number}"))));
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let filled: u64 = pieces.iter().sum::<u64>() << 18;
        assert!(filled * 10 >= (CAPACITY << 20) * 8, "round {round}: only {filled} bytes fit, {before:?}");
        // Everything but new data still works.
        for number in 0..WRITERS {
            check_pieces(&other, &format!("/f{number}"), pieces[number as usize]);
        }
        let largest = (0..WRITERS).max_by_key(|number| pieces[*number as usize]).unwrap();
        other.mkdir("/d", 0o755).unwrap();
        other.rename(format!("/f{largest}"), "/d/f", forebay_wire::RenameMode::Replace).unwrap();
        other.ping().unwrap();
        assert_eq!(fill(&other, "/more"), 0, "the buffer is still full");
        // Truncation frees space, as does removal.
        other.truncate("/d/f", 0).unwrap();
        let more = fill(&other, "/more");
        assert!(more > 0, "truncated space can be used: {pieces:?} in round {round}, {:?}", other.status());
        let rest = (0..WRITERS).filter(|number| *number != largest).map(|number| format!("/f{number}"));
        for path in rest.chain(["/more", "/d/f"].map(str::to_owned)) {
            other.unlink(path).unwrap();
        }
        other.rmdir("/d").unwrap();
    }
}

#[test]
fn full_buffer_serves_other_requests_and_recovers_in_memory() {
    full(Medium::Memory);
}

#[test]
fn full_buffer_serves_other_requests_and_recovers_on_disk() {
    full(Medium::Disk);
}
