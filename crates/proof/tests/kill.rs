//! `kill -9` while writers write: acknowledged data survives, removed files do not come back, and no write is torn.

use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{Bytes, Error, ErrorKind, FileId, Gid, Identity, RegionId, Uid};
use forebay_proof::{By, Fate, Host, Ledger, Plan, Rng, Seeded, rounds};
use forebay_server::Medium;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const WRITERS: u64 = 4;
/// The writers act as these users, another one in each round, so that regions change owners.
const USERS: u64 = 3;
/// Slot size and number of slots of each writer's files: from many small to few large ones.
const SHAPES: [(u64, usize); 3] = [(4096, 64), (100_000, 12), (1 << 20, 4)];

struct Writer {
    number: u64,
    rng: Rng,
    files: Vec<Ledger>,
    /// Ids of files whose removal was acknowledged.
    gone: Vec<FileId>,
}

impl Writer {
    fn new(number: u64, rng: Rng) -> Writer {
        let files = SHAPES.iter().enumerate();
        let files = files.map(|(file, (slot, slots))| Ledger::new(number * 10 + file as u64, *slot, *slots));
        Writer { number, rng, files: files.collect(), gone: Vec::new() }
    }

    fn path(&self, file: usize) -> String {
        format!("/k/w{}.{file}", self.number)
    }

    /// Works until the server is gone; the outcome of the call in progress is unknown then.
    fn work(&mut self, client: &Client) {
        let mut open: Vec<Option<File>> = SHAPES.iter().map(|_| None).collect();
        loop {
            let file = self.rng.below(SHAPES.len() as u64) as usize;
            if let Err(error) = self.act(client, file, &mut open[file]) {
                // Sessions are short: on a slow host one may end before its next request.
                let over = error.to_string().contains("session has ended");
                assert!(over || error.kind().is_no_answer(), "writer {}: {error}", self.number);
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
        let handle = open.as_ref().expect("open file");
        match self.rng.below(60) {
            0 => {
                let id = handle.id();
                let removed = client.unlink(&path);
                ledger.removed(fate(&removed));
                removed?;
                *open = None;
                self.gone.push(id);
            }
            1 => {
                let slots = self.rng.below(ledger.slots() as u64) as usize;
                let truncated = handle.truncate(slots as u64 * ledger.slot);
                ledger.truncated(slots, fate(&truncated));
                truncated?;
            }
            2..4 => handle.sync()?,
            _ => {
                let slot = self.rng.below(ledger.slots() as u64) as usize;
                let block = ledger.block(slot);
                let wrote = handle.pwrite(slot as u64 * ledger.slot, &block.bytes());
                ledger.wrote(block, fate(&wrote));
                wrote?;
            }
        }
        Ok(())
    }

    /// Compares everything with the acknowledged state.
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
            self.files[file].reconcile(bytes.as_deref()).unwrap_or_else(|why| panic!("{path}: {why}"));
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

fn play(medium: Medium, part: u64, kills: u64) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let mut plan = Plan::new(medium, Bytes::mib(96), Bytes::mib(2));
    // Files removed in one run are reaped soon in the next, although runs are short.
    plan.session = Duration::from_millis(150);
    let mut host = Host::new(PROGRAM, plan);
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|number| Writer::new(number, seeded.rng(part + 1 + number))).collect();
    host.client(By::Unix).mkdir("/k", 0o777).unwrap();
    let mut holders: BTreeMap<RegionId, BTreeSet<Uid>> = BTreeMap::new();
    for round in rounds(kills) {
        let client = |writer| impatient(&host, By::turn(writer)).as_identity(user(writer, round));
        let clients: Vec<Client> = (0..WRITERS).map(client).collect();
        std::thread::scope(|scope| {
            for (writer, client) in writers.iter_mut().zip(&clients) {
                scope.spawn(|| writer.work(client));
            }
            std::thread::sleep(Duration::from_millis(rng.below(250)));
            host.kill();
        });
        if rng.one_in(4) {
            // Kills the server during recovery too.
            host.begin();
            std::thread::sleep(Duration::from_millis(rng.below(60)));
            host.kill();
        }
        host.start();
        let reader = host.client(By::turn(rng.below(2)));
        writers.iter_mut().for_each(|writer| writer.verify(&reader));
        for (region, uid) in owners(&host) {
            holders.entry(region).or_default().insert(uid);
        }
    }
    let changed = holders.values().filter(|users| users.len() > 1).count();
    assert!(changed > 0, "no region changed its owner");
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
