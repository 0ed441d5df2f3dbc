//! Past the buffer: what happens at the same time, what a machine that dies finds, and who is kept waiting.

use crate::counting::{Counting, Disk};
use crate::drain::{clean, drain, path, until};
use crate::raw::{Raw, World, pattern};
use crate::route::{PIECE, before, buffered, put, route};
use forebay_backend::Memory;
use forebay_model::{Bytes, FileId};
use forebay_server::{Alpha, Draining, Mode, Routing};
use forebay_wire::{At, Call, FrameKind, Reply, Request, Token, frame};
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
        // It was synced, but it is not one of small writes.
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
    control
        .call(Request::Drain(forebay_wire::DrainCall::Begin { file: None, order: None, last: false }))
        .unwrap();
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
