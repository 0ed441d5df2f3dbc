//! What clients remember of names, by the words in shared memory, while the server is killed and comes back: nobody
//! believes what was before a change that anybody was told of.

use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{Attr, Bytes, ErrorKind, RenameMode, Result};
use forebay_proof::{By, Dice, Host, Plan, Seeded, pattern, rounds};
use forebay_server::Medium;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn host() -> Host {
    Host::new(PROGRAM, Plan::new(Medium::Memory, Bytes::mib(32), Bytes::mib(2)))
}

/// One that waits for the server to come back for as long as that takes.
fn patient(host: &Host, by: By) -> Client {
    let mut config = host.client_config(by);
    config.request_timeout = Duration::from_secs(120);
    Client::connect(config).expect("the server serves")
}

fn kind<T>(result: Result<T>) -> std::result::Result<T, ErrorKind> {
    result.map_err(|error| error.kind())
}

/// Kills the server, sometimes once more while it recovers, and has it serve again.
fn revive(host: &mut Host, dice: &mut Dice) {
    host.kill();
    if dice.one_in(4) {
        host.begin();
        std::thread::sleep(Duration::from_millis(dice.below(60)));
        host.kill();
    }
    host.start();
}

const PATHS: [&str; 8] = ["/a", "/a/f", "/a/g", "/a/b", "/a/b/f", "/c", "/c/f", "/f"];

/// Clients of which one does something, and all look afterwards. The first remembers nothing: it comes from afar.
struct Crowd {
    clients: Vec<Client>,
    /// Files that are open, by their client.
    open: BTreeMap<usize, File>,
    dice: Dice,
}

impl Crowd {
    fn path(&mut self) -> &'static str {
        PATHS[self.dice.index(PATHS.len())]
    }

    /// Whether it could be done does not matter here, nor whether anybody knows.
    fn step(&mut self, who: usize) -> String {
        let (one, two) = (self.path(), self.path());
        let (number, what) = (self.dice.below(3000), self.dice.below(12));
        let client = &self.clients[who];
        let done = match what {
            0 | 1 => client.mkdir(one, 0o755).map(drop),
            2 => client.rmdir(one),
            3 | 4 => client.unlink(one),
            5 => client.rename(one, two, RenameMode::Replace),
            6 => client.rename(one, two, RenameMode::Exchange),
            7 => client.chmod(one, 0o700 + (number % 64) as u16).map(drop),
            8 => client.truncate(one, number),
            9 => client.link(one, two).map(drop),
            _ => self.write(who, one, number),
        };
        format!("{who}: {what} {one} {two} {number}: {:?}", kind(done))
    }

    fn write(&mut self, who: usize, path: &str, number: u64) -> Result<()> {
        let file = self.clients[who].open(path, OpenOptions::CREATE)?;
        file.pwrite(number, &pattern(number, 1 + number as usize))?;
        // What it held before is closed.
        self.open.insert(who, file);
        Ok(())
    }

    fn check(&self, what: &str) {
        for path in PATHS {
            let look = |client: &Client| -> std::result::Result<Attr, ErrorKind> { kind(client.stat(path)) };
            let expected = look(&self.clients[0]);
            for (who, client) in self.clients.iter().enumerate().skip(1) {
                assert_eq!(look(client), expected, "client {who}, {path} after {what}");
            }
        }
    }
}

/// Requests that the clients' job has made in this life of the server.
fn requests(client: &Client) -> u64 {
    client.status().unwrap().jobs.iter().map(|job| job.requests).sum()
}

#[test]
fn random_changes_before_and_after_kills_are_seen_at_once_by_everybody() {
    let (seeded, mut host) = (Seeded::new(), host());
    let clients = [By::Tcp, By::Unix, By::Unix].map(|by| patient(&host, by)).into();
    let mut crowd = Crowd { clients, open: BTreeMap::new(), dice: seeded.dice(1) };
    for round in rounds(8) {
        for _ in 0..12 {
            let who = crowd.dice.index(crowd.clients.len());
            let what = crowd.step(who);
            crowd.check(&what);
        }
        // Everybody knows everything by heart; the server dies before a change, or in the midst of one.
        let mut dice = Dice::new(crowd.dice.next());
        let what = if dice.one_in(2) {
            revive(&mut host, &mut dice);
            // By one who comes from afar: the others have no reason yet to know that the server died.
            crowd.step(0)
        } else {
            let who = crowd.dice.index(crowd.clients.len());
            let patience = Duration::from_micros(dice.below(2000));
            host.killed_within(patience, || crowd.step(who))
        };
        crowd.check(&format!("{what}, and a kill in round {round}"));
    }
    let near = &crowd.clients[1];
    near.open("/known", OpenOptions::CREATE_NEW).and_then(File::close).unwrap();
    let before = requests(near);
    (0..100).for_each(|_| assert!(near.stat("/known").is_ok()));
    assert!(requests(near) - before < 50, "they remember");
}

#[test]
fn random_kills_show_nobody_what_was_before_something_that_anybody_has_seen() {
    let (seeded, mut host) = (Seeded::new(), host());
    let mut dice = seeded.dice(2);
    let maker = patient(&host, By::Tcp);
    maker.mkdir("/d", 0o755).unwrap();
    maker.open("/d/f", OpenOptions::CREATE_NEW).and_then(File::close).unwrap();
    let readers = [By::Unix, By::Unix, By::Tcp].map(|by| (by, patient(&host, by)));
    let (seen, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let made = std::thread::scope(|scope| {
        for (by, reader) in &readers {
            let (seen, end) = (&seen, &end);
            scope.spawn(move || {
                while !end.load(Ordering::SeqCst) {
                    let least = seen.load(Ordering::SeqCst);
                    let size = reader.stat("/d/f").unwrap().size;
                    assert!(size >= least, "{by:?} sees {size} after somebody saw {least}");
                    seen.fetch_max(size, Ordering::SeqCst);
                    // The server needs a core to come back.
                    std::thread::yield_now();
                }
            });
        }
        let making = scope.spawn(|| {
            let mut size = 0;
            while !end.load(Ordering::SeqCst) {
                size += 1;
                // Asked again until it is done, by whichever life of the server: what was answered is the least from then on.
                maker.truncate("/d/f", size).unwrap();
                seen.fetch_max(size, Ordering::SeqCst);
                maker.chmod("/d", 0o700 + (size % 2) as u16).unwrap();
            }
            size
        });
        for _ in rounds(8) {
            let before = seen.load(Ordering::SeqCst);
            while seen.load(Ordering::SeqCst) < before + 3 && !making.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(dice.below(40)));
            revive(&mut host, &mut dice);
        }
        end.store(true, Ordering::SeqCst);
        making.join().unwrap()
    });
    assert_eq!(readers.map(|(_, reader)| reader.stat("/d/f").unwrap().size), [made; 3]);
}
