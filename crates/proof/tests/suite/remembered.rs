//! Clients cache names, validated by words in shared memory, while the server is killed and restarted: no client sees a
//! state from before a change that any client has seen.

use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{Attr, Bytes, ErrorKind, FileKind, RenameMode, Result};
use forebay_proof::{By, Drains, Host, Plan, Rng, Seeded, drain, pattern, rounds};
use forebay_server::Medium;
use forebay_testkit::until;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn plan() -> Plan {
    Plan::new(Medium::Memory, Bytes::mib(32), Bytes::mib(2))
}

fn host() -> Host {
    Host::new(PROGRAM, plan())
}

/// A client that waits for the server for as long as needed.
fn patient(host: &Host, by: By) -> Client {
    let mut config = host.client_config(by);
    config.request_timeout = Duration::from_secs(120);
    Client::connect(config).expect("client connected")
}

fn kind<T>(result: Result<T>) -> std::result::Result<T, ErrorKind> {
    result.map_err(|error| error.kind())
}

/// Kills the server, sometimes again during recovery, and restarts it.
fn revive(host: &mut Host, rng: &mut Rng) {
    host.kill();
    if rng.one_in(4) {
        host.begin();
        std::thread::sleep(Duration::from_millis(rng.below(60)));
        host.kill();
    }
    host.start();
}

const PATHS: [&str; 8] = ["/a", "/a/f", "/a/g", "/a/b", "/a/b/f", "/c", "/c/f", "/f"];

/// Several clients; one changes something, and then all look. The first caches nothing, since it uses TCP.
struct Crowd {
    clients: Vec<Client>,
    /// Open files, by client.
    open: BTreeMap<usize, File>,
    /// Whether files get several names. Only one of them would be in a back end.
    links: bool,
    rng: Rng,
}

impl Crowd {
    fn new(host: &Host, links: bool, rng: Rng) -> Crowd {
        let clients = [By::Tcp, By::Unix, By::Unix].map(|by| patient(host, by)).into();
        Crowd { clients, open: BTreeMap::new(), links, rng }
    }

    fn path(&mut self) -> &'static str {
        PATHS[self.rng.index(PATHS.len())]
    }

    /// Neither success nor a known outcome matters.
    fn step(&mut self, who: usize) -> String {
        let (one, two) = (self.path(), self.path());
        let (number, what) = (self.rng.below(3000), self.rng.below(12));
        let client = &self.clients[who];
        let done = match what {
            0 | 1 => client.mkdir(one, 0o755).map(drop),
            2 => client.rmdir(one),
            3 | 4 => client.unlink(one),
            5 => client.rename(one, two, RenameMode::Replace),
            6 => client.rename(one, two, RenameMode::Exchange),
            7 => client.chmod(one, 0o700 + (number % 64) as u16).map(drop),
            8 => client.truncate(one, number),
            9 if self.links => client.link(one, two).map(drop),
            _ => self.write(who, one, number),
        };
        format!("{who}: {what} {one} {two} {number}: {:?}", kind(done))
    }

    fn write(&mut self, who: usize, path: &str, number: u64) -> Result<()> {
        if number.is_multiple_of(3) {
            let file = self.clients[who].open(path, OpenOptions::READ)?;
            self.open.insert(who, file);
            return Ok(());
        }
        let file = self.clients[who].open(path, OpenOptions::CREATE)?;
        file.pwrite(number, &pattern(number, 1 + number as usize))?;
        // This closes the file that the client held before.
        self.open.insert(who, file);
        Ok(())
    }

    fn check(&self, what: &str) {
        if let Err(difference) = self.differences(what) {
            panic!("{difference}");
        }
    }

    fn differences(&self, what: &str) -> std::result::Result<(), String> {
        let mut present = Vec::new();
        for path in PATHS {
            let attributes_of =
                |client: &Client| -> std::result::Result<Attr, ErrorKind> { kind(client.stat(path)) };
            let expected = attributes_of(&self.clients[0]);
            present.extend(expected.clone());
            for (who, client) in self.clients.iter().enumerate().skip(1) {
                let got = attributes_of(client);
                if got != expected {
                    return Err(format!("client {who}, {path} after {what}: {got:?}, not {expected:?}"));
                }
            }
        }
        // An open file may have no name any more, or be closed by a server that was killed.
        for (who, file) in &self.open {
            let Ok(got) = file.stat() else { continue };
            if let Some(expected) = present.iter().find(|attr| attr.id == got.id && **attr != got) {
                return Err(format!("open file of client {who} after {what}: {got:?}, not {expected:?}"));
            }
        }
        Ok(())
    }

    /// Changes something in the back end that everything was drained to, and waits until all clients see that. Changes
    /// of directories are noticed within a second, on a machine with time.
    fn meddle(&mut self, place: &Path) {
        let path = self.path();
        let there = place.join(&path[1..]);
        let (number, what) = (self.rng.below(3000), self.rng.below(4));
        let mode = 0o700 + (number % 64) as u32;
        let mut expected: Box<Expected> = Box::new(|_| true);
        match fs::symlink_metadata(&there) {
            Ok(facts) if what == 0 => {
                fs::set_permissions(&there, Permissions::from_mode(mode)).unwrap();
                expected = Box::new(move |attr| {
                    attr.is_ok_and(|attr| attr.mode == mode as u16 && facts.is_dir() == is_dir(&attr))
                });
            }
            Ok(facts) if facts.is_file() && what == 1 => {
                fs::remove_file(&there).unwrap();
                expected = Box::new(|attr| attr == Err(ErrorKind::NotFound));
            }
            Ok(facts) if facts.is_file() => {
                fs::write(&there, pattern(number, number as usize)).unwrap();
                expected = Box::new(move |attr| attr.is_ok_and(|attr| attr.size == number));
            }
            Err(_) if there.parent().is_some_and(Path::is_dir) => match what {
                0 => {
                    fs::create_dir(&there).unwrap();
                    expected = Box::new(|attr| attr.is_ok_and(|attr| is_dir(&attr)));
                }
                _ => {
                    fs::write(&there, pattern(number, number as usize)).unwrap();
                    expected = Box::new(move |attr| attr.is_ok_and(|attr| attr.size == number));
                }
            },
            _ => {}
        }
        let what = format!("{what} {path} {number} in the back end");
        let seen = |client: &Client| expected(kind(client.stat(path)));
        let mut last = String::new();
        let follow = |last: &mut String| {
            *last = self.differences(&what).err().unwrap_or_default();
            std::thread::sleep(Duration::from_millis(10));
            last.is_empty() && self.clients.iter().all(seen)
        };
        assert!((0..6000).any(|_| follow(&mut last)), "{what} is not seen by all clients: {last}");
    }
}

type Expected = dyn Fn(std::result::Result<Attr, ErrorKind>) -> bool;

fn is_dir(attr: &Attr) -> bool {
    attr.kind == FileKind::Directory
}

/// Requests of the clients' job since the server's last start.
fn requests(client: &Client) -> u64 {
    client.status().unwrap().jobs.iter().map(|job| job.requests).sum()
}

#[test]
fn random_changes_around_kills_are_seen_at_once_by_all_clients() {
    let (seeded, mut host) = (Seeded::new(), host());
    let mut crowd = Crowd::new(&host, true, seeded.rng(1));
    for round in rounds(8) {
        for _ in 0..12 {
            let who = crowd.rng.index(crowd.clients.len());
            let what = crowd.step(who);
            crowd.check(&what);
        }
        // All clients have everything cached; the server dies before a change, or during one.
        let mut rng = Rng::new(crowd.rng.next());
        let what = if rng.one_in(2) {
            revive(&mut host, &mut rng);
            // The TCP client makes the change: the others have no reason yet to notice that the server died.
            crowd.step(0)
        } else {
            let who = crowd.rng.index(crowd.clients.len());
            let delay = Duration::from_micros(rng.below(2000));
            host.killed_within(delay, || crowd.step(who))
        };
        crowd.check(&format!("{what}, and a kill in round {round}"));
    }
    let local = &crowd.clients[1];
    local.open("/known", OpenOptions::CREATE_NEW).and_then(File::close).unwrap();
    // After a restart the client opens its queue in the background, and caches nothing before.
    let is_cached = || {
        let before = requests(local);
        (0..100).for_each(|_| assert!(local.stat("/known").is_ok()));
        requests(local) - before < 50
    };
    until("the attributes are cached", is_cached);
}

#[test]
fn random_changes_before_and_in_a_back_end_are_seen_by_all_clients() {
    let seeded = Seeded::new();
    let mut host = Host::new(PROGRAM, Plan { has_backend: true, drain: Drains::Lazily, ..plan() });
    let mut crowd = Crowd::new(&host, false, seeded.rng(3));
    for round in rounds(8) {
        for _ in 0..12 {
            let who = crowd.rng.index(crowd.clients.len());
            let what = crowd.step(who);
            crowd.check(&what);
        }
        if crowd.rng.one_in(3) {
            let mut rng = Rng::new(crowd.rng.next());
            revive(&mut host, &mut rng);
            let what = crowd.step(0);
            crowd.check(&format!("{what}, and a kill in round {round}"));
        }
        if crowd.rng.one_in(3) {
            continue;
        }
        drain(&crowd.clients[0]);
        crowd.check(&format!("the drain in round {round}"));
        for _ in 0..3 {
            crowd.meddle(&host.backing_dir());
        }
    }
}

#[test]
fn random_kills_never_show_an_older_state_than_a_client_has_seen() {
    let (seeded, mut host) = (Seeded::new(), host());
    let mut rng = seeded.rng(2);
    let maker = patient(&host, By::Tcp);
    maker.mkdir("/d", 0o755).unwrap();
    maker.open("/d/f", OpenOptions::CREATE_NEW).and_then(File::close).unwrap();
    let readers = [By::Unix, By::Unix, By::Tcp].map(|by| (by, patient(&host, by)));
    let (seen, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let created = std::thread::scope(|scope| {
        for (by, reader) in &readers {
            let (seen, end) = (&seen, &end);
            scope.spawn(move || {
                while !end.load(Ordering::SeqCst) {
                    let least = seen.load(Ordering::SeqCst);
                    let size = reader.stat("/d/f").unwrap().size;
                    assert!(size >= least, "{by:?} sees {size} after a client saw {least}");
                    seen.fetch_max(size, Ordering::SeqCst);
                    // The server needs a core to restart.
                    std::thread::yield_now();
                }
            });
        }
        let creator = scope.spawn(|| {
            let mut size = 0;
            while !end.load(Ordering::SeqCst) {
                size += 1;
                // Retried until it succeeds, before or after a restart: an acknowledged size is the minimum from then
                // on.
                maker.truncate("/d/f", size).unwrap();
                seen.fetch_max(size, Ordering::SeqCst);
                maker.chmod("/d", 0o700 + (size % 2) as u16).unwrap();
            }
            size
        });
        for _ in rounds(8) {
            let before = seen.load(Ordering::SeqCst);
            until("three changes", || seen.load(Ordering::SeqCst) >= before + 3 || creator.is_finished());
            std::thread::sleep(Duration::from_millis(rng.below(40)));
            revive(&mut host, &mut rng);
        }
        end.store(true, Ordering::SeqCst);
        creator.join().unwrap()
    });
    assert_eq!(readers.map(|(_, reader)| reader.stat("/d/f").unwrap().size), [created; 3]);
}
