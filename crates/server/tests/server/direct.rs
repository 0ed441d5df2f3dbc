//! Direct writes: concurrency, crash consistency, and waiting.

use crate::counting::{Counting, Disk};
use crate::drain::{clean, drain, path, until};
use crate::raw::{Raw, World, hello, pattern};
use crate::route::{PIECE, before, buffered, put, route};
use forebay_backend::Memory;
use forebay_model::{Bytes, ErrorKind, FileId, Job};
use forebay_server::{Alpha, Draining, Mode, Routing};
use forebay_wire::{At, Call, Channel, DrainCall, FrameKind, Hello, Reply, Request, Token, frame};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;

fn disk(mode: Mode) -> (World, Arc<Disk>) {
    let counting = Counting::new(&Memory::default());
    let disk = counting.disk.clone();
    (before(Arc::new(counting), mode), disk)
}

#[test]
fn sync_covers_direct_writes_of_an_earlier_boot() {
    for all in [false, true] {
        let (mut world, disk) = disk(Mode::Direct);
        let token = world.control().create(ROOT, "f", 0o644);
        put(&mut world.data(), token, 0, 1);
        assert_eq!(disk.syncs.load(Ordering::Relaxed), 0, "no sync without a request");
        world.restart();
        let request = if all { Request::SyncAll } else { Request::Sync { token } };
        assert_eq!(world.control().call(request), Ok(Reply::Done));
        assert!(disk.lasting(&path("f")) == pattern(1, PIECE));
    }
}

#[test]
fn truncated_bytes_do_not_reappear_under_direct_writes() {
    let (world, disk) = disk(Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    let mut rewritten = |control: &mut Raw, seed: u64, how: &str| {
        put(&mut data, token, 0, seed);
        assert_eq!(buffered(control, "f"), 0, "{how}");
        assert!(
            disk.lasting(&path("f")) != pattern(seed - 1, PIECE),
            "{how}: the old bytes are in the back end"
        );
        control.call(Request::Sync { token }).unwrap();
        assert!(disk.lasting(&path("f")) == pattern(seed, PIECE), "{how}");
    };
    rewritten(&mut control, 1, "a new file");
    control.call(Request::Truncate { token, size: 0 }).unwrap();
    rewritten(&mut control, 2, "truncated");
    control.call(Request::Punch { token, offset: 0, len: PIECE as u64 }).unwrap();
    rewritten(&mut control, 3, "punched");
    clean(&drain(&mut control, None));
    control.call(Request::Truncate { token, size: 0 }).unwrap();
    rewritten(&mut control, 4, "truncated after a drain");
    clean(&drain(&mut control, None));
    control.call(Request::Punch { token, offset: 0, len: PIECE as u64 }).unwrap();
    rewritten(&mut control, 5, "punched after a drain");
}

/// An acknowledged write precedes one that is not yet acknowledged.
#[test]
fn direct_write_in_flight_is_ordered_after_a_concurrent_append() {
    let (world, disk) = disk(Mode::Direct);
    let token = world.control().create(ROOT, "f", 0o644);
    disk.close();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| put(&mut world.data(), token, 0, 1));
        until("the write is in flight", || disk.waiting.load(Ordering::Relaxed) > 0);
        assert_eq!(world.data().write(token, At::End, b"0123456789"), Ok(0));
        disk.open();
        slow.join().expect("write thread");
    });
    assert!(world.data().read(token, 0, 1 << 20).unwrap() == pattern(1, PIECE));
    clean(&drain(&mut world.control(), None));
    assert!(world.data().read(token, 0, 1 << 20).unwrap() == pattern(1, PIECE));
}

#[test]
fn adjacent_direct_writes_waiting_for_a_target_are_merged() {
    const WRITERS: u64 = 32;
    let mut counting = Counting::new(&Memory::default());
    counting.slow = Some(Duration::from_millis(10));
    let (disk, bytes) = (counting.disk.clone(), counting.bytes.clone());
    let world = World::before_with(Arc::new(counting), |config| {
        config.route = Routing { mode: Mode::Direct, ..Routing::default() };
        config.drain = Draining { alpha: Alpha::Fixed(1), ..Draining::default() };
    });
    let token = world.control().create(ROOT, "f", 0o644);
    disk.close();
    std::thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || put(&mut world.data(), token, WRITERS, 0));
        until("the first write is in flight", || disk.waiting.load(Ordering::Relaxed) > 0);
        for number in 0..WRITERS {
            scope.spawn(move || put(&mut world.data(), token, number, number));
        }
        let all = (WRITERS + 1) * PIECE as u64;
        until("all writes have arrived", || route(&mut world.control()).buffered == all);
        disk.open();
    });
    assert_eq!(bytes.load(Ordering::Relaxed), (WRITERS + 1) * PIECE as u64);
    let writes = disk.writes.load(Ordering::Relaxed);
    assert!(writes <= WRITERS / 2, "{writes} writes of {WRITERS}");
    for number in 0..WRITERS {
        let back = world.data().read(token, number * PIECE as u64, PIECE as u32).unwrap();
        assert!(back == pattern(number, PIECE), "{number}");
    }
}

#[test]
fn direct_writes_get_turns_during_a_drain_within_the_writer_limit() {
    let mut counting = Counting::new(&Memory::default());
    counting.slow = Some(Duration::from_millis(20));
    let crowd = counting.crowd.clone();
    let world = World::before_with(Arc::new(counting), |config| {
        config.drain = Draining { alpha: Alpha::Fixed(1), write: Bytes::kib(64), ..Draining::default() };
        config.drain.age = Duration::from_secs(600);
    });
    let (mut control, mut data) = (world.control(), world.data());
    let old = control.create(ROOT, "old", 0o644);
    (0..160).for_each(|number| put(&mut data, old, number, number));
    control.call(Request::SetRoute { mode: "direct".into() }).unwrap();
    let new = control.create(ROOT, "new", 0o644);
    control.call(Request::Drain(DrainCall::Begin { file: None, order: None, last: false })).unwrap();
    // If this host is so slow that no write completes within a second, a write is buffered.
    let passed = (0..40).any(|number| {
        put(&mut data, new, number, number);
        route(&mut control).direct > 0 && buffered(&mut control, "old") > 0
    });
    assert!(passed, "no write bypassed the buffer before the drain ended");
    assert_eq!(crowd.most.load(Ordering::Relaxed), 1, "one writer at a time");
    clean(&drain(&mut control, None));
}

/// Sends the header of a write of 4 MiB, and the given number of its bytes.
fn announce(data: &mut Raw, token: Token, offset: u64, sent: usize) {
    let request = Request::Write { token, at: At::Offset(offset) };
    let mut bytes = Vec::new();
    frame(&mut bytes, FrameKind::Call, 1, &Call { identity: None, request }, 4 << 20).unwrap();
    bytes.extend(vec![0; sent]);
    data.socket.write_all(&bytes).expect("the server reads");
}

#[test]
fn stalled_large_writes_do_not_block_other_writers() {
    for sent in [0, 1000] {
        let world = World::before_with(Arc::new(Memory::default()), |config| {
            config.route = Routing { mode: Mode::Direct, ..Routing::default() };
            config.times.reservation = Duration::from_secs(3600);
        });
        let (mut control, mut data) = (world.control(), world.data());
        let token = control.create(ROOT, "f", 0o644);
        let mut silent: Vec<Raw> = (0..20).map(|_| world.data()).collect();
        for (number, one) in silent.iter_mut().enumerate() {
            announce(one, token, (1 << 30) + ((number as u64) << 22), sent);
        }
        (0..4).for_each(|number| put(&mut data, token, number, number));
        let found = route(&mut control);
        assert!(sent > 0 || found.direct == 4 * PIECE as u64, "{found:?}");
        assert_eq!(control.walk("f").unwrap().size, 4 * PIECE as u64);
    }
}

/// A data connection of a job with the given number of nodes.
pub(crate) fn of_job(world: &World, label: &str, nodes: u32) -> Raw {
    let usual = hello(Channel::Data, 1);
    let job = Job { label: label.to_owned(), nodes, ..usual.job.clone() };
    let mut raw = Raw::bare(UnixStream::connect(world.socket()).expect("socket connection"));
    raw.greet(&Hello { job, ..usual }, None).expect("connected");
    raw
}

/// Repeats a write until it succeeds: after a long wait the server replies `Busy`.
fn put_with_retry(data: &mut Raw, token: Token, at: u64, bytes: &[u8]) {
    while let Err(error) = data.write(token, At::Offset(at), bytes) {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
}

#[test]
fn streams_are_detected_over_all_jobs_together() {
    let world = before(Arc::new(Memory::default()), Mode::Traffic);
    let mut control = world.control();
    let (one, other) = (control.create(ROOT, "one", 0o644), control.create(ROOT, "other", 0o644));
    let (mut first, mut second) = (of_job(&world, "1", 1), of_job(&world, "2", 1));
    // Four writes are a stream. Each job writes its file in order: one of three distances is between the files.
    for number in 0..4 {
        put(&mut first, one, number, 1);
        put(&mut second, other, number, 1);
    }
    assert_eq!(buffered(&mut control, "one") + buffered(&mut control, "other"), 0);
    // The second job writes at random: two of three distances, and the next stream is buffered, whichever job it is
    // from.
    for number in 4..6 {
        put(&mut first, one, number, 1);
        put(&mut second, other, number * 10, 1);
    }
    (6..10).for_each(|number| put(&mut first, one, number, 1));
    assert_eq!((buffered(&mut control, "one"), buffered(&mut control, "other")), (4 * PIECE as u64, 0));
}

#[test]
fn writes_overflow_into_the_buffer_when_the_back_end_is_slow() {
    const WRITERS: u64 = 16;
    let mut counting = Counting::new(&Memory::default());
    counting.slow = Some(Duration::from_millis(400));
    let world = before(Arc::new(counting), Mode::Overflow);
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o644);
    // One write measures the speed: 160 KiB/s.
    put(&mut world.data(), token, 4 * WRITERS, 0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let world = &world;
            scope.spawn(move || {
                (0..4).for_each(|turn| put(&mut world.data(), token, turn * WRITERS + writer, 1));
            });
        }
    });
    let (found, piece) = (route(&mut control), PIECE as u64);
    assert_eq!(found.buffered + found.direct, (4 * WRITERS + 1) * piece);
    assert!(found.direct >= piece && found.buffered >= piece, "{found:?}");
}

#[test]
fn buffer_works_with_two_regions() {
    let memory = Memory::default();
    let world = World::before_with(Arc::new(memory.clone()), |config| {
        (config.capacity, config.region) = (Bytes::mib(2), Some(Bytes::mib(1)));
    });
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    const LEN: usize = 300_000;
    let pieces = 0..30;
    for number in pieces.clone() {
        put_with_retry(&mut data, token, number * LEN as u64, &pattern(number, LEN));
    }
    assert_eq!(route(&mut control).direct, 0);
    clean(&drain(&mut control, None));
    let all: Vec<u8> = pieces.flat_map(|number| pattern(number, LEN)).collect();
    assert!(memory.bytes(&path("f")).unwrap() == all);
}

#[test]
fn space_in_a_full_buffer_is_shared_by_job_weight() {
    const LEN: usize = 250_000;
    let mut counting = Counting::new(&Memory::default());
    counting.slow = Some(Duration::from_millis(20));
    let world = World::before_with(Arc::new(counting), |config| {
        config.capacity = Bytes::mib(8);
        config.policy = "size-fair".parse().unwrap();
        config.drain = Draining { alpha: Alpha::Fixed(1), write: Bytes::kib(256), ..Draining::default() };
    });
    let mut control = world.control();
    let (is_full, counts) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    // Each job has more writers than the buffer has space for; each writes again at once.
    let tokens: Vec<Token> =
        (0..16).map(|number| control.create(ROOT, &format!("f{number}"), 0o644)).collect();
    std::thread::scope(|scope| {
        for (number, token) in tokens.into_iter().enumerate() {
            let (world, is_full, counts, job) = (&world, &is_full, &counts, number % 2);
            scope.spawn(move || {
                let mut data = of_job(world, &format!("job{job}"), [6, 1][job]);
                let (mut at, bytes) = (0, vec![7; LEN]);
                while counts[0].load(Ordering::Relaxed) < 80 {
                    put_with_retry(&mut data, token, at, &bytes);
                    at += LEN as u64;
                    counts[job].fetch_add(u64::from(is_full.load(Ordering::Relaxed)), Ordering::Relaxed);
                }
            });
        }
        until("a writer waits for space", || route(&mut control).waits > 0);
        is_full.store(true, Ordering::Relaxed);
    });
    let [many, few] = counts.map(AtomicU64::into_inner);
    assert!(few > 0 && few * 2 < many, "{many} and {few} pieces, where six to one are due");
    let found = route(&mut control);
    assert!(found.waited > 0 && found.waiting.is_empty(), "{found:?}");
}
