//! A cluster with one namespace, against the reference model, through restarts and kills of its servers.

use forebay_client::blocking::Client;
use forebay_client::{Listing, OpenOptions, RenameMode};
use forebay_model::{Bytes, ErrorKind, Striping};
use forebay_proof::{Block, By, Driver, Fleet, HEAD, Plan, Rng, Seeded, Step, rounds};
use forebay_server::Medium;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn fleet(count: u16) -> Fleet {
    Fleet::new(PROGRAM, count, Plan::new(Medium::Disk, Bytes::mib(96), Bytes::mib(4)))
}

/// Stops or kills one server, and restarts it.
fn restart(fleet: &mut Fleet, rng: &mut Rng) {
    let gently = rng.one_in(3);
    let host = fleet.any(rng);
    match gently {
        true => host.stop(),
        false => host.kill(),
    }
    host.start();
}

/// One client at a time, each step compared; restarts between steps, and kills during steps.
fn play(count: u16, part: u64) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let mut fleet = fleet(count);
    let clients = vec![fleet.client(0, By::Unix), fleet.client(1, By::Tcp), fleet.client(2, By::Unix)];
    clients[0].set_layout("/", Some(Striping { width: 0, stripe: 64 << 10 })).unwrap();
    let mut driver = Driver::new(clients, "", seeded.rng(part + 1));
    let mut seen = BTreeMap::<String, u64>::new();
    for number in rounds(1500) {
        let step = match rng.below(150) {
            0 => {
                restart(&mut fleet, &mut rng);
                driver.check();
                continue;
            }
            1 => {
                let delay = Duration::from_micros(rng.below(3000));
                fleet.any(&mut rng).killed_within(delay, || driver.step())
            }
            2..5 => {
                driver.restripe();
                continue;
            }
            _ => driver.step(),
        };
        *seen.entry(format!("{step:?}")).or_default() += 1;
        if number % 100 == 99 {
            driver.check();
        }
    }
    driver.check();
    assert!(seen[&format!("{:?}", Step::Done)] > 10, "{seen:?}");
    drop(driver);
    fleet.check();
}

#[test]
fn random_operations_on_three_servers_match_the_model() {
    play(3, 5100);
}

#[test]
fn random_operations_on_five_servers_match_the_model() {
    play(5, 5200);
}

const WORKERS: u64 = 4;
/// Maximum length of the common file.
const LONGEST: u64 = 8 << 20;
const STRIPE: usize = 64 << 10;

/// The appends of one client: offset and length of each.
type Appended = BTreeMap<u64, (u64, u64)>;

/// Appends blocks of all sizes to the common file, and works in its own directory.
fn work(client: &Client, mut driver: Driver, mut rng: Rng, writer: u64, go_on: &AtomicBool) -> Appended {
    let file =
        client.open("/common/file", OpenOptions { read: true, ..OpenOptions::APPEND }).expect("common file");
    let mut appended = Appended::new();
    let (mut version, mut end) = (0, 0);
    while go_on.load(Ordering::Relaxed) {
        for _ in 0..5 {
            driver.step();
        }
        if end > LONGEST {
            continue;
        }
        version += 1;
        let block = Block { writer, slot: 0, version, len: HEAD as u64 + rng.size(100_000) };
        match file.append(&block.bytes()) {
            Ok(offset) => {
                end = offset;
                appended.insert(version, (offset, block.len));
            }
            Err(error) if error.kind().is_no_answer() => {}
            Err(error) => panic!("append: {error}"),
        }
    }
    driver.check();
    appended
}

/// Every acknowledged append is in the file, whole and at its offset.
fn check_appends(client: &Client, appended: &[Appended]) -> usize {
    let file = client.open("/common/file", OpenOptions::READ).unwrap();
    let size = file.stat().unwrap().size as usize;
    let mut bytes = vec![0; size];
    assert_eq!(file.pread(0, &mut bytes).unwrap(), size);
    for (writer, appended) in appended.iter().enumerate() {
        for (version, (offset, len)) in appended {
            let (start, end) = (*offset as usize, (offset + len) as usize);
            assert!(end <= size, "block {version} of writer {writer} at {offset} is beyond the end, {size}");
            let block = Block::read(&bytes[start..end]).unwrap().expect("a block");
            assert_eq!((block.writer, block.version), (writer as u64, *version), "at {offset}");
        }
    }
    check_holes(&bytes);
    appended.iter().map(BTreeMap::len).sum()
}

/// Unacknowledged appends appear in whole or as a prefix that ends at a stripe boundary, and nothing else is.
fn check_holes(bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let next_stripe = (at / STRIPE + 1) * STRIPE;
        let Some(block) = Block::head(&bytes[at..]) else {
            assert!(next_stripe - at < HEAD && bytes[at] != 0, "neither a block nor a prefix of one at {at}");
            at = next_stripe;
            continue;
        };
        let expected = block.bytes();
        let same = bytes[at..].iter().zip(&expected).take_while(|(one, other)| one == other).count();
        let end = at + same;
        let prefix_end = if same == expected.len() { end } else { end / STRIPE * STRIPE };
        assert!(prefix_end > at, "{block:?} at {at} ends after {same} bytes");
        at = prefix_end;
    }
}

fn play_side_by_side(count: u16, part: u64) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let mut plan = Plan::new(Medium::Disk, Bytes::mib(128), Bytes::mib(4));
    plan.session = Duration::from_secs(10);
    let mut fleet = Fleet::new(PROGRAM, count, plan);
    let reader = fleet.client(0, By::Unix);
    reader.mkdir("/common", 0o777).unwrap();
    let striping = Striping { width: 0, stripe: STRIPE as u64 };
    reader.set_layout("/common", Some(striping)).unwrap();
    reader.open("/common/file", OpenOptions::CREATE).unwrap().close().unwrap();
    let go_on = AtomicBool::new(true);
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let client = fleet.client(number, By::turn(number));
            let base = format!("/client{number}");
            let driver = Driver::new(vec![client.clone()], &base, seeded.rng(part + 10 + number));
            let driver = if number.is_multiple_of(2) { driver } else { driver.of_names() };
            (client, driver, seeded.rng(part + 20 + number), number)
        })
        .collect();
    let appended: Vec<Appended> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|(client, driver, rng, number)| {
                let go_on = &go_on;
                scope.spawn(move || work(&client, driver, rng, number, go_on))
            })
            .collect();
        for _ in rounds(10) {
            std::thread::sleep(Duration::from_millis(200 + rng.below(600)));
            if threads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            restart(&mut fleet, &mut rng);
        }
        go_on.store(false, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let count = check_appends(&reader, &appended);
    assert!(count > 20, "only {count} appends");
    drop(reader);
    fleet.check();
}

#[test]
fn random_clients_of_three_servers_match_their_models_through_kills() {
    play_side_by_side(3, 5300);
}

#[test]
fn random_clients_of_five_servers_match_their_models_through_kills() {
    play_side_by_side(5, 5400);
}

const DIRS: u64 = 5;

/// Moves directories into each other and back until `go_on` is cleared.
fn shuffle(client: &Client, mut rng: Rng, go_on: &AtomicBool) -> u64 {
    let mut moved = 0;
    while go_on.load(Ordering::Relaxed) {
        let (one, other) = (rng.below(DIRS), rng.below(DIRS));
        let (from, to) = match rng.below(3) {
            0 => (format!("/m{one}"), format!("/m{other}/m{one}")),
            1 => (format!("/m{other}/m{one}"), format!("/m{one}")),
            _ => (format!("/m{other}/m{one}"), format!("/m{one}/m{other}")),
        };
        match client.rename(&from, &to, RenameMode::NoReplace) {
            Ok(()) => moved += 1,
            Err(error) => {
                let kind = error.kind();
                let expected = [ErrorKind::NotFound, ErrorKind::Invalid, ErrorKind::Exists];
                assert!(
                    kind.is_no_answer() || expected.contains(&kind),
                    "{from} to {to}: {error} ({kind:?})"
                );
            }
        }
    }
    moved
}

/// Every directory below a path, by name.
fn found_below(client: &Client, path: &str, found: &mut BTreeMap<String, String>) {
    let listed = client.read_dir(if path.is_empty() { "/" } else { path }, Listing::Names).unwrap();
    for entry in listed.map(Result::unwrap) {
        let below = format!("{path}/{}", entry.name);
        let twice = found.insert(entry.name.to_string(), below.clone());
        assert_eq!(twice, None, "{below} appears twice");
        found_below(client, &below, found);
    }
}

#[test]
fn random_moves_of_directories_into_each_other_make_no_loop() {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(5500);
    let mut fleet = fleet(3);
    let reader = fleet.client(0, By::Unix);
    for dir in 0..DIRS {
        reader.mkdir(format!("/m{dir}"), 0o755).unwrap();
    }
    let mut moved = 0;
    for round in rounds(3) {
        let go_on = AtomicBool::new(true);
        let clients: Vec<Client> = (0..3).map(|number| fleet.client(number, By::turn(number))).collect();
        moved += std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&clients)
                .map(|(number, client)| {
                    let (go_on, rng) = (&go_on, seeded.rng(5510 + 10 * round + number));
                    scope.spawn(move || shuffle(client, rng, go_on))
                })
                .collect();
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(200 + rng.below(600)));
                restart(&mut fleet, &mut rng);
            }
            std::thread::sleep(Duration::from_millis(100 + rng.below(400)));
            go_on.store(false, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
        });
        let mut found = BTreeMap::new();
        found_below(&reader, "", &mut found);
        assert_eq!(found.len(), DIRS as usize, "{found:?}");
    }
    assert!(moved > 0);
    drop(reader);
    fleet.check();
}
