//! Several servers, one namespace: against the reference model, through restarts and kills of any of them.

use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::{Bytes, ErrorKind, Striping};
use forebay_proof::{Block, By, Dice, Driver, Fleet, HEAD, Plan, Seeded, Step, rounds};
use forebay_server::Medium;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn fleet(count: u16) -> Fleet {
    Fleet::new(PROGRAM, count, Plan::new(Medium::Disk, Bytes::mib(96), Bytes::mib(4)))
}

/// Ends one server, one way or the other, and starts it again.
fn restart(fleet: &mut Fleet, dice: &mut Dice) {
    let gently = dice.one_in(3);
    let host = fleet.any(dice);
    match gently {
        true => host.stop(),
        false => host.kill(),
    }
    host.start();
}

/// One client at a time, each step compared; restarts between steps, and kills in the middle of them.
fn play(count: u16, part: u64) {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(part);
    let mut fleet = fleet(count);
    let clients = vec![fleet.client(0, By::Unix), fleet.client(1, By::Tcp), fleet.client(2, By::Unix)];
    clients[0].set_layout("/", Some(Striping { width: 0, stripe: 64 << 10 })).unwrap();
    let mut driver = Driver::new(clients, "", seeded.dice(part + 1));
    let mut seen = BTreeMap::<String, u64>::new();
    for number in rounds(1500) {
        let step = match dice.below(150) {
            0 => {
                restart(&mut fleet, &mut dice);
                driver.check();
                continue;
            }
            1 => {
                let patience = Duration::from_micros(dice.below(3000));
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(patience);
                        let host = fleet.any(&mut dice);
                        host.kill();
                        host.start();
                    });
                    driver.step()
                })
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
/// The common file grows no further.
const LONGEST: u64 = 8 << 20;

/// What one client knows about its appends: where each went, and how long it is.
type Appended = BTreeMap<u64, (u64, u64)>;

/// Appends blocks of all sizes to the common file, and works in its own directory.
fn work(client: &Client, mut driver: Driver, mut dice: Dice, writer: u64, go_on: &AtomicBool) -> Appended {
    let file =
        client.open("/common/file", OpenOptions { read: true, ..OpenOptions::APPEND }).expect("it is there");
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
        let block = Block { writer, slot: 0, version, len: HEAD as u64 + dice.size(100_000) };
        match file.append(&block.bytes()) {
            Ok(offset) => {
                end = offset;
                appended.insert(version, (offset, block.len));
            }
            Err(error) if error.kind() == ErrorKind::Unreachable => {}
            Err(error) => panic!("append: {error}"),
        }
    }
    driver.check();
    appended
}

/// Every append that was acknowledged is there, whole and where it was said to be.
fn check_appends(client: &Client, appended: &[Appended]) -> usize {
    let file = client.open("/common/file", OpenOptions::READ).unwrap();
    let size = file.stat().unwrap().size as usize;
    let mut bytes = vec![0; size];
    assert_eq!(file.pread(0, &mut bytes).unwrap(), size);
    for (writer, appended) in appended.iter().enumerate() {
        for (version, (offset, len)) in appended {
            let (start, end) = (*offset as usize, (offset + len) as usize);
            assert!(
                end <= size,
                "block {version} of writer {writer} at {offset} lies behind the end, {size}"
            );
            let block = Block::read(&bytes[start..end]).unwrap().expect("a block was written there");
            assert_eq!((block.writer, block.version), (writer as u64, *version), "at {offset}");
        }
    }
    appended.iter().map(BTreeMap::len).sum()
}

fn play_side_by_side(count: u16, part: u64) {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(part);
    let mut plan = Plan::new(Medium::Disk, Bytes::mib(128), Bytes::mib(4));
    plan.session = Duration::from_secs(3);
    let mut fleet = Fleet::new(PROGRAM, count, plan);
    let reader = fleet.client(0, By::Unix);
    reader.mkdir("/common", 0o777).unwrap();
    let striping = Striping { width: 0, stripe: 32 << 10 };
    reader.set_layout("/common", Some(striping)).unwrap();
    reader.open("/common/file", OpenOptions::CREATE).unwrap().close().unwrap();
    let go_on = AtomicBool::new(true);
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let client = fleet.client(number, By::turn(number));
            let base = format!("/client{number}");
            let driver = Driver::new(vec![client.clone()], &base, seeded.dice(part + 10 + number));
            let driver = if number.is_multiple_of(2) { driver } else { driver.of_names() };
            (client, driver, seeded.dice(part + 20 + number), number)
        })
        .collect();
    let appended: Vec<Appended> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|(client, driver, dice, number)| {
                let go_on = &go_on;
                scope.spawn(move || work(&client, driver, dice, number, go_on))
            })
            .collect();
        for _ in rounds(10) {
            std::thread::sleep(Duration::from_millis(200 + dice.below(600)));
            if threads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            restart(&mut fleet, &mut dice);
        }
        go_on.store(false, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let told = check_appends(&reader, &appended);
    assert!(told > 20, "only {told} appends");
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
