//! Draining: live data reaches the back end, and nothing else does.

use crate::counting::Counting;
use crate::raw::{ALICE, Raw, World, name, pattern, refused};
use forebay_backend::{Backend, Fault, Faulty, Memory};
use forebay_model::{Access, Bytes, Change, ErrorKind, FileId, FileKind, Gid, Name, SetTime, Time, Uid};
use forebay_server::{Draining, Verify};
pub(crate) use forebay_testkit::until;
use forebay_testkit::until_some;
use forebay_wire::{At, DrainCall, DrainReport, RenameMode, Reply, Request, Token};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const ROOT: FileId = FileId::ROOT;
/// Upper limit for every wait in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) fn path(text: &str) -> Vec<Name> {
    text.split('/').map(name).collect()
}

pub(crate) fn report(raw: &mut Raw, call: DrainCall) -> DrainReport {
    match raw.call(Request::Drain(call)).expect("drain reply") {
        Reply::Drain(report) => *report,
        other => panic!("unexpected reply to a drain request: {other:?}"),
    }
}

/// Drains `file`, or everything, and waits until the drain is done.
pub(crate) fn drain(raw: &mut Raw, file: Option<FileId>) -> DrainReport {
    drain_with(raw, DrainCall::Begin { file, order: None, last: false })
}

/// Sends `begin` and waits until its drain is done.
pub(crate) fn drain_with(raw: &mut Raw, begin: DrainCall) -> DrainReport {
    let begun = report(raw, begin).ticket.expect("a ticket");
    until_some("the drain finishes", || {
        let now = report(raw, DrainCall::Look { ticket: Some(begun.id) });
        now.ticket.expect("a ticket").done.then_some(now)
    })
}

pub(crate) fn clean(report: &DrainReport) {
    let ticket = report.ticket.expect("a ticket");
    assert_eq!((ticket.failed, ticket.skipped, ticket.left), (0, 0, 0), "{report:?}");
    assert_eq!(report.status.failing, [], "{report:?}");
}

pub(crate) fn before(backend: Arc<dyn Backend>, draining: Draining) -> World {
    World::before_with(backend, |config| config.drain = draining)
}

pub(crate) fn create(raw: &mut Raw, dir: FileId, text: &str) -> Token {
    raw.create(dir, text, 0o644)
}

#[test]
fn files_directories_and_links_arrive_with_owner_mode_and_time() {
    for verify in [Verify::Acknowledged, Verify::ReadBack] {
        let memory = Memory::default();
        let world = before(Arc::new(memory.clone()), Draining { verify, ..Draining::default() });
        let (mut control, mut data) = (world.control(), world.data());
        let dir = control.make_dir(ROOT, "run", 0o751);
        let inner = control.make_dir(dir, "1", 0o700);
        control.make_dir(dir, "empty", 0o1777);
        let mut alice = world.control().acting(ALICE);
        let change = Change { uid: Some(Uid(ALICE)), gid: Some(Gid(ALICE)), ..Change::default() };
        control.call(Request::SetAttr { file: inner, change }).unwrap();
        let mine = alice.create(ROOT, "mine", 0o400);
        world.data().acting(ALICE).write(mine, At::Offset(0), b"alice").unwrap();
        let file = create(&mut control, inner, "f");
        data.write(file, At::Offset(10), b"0123456789").unwrap();
        create(&mut control, inner, "nothing");
        let target = b"1/f".to_vec();
        control.call(Request::Symlink { dir, name: name("link"), target }).unwrap();
        for (file, secs) in [(file.file, 1_000), (dir, 2_000), (inner, 3_000)] {
            let mtime = Some(SetTime::To(Time { secs, nanos: 5 }));
            control.call(Request::SetAttr { file, change: Change { mtime, ..Change::default() } }).unwrap();
        }
        clean(&drain(&mut control, None));
        assert_eq!(memory.bytes(&path("run/1/f")).unwrap(), b"\0\0\0\0\0\0\0\0\0\x000123456789");
        assert_eq!(memory.bytes(&path("mine")).unwrap(), b"alice");
        assert_eq!(memory.bytes(&path("run/1/nothing")).unwrap(), b"");
        for (text, kind, mode, uid, secs) in [
            ("run", FileKind::Directory, 0o751, 0, Some(2_000)),
            ("run/1", FileKind::Directory, 0o700, ALICE, Some(3_000)),
            ("run/empty", FileKind::Directory, 0o1777, 0, None),
            ("run/1/f", FileKind::File, 0o644, 0, Some(1_000)),
            ("mine", FileKind::File, 0o400, ALICE, None),
            ("run/link", FileKind::Symlink, 0o777, 0, None),
        ] {
            let found = memory.find(&path(text)).unwrap().expect(text);
            assert_eq!((found.kind, found.mode, found.uid.0), (kind, mode, uid), "{text}");
            let here = control.walk(text).unwrap();
            assert_eq!(found.version.mtime, here.mtime, "{text}");
            assert!(
                secs.is_none_or(|secs| here.mtime == Time { secs, nanos: 5 }),
                "{text}: {:?}",
                here.mtime
            );
        }
        assert_eq!(memory.find(&path("run/link")).unwrap().unwrap().target, b"1/f");
        assert_eq!(control.walk("run/1/f").unwrap().buffered, 0, "drained bytes are freed");
        assert_eq!(data.read(file, 8, 4).unwrap(), b"\0\x0001");
        let again = drain(&mut control, None);
        assert_eq!(again.ticket.unwrap().files, 0, "a second drain has nothing to do: {again:?}");
        // Changes of drained files.
        data.write(file, At::Offset(19), b"X").unwrap();
        control.call(Request::Punch { token: file, offset: 12, len: 2 }).unwrap();
        control.call(Request::Extend { token: file, size: 25 }).unwrap();
        let change = Change { mode: Some(0o600), ..Change::default() };
        control.call(Request::SetAttr { file: file.file, change }).unwrap();
        clean(&drain(&mut control, Some(file.file)));
        let expected = b"\0\0\0\0\0\0\0\0\0\x0001\0\x0045678X\0\0\0\0\0";
        assert_eq!(memory.bytes(&path("run/1/f")).unwrap(), expected);
        assert_eq!(memory.find(&path("run/1/f")).unwrap().unwrap().mode, 0o600);
        assert_eq!(data.read(file, 0, 100).unwrap(), expected);
    }
}

#[test]
fn superseded_checkpoints_never_reach_the_back_end() {
    const LEN: usize = 256 << 10;
    let memory = Memory::default();
    let counting = Counting::new(&memory);
    let bytes = counting.bytes.clone();
    let world = before(Arc::new(counting), Draining { age: PATIENCE, ..Draining::default() });
    let (mut control, mut data) = (world.control(), world.data());
    for number in 0..10 {
        let token = create(&mut control, ROOT, &format!("checkpoint.{number}"));
        data.write(token, At::Offset(0), &pattern(number, LEN)).unwrap();
        data.write(token, At::Offset(0), &pattern(number + 100, LEN)).unwrap();
        control.call(Request::Close { token }).unwrap();
        if number > 0 {
            let name = name(&format!("checkpoint.{}", number - 1));
            control.call(Request::Unlink { dir: ROOT, name }).unwrap();
        }
    }
    clean(&drain(&mut control, None));
    assert_eq!(bytes.load(Ordering::Relaxed), LEN as u64, "only live data is drained");
    assert_eq!(memory.bytes(&path("checkpoint.9")).unwrap(), pattern(109, LEN));
    let mut left = 0;
    memory.list(&[], &mut |_| left += 1).unwrap();
    assert_eq!(left, 1);
}

/// The same ratio as 2 GiB through a buffer of 256 MiB.
#[test]
fn burst_of_eight_times_the_capacity_is_drained_while_written() {
    const PIECE: usize = 1 << 20;
    let memory = Memory::default();
    let world = before(Arc::new(memory.clone()), Draining::default());
    let capacity = world.config.capacity.0;
    let (mut control, mut data) = (world.control(), world.data());
    let token = create(&mut control, ROOT, "burst");
    let pieces = 8 * capacity / PIECE as u64;
    for number in 0..pieces {
        let bytes = pattern(number, PIECE);
        // On `Busy` the client sends the write again.
        loop {
            match data.write(token, At::Offset(number * PIECE as u64), &bytes) {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                written => break assert_eq!(written, Ok(number * PIECE as u64)),
            }
        }
        if number % 16 == 7 {
            let earlier = number / 2;
            let back = data.read(token, earlier * PIECE as u64, PIECE as u32).unwrap();
            assert!(back == pattern(earlier, PIECE), "piece {earlier} while piece {number} was written");
        }
    }
    clean(&drain(&mut control, None));
    let there = memory.bytes(&path("burst")).unwrap();
    assert_eq!(there.len() as u64, 8 * capacity);
    for (number, piece) in there.chunks(PIECE).enumerate() {
        assert!(piece == pattern(number as u64, PIECE), "piece {number}");
    }
}

#[test]
fn data_drains_above_the_threshold_and_by_age() {
    let memory = Memory::default();
    let draining = Draining { age: PATIENCE, ..Draining::default() };
    let mut world = before(Arc::new(memory.clone()), draining);
    let (mut control, mut data) = (world.control(), world.data());
    let old = create(&mut control, ROOT, "old");
    data.write(old, At::Offset(0), &pattern(1, 2 << 20)).unwrap();
    let new = create(&mut control, ROOT, "new");
    data.write(new, At::Offset(0), &pattern(2, 2 << 20)).unwrap();
    until("4 MiB are above the threshold of 16 MiB: the older file drains", || {
        control.walk("old").unwrap().buffered == 0 && control.walk("new").unwrap().buffered > 0
    });
    assert_eq!(memory.bytes(&path("old")).unwrap(), pattern(1, 2 << 20));
    assert_eq!(memory.find(&path("new")).unwrap(), None, "no automatic drain below the threshold");
    control.make_dir(ROOT, "dir", 0o755);
    drop((control, data));
    world.config.drain.age = Duration::from_millis(1);
    world.restart();
    until("old data and directories are drained", || {
        memory.bytes(&path("new")).is_some_and(|bytes| bytes == pattern(2, 2 << 20))
            && memory.find(&path("dir")).unwrap().is_some()
    });
    until("the buffered bytes are freed", || world.control().walk("new").unwrap().buffered == 0);
}

#[test]
fn changes_during_a_drain_reach_the_back_end() {
    let memory = Memory::default();
    let counting = Counting { slow: Some(Duration::from_millis(3)), ..Counting::new(&memory) };
    let draining = Draining { write: Bytes(64 << 10), age: PATIENCE, ..Draining::default() };
    let world = before(Arc::new(counting), draining);
    let (mut control, mut data) = (world.control(), world.data());
    let dir = control.make_dir(ROOT, "d", 0o755);
    let tokens: Vec<Token> = ["kept", "cut", "moved", "gone", "punched"]
        .iter()
        .map(|text| {
            let token = create(&mut control, dir, text);
            data.write(token, At::Offset(0), &pattern(1, 1 << 20)).unwrap();
            token
        })
        .collect();
    let ticket =
        report(&mut control, DrainCall::Begin { file: None, order: None, last: false }).ticket.unwrap();
    until("the drain has begun", || memory.find(&path("d")).unwrap().is_some());
    data.write(tokens[0], At::Offset(100), &pattern(2, 1 << 19)).unwrap();
    control.call(Request::Truncate { token: tokens[1], size: 77 }).unwrap();
    control.call(Request::Extend { token: tokens[1], size: 200 }).unwrap();
    let (from, to, mode) = (name("moved"), name("there"), RenameMode::Replace);
    control.call(Request::Rename { dir, name: from, to_dir: ROOT, to_name: to, mode }).unwrap();
    control.call(Request::Close { token: tokens[3] }).unwrap();
    control.call(Request::Unlink { dir, name: name("gone") }).unwrap();
    control.call(Request::Punch { token: tokens[4], offset: 10, len: 500_000 }).unwrap();
    let (from, to) = (name("d"), name("e"));
    control.call(Request::Rename { dir: ROOT, name: from, to_dir: ROOT, to_name: to, mode }).unwrap();
    let mut expected = [pattern(1, 1 << 20), pattern(1, 77), pattern(1, 1 << 20), pattern(1, 1 << 20)];
    expected[0][100..100 + (1 << 19)].copy_from_slice(&pattern(2, 1 << 19));
    expected[1].resize(200, 0);
    expected[3][10..500_010].fill(0);
    let here = |data: &mut Raw, token| data.read(token, 0, 2 << 20).unwrap();
    let check = |data: &mut Raw| {
        for (token, expected) in [0, 1, 2, 4].iter().map(|&index| tokens[index]).zip(&expected) {
            assert!(here(data, token) == *expected, "read back from {}", token.file);
        }
    };
    until("the drain is done", || {
        check(&mut data);
        report(&mut control, DrainCall::Look { ticket: Some(ticket.id) }).ticket.unwrap().done
    });
    clean(&drain(&mut control, None));
    check(&mut data);
    for (text, expected) in ["e/kept", "e/cut", "there", "e/punched"].iter().zip(&expected) {
        assert!(memory.bytes(&path(text)).unwrap() == *expected, "{text}");
    }
    for text in ["d", "e/gone", "e/moved"] {
        assert_eq!(memory.find(&path(text)).unwrap(), None, "{text}");
    }
}

#[test]
fn failing_back_end_is_reported_and_loses_nothing() {
    const EVERYTHING: &str = "everything";
    for call in [
        "find",
        "layout",
        "create",
        "open_to_write",
        "make_dir",
        "set_attr",
        "truncate",
        "write",
        "sync",
        // The back end is unreachable for a while.
        EVERYTHING,
    ] {
        let (memory, broken) = (Memory::default(), Arc::new(AtomicBool::new(true)));
        let (fails, faults) = (broken.clone(), Arc::new(Mutex::new(0)));
        let faulty = Faulty::new(memory.clone(), move |asked| {
            let mut faults = faults.lock().unwrap();
            // Half of the calls take effect although they report an error.
            let fault = [Fault::Before, Fault::After][*faults % 2];
            ([asked, EVERYTHING].contains(&call) && fails.load(Ordering::Relaxed)).then(|| {
                *faults += 1;
                fault
            })
        });
        broken.store(false, Ordering::Relaxed);
        let world = before(Arc::new(faulty), Draining { age: PATIENCE, ..Draining::default() });
        let (mut control, mut data) = (world.control(), world.data());
        let dir = control.make_dir(ROOT, "d", 0o750);
        let mut alice = world.control().acting(ALICE);
        let change = Change { mode: Some(0o777), ..Change::default() };
        control.call(Request::SetAttr { file: dir, change }).unwrap();
        let token = alice.create(dir, "f", 0o644);
        world.data().acting(ALICE).write(token, At::Offset(0), &pattern(1, 300_000)).unwrap();
        broken.store(true, Ordering::Relaxed);
        let failed = drain(&mut control, None);
        let ticket = failed.ticket.unwrap();
        // The retry finds that the failed call took effect.
        let heals = ["truncate", "make_dir"].contains(&call);
        assert!(ticket.failed > 0 || heals, "{call}: {failed:?}");
        if call == "write" {
            let failing = &failed.status.failing[0];
            assert_eq!((failing.path.as_str(), failing.user.0), ("/d/f", ALICE), "{failing:?}");
            assert!(failing.why.contains("target memory"), "{failing:?}");
        }
        broken.store(false, Ordering::Relaxed);
        until("the drain is retried", || drain(&mut control, None).ticket.unwrap().failed == 0);
        clean(&drain(&mut control, None));
        assert!(memory.bytes(&path("d/f")).unwrap() == pattern(1, 300_000), "{call}");
        let found = memory.find(&path("d/f")).unwrap().unwrap();
        assert_eq!((found.mode, found.uid.0), (0o644, ALICE), "{call}");
        let read = open(&mut control, "d/f");
        assert!(data.read(read, 0, 400_000).unwrap() == pattern(1, 300_000), "{call}");
    }
}

#[test]
fn bytes_are_freed_only_after_sync_and_verification() {
    for (call, fault, verify) in [
        ("sync", Fault::Before, Verify::Acknowledged),
        ("sync", Fault::After, Verify::ReadBack),
        ("write", Fault::Wrong, Verify::ReadBack),
    ] {
        let (memory, broken) = (Memory::default(), Arc::new(AtomicBool::new(true)));
        let fails = broken.clone();
        let faulty = Faulty::new(memory.clone(), move |asked| {
            (asked == call && fails.load(Ordering::Relaxed)).then_some(fault)
        });
        let world = before(Arc::new(faulty), Draining { age: PATIENCE, verify, ..Draining::default() });
        let mut control = world.control();
        let token = create(&mut control, ROOT, "f");
        world.data().write(token, At::Offset(0), &pattern(1, 300_000)).unwrap();
        let failed = drain(&mut control, None);
        assert!(failed.ticket.is_some_and(|ticket| ticket.failed == 1), "{call}: {failed:?}");
        assert_eq!((failed.status.freed, failed.status.written > 0), (0, true), "{call}: {failed:?}");
        assert_eq!(control.walk("f").unwrap().buffered, 300_000, "{call}: all bytes are still buffered");
        broken.store(false, Ordering::Relaxed);
        let done = drain(&mut control, None);
        clean(&done);
        assert_eq!((done.status.freed, control.walk("f").unwrap().buffered), (300_000, 0), "{call}");
        assert!(memory.bytes(&path("f")).unwrap() == pattern(1, 300_000), "{call}");
    }
}

pub(crate) fn open(raw: &mut Raw, path: &str) -> Token {
    let file = raw.walk(path).unwrap().id;
    match raw.call(Request::Open { file, access: Access::BOTH, truncate: false }).unwrap() {
        Reply::Opened { token, .. } => token,
        other => panic!("unexpected reply to an open: {other:?}"),
    }
}

#[test]
fn foreign_files_in_the_back_end_are_never_overwritten() {
    let memory = Memory::default();
    memory.put(&path("theirs"), (Uid(0), Gid(0)), 0o644, b"0123456789");
    let world = before(Arc::new(memory.clone()), Draining { age: PATIENCE, ..Draining::default() });
    let (mut control, mut data) = (world.control(), world.data());
    let taken = create(&mut control, ROOT, "taken");
    data.write(taken, At::Offset(0), b"ours").unwrap();
    memory.put(&path("taken"), (Uid(0), Gid(0)), 0o644, b"theirs");
    let private = create(&mut control, ROOT, ".forebay");
    data.write(private, At::Offset(0), b"private").unwrap();
    let changed = open(&mut control, "theirs");
    data.write(changed, At::Offset(0), b"X").unwrap();
    memory.put(&path("theirs"), (Uid(0), Gid(0)), 0o644, b"replaced");
    let special = forebay_model::Special::Pipe;
    control.call(Request::MakeSpecial { dir: ROOT, name: name("pipe"), mode: 0o644, special }).unwrap();
    let fine = create(&mut control, ROOT, "fine");
    data.write(fine, At::Offset(0), b"fine").unwrap();
    let failed = drain(&mut control, None);
    let ticket = failed.ticket.unwrap();
    assert_eq!((ticket.failed, ticket.skipped), (3, 1), "{failed:?}");
    let why = |start: &str| {
        let found = failed.status.failing.iter().find(|failing| failing.why.contains(start));
        assert!(found.is_some(), "\"{start}\" in {failed:?}");
    };
    why("another /taken by now");
    why("keeps for itself");
    why("was changed in the back end");
    assert_eq!(memory.bytes(&path("fine")).unwrap(), b"fine", "other files are drained");
    assert_eq!(memory.bytes(&path("taken")).unwrap(), b"theirs");
    assert_eq!(memory.bytes(&path("theirs")).unwrap(), b"replaced");
    assert_eq!(data.read(taken, 0, 9).unwrap(), b"ours");
    assert_eq!(data.read(changed, 0, 1).unwrap(), b"X");
    // After a rename to a free name the file drains.
    let (from, to, mode) = (name("taken"), name("moved"), RenameMode::Replace);
    control.call(Request::Rename { dir: ROOT, name: from, to_dir: ROOT, to_name: to, mode }).unwrap();
    until("the renamed file is drained", || {
        drain(&mut control, Some(taken.file));
        memory.bytes(&path("moved")).is_some_and(|bytes| bytes == b"ours")
    });
    // A file that was removed in the back end is created again if the buffer holds all of it.
    memory.unlink(&path("fine")).unwrap();
    data.write(fine, At::Offset(0), b"FINE").unwrap();
    until("the file is created again", || {
        drain(&mut control, Some(fine.file));
        memory.bytes(&path("fine")).is_some_and(|bytes| bytes == b"FINE")
    });
}

#[test]
fn drain_requests_are_checked_for_permission() {
    let world = before(Arc::new(Memory::default()), Draining::default());
    let mut alice = world.control().acting(ALICE);
    let begin = |file, order: Option<&str>| {
        Request::Drain(DrainCall::Begin { file, order: order.map(str::to_owned), last: false })
    };
    refused(alice.call(begin(None, None)), ErrorKind::NotPermitted);
    let mut control = world.control();
    let closed = control.make_dir(ROOT, "closed", 0o700);
    let file = control.create(closed, "f", 0o644).file;
    refused(alice.call(begin(Some(file), None)), ErrorKind::AccessDenied);
    let mine = alice.create(ROOT, "mine", 0o600);
    alice.call(begin(Some(mine.file), None)).unwrap();
    refused(alice.call(begin(Some(mine.file), Some("offset"))), ErrorKind::NotPermitted);
    refused(control.call(begin(None, Some("chaos"))), ErrorKind::Invalid);
    refused(control.call(Request::Drain(DrainCall::Look { ticket: Some(99) })), ErrorKind::NotFound);
    for order in ["arrival", "offset", "target", "trio"] {
        until("the order can be changed", || match control.call(begin(None, Some(order))) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                false
            }
        });
        let token = control.create(ROOT, order, 0o644);
        world.data().write(token, At::Offset(3), &pattern(1, 200_000)).unwrap();
        let drained = drain(&mut control, None);
        clean(&drained);
        assert_eq!(drained.status.order, order);
    }
    refused(World::new().control().call(begin(None, None)), ErrorKind::Unsupported);
}
