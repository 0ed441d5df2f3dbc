//! One hostile user at every limit: that user gets an error, and other users are served.
//!
//! Each test runs twice: without a limit for one user, where the hostile user takes everything and the other user is
//! refused, which shows that the test can fail; and with the limit.

use crate::drain::until;
use crate::raw::{ALICE, BOB, Raw, World, hello, name, refused};
use crate::route::put;
use forebay_backend::{Faulty, Memory};
use forebay_model::{Access, Bytes, Error, ErrorKind, FileId};
use forebay_server::{Config, Draining, Mode, Routing};
use forebay_testkit::{is_root, skip};
use forebay_wire::{At, Call, Channel, DrainCall, FileMap, FrameKind, IfExists, Reply, Request, frame};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;
/// The hostile user.
const MALLORY: u32 = ALICE;
const UNBOUNDED: usize = usize::MAX;

/// Whether this process can act as other users.
pub(crate) fn has_users(test: &str) -> bool {
    if !is_root() {
        skip(test, "only root can act as two other users");
    }
    is_root()
}

impl World {
    pub(crate) fn user(&self, uid: u32, channel: Channel, client: u128) -> Result<Raw, Error> {
        Raw::unix_of(uid, &self.socket(), channel, client)
    }
}

fn create(raw: &mut Raw, text: &str) -> Result<Reply, Error> {
    let (access, if_exists) = (Access::BOTH, IfExists::Refuse);
    raw.call(Request::Create { dir: ROOT, name: name(text), mode: 0o600, access, if_exists })
}

/// Asserts that the error names the limit.
fn expect_limit<T: std::fmt::Debug>(result: Result<T, Error>, key: &str) {
    match result {
        Err(error) if error.kind() == ErrorKind::Busy && error.to_string().contains(key) => {}
        other => panic!("expected an error that names limits.{key}, got {other:?}"),
    }
}

/// Asserts that Bob is served, or refused if there is no limit for one user.
fn expect_served(bounded: bool, bob: Result<Reply, Error>) {
    match bounded {
        true => assert!(bob.is_ok(), "bob is refused: {bob:?}"),
        false => refused(bob, ErrorKind::Busy),
    }
}

#[test]
fn one_user_cannot_take_all_sessions() {
    if !has_users("one_user_cannot_take_all_sessions") {
        return;
    }
    for (each, bounded) in [(UNBOUNDED, false), (3, true)] {
        let world = World::with(|config| (config.limits.sessions, config.limits.user_sessions) = (6, each));
        world.open_to_all();
        // A session outlives its connection while a file is open in it.
        let mut last = Ok(Reply::Done);
        for client in 0..6.min(each.saturating_add(1)) {
            let raw = world.user(MALLORY, Channel::Control, client as u128);
            last = raw.and_then(|mut raw| create(&mut raw, &format!("m{client}")));
        }
        if bounded {
            expect_limit(last, "user_sessions");
        }
        let bob = world.user(BOB, Channel::Control, 1).and_then(|mut bob| create(&mut bob, "bobs"));
        expect_served(bounded, bob);
    }
}

#[test]
fn one_user_cannot_take_all_connections() {
    if !has_users("one_user_cannot_take_all_connections") {
        return;
    }
    for (each, bounded) in [(UNBOUNDED, false), (4, true)] {
        let world =
            World::with(|config| (config.limits.connections, config.limits.user_connections) = (8, each));
        world.open_to_all();
        let taken: Vec<Raw> = (0..8)
            .map_while(|number| {
                let channel = if number % 2 == 0 { Channel::Control } else { Channel::Data };
                world.user(MALLORY, channel, 1).ok()
            })
            .collect();
        assert_eq!(taken.len(), 8.min(each));
        if bounded {
            expect_limit(world.user(MALLORY, Channel::Control, 1).map(drop), "user_connections");
        }
        let mut bob = world.user(BOB, Channel::Control, 1);
        expect_served(
            bounded,
            bob.as_mut().map_err(|error| error.clone()).and_then(|bob| create(bob, "bobs")),
        );
        if bounded {
            // The connections of root count against the total limit only.
            let roots: Vec<Raw> = (0..3).map(|_| world.control()).collect();
            refused(Raw::unix(&world.socket(), Channel::Control, 1).map(drop), ErrorKind::Busy);
            drop(roots);
        }
        drop(taken);
    }
}

#[test]
fn one_user_cannot_take_all_open_files() {
    if !has_users("one_user_cannot_take_all_open_files") {
        return;
    }
    for (each, bounded) in [(UNBOUNDED, false), (4, true)] {
        let world = World::with(|config| (config.limits.opens, config.limits.user_opens) = (8, each));
        world.open_to_all();
        let mut mallory: Vec<Raw> =
            (0..2).map(|client| world.user(MALLORY, Channel::Control, client).unwrap()).collect();
        let opened: Vec<Result<Reply, Error>> =
            (0..8).map(|number| create(&mut mallory[number % 2], &format!("m{number}"))).collect();
        assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 8.min(each));
        if bounded {
            expect_limit(opened[7].clone(), "user_opens");
            // A mount acts for users as root: files that it opens count for them.
            expect_limit(create(&mut world.control().acting(MALLORY), "mounted"), "user_opens");
            create(&mut world.control().acting(BOB), "mounted").unwrap();
        }
        let bob = world.user(BOB, Channel::Control, 1).and_then(|mut bob| create(&mut bob, "bobs"));
        expect_served(bounded, bob);
        if bounded {
            let Ok(Reply::Opened { token, .. }) = &opened[0] else { panic!("not opened") };
            mallory[0].call(Request::Close { token: *token }).unwrap();
            create(&mut mallory[1], "again").unwrap();
            assert!(mallory[0].walk("m7").is_err(), "a refused request creates nothing");
        }
    }
}

#[test]
fn one_user_of_a_mount_cannot_take_all_its_open_files() {
    let world = World::with(|config| config.limits.session_opens = 3);
    let (mut mallory, mut bob) = (world.control().acting(MALLORY), world.control().acting(BOB));
    for number in 0..3 {
        create(&mut mallory, &format!("m{number}")).unwrap();
    }
    expect_limit(create(&mut mallory, "m3"), "session_opens");
    create(&mut bob, "bobs").unwrap();
}

#[test]
fn unread_answers_are_limited_in_bytes_and_none_is_lost() {
    if !has_users("unread_answers_are_limited_in_bytes_and_none_is_lost") {
        return;
    }
    // With a back end every request is deferred, and its reply waits in memory.
    let world = World::before_with(Arc::new(Memory::default()), |config| {
        config.limits.connection_answers = Bytes(100 << 10);
        config.limits.user_answers = Bytes(300 << 10);
        config.times.answer = Duration::from_secs(3600);
    });
    world.open_to_all();
    let mut root = world.control();
    let dir = root.make_dir(ROOT, "d", 0o755);
    for number in 0..300 {
        root.make_dir(dir, &format!("{number:0>250}"), 0o755);
    }
    let list = Request::ReadDir { dir, cookie: 0, limit: 300, plus: true };
    let mut mallory: Vec<Raw> =
        (0..6).map(|client| world.user(MALLORY, Channel::Control, client).unwrap()).collect();
    // One reply is longer than the limit for unread replies of a connection.
    let asked: Vec<Vec<u64>> =
        mallory.iter_mut().map(|raw| (0..40).map(|_| raw.send(list.clone(), &[])).collect()).collect();
    let mut bob = world.user(BOB, Channel::Control, 1).unwrap();
    assert!(matches!(bob.call(list), Ok(Reply::Entries { entries, .. }) if entries.len() == 300));
    assert_eq!(heartbeat(&world), Ok(Reply::Done), "heartbeats need no reply space");
    std::thread::scope(|scope| {
        for (raw, asked) in mallory.iter_mut().zip(asked) {
            scope.spawn(move || {
                let mut answered: Vec<u64> = asked.iter().map(|_| listing(raw, 300)).collect();
                answered.sort_unstable();
                assert_eq!(answered, asked);
            });
        }
    });
}

/// Number of turns that the job of this connection has had.
fn turns_of(raw: &mut Raw) -> u64 {
    let Ok(Reply::Status(status)) = raw.call(Request::Status) else { panic!("no status") };
    status.jobs.iter().map(|job| job.operations).sum()
}

#[test]
fn long_listings_take_one_turn_per_part_and_return_every_entry() {
    let worlds = [World::with(|_| {}), World::before_with(Arc::new(Memory::default()), |_| {})];
    for (world, is_before) in worlds.iter().zip([false, true]) {
        let mut raw = world.control();
        let dir = raw.make_dir(ROOT, "d", 0o755);
        for number in 0..300 {
            raw.make_dir(dir, &format!("n{number}"), 0o755);
        }
        // A listing of one part, which may first query the back end; all other turns are for further parts.
        for (limit, pieces) in [(100, 1), (256, 2), (1024, 3)] {
            let before = turns_of(&mut raw);
            let list = Request::ReadDir { dir, cookie: 0, limit, plus: true };
            let Ok(Reply::Entries { entries, next }) = raw.call(list) else { panic!("no listing") };
            assert_eq!(entries.len(), 300.min(limit as usize));
            assert_eq!(next.is_some(), limit < 300);
            assert!(entries.iter().all(|entry| entry.attr.is_some()));
            let names: std::collections::HashSet<_> = entries.iter().map(|entry| &entry.name).collect();
            assert_eq!(names.len(), entries.len(), "every entry is listed once");
            let turns = pieces + u64::from(is_before);
            assert_eq!(turns_of(&mut raw) - before, turns, "{limit} entries, before a back end: {is_before}");
        }
    }
}

/// Receives a listing with the given number of entries; returns the number of its request.
fn listing(raw: &mut Raw, count: usize) -> u64 {
    let (id, answer, _) = raw.receive().expect("an answer");
    assert!(matches!(answer, Ok(Reply::Entries { entries, .. }) if entries.len() == count));
    id
}

/// A heartbeat on another connection of the same user.
fn heartbeat(world: &World) -> Result<Reply, Error> {
    world.user(MALLORY, Channel::Control, 99)?.call(Request::Ping)
}

/// Blocks the given number of calls until it is opened.
#[derive(Default)]
pub(crate) struct Stall {
    left: Mutex<usize>,
    opened: Condvar,
    stalled: AtomicUsize,
}

impl Stall {
    pub(crate) fn close(&self, count: usize) {
        *self.left.lock().unwrap() = count;
    }

    pub(crate) fn open(&self) {
        *self.left.lock().unwrap() = usize::MAX;
        self.opened.notify_all();
    }

    pub(crate) fn pass(&self) {
        let mut left = self.left.lock().unwrap();
        if *left == 0 || *left == usize::MAX {
            return;
        }
        *left -= 1;
        self.stalled.fetch_add(1, Ordering::SeqCst);
        drop(self.opened.wait_while(left, |left| *left != usize::MAX).unwrap());
    }

    /// Lets further calls pass; blocked calls stay blocked.
    fn let_pass(&self) {
        *self.left.lock().unwrap() = 0;
    }

    /// Asserts that exactly `count` calls are blocked although more are queued.
    fn has_only(&self, count: usize, other: &mut Raw) {
        self.wait_for(count);
        // A further call would arrive meanwhile.
        for _ in 0..100 {
            other.call(Request::Ping).unwrap();
        }
        assert_eq!(self.stalled.load(Ordering::SeqCst), count, "one user exceeds its limit");
        self.let_pass();
    }

    pub(crate) fn wait_for(&self, count: usize) {
        until("calls are blocked in the back end", || self.stalled.load(Ordering::SeqCst) >= count);
    }
}

/// A server with a back end that can block one kind of call.
pub(crate) fn stalling(call: &'static str, change: impl FnOnce(&mut Config)) -> (World, Arc<Stall>) {
    let stall = Arc::new(Stall::default());
    let passing = stall.clone();
    let backend = Faulty::new(Memory::default(), move |called| {
        if called == call {
            passing.pass();
        }
        None
    });
    let world = World::before_with(Arc::new(backend), |config| {
        // No automatic drain.
        config.drain = Draining { age: Duration::from_secs(600), threshold: 99, ..Draining::default() };
        config.times.answer = Duration::from_secs(3600);
        change(config);
    });
    (world, stall)
}

fn make(number: usize) -> Request {
    Request::MakeDir { dir: ROOT, name: name(&format!("m{number}")), mode: 0o755 }
}

#[test]
fn one_user_cannot_take_all_back_end_calls() {
    let (world, stall) =
        stalling("find", |config| (config.limits.backend_places, config.limits.user_backend_places) = (6, 3));
    let mut bob = world.control().acting(BOB);
    stall.close(6);
    let mut mallory = world.control().acting(MALLORY);
    let asked: Vec<u64> = (0..20).map(|number| mallory.send(make(number), &[])).collect();
    stall.has_only(3, &mut bob);
    // Both requests need the back end, which serves Bob.
    create(&mut bob, "bobs").unwrap();
    assert!(bob.walk("bobs").is_ok());
    stall.open();
    for _ in asked {
        assert!(mallory.receive().unwrap().1.is_ok(), "blocked requests complete");
    }
}

#[test]
fn buffered_files_are_served_while_the_back_end_is_blocked() {
    let (world, stall) =
        stalling("find", |config| (config.limits.backend_places, config.limits.user_backend_places) = (6, 3));
    let mut bob = world.control().acting(BOB);
    let dir = bob.make_dir(ROOT, "bobs", 0o700);
    let token = bob.create(dir, "new", 0o600);
    stall.close(6);
    let mut hostile: Vec<Raw> = [MALLORY, MALLORY + 9].map(|uid| world.control().acting(uid)).into();
    for (index, raw) in hostile.iter_mut().enumerate() {
        for number in 0..20 {
            raw.send(make(100 * index + number), &[]);
        }
    }
    stall.wait_for(6);
    for request in [
        Request::Walk { dir, path: b"new".to_vec(), follow: true },
        Request::GetAttr { file: token.file },
        Request::Open { file: token.file, access: Access::READ, truncate: false },
        Request::Truncate { token, size: 9 },
        Request::StatFs,
        Request::MakeDir { dir, name: name("sub"), mode: 0o700 },
        Request::ReadDir { dir, cookie: 0, limit: 9, plus: true },
        Request::Unlink { dir, name: name("new") },
    ] {
        let shown = format!("{request:?}");
        let answer = bob.call(request);
        assert!(answer.is_ok(), "{shown}: {answer:?}");
    }
    stall.open();
    for raw in &mut hostile {
        (0..20).for_each(|_| assert!(raw.receive().unwrap().1.is_ok()));
    }
}

/// A second connection of the same client abandons the first, while a request of the first holds up the back end.
#[test]
fn abandoning_a_connection_holds_no_thread_while_it_waits() {
    // More than the threads of the server's runtime.
    const ABANDONING: usize = 600;
    let (world, stall) = stalling("find", |_| {});
    let connect = |client| {
        let mut raw = Raw::bare(UnixStream::connect(world.socket()).unwrap());
        let welcome = raw.greet(&hello(Channel::Control, client), None).unwrap();
        (raw, welcome.connection)
    };
    let mut bob = world.control();
    stall.close(1);
    let (mut stalled, connection) = connect(5);
    stalled.send(make(0), &[]);
    stall.wait_for(1);
    let mut abandoning: Vec<Raw> = (0..ABANDONING)
        .map(|_| {
            let (mut raw, _) = connect(5);
            raw.send(Request::Abandon { connection }, &[]);
            raw
        })
        .collect();
    for number in 1..9 {
        assert!(bob.call(make(number)).is_ok(), "another client is served");
    }
    stall.open();
    assert!(stalled.receive().unwrap().1.is_ok());
    for raw in &mut abandoning {
        assert_eq!(raw.receive().unwrap().1, Ok(Reply::Done));
    }
    refused(stalled.call(make(9)), ErrorKind::Unreachable);
}

#[test]
fn one_user_cannot_take_all_syncs() {
    let (world, stall) = stalling("sync", |config| {
        (config.limits.syncs, config.limits.user_syncs) = (4, 2);
        config.route = Routing { mode: Mode::Direct, stream: 4, ..Routing::default() };
    });
    let (mut mallory, mut bob) = (world.control().acting(MALLORY), world.control().acting(BOB));
    let written = |raw: &mut Raw, uid: u32, text: &str| {
        let token = raw.create(ROOT, text, 0o600);
        put(&mut world.data().acting(uid), token, 0, 1);
        token
    };
    let tokens: Vec<_> = (0..8).map(|file| written(&mut mallory, MALLORY, &format!("m{file}"))).collect();
    let bobs = written(&mut bob, BOB, "bobs");
    stall.close(4);
    for &token in &tokens {
        mallory.send(Request::Sync { token }, &[]);
    }
    stall.has_only(2, &mut bob);
    assert_eq!(bob.call(Request::Sync { token: bobs }), Ok(Reply::Done));
    stall.open();
    for _ in tokens {
        assert_eq!(mallory.receive().unwrap().1, Ok(Reply::Done));
    }
}

#[test]
fn one_user_cannot_take_all_drain_requests() {
    // As many as are remembered.
    const ALL: usize = 1024;
    for (each, bounded) in [(UNBOUNDED, false), (4, true)] {
        let (world, stall) = stalling("write", |config| config.limits.user_drains = each);
        let (mut mallory, mut bob) = (world.control().acting(MALLORY), world.control().acting(BOB));
        let written = |raw: &mut Raw, uid: u32, text: &str| {
            let token = raw.create(ROOT, text, 0o600);
            put(&mut world.data().acting(uid), token, 0, 1);
            token.file
        };
        let begin = |file| Request::Drain(DrainCall::Begin { file: Some(file), order: None, last: false });
        let (mallorys, bobs) = (written(&mut mallory, MALLORY, "m"), written(&mut bob, BOB, "b"));
        stall.close(UNBOUNDED - 1);
        let taken = (0..ALL).take_while(|_| mallory.call(begin(mallorys)).is_ok()).count();
        assert_eq!(taken, ALL.min(each));
        if bounded {
            expect_limit(mallory.call(begin(mallorys)), "user_drains");
        }
        expect_served(bounded, bob.call(begin(bobs)));
        stall.open();
        if bounded {
            until("a finished drain counts no more", || mallory.call(begin(mallorys)).is_ok());
        }
    }
}

#[test]
fn one_user_cannot_fill_the_turn_queue() {
    if !has_users("one_user_cannot_fill_the_turn_queue") {
        return;
    }
    for (each, bounded) in [(UNBOUNDED, false), (2, true)] {
        let world = World::with(|config| {
            config.limits.turns = 1;
            (config.limits.waiting, config.limits.user_waiting) = (4, each);
            config.times.stall = Duration::from_secs(3600);
        });
        world.open_to_all();
        let mut mallory = world.user(MALLORY, Channel::Control, 1).unwrap();
        let token = mallory.create(ROOT, "m", 0o600);
        let mut data: Vec<Raw> = (0..6).map(|_| world.user(MALLORY, Channel::Data, 1).unwrap()).collect();
        // The first connection holds the only turn and stalls; the others wait.
        let write = Request::Write { token, at: At::Offset(0) };
        let mut half = Vec::new();
        frame(&mut half, FrameKind::Call, 1, &Call { identity: None, request: write.clone() }, 2).unwrap();
        half.push(1);
        data[0].socket.write_all(&half).unwrap();
        let mut status = world.control();
        let mut waiting = || match status.call(Request::Status) {
            Ok(Reply::Status(status)) => status.waiting,
            other => panic!("no status: {other:?}"),
        };
        // A write that arrives before the first has the turn is answered, and sent again.
        let most = each.min(4);
        for (number, raw) in data[1..=most].iter_mut().enumerate() {
            raw.socket.patience(Duration::from_millis(20));
            let mut answered = true;
            while waiting() <= number as u64 {
                if answered {
                    raw.send(write.clone(), b"xx");
                }
                answered = raw.receive().is_ok();
            }
        }
        if bounded {
            expect_limit(mallory.call(Request::StatFs), "user_waiting");
        }
        let mut bob = world.user(BOB, Channel::Control, 1).unwrap();
        bob.send(Request::StatFs, &[]);
        if bounded {
            until("Bob waits for a turn", || waiting() == 3);
            drop(data);
        }
        expect_served(bounded, bob.receive().unwrap().1);
    }
}

/// Maps a file repeatedly; returns the granted maps and the last reply.
fn map(raw: &mut Raw, text: &str, times: usize) -> (Vec<FileMap>, Result<Reply, Error>) {
    let token = raw.create(ROOT, text, 0o600);
    let (mut granted, mut last) = (Vec::new(), Ok(Reply::Done));
    for _ in 0..times {
        last = raw.call(Request::MapFile { token, offset: 0, len: 4096, write: true });
        match &last {
            Ok(Reply::FileMap(map)) => granted.push(map.clone()),
            _ => break,
        }
    }
    (granted, last)
}

#[test]
fn one_user_cannot_take_all_mapping_tickets() {
    if !has_users("one_user_cannot_take_all_mapping_tickets") {
        return;
    }
    for (each, bounded) in [(UNBOUNDED, false), (4, true)] {
        let world = World::with(|config| config.limits.user_mappings = each);
        world.open_to_all();
        let mut mallory = world.user(MALLORY, Channel::Control, 1).unwrap();
        // The client fetches none of them.
        let (granted, last) = map(&mut mallory, "m", 300);
        assert_eq!(granted.len(), 256.min(each), "{last:?}");
        if bounded {
            expect_limit(last, "user_mappings");
        }
        let mut bob = world.user(BOB, Channel::Control, 1).unwrap();
        expect_served(bounded, map(&mut bob, "bobs", 1).1);
    }
}

/// A connection of a user to the socket that passes descriptors.
fn fetcher(uid: u32, socket: &[u8]) -> UnixStream {
    let address = SocketAddr::from_abstract_name(socket).unwrap();
    forebay_testkit::as_user(uid, move || UnixStream::connect_addr(&address).unwrap())
}

#[test]
fn one_user_cannot_take_all_descriptor_connections() {
    if !has_users("one_user_cannot_take_all_descriptor_connections") {
        return;
    }
    let world = World::with(|config| {
        config.limits.user_mappings = 4;
        // No connection is closed for being slow.
        config.times.handshake = Duration::from_secs(3600);
    });
    world.open_to_all();
    let mut bob = world.user(BOB, Channel::Control, 1).unwrap();
    let (granted, _) = map(&mut bob, "bobs", 1);
    let [FileMap::Shared { socket, ticket }] = &granted[..] else { panic!("not granted: {granted:?}") };
    let silent: Vec<UnixStream> = (0..4).map(|_| fetcher(MALLORY, socket)).collect();
    for _ in 0..2000 {
        let mut refused = fetcher(MALLORY, socket);
        assert_eq!(refused.read(&mut [0]).unwrap(), 0, "connections above the limit are closed");
    }
    silent.iter().for_each(|silent| silent.set_nonblocking(true).unwrap());
    for mut silent in &silent {
        assert_eq!(
            silent.read(&mut [0]).unwrap_err().kind(),
            IoKind::WouldBlock,
            "connections within the limit stay open"
        );
    }
    // A ticket of another user is refused, and stays valid for its owner.
    drop(silent);
    let mut thief = fetcher(MALLORY, socket);
    // The server may close the connection first, while it has not yet noticed that the others are closed.
    let _ = thief.write_all(ticket);
    assert!(!matches!(thief.read(&mut [0]), Ok(1)));
    let mut fetching = fetcher(BOB, socket);
    fetching.write_all(ticket).unwrap();
    let mut byte = [0];
    assert_eq!((fetching.read(&mut byte).unwrap(), byte), (1, [1]), "this byte carries the descriptor");
}
