//! Real `kill -9` while writers write: everything acknowledged is there, nothing removed comes back, nothing is half.

use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{Bytes, Error, ErrorKind, FileId, Gid, Identity, RegionId, Uid};
use forebay_proof::{By, Dice, Fate, Host, Ledger, Plan, Seeded, rounds};
use forebay_server::Medium;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const WRITERS: u64 = 4;
/// Users in whose names they write, another one in each round: regions change hands.
const USERS: u64 = 3;
/// Bytes in a slot, and slots, of each writer's files: from many small to few large ones.
const SHAPES: [(u64, usize); 3] = [(4096, 64), (100_000, 12), (1 << 20, 4)];

struct Writer {
    number: u64,
    dice: Dice,
    files: Vec<Ledger>,
    /// Files that were removed for certain, by their ids.
    gone: Vec<FileId>,
}

impl Writer {
    fn new(number: u64, dice: Dice) -> Writer {
        let files = SHAPES.iter().enumerate();
        let files = files.map(|(file, (slot, slots))| Ledger::new(number * 10 + file as u64, *slot, *slots));
        Writer { number, dice, files: files.collect(), gone: Vec::new() }
    }

    fn path(&self, file: usize) -> String {
        format!("/k/w{}.{file}", self.number)
    }

    /// Works until the server is gone; whatever is under way then has an unknown fate.
    fn work(&mut self, client: &Client) {
        let mut open: Vec<Option<File>> = SHAPES.iter().map(|_| None).collect();
        loop {
            let file = self.dice.below(SHAPES.len() as u64) as usize;
            if let Err(error) = self.act(client, file, &mut open[file]) {
                // Sessions are short: on a slow machine one may be over before its next request.
                let over = error.to_string().contains("session has ended");
                assert!(over || error.kind() == ErrorKind::Unreachable, "writer {}: {error}", self.number);
                return;
            }
        }
    }

    fn act(&mut self, client: &Client, file: usize, open: &mut Option<File>) -> Result<(), Error> {
        let path = self.path(file);
        let ledger = &mut self.files[file];
        if !ledger.exists() {
            *open = None;
            let made = client.open(&path, OpenOptions { mode: 0o666, ..OpenOptions::CREATE_NEW });
            ledger.emptied(fate(&made));
            *open = Some(made?);
            return Ok(());
        }
        if open.is_none() {
            *open = Some(client.open(&path, OpenOptions::WRITE)?);
        }
        let handle = open.as_ref().expect("it was opened just now");
        match self.dice.below(60) {
            0 => {
                let id = handle.id();
                let removed = client.unlink(&path);
                ledger.removed(fate(&removed));
                removed?;
                *open = None;
                self.gone.push(id);
            }
            1 => {
                let slots = self.dice.below(ledger.slots() as u64) as usize;
                let cut = handle.truncate(slots as u64 * ledger.slot);
                ledger.cut(slots, fate(&cut));
                cut?;
            }
            2..4 => handle.sync()?,
            _ => {
                let slot = self.dice.below(ledger.slots() as u64) as usize;
                let block = ledger.block(slot);
                let wrote = handle.pwrite(slot as u64 * ledger.slot, &block.bytes());
                ledger.wrote(block, fate(&wrote));
                wrote?;
            }
        }
        Ok(())
    }

    /// Compares everything with what was acknowledged.
    fn verify(&mut self, client: &Client) {
        for file in 0..self.files.len() {
            let path = self.path(file);
            let bytes = match client.open(&path, OpenOptions::READ) {
                Ok(file) => {
                    let mut bytes = vec![0xaa; file.stat().unwrap().size as usize];
                    assert_eq!(file.pread(0, &mut bytes).unwrap(), bytes.len());
                    Some(bytes)
                }
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => panic!("{error}"),
            };
            self.files[file].settle(bytes.as_deref()).unwrap_or_else(|why| panic!("{path}: {why}"));
        }
        for id in &self.gone {
            let found = client.wait(client.by_id().get_attr(*id));
            assert_eq!(found.map_err(|error| error.kind()), Err(ErrorKind::Stale), "file {id} was removed");
        }
    }
}

fn fate<T>(result: &Result<T, Error>) -> Fate {
    if result.is_ok() { Fate::Done } else { Fate::Unknown }
}

fn impatient(host: &Host, by: By) -> Client {
    let mut config = host.client_config(by);
    // The server does not come back while its writers wait for it.
    config.request_timeout = Duration::from_millis(400);
    Client::connect(config).expect("the server serves")
}

/// The user of a writer in a round.
fn user(writer: u64, round: u64) -> Identity {
    let id = 7000 + ((writer + round) % USERS) as u32;
    Identity { uid: Uid(id), gid: Gid(id), groups: Vec::new() }
}

/// Whose bytes the files of the regions hold.
fn owners(host: &Host) -> impl Iterator<Item = (RegionId, Uid)> {
    let regions = forebay_store::inspect(&host.store()).unwrap().regions;
    regions.into_iter().filter_map(|region| Some((region.region, region.uid?)))
}

fn play(medium: Medium, part: u64, kills: u64) {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(part);
    let mut plan = Plan::new(medium, Bytes::mib(96), Bytes::mib(2));
    // What was removed in one life is buried soon in the next, though lives are short.
    plan.session = Duration::from_millis(150);
    let mut host = Host::new(PROGRAM, plan);
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|number| Writer::new(number, seeded.dice(part + 1 + number))).collect();
    host.client(By::Unix).mkdir("/k", 0o777).unwrap();
    let mut holders: BTreeMap<RegionId, BTreeSet<Uid>> = BTreeMap::new();
    for round in rounds(kills) {
        let client = |writer| impatient(&host, By::turn(writer)).as_identity(user(writer, round));
        let clients: Vec<Client> = (0..WRITERS).map(client).collect();
        std::thread::scope(|scope| {
            for (writer, client) in writers.iter_mut().zip(&clients) {
                scope.spawn(|| writer.work(client));
            }
            std::thread::sleep(Duration::from_millis(dice.below(250)));
            host.kill();
        });
        if dice.one_in(4) {
            // Recovery is killed too.
            host.begin();
            std::thread::sleep(Duration::from_millis(dice.below(60)));
            host.kill();
        }
        host.start();
        let reader = host.client(By::turn(dice.below(2)));
        writers.iter_mut().for_each(|writer| writer.verify(&reader));
        for (region, uid) in owners(&host) {
            holders.entry(region).or_default().insert(uid);
        }
    }
    let changed = holders.values().filter(|users| users.len() > 1).count();
    assert!(changed > 0, "no region was made anew for another user");
    let status = host.client(By::Unix).status().unwrap();
    assert_eq!(status.damage, Vec::<String>::new());
    host.stop();
    host.start();
    let reader = host.client(By::Unix);
    writers.iter_mut().for_each(|writer| writer.verify(&reader));
}

#[test]
fn random_kills_lose_nothing_in_memory() {
    play(Medium::Memory, 1000, 30);
}

#[test]
fn random_kills_lose_nothing_on_disk() {
    play(Medium::Disk, 2000, 30);
}
