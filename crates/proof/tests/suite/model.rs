//! The whole service against a reference model, through real sockets, restarts and kills.

use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::Bytes;
use forebay_proof::{Block, By, Driver, HEAD, Host, Plan, Rng, Seeded, Step, rounds};
use forebay_server::Medium;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn plan(medium: Medium) -> Plan {
    Plan::new(medium, Bytes::mib(128), Bytes::mib(4))
}

/// Stops or kills the server, and restarts it.
fn restart(host: &mut Host, rng: &mut Rng) {
    match rng.one_in(2) {
        true => host.kill(),
        false => host.stop(),
    }
    host.start();
}

/// One client at a time, each step compared; restarts between steps, and kills during steps.
fn play(plan: Plan, part: u64) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let mut host = Host::new(PROGRAM, plan);
    let clients = vec![host.client(By::Unix), host.client(By::Tcp)];
    let mut driver = Driver::new(clients, "", seeded.rng(part + 1));
    let mut seen = BTreeMap::<String, u64>::new();
    for number in rounds(6000) {
        let step = match rng.below(100) {
            0 => {
                restart(&mut host, &mut rng);
                driver.check();
                continue;
            }
            1 => host.killed_within(Duration::from_micros(rng.below(3000)), || driver.step()),
            _ => driver.step(),
        };
        *seen.entry(format!("{step:?}")).or_default() += 1;
        if number % 100 == 99 {
            driver.check();
        }
    }
    driver.check();
    assert!(seen[&format!("{:?}", Step::Done)] > 10, "{seen:?}");
}

#[test]
fn random_operations_match_the_model_in_memory() {
    play(plan(Medium::Memory).without_rings(), 100);
}

#[test]
fn random_operations_through_shared_memory_match_the_model() {
    play(plan(Medium::Memory), 150);
}

#[test]
fn random_operations_match_the_model_on_disk() {
    play(plan(Medium::Disk), 200);
}

const APPENDERS: u64 = 4;
/// Maximum length of the shared file.
const LONGEST: u64 = 24 << 20;
/// Clients that are silent for longer lose their session, and their removed files are reaped.
const SILENCE: Duration = Duration::from_secs(10);

/// The appends of one client: the offset of each, or `None` if the outcome is unknown.
type Appended = BTreeMap<u64, Option<u64>>;

/// Appends blocks of all sizes to the shared file, and works in its own directory.
fn work(client: &Client, mut driver: Driver, mut rng: Rng, writer: u64, go_on: &AtomicBool) -> Appended {
    let file =
        client.open("/shared", OpenOptions { read: true, ..OpenOptions::APPEND }).expect("shared file");
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
                appended.insert(version, Some(offset))
            }
            Err(error) if error.kind().is_no_answer() => appended.insert(version, None),
            Err(error) => panic!("append: {error}"),
        };
    }
    driver.check();
    appended
}

/// Every append is in the file, whole and once, unless its outcome is unknown.
fn check_appends(client: &Client, appended: &[Appended]) {
    let file = client.open("/shared", OpenOptions::READ).unwrap();
    let size = file.stat().unwrap().size as usize;
    let mut bytes = vec![0; size];
    assert_eq!(file.pread(0, &mut bytes).unwrap(), size);
    let mut found: Vec<BTreeMap<u64, u64>> = vec![BTreeMap::new(); appended.len()];
    let mut at = 0;
    while at < size {
        let head = Block::head(&bytes[at..]).unwrap_or_else(|| panic!("no block begins at {at}"));
        let end = at + head.len as usize;
        let block = Block::read(&bytes[at..end]).unwrap().expect("blocks are not empty");
        let twice = found[block.writer as usize].insert(block.version, at as u64);
        assert_eq!(twice, None, "{block:?} appears twice");
        at = end;
    }
    for (writer, (found, appended)) in found.iter().zip(appended).enumerate() {
        for (version, acknowledged) in appended {
            match (acknowledged, found.get(version)) {
                (Some(acknowledged), Some(at)) => {
                    assert_eq!(acknowledged, at, "block {version} of writer {writer}");
                }
                (Some(acknowledged), None) => {
                    panic!("block {version} of writer {writer} was acknowledged at {acknowledged}")
                }
                (None, _) => {}
            }
        }
        assert!(found.keys().all(|version| appended.contains_key(version)));
    }
}

#[test]
fn random_concurrent_clients_match_their_models_through_kills() {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(300);
    let mut plan = Plan::new(Medium::Disk, Bytes::mib(192), Bytes::mib(4));
    plan.session = SILENCE;
    let mut host = Host::new(PROGRAM, plan);
    let go_on = AtomicBool::new(true);
    let workers: Vec<_> = (0..APPENDERS)
        .map(|number| {
            let client = host.client(By::turn(number));
            let driver =
                Driver::new(vec![client.clone()], &format!("/client{number}"), seeded.rng(310 + number));
            (client, driver, seeded.rng(320 + number), number)
        })
        .collect();
    let reader = host.client(By::Unix);
    let appended: Vec<Appended> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|(client, driver, rng, number)| {
                let go_on = &go_on;
                scope.spawn(move || work(&client, driver, rng, number, go_on))
            })
            .collect();
        for round in rounds(12) {
            // Now and then a run is long enough to reap what the earlier ones left.
            let long = if round % 16 == 15 { 2 * SILENCE } else { Duration::ZERO };
            std::thread::sleep(long + Duration::from_millis(100 + rng.below(500)));
            if threads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            restart(&mut host, &mut rng);
        }
        go_on.store(false, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    check_appends(&reader, &appended);
    let count: usize = appended.iter().map(BTreeMap::len).sum();
    assert!(count > 20, "only {count} appends");
}
