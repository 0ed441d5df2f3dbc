//! `kill -9` while writers write: acknowledged data survives, removed files do not come back, and no write is torn.
//!
//! Each test prints how often it killed the server; `cargo xtask soak --rounds 1 --seconds 900 random_kills` passes 500.

use forebay_client::blocking::Client;
use forebay_model::{Bytes, Error, Gid, Identity, RegionId, Uid};
use forebay_proof::{By, Host, Plan, Seeded, Writer, rounds};
use forebay_server::Medium;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const WRITERS: u64 = 4;
/// The writers act as these users, another one in each round, so that regions change owners.
const USERS: u64 = 3;
fn impatient(host: &Host, by: By) -> Client {
    let mut config = host.client_config(by);
    // The server does not come back while its writers wait for it.
    config.request_timeout = Duration::from_millis(400);
    Client::connect(config).expect("client connected")
}

/// The user of a writer in a round.
fn user(writer: u64, round: u64) -> Identity {
    let id = 7000 + ((writer + round) % USERS) as u32;
    Identity { uid: Uid(id), gid: Gid(id), groups: Vec::new() }
}

/// The users whose data the region files hold.
fn owners(host: &Host) -> impl Iterator<Item = (RegionId, Uid)> {
    let regions = forebay_store::inspect(&host.store()).unwrap().regions;
    regions.into_iter().filter_map(|region| Some((region.region, region.uid?)))
}

/// What a writer may see when its server dies.
fn is_over(error: &Error) -> bool {
    // Sessions are short: on a slow host one may end before its next request.
    error.kind().is_no_answer() || error.to_string().contains("session has ended")
}

#[expect(clippy::print_stdout, reason = "the number of kills is a report")]
fn play(medium: Medium, part: u64, kills: u64) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let mut plan = Plan::new(medium, Bytes::mib(96), Bytes::mib(2));
    // Files removed in one run are reaped soon in the next, although runs are short.
    plan.session = Duration::from_millis(150);
    let mut host = Host::new(PROGRAM, plan);
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|number| Writer::new("/k", number, seeded.rng(part + 1 + number))).collect();
    host.client(By::Unix).mkdir("/k", 0o777).unwrap();
    let mut holders: BTreeMap<RegionId, BTreeSet<Uid>> = BTreeMap::new();
    let (mut killed, runs_on) = (0, AtomicBool::new(false));
    for round in rounds(kills) {
        let client = |writer| impatient(&host, By::turn(writer)).as_identity(user(writer, round));
        let clients: Vec<Client> = (0..WRITERS).map(client).collect();
        std::thread::scope(|scope| {
            for (writer, client) in writers.iter_mut().zip(&clients) {
                scope.spawn(|| writer.work(client, &runs_on, is_over));
            }
            std::thread::sleep(Duration::from_millis(rng.below(250)));
            host.kill();
            killed += 1;
        });
        if rng.one_in(4) {
            // Kills the server during recovery too.
            host.begin();
            std::thread::sleep(Duration::from_millis(rng.below(60)));
            host.kill();
            killed += 1;
        }
        host.start();
        let reader = host.client(By::turn(rng.below(2)));
        writers.iter_mut().for_each(|writer| writer.verify(&reader));
        writers.iter().for_each(|writer| writer.verify_removed(&reader));
        for (region, uid) in owners(&host) {
            holders.entry(region).or_default().insert(uid);
        }
    }
    println!("killed the server {killed} times");
    let changed = holders.values().filter(|users| users.len() > 1).count();
    assert!(changed > 0, "no region changed its owner");
    let status = host.client(By::Unix).status().unwrap();
    assert_eq!(status.damage, Vec::<String>::new());
    host.stop();
    host.start();
    let reader = host.client(By::Unix);
    writers.iter_mut().for_each(|writer| writer.verify(&reader));
    writers.iter().for_each(|writer| writer.verify_removed(&reader));
}

#[test]
fn random_kills_lose_nothing_in_memory() {
    play(Medium::Memory, 1000, 30);
}

#[test]
fn random_kills_lose_nothing_on_disk() {
    play(Medium::Disk, 2000, 30);
}
