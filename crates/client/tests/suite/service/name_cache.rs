//! The client's name cache: cached lookups need no request, and changes by other clients are seen at once.

use super::world::{By, World, pattern, wait_for_queue};
use forebay_client::{OpenOptions, blocking};
use forebay_model::{Attr, Change, ErrorKind, SetTime, Time};
use forebay_testkit::{Rng, Seeded, rounds};
use forebay_wire::RenameMode;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn client(world: &World, by: By) -> blocking::Client {
    let client = blocking::Client::connect(world.client_config(by)).unwrap();
    if let By::Unix = by {
        wait_for_queue(&client);
    }
    client
}

fn make(client: &blocking::Client, path: &str) {
    client.open(path, OpenOptions::CREATE_NEW).unwrap().close().unwrap();
}

/// Number of requests that the clients' job has sent so far.
fn requests(client: &blocking::Client) -> u64 {
    client.status().unwrap().jobs.iter().map(|job| job.requests).sum()
}

fn kind<T>(result: forebay_model::Result<T>) -> Result<T, ErrorKind> {
    result.map_err(|error| error.kind())
}

#[test]
fn cached_lookups_need_no_request_and_creates_need_one() {
    let world = World::new(32);
    let local = client(&world, By::Unix);
    local.mkdir("/d", 0o755).unwrap();
    local.stat("/d/").unwrap();
    make(&local, "/d/first");
    local.stat("/d/first").unwrap();
    let cost = |work: &dyn Fn(u64)| {
        let before = requests(&local);
        (0..200).for_each(work);
        requests(&local) - before
    };
    let (name, some) = (|number| format!("/d/f{number}"), 20);
    let made = cost(&|number| make(&local, &name(number)));
    assert!((400..400 + some).contains(&made), "made and closed: {made}");
    let lookups = cost(&|number| assert_eq!(local.stat(name(number)).unwrap().size, 0));
    assert!(lookups < some, "created files are cached: {lookups}");
    let removed = cost(&|number| local.unlink(name(number)).unwrap());
    assert!((200..200 + some).contains(&removed), "{removed}");
    let gone = cost(&|number| assert_eq!(kind(local.stat(name(number))), Err(ErrorKind::NotFound)));
    assert!(gone >= 200, "missing names are not cached: {gone}");
}

#[test]
fn attributes_of_an_open_file_are_requested_only_after_a_change() {
    let world = World::new(32);
    let (local, other) = (client(&world, By::Unix), client(&world, By::Tcp));
    make(&local, "/f");
    // An answer that takes milliseconds, on a busy machine, comes without a lease.
    let leased = |_| {
        let file = local.open("/f", OpenOptions::READ).unwrap();
        let before = requests(&local);
        (0..100).for_each(|_| assert_eq!(file.stat().unwrap().size, 0));
        (requests(&local) - before < 10).then_some(file)
    };
    let file = (0..1000).find_map(leased).expect("its attributes are leased");
    other.truncate("/f", 5).unwrap();
    assert_eq!(file.stat().unwrap().size, 5);
    let writer = local.open("/f", OpenOptions::WRITE).unwrap();
    assert_eq!(writer.stat().unwrap().size, 5);
    (0..9).for_each(|at| {
        writer.pwrite(at * 4, b"abcd").unwrap();
        assert_eq!(
            (file.stat().unwrap().size, writer.stat().unwrap().size),
            (5.max(at * 4 + 4), 5.max(at * 4 + 4))
        );
    });
    other.unlink("/f").unwrap();
    assert_eq!((file.stat().unwrap().links, writer.stat().unwrap().links), (0, 0));
}

/// A service before a directory, which is returned. Nothing is drained unless it is requested.
fn world_before_a_directory() -> (World, PathBuf) {
    let mut behind = PathBuf::new();
    let world = World::with(32, |dir, config| {
        behind = dir.join("behind");
        std::fs::create_dir(&behind).unwrap();
        config.backend = Some(format!("dir:{}", behind.display()));
        config.drain.age = Duration::from_secs(3600);
        config.drain.threshold = 99;
    });
    (world, behind)
}

fn drain(client: &blocking::Client) {
    let ticket = client.drain(None, None).unwrap().ticket.unwrap();
    while !client.drain_ticket(ticket.id).unwrap().ticket.unwrap().done {
        std::thread::yield_now();
    }
}

#[test]
fn cached_lookups_before_a_back_end_need_no_request() {
    let (world, behind) = world_before_a_directory();
    std::fs::create_dir_all(behind.join("there/deep")).unwrap();
    let local = client(&world, By::Unix);
    for dir in ["/there/deep", "/new", "/there/deep/new"] {
        if local.stat(dir).is_err() {
            local.mkdir(dir, 0o755).unwrap();
        }
        let name = |number| format!("{dir}/f{number}");
        (0..100).for_each(|number| make(&local, &name(number)));
        let before = requests(&local);
        (0..100).for_each(|number| assert_eq!(local.stat(name(number)).unwrap().size, 0));
        (0..100).for_each(|number| assert_eq!(local.stat(name(number)).unwrap().size, 0));
        let lookups = requests(&local) - before;
        assert!(lookups < 130, "{dir}: {lookups} requests for 200 lookups");
    }
}

#[test]
fn attributes_of_drained_files_are_not_cached() {
    let (world, behind) = world_before_a_directory();
    let local = client(&world, By::Unix);
    local.mkdir("/d", 0o755).unwrap();
    let file = local.open("/d/f", OpenOptions::CREATE_NEW).unwrap();
    file.pwrite(0, b"drained").unwrap();
    file.close().unwrap();
    (0..5).for_each(|_| assert_eq!(local.stat("/d/f").unwrap().size, 7));
    drain(&local);
    assert_eq!(local.stat("/d/f").unwrap().size, 7);
    std::fs::write(behind.join("d/f"), b"changed by others").unwrap();
    assert_eq!(local.stat("/d/f").unwrap().size, 17, "seen at the next lookup");
    std::fs::remove_file(behind.join("d/f")).unwrap();
    assert_eq!(kind(local.stat("/d/f")), Err(ErrorKind::NotFound));
}

#[test]
fn directory_of_the_same_name_in_the_back_end_is_merged_although_it_is_cached() {
    let (world, behind) = world_before_a_directory();
    let local = client(&world, By::Unix);
    local.mkdir("/d", 0o755).unwrap();
    local.stat("/d").unwrap();
    make(&local, "/d/ours");
    let look = || {
        local.stat("/d/ours").unwrap();
        local.stat("/d").unwrap();
    };
    look();
    std::fs::create_dir(behind.join("d")).unwrap();
    std::fs::write(behind.join("d/theirs"), b"there").unwrap();
    let begin = Instant::now();
    while local.stat("/d/theirs").is_err() {
        look();
        assert!(begin.elapsed() < Duration::from_secs(60), "the directory is not merged");
        std::thread::yield_now();
    }
}

/// What a client with a cached `/d/f` sees after another client has changed something.
#[test]
fn cached_client_sees_changes_of_other_clients_at_once() {
    type Deed = fn(&blocking::Client);
    type Seen = fn(&forebay_model::Result<Attr>) -> bool;
    let gone: Seen = |seen| seen.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let cases: [(&str, Deed, Seen); 11] = [
        ("removed", |other| other.unlink("/d/f").unwrap(), gone),
        ("moved", |other| other.rename("/d/f", "/d/g", RenameMode::NoReplace).unwrap(), gone),
        ("its directory moved", |other| other.rename("/d", "/e", RenameMode::NoReplace).unwrap(), gone),
        (
            "mode",
            |other| _ = other.chmod("/d/f", 0o600).unwrap(),
            |seen| seen.as_ref().unwrap().mode == 0o600,
        ),
        (
            "times",
            |other| {
                let time = Some(SetTime::To(Time { secs: 5, nanos: 6 }));
                other.utimens("/d/f", None, time).unwrap();
            },
            |seen| seen.as_ref().unwrap().mtime == Time { secs: 5, nanos: 6 },
        ),
        ("cut", |other| other.truncate("/d/f", 70).unwrap(), |seen| seen.as_ref().unwrap().size == 70),
        (
            "written",
            |other| {
                let file = other.open("/d/f", OpenOptions::WRITE).unwrap();
                file.pwrite(10, &pattern(1, 500)).unwrap();
                // Not closed: the size counts from the write on.
                std::mem::forget(file);
            },
            |seen| seen.as_ref().unwrap().size == 510,
        ),
        (
            "appended to",
            |other| _ = other.open("/d/f", OpenOptions::APPEND).unwrap().append(b"end").unwrap(),
            |seen| seen.as_ref().unwrap().size == 3,
        ),
        ("linked", |other| _ = other.link("/d/f", "/l").unwrap(), |seen| seen.as_ref().unwrap().links == 2),
        (
            "replaced",
            |other| {
                other.open("/d/new", OpenOptions::CREATE_NEW).unwrap().truncate(9).unwrap();
                other.rename("/d/new", "/d/f", RenameMode::Replace).unwrap();
            },
            |seen| seen.as_ref().unwrap().size == 9,
        ),
        (
            "made anew",
            |other| {
                other.unlink("/d/f").unwrap();
                other.open("/d/f", OpenOptions::CREATE_NEW).unwrap().truncate(8).unwrap();
            },
            |seen| seen.as_ref().unwrap().size == 8,
        ),
    ];
    let world = World::new(32);
    let (local, others) = (client(&world, By::Unix), [By::Unix, By::Tcp].map(|by| client(&world, by)));
    for other in &others {
        other.stat("/").unwrap();
        for (case, deed, expected) in cases {
            local.mkdir("/d", 0o755).unwrap();
            make(&local, "/d/f");
            let before = requests(&local);
            (0..50).for_each(|_| assert_eq!(local.stat("/d/f").unwrap().size, 0, "{case}"));
            assert!(requests(&local) - before < 40, "{case}: the attributes are cached");
            deed(other);
            assert!(expected(&local.stat("/d/f")), "{case}: {:?}", local.stat("/d/f"));
            for dir in ["/d", "/e"] {
                for name in ["f", "g", "new"] {
                    let removed = kind(other.unlink(format!("{dir}/{name}")));
                    assert!(matches!(removed, Ok(()) | Err(ErrorKind::NotFound)), "{case}: {removed:?}");
                }
                assert!(matches!(kind(other.rmdir(dir)), Ok(()) | Err(ErrorKind::NotFound)), "{case}");
            }
            assert!(matches!(kind(other.unlink("/l")), Ok(()) | Err(ErrorKind::NotFound)), "{case}");
        }
    }
}

#[test]
fn cached_directory_is_not_used_after_it_was_replaced() {
    let world = World::new(32);
    let (local, other) = (client(&world, By::Unix), client(&world, By::Tcp));
    local.mkdir("/d", 0o755).unwrap();
    local.stat("/d/").unwrap();
    make(&local, "/d/a");
    let new = |path| local.open(path, OpenOptions::CREATE_NEW).map(drop);
    other.unlink("/d/a").unwrap();
    other.rmdir("/d").unwrap();
    assert_eq!(kind(new("/d/b")), Err(ErrorKind::NotFound));
    assert_eq!(kind(local.unlink("/d/b")), Err(ErrorKind::NotFound));
    other.mkdir("/d", 0o755).unwrap();
    new("/d/c").unwrap();
    assert!(other.stat("/d/c").is_ok());
    other.rename("/d", "/e", RenameMode::NoReplace).unwrap();
    assert_eq!(kind(new("/d/x")), Err(ErrorKind::NotFound));
    assert_eq!(kind(local.unlink("/d/c")), Err(ErrorKind::NotFound));
    other.symlink("e", "/d").unwrap();
    new("/d/y").unwrap();
    assert!(other.stat("/e/y").is_ok());
    local.unlink("/d/c").unwrap();
    assert_eq!(kind(other.stat("/e/c")), Err(ErrorKind::NotFound));
}

#[test]
fn changes_after_a_server_restart_are_seen_at_once() {
    let mut world = World::new(32);
    let local = client(&world, By::Unix);
    local.mkdir("/d", 0o755).unwrap();
    for round in 0..3 {
        let path = format!("/d/f{round}");
        make(&local, &path);
        (0..5).for_each(|_| assert_eq!(local.stat(&path).unwrap().mode, 0o644));
        world.start_again();
        let other = client(&world, By::Tcp);
        other.chmod(&path, 0o600).unwrap();
        assert_eq!(local.stat(&path).unwrap().mode, 0o600);
        other.unlink(&path).unwrap();
        assert_eq!(kind(local.stat(&path)), Err(ErrorKind::NotFound));
    }
}

#[test]
fn no_client_sees_an_older_size_than_another_has_seen() {
    let world = World::new(32);
    let maker = client(&world, By::Tcp);
    maker.mkdir("/d", 0o755).unwrap();
    make(&maker, "/d/f");
    let (seen, end) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for by in [By::Unix, By::Unix, By::Tcp] {
            let (world, seen, end) = (&world, &seen, &end);
            scope.spawn(move || {
                let reader = client(world, by);
                while !end.load(Ordering::SeqCst) {
                    let least = seen.load(Ordering::SeqCst);
                    let size = reader.stat("/d/f").unwrap().size;
                    assert!(size >= least, "{by:?} sees {size} after another client saw {least}");
                    seen.fetch_max(size, Ordering::SeqCst);
                }
            });
        }
        for size in 1..=300 {
            maker.truncate("/d/f", size).unwrap();
            // Changes of other files do not invalidate this one.
            maker.chmod("/d", 0o700 + (size % 2) as u16).unwrap();
        }
        end.store(true, Ordering::SeqCst);
    });
}

/// After each operation of one of several clients, all of them see the same.
struct Crowd {
    clients: Vec<blocking::Client>,
    /// Open files by client.
    open: BTreeMap<usize, blocking::File>,
    rng: Rng,
}

const PATHS: [&str; 9] = ["/a", "/a/f", "/a/g", "/a/b", "/a/b/f", "/c", "/c/f", "/c/b", "/f"];

impl Crowd {
    fn path(&mut self) -> &'static str {
        PATHS[self.rng.index(PATHS.len())]
    }

    /// Whether the operation succeeds does not matter.
    fn step(&mut self) -> String {
        let (who, one, two) = (self.rng.index(self.clients.len()), self.path(), self.path());
        let (number, what) = (self.rng.below(3000), self.rng.below(14));
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
            10 => client.symlink(&two[1..], one).map(drop),
            11 => client.set_attr(one, false, Change { mode: Some(0o711), ..Change::default() }).map(drop),
            _ => self.write(who, one, number),
        };
        format!("{who}: {what} {one} {two} {number}: {:?}", kind(done))
    }

    fn write(&mut self, who: usize, path: &str, number: u64) -> forebay_model::Result<()> {
        let create = OpenOptions { truncate: number.is_multiple_of(3), ..OpenOptions::CREATE };
        let file = self.clients[who].open(path, create)?;
        file.pwrite(number, &pattern(number, 1 + number as usize))?;
        // The insert closes the file that the client had open before.
        self.open.insert(who, file);
        Ok(())
    }

    fn check(&self, what: &str) {
        for path in PATHS {
            for follow in [true, false] {
                let look = |client: &blocking::Client| match follow {
                    true => kind(client.stat(path)),
                    false => kind(client.lstat(path)),
                };
                let expected = look(&self.clients[0]);
                for (who, client) in self.clients.iter().enumerate().skip(1) {
                    assert_eq!(look(client), expected, "client {who}, {path} after {what}");
                }
            }
        }
    }
}

#[test]
fn random_changes_are_seen_at_once_by_all_clients() {
    let seeded = Seeded::new();
    for round in rounds(3) {
        let world = World::new(64);
        // The first client caches nothing: it uses TCP.
        let clients = [By::Tcp, By::Unix, By::Unix].map(|by| client(&world, by)).into();
        let mut crowd = Crowd { clients, open: BTreeMap::new(), rng: seeded.rng(round) };
        for _ in 0..150 {
            let what = crowd.step();
            crowd.check(&what);
        }
    }
}
