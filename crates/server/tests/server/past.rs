//! Past the buffer: what happens at the same time, what a machine that dies finds, and who is kept waiting.

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
fn what_an_earlier_life_of_the_server_wrote_is_synced_by_whoever_asks_for_that() {
    for all in [false, true] {
        let (mut world, disk) = disk(Mode::Direct);
        let token = world.control().create(ROOT, "f", 0o644);
        put(&mut world.data(), token, 0, 1);
        assert_eq!(disk.syncs.load(Ordering::Relaxed), 0, "nobody asked for that");
        world.restart();
        let asked = if all { Request::SyncAll } else { Request::Sync { token } };
        assert_eq!(world.control().call(asked), Ok(Reply::Done));
        assert!(disk.lasting(&path("f")) == pattern(1, PIECE));
    }
}

#[test]
fn bytes_that_were_cut_off_do_not_come_back_under_those_that_were_written_past_the_buffer() {
    let (world, disk) = disk(Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    let mut rewritten = |control: &mut Raw, seed: u64, how: &str| {
        put(&mut data, token, 0, seed);
        assert_eq!(buffered(control, "f"), 0, "{how}");
        assert!(disk.lasting(&path("f")) != pattern(seed - 1, PIECE), "{how}: the old bytes are there");
        control.call(Request::Sync { token }).unwrap();
        assert!(disk.lasting(&path("f")) == pattern(seed, PIECE), "{how}");
    };
    rewritten(&mut control, 1, "a new file");
    control.call(Request::Truncate { token, size: 0 }).unwrap();
    rewritten(&mut control, 2, "cut");
    control.call(Request::Punch { token, offset: 0, len: PIECE as u64 }).unwrap();
    rewritten(&mut control, 3, "punched");
    clean(&drain(&mut control, None));
    control.call(Request::Truncate { token, size: 0 }).unwrap();
    rewritten(&mut control, 4, "cut when it was behind");
    clean(&drain(&mut control, None));
    control.call(Request::Punch { token, offset: 0, len: PIECE as u64 }).unwrap();
    rewritten(&mut control, 5, "punched when it was behind");
}

/// Whoever was told where his bytes are comes before one who was told nothing yet.
#[test]
fn a_write_past_the_buffer_does_not_slip_under_one_that_came_while_it_flew() {
    let (world, disk) = disk(Mode::Direct);
    let token = world.control().create(ROOT, "f", 0o644);
    disk.close();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| put(&mut world.data(), token, 0, 1));
        until("the write is not on its way", || disk.waiting.load(Ordering::Relaxed) > 0);
        assert_eq!(world.data().write(token, At::End, b"0123456789"), Ok(0));
        disk.open();
        slow.join().expect("it is written");
    });
    assert!(world.data().read(token, 0, 1 << 20).unwrap() == pattern(1, PIECE));
    clean(&drain(&mut world.control(), None));
    assert!(world.data().read(token, 0, 1 << 20).unwrap() == pattern(1, PIECE));
}

#[test]
fn neighbours_that_wait_for_the_same_target_are_one_write_there() {
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
        until("the first is not on its way", || disk.waiting.load(Ordering::Relaxed) > 0);
        for number in 0..WRITERS {
            scope.spawn(move || put(&mut world.data(), token, number, number));
        }
        let all = (WRITERS + 1) * PIECE as u64;
        until("not all have come", || route(&mut world.control()).buffered == all);
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
fn beside_a_busy_drain_a_write_past_the_buffer_has_its_turn_and_no_place_too_many() {
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
    // Should this machine be so slow that nobody gets on for a second, a write is buffered.
    let passed = (0..40).any(|number| {
        put(&mut data, new, number, number);
        route(&mut control).direct > 0 && buffered(&mut control, "old") > 0
    });
    assert!(passed, "no write went past the buffer before the drain had ended");
    assert_eq!(crowd.most.load(Ordering::Relaxed), 1, "one at a time");
    clean(&drain(&mut control, None));
}

/// Announces a write of 4 MiB, and sends so much of it.
fn announce(data: &mut Raw, token: Token, offset: u64, sent: usize) {
    let request = Request::Write { token, at: At::Offset(offset) };
    let mut bytes = Vec::new();
    frame(&mut bytes, FrameKind::Call, 1, &Call { identity: None, request }, 4 << 20).unwrap();
    bytes.extend(vec![0; sent]);
    data.socket.write_all(&bytes).expect("the server reads");
}

#[test]
fn whoever_announces_much_and_sends_nothing_keeps_nobody_waiting() {
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

/// A data connection of a job with so many nodes.
pub(crate) fn of_job(world: &World, label: &str, nodes: u32) -> Raw {
    let usual = hello(Channel::Data, 1);
    let job = Job { label: label.to_owned(), nodes, ..usual.job.clone() };
    let mut raw = Raw::bare(UnixStream::connect(world.socket()).expect("somebody listens"));
    raw.greet(&Hello { job, ..usual }, None).expect("let in");
    raw
}

/// Writes until it is written: whoever has waited for long is told to come again.
fn put_at_last(data: &mut Raw, token: Token, at: u64, bytes: &[u8]) {
    while let Err(error) = data.write(token, At::Offset(at), bytes) {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
}

#[test]
fn streams_are_those_of_all_jobs_together() {
    let world = before(Arc::new(Memory::default()), Mode::Traffic);
    let mut control = world.control();
    let (one, other) = (control.create(ROOT, "one", 0o644), control.create(ROOT, "other", 0o644));
    let (mut first, mut second) = (of_job(&world, "1", 1), of_job(&world, "2", 1));
    // Four writes are a stream. Each job writes its file in order: one distance of three is between the files.
    for number in 0..4 {
        put(&mut first, one, number, 1);
        put(&mut second, other, number, 1);
    }
    assert_eq!(buffered(&mut control, "one") + buffered(&mut control, "other"), 0);
    // One of them does not: two of three, and the next stream is buffered, whoever it is from.
    for number in 4..6 {
        put(&mut first, one, number, 1);
        put(&mut second, other, number * 10, 1);
    }
    (6..10).for_each(|number| put(&mut first, one, number, 1));
    assert_eq!((buffered(&mut control, "one"), buffered(&mut control, "other")), (4 * PIECE as u64, 0));
}

#[test]
fn what_slow_storage_does_not_take_at_once_overflows_into_the_buffer() {
    const WRITERS: u64 = 16;
    let mut counting = Counting::new(&Memory::default());
    counting.slow = Some(Duration::from_millis(400));
    let world = before(Arc::new(counting), Mode::Overflow);
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o644);
    // It is measured by one: 160 KiB a second.
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
fn two_regions_are_enough() {
    let memory = Memory::default();
    let world = World::before_with(Arc::new(memory.clone()), |config| {
        (config.capacity, config.region) = (Bytes::mib(2), Some(Bytes::mib(1)));
    });
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    const LEN: usize = 300_000;
    let pieces = 0..30;
    for number in pieces.clone() {
        put_at_last(&mut data, token, number * LEN as u64, &pattern(number, LEN));
    }
    assert_eq!(route(&mut control).direct, 0);
    clean(&drain(&mut control, None));
    let all: Vec<u8> = pieces.flat_map(|number| pattern(number, LEN)).collect();
    assert!(memory.bytes(&path("f")).unwrap() == all);
}

#[test]
fn room_in_a_full_buffer_goes_to_two_jobs_by_their_shares() {
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
    // More writers of each job than find room at a time come again as soon as they have written.
    let tokens: Vec<Token> =
        (0..16).map(|number| control.create(ROOT, &format!("f{number}"), 0o644)).collect();
    std::thread::scope(|scope| {
        for (number, token) in tokens.into_iter().enumerate() {
            let (world, is_full, counts, job) = (&world, &is_full, &counts, number % 2);
            scope.spawn(move || {
                let mut data = of_job(world, &format!("job{job}"), [6, 1][job]);
                let (mut at, bytes) = (0, vec![7; LEN]);
                while counts[0].load(Ordering::Relaxed) < 80 {
                    put_at_last(&mut data, token, at, &bytes);
                    at += LEN as u64;
                    counts[job].fetch_add(u64::from(is_full.load(Ordering::Relaxed)), Ordering::Relaxed);
                }
            });
        }
        until("nobody waits for room", || route(&mut control).waits > 0);
        is_full.store(true, Ordering::Relaxed);
    });
    let [many, few] = counts.map(AtomicU64::into_inner);
    assert!(few > 0 && few * 2 < many, "{many} and {few} pieces, where six to one are due");
    let found = route(&mut control);
    assert!(found.waited > 0 && found.waiting.is_empty(), "{found:?}");
}
