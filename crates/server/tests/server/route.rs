//! Routing: which writes bypass the buffer, and that reads return the same data either way.

use crate::counting::Counting;
use crate::drain::{clean, drain};
use crate::raw::{Raw, World, name, pattern};
use forebay_backend::{Backend, Fault, Faulty, Memory, Stripes};
use forebay_model::{Bytes, ErrorKind, FileId, Name};
use forebay_server::{Draining, Mode, Pipeline, Routing};
use forebay_testkit::until;
use forebay_wire::{At, RenameMode, Reply, Request, RouteStatus, Token};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;
pub(crate) const PIECE: usize = 64 << 10;

fn path(text: &str) -> Vec<Name> {
    text.split('/').map(name).collect()
}

pub(crate) fn before(backend: Arc<dyn Backend>, mode: Mode) -> World {
    World::before_with(backend, |config| {
        config.route = Routing { mode, stream: 4, ..Routing::default() };
        // No automatic drain.
        config.drain = Draining { age: Duration::from_secs(600), threshold: 99, ..Draining::default() };
    })
}

pub(crate) fn buffered(control: &mut Raw, path: &str) -> u64 {
    control.walk(path).expect("file exists").buffered
}

pub(crate) fn put(data: &mut Raw, token: Token, number: u64, seed: u64) {
    let at = number * PIECE as u64;
    assert_eq!(data.write(token, At::Offset(at), &pattern(seed, PIECE)), Ok(at));
}

#[test]
fn direct_writes_are_readable_at_once_and_get_their_attributes() {
    let memory = Memory::default();
    let mut world = before(Arc::new(memory.clone()), Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let dir = control.make_dir(ROOT, "run", 0o750);
    let token = control.create(dir, "f", 0o640);
    // The last piece first: the range before it is a hole, and stays one.
    for number in [5, 0, 1, 3] {
        put(&mut data, token, number, number);
        assert_eq!(buffered(&mut control, "run/f"), 0);
        let back = data.read(token, number * PIECE as u64, PIECE as u32).unwrap();
        assert!(back == pattern(number, PIECE), "piece {number}");
    }
    let expected: Vec<u8> = [Some(0), Some(1), None, Some(3), None, Some(5)]
        .into_iter()
        .flat_map(|number| number.map_or(vec![0; PIECE], |number| pattern(number, PIECE)))
        .collect();
    assert!(data.read(token, 0, 1 << 20).unwrap() == expected);
    control.call(Request::Sync { token }).unwrap();
    drop((control, data));
    world.restart();
    let (mut control, mut data) = (world.control(), world.data());
    assert!(data.read(token, 0, 1 << 20).unwrap() == expected, "after a restart");
    clean(&drain(&mut control, None));
    assert!(memory.bytes(&path("run/f")).unwrap() == expected);
    let (local, remote) = (control.walk("run/f").unwrap(), memory.find(&path("run/f")).unwrap().unwrap());
    assert_eq!((remote.mode, remote.version.mtime), (0o640, local.mtime));
    assert!(data.read(token, 0, 1 << 20).unwrap() == expected);
}

#[test]
fn overwrites_of_existing_bytes_are_buffered() {
    let memory = Memory::default();
    let world = before(Arc::new(memory.clone()), Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    put(&mut data, token, 0, 1);
    put(&mut data, token, 1, 2);
    data.write(token, At::Offset(10), b"over back-end bytes").unwrap();
    data.write(token, At::Offset(15), b"over what is buffered").unwrap();
    data.write(token, At::End, b"appended").unwrap();
    assert_eq!(buffered(&mut control, "f"), 26 + 8);
    let mut expected = [pattern(1, PIECE), pattern(2, PIECE), b"appended".to_vec()].concat();
    expected[10..29].copy_from_slice(b"over back-end bytes");
    expected[15..36].copy_from_slice(b"over what is buffered");
    assert!(data.read(token, 0, 1 << 20).unwrap() == expected);
    clean(&drain(&mut control, None));
    assert!(memory.bytes(&path("f")).unwrap() == expected);
    // Truncated and punched ranges count as blank, so direct writes to them are possible.
    control.call(Request::Truncate { token, size: 100 }).unwrap();
    put(&mut data, token, 1, 3);
    control.call(Request::Punch { token, offset: 50, len: 20 }).unwrap();
    data.write(token, At::Offset(55), b"blank").unwrap();
    assert_eq!(buffered(&mut control, "f"), 0);
    expected.truncate(100);
    expected.resize(PIECE, 0);
    expected[50..70].fill(0);
    expected[55..60].copy_from_slice(b"blank");
    expected.extend(pattern(3, PIECE));
    assert!(data.read(token, 0, 1 << 20).unwrap() == expected);
    clean(&drain(&mut control, None));
    assert!(memory.bytes(&path("f")).unwrap() == expected);
}

#[test]
fn sequential_streams_bypass_the_buffer_and_random_ones_do_not() {
    let world = before(Arc::new(Memory::default()), Mode::Traffic);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    // Streams of four: the first bypasses the buffer, and each decides the route of the next.
    let sequential = |from: u64| [from, from + 1, from + 2, from + 3];
    let streams =
        [sequential(0), [20, 30, 40, 50], sequential(4), [22, 32, 42, 52], [24, 34, 44, 54], sequential(8)];
    let mut found = Vec::new();
    for stream in streams {
        let before = buffered(&mut control, "f");
        stream.into_iter().for_each(|number| put(&mut data, token, number, number));
        found.push((buffered(&mut control, "f") - before) / PIECE as u64);
    }
    assert_eq!(found, [0, 0, 4, 0, 4, 4]);
    for number in streams.into_iter().flatten() {
        let back = data.read(token, number * PIECE as u64, PIECE as u32).unwrap();
        assert!(back == pattern(number, PIECE), "piece {number}");
    }
}

#[test]
fn small_writes_synced_one_by_one_are_buffered() {
    let world = before(Arc::new(Memory::default()), Mode::Traffic);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "log", 0o644);
    for number in 0..8 {
        data.write(token, At::Offset(number * 100), &[7; 100]).unwrap();
        control.call(Request::Sync { token }).unwrap();
    }
    assert_eq!(buffered(&mut control, "log"), 700, "the first write has no history");
}

#[test]
fn file_is_renamed_and_unlinked_during_direct_writes() {
    let memory = Memory::default();
    let world = before(Arc::new(memory.clone()), Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "one", 0o644);
    put(&mut data, token, 0, 1);
    let rename = Request::Rename {
        dir: ROOT,
        name: name("one"),
        to_dir: ROOT,
        to_name: name("two"),
        mode: RenameMode::Replace,
    };
    control.call(rename).unwrap();
    put(&mut data, token, 1, 2);
    assert_eq!(memory.bytes(&path("two")).map(|bytes| bytes.len()), Some(2 * PIECE));
    control.call(Request::Unlink { dir: ROOT, name: name("two") }).unwrap();
    put(&mut data, token, 2, 3);
    let all = [pattern(1, PIECE), pattern(2, PIECE), pattern(3, PIECE)].concat();
    assert!(data.read(token, 0, 1 << 20).unwrap() == all, "an unlinked open file is readable");
    control.call(Request::Close { token }).unwrap();
    clean(&drain(&mut control, None));
    let mut left = 0;
    memory.list(&[], &mut |found| left += usize::from(found != name(".forebay"))).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn direct_writes_that_fail_are_buffered() {
    let memory = Memory::default();
    let fails = Arc::new(AtomicBool::new(true));
    let flag = fails.clone();
    let faulty = Faulty::new(memory.clone(), move |call| {
        (call == "write" && flag.load(Ordering::Relaxed)).then_some(Fault::After)
    });
    let world = before(Arc::new(faulty), Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    for number in 0..3 {
        put(&mut data, token, number, number);
    }
    assert_eq!(buffered(&mut control, "f"), 3 * PIECE as u64);
    fails.store(false, Ordering::Relaxed);
    clean(&drain(&mut control, None));
    let all: Vec<u8> = (0..3).flat_map(|number| pattern(number, PIECE)).collect();
    assert!(memory.bytes(&path("f")).unwrap() == all);
}

#[test]
fn failed_back_end_sync_is_reported_until_truncation() {
    let fails = Arc::new(AtomicBool::new(true));
    let flag = fails.clone();
    let faulty = Faulty::new(Memory::default(), move |call| {
        (call == "sync" && flag.load(Ordering::Relaxed)).then_some(Fault::Before)
    });
    let mut world = before(Arc::new(faulty), Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    put(&mut data, token, 0, 1);
    let refused = |control: &mut Raw| control.call(Request::Sync { token }).unwrap_err().kind();
    assert_eq!(refused(&mut control), ErrorKind::Io);
    fails.store(false, Ordering::Relaxed);
    assert_eq!(refused(&mut control), ErrorKind::Io);
    clean(&drain(&mut control, None));
    assert_eq!(refused(&mut control), ErrorKind::Io, "the error stays after a clean drain");
    put(&mut data, token, 1, 1);
    assert_eq!(buffered(&mut control, "f"), PIECE as u64, "no further direct writes");
    drop((control, data));
    world.restart();
    let mut control = world.control();
    assert_eq!(refused(&mut control), ErrorKind::Io, "the error survives a restart");
    control.call(Request::Truncate { token, size: 0 }).unwrap();
    assert_eq!(control.call(Request::Sync { token }), Ok(Reply::Done), "truncation clears the error");
}

#[test]
fn direct_writes_are_split_by_target() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<String> =
        (0..3).map(|number| dir.path().join(number.to_string()).display().to_string()).collect();
    paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let stripes = Arc::new(Stripes::open(paths.iter().map(String::as_str)).unwrap());
    let world = before(stripes.clone(), Mode::Direct);
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o644);
    const LEN: usize = (5 << 20) + 12_345;
    const WRITERS: usize = 4;
    let whole = pattern(1, LEN);
    // Strided writers whose pieces cross stripe boundaries.
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (world, whole) = (&world, &whole);
            scope.spawn(move || {
                let mut data = world.data();
                for at in (0..LEN).step_by(47_008).skip(writer).step_by(WRITERS) {
                    let end = LEN.min(at + 47_008);
                    data.write(token, At::Offset(at as u64), &whole[at..end]).unwrap();
                }
            });
        }
    });
    assert_eq!(buffered(&mut control, "f"), 0);
    let report = drain(&mut control, None);
    clean(&report);
    for target in &report.status.targets {
        assert!(target.written >= 1 << 20, "{target:?}");
    }
    let mut back = vec![0; LEN + 1];
    let count = stripes.open(&path("f")).unwrap().read_at(0, &mut back).unwrap();
    assert!(count == LEN && back[..LEN] == whole);
    let mut data = world.data();
    assert!(data.read(token, 1 << 20, 3 << 20).unwrap() == whole[1 << 20..4 << 20]);
}

#[test]
fn direct_writes_reach_the_back_end_once() {
    let counting = Counting::new(&Memory::default());
    let bytes = counting.bytes.clone();
    let world = before(Arc::new(counting), Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    // From the end to the beginning, with a hole that is never filled.
    for number in (0..20).rev().filter(|number| *number != 7) {
        put(&mut data, token, number, number);
    }
    clean(&drain(&mut control, None));
    assert_eq!(bytes.load(Ordering::Relaxed), 19 * PIECE as u64, "holes are not filled with zeros");
}

pub(crate) fn route(control: &mut Raw) -> RouteStatus {
    match control.call(Request::Status).expect("status reply") {
        Reply::Status(status) => status.route.expect("route status"),
        other => panic!("unexpected reply to a status request: {other:?}"),
    }
}

#[test]
fn without_a_pipeline_writes_bypass_a_full_buffer() {
    let memory = Memory::default();
    let world = World::before_with(Arc::new(memory.clone()), |config| {
        config.route = Routing { pipeline: Pipeline::Off, ..Routing::default() };
        // However slow this host is, the drain frees almost nothing.
        config.drain.rate = Some(Bytes::kib(4));
    });
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "burst", 0o644);
    const PIECES: u64 = 36;
    // The pieces do not fill a region, and the rest of a region is too small for another one.
    const LARGE: usize = 700 << 10;
    for number in 0..PIECES {
        let at = number * LARGE as u64;
        assert_eq!(data.write(token, At::Offset(at), &pattern(number, LARGE)), Ok(at));
    }
    let found = route(&mut control);
    assert!(found.bypass && !found.pipeline, "{found:?}");
    assert_eq!((found.buffered + found.direct, found.waits), (PIECES * LARGE as u64, 0), "{found:?}");
    assert!((8 << 20..=17 << 20).contains(&found.buffered), "{found:?}");
    assert_eq!(found.waits, 0, "no writer waits: {found:?}");
    for number in 0..PIECES {
        let back = data.read(token, number * LARGE as u64, LARGE as u32).unwrap();
        assert!(back == pattern(number, LARGE), "piece {number}");
    }
}

#[test]
fn writers_waiting_for_space_are_counted_and_continue() {
    let memory = Memory::default();
    let fails = Arc::new(AtomicBool::new(true));
    let flag = fails.clone();
    let faulty = Faulty::new(memory.clone(), move |call| {
        (call == "write" && flag.load(Ordering::Relaxed)).then_some(Fault::Before)
    });
    let world = World::before_with(Arc::new(faulty), |_| {});
    let mut control = world.control();
    let token = control.create(ROOT, "burst", 0o644);
    const PIECES: u64 = 24;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut data = world.data();
            for number in 0..PIECES {
                let (at, bytes) = (number << 20, pattern(number, 1 << 20));
                while let Err(error) = data.write(token, At::Offset(at), &bytes) {
                    assert_eq!(error.kind(), ErrorKind::Busy);
                }
            }
        });
        // One job with one writer waits; the waiting time is reported while it waits.
        until("a writer waits", || {
            assert!(!writer.is_finished(), "no writer waits");
            route(&mut control).waited > 0 && route(&mut control).waiting == [("77".to_owned(), 1)]
        });
        fails.store(false, Ordering::Relaxed);
        writer.join().expect("writer thread");
    });
    let found = route(&mut control);
    assert!(found.waited > 0 && found.direct == 0 && found.buffered == PIECES << 20, "{found:?}");
    clean(&drain(&mut control, None));
    let all: Vec<u8> = (0..PIECES).flat_map(|number| pattern(number, 1 << 20)).collect();
    assert!(memory.bytes(&path("burst")).unwrap() == all);
}

#[test]
fn buffered_and_direct_bytes_are_reported_per_job() {
    let world = before(Arc::new(Memory::default()), Mode::Direct);
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o644);
    put(&mut data, token, 0, 1);
    put(&mut data, token, 1, 2);
    data.write(token, At::Offset(0), &[1; 1000]).unwrap();
    let found = route(&mut control);
    assert_eq!((found.mode.as_str(), found.buffered, found.direct), ("direct", 1000, 2 * PIECE as u64));
    let Ok(Reply::Status(status)) = control.call(Request::Status) else { panic!("no status") };
    let jobs: Vec<(u64, u64)> = status.jobs.iter().map(|job| (job.written, job.direct)).collect();
    assert_eq!(jobs, [(2 * PIECE as u64 + 1000, 2 * PIECE as u64)]);
}

#[test]
fn empty_and_out_of_range_writes_behave_alike_on_every_route() {
    for mode in [Mode::Buffer, Mode::Traffic, Mode::Overflow, Mode::Direct] {
        let world = before(Arc::new(Memory::default()), mode);
        let (mut control, mut data) = (world.control(), world.data());
        let token = control.create(ROOT, "f", 0o644);
        let last = i64::MAX as u64;
        assert_eq!(data.write(token, At::Offset(last), b""), Ok(last), "{mode:?}");
        for offset in [last, u64::MAX - 1, u64::MAX] {
            let refused = data.write(token, At::Offset(offset), b"xy").unwrap_err().kind();
            assert_eq!(refused, ErrorKind::TooLarge, "{mode:?} {offset}");
        }
        assert_eq!(control.walk("f").unwrap().size, 0, "{mode:?}");
        put(&mut data, token, 0, 1);
        assert!(data.read(token, 0, 1 << 20).unwrap() == pattern(1, PIECE), "{mode:?}");
    }
}
