//! Fetching data from the back end into the read cache.

use crate::backing::open;
use crate::drain::{before, clean, drain, path, report};
use crate::raw::{Raw, World, name, pattern, refused};
use crate::striped_drain::{fleet, layout, read, write};
use forebay_backend::{Backend, Fault, Faulty, Memory};
use forebay_model::{Access, ErrorKind, FileId, Gid, Span, Striping, Uid};
use forebay_server::Draining;
use forebay_wire::{At, DrainCall, MAX_FETCH, Request, Token};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Unit of the cache.
const BLOCK: u64 = 256 << 10;
const LEN: usize = (2 << 20) + 12_345;

/// A back end whose reads fail while the flag is set.
fn unreadable(memory: &Memory) -> (Arc<dyn Backend>, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let fails = broken.clone();
    let faulty = Faulty::new(memory.clone(), move |call| {
        (call == "read" && fails.load(Ordering::Relaxed)).then_some(Fault::Before)
    });
    (Arc::new(faulty), broken)
}

/// Returns how many of the bytes are cached afterwards, and how many in total.
fn fetch(raw: &mut Raw, file: FileId, offset: u64, len: u64) -> (u64, u64) {
    let reported = report(raw, DrainCall::Fetch { file, offset, len, turn: offset });
    (reported.fetched, reported.status.read_cache.0)
}

#[test]
fn cached_data_is_read_without_the_back_end_until_it_changes() {
    let memory = Memory::default();
    let bytes = pattern(1, LEN);
    memory.put(&path("f"), (Uid(0), Gid(0)), 0o644, &bytes);
    let (backend, broken) = unreadable(&memory);
    let world = before(backend, Draining::default());
    let (mut control, mut data) = (world.control(), world.data());
    let token = open(&mut control, "f", Access::BOTH).unwrap();
    assert_eq!(fetch(&mut control, token.file, 10, 1), (1, BLOCK), "whole blocks are fetched");
    broken.store(true, Ordering::Relaxed);
    assert!(data.read(token, 10, 1 << 17).unwrap() == bytes[10..(1 << 17) + 10]);
    refused(data.read(token, 0, LEN as u32), ErrorKind::Io);
    broken.store(false, Ordering::Relaxed);
    assert_eq!(fetch(&mut control, token.file, 0, MAX_FETCH), (LEN as u64, LEN as u64));
    assert_eq!(fetch(&mut control, token.file, 0, u64::MAX), (LEN as u64, LEN as u64), "already cached");
    broken.store(true, Ordering::Relaxed);
    assert!(data.read(token, 0, LEN as u32).unwrap() == bytes);
    assert_eq!(control.walk("f").unwrap().buffered, 0, "cached bytes use no buffer space");
    // Buffered writes override cached bytes; draining them invalidates the cache.
    data.write(token, At::Offset(5), b"new").unwrap();
    assert_eq!(data.read(token, 4, 5).unwrap(), [&bytes[4..5], b"new", &bytes[8..9]].concat());
    broken.store(false, Ordering::Relaxed);
    clean(&drain(&mut control, Some(token.file)));
    assert_eq!(report(&mut control, DrainCall::Look { ticket: None }).status.read_cache.0, 0);
    assert_eq!(data.read(token, 4, 5).unwrap(), [&bytes[4..5], b"new", &bytes[8..9]].concat());
    // Another process changes the file in the back end.
    assert_eq!(fetch(&mut control, token.file, 0, MAX_FETCH).0, LEN as u64);
    memory.put(&path("f"), (Uid(0), Gid(0)), 0o644, b"changed");
    let token = open(&mut control, "f", Access::READ).unwrap();
    assert_eq!(data.read(token, 0, 7).unwrap(), b"changed");
    let gone = Request::Drain(DrainCall::Fetch { file: FileId(u64::MAX), offset: 0, len: 1, turn: 0 });
    assert!(control.call(gone).is_err());
}

#[test]
fn fetch_needs_one_place_before_the_back_end() {
    let memory = Memory::default();
    memory.put(&path("f"), (Uid(0), Gid(0)), 0o644, &pattern(1, LEN));
    let world = World::before_with(Arc::new(memory), |config| config.limits.backend_places = 1);
    let mut control = world.control();
    let token = open(&mut control, "f", Access::READ).unwrap();
    assert_eq!(fetch(&mut control, token.file, 0, MAX_FETCH).0, LEN as u64);
}

#[test]
fn read_cache_never_exceeds_its_capacity() {
    let memory = Memory::default();
    let backend: Arc<dyn Backend> = Arc::new(memory.clone());
    let world = before(backend, Draining::default());
    let mut control = world.control();
    let capacity = report(&mut control, DrainCall::Look { ticket: None }).status.read_cache.1;
    assert!(capacity >= BLOCK, "{capacity}");
    let bytes = pattern(3, (capacity + 3 * BLOCK) as usize);
    memory.put(&path("f"), (Uid(0), Gid(0)), 0o644, &bytes);
    let token = open(&mut control, "f", Access::READ).unwrap();
    for start in (0..bytes.len() as u64).step_by(4 << 20) {
        let (_, read_cache) = fetch(&mut control, token.file, start, 4 << 20);
        assert!(read_cache <= capacity, "{read_cache} of {capacity}");
    }
    let mut data = world.data();
    for start in (0..bytes.len()).step_by(1 << 20) {
        let end = (start + (1 << 20)).min(bytes.len());
        let got = data.read(token, start as u64, (end - start) as u32).unwrap();
        assert!(got == bytes[start..end], "from {start} on");
    }
}

#[test]
fn each_server_caches_its_part_of_a_file() {
    let memory = Memory::default();
    let (backend, broken) = unreadable(&memory);
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    let token = control.create(FileId::ROOT, "f", 0o644);
    let mut model = pattern(1, 1_000_000);
    write(&fleet, token, 0, &model);
    assert_eq!(fetch(&mut control, token.file, 0, MAX_FETCH).0, 0, "all bytes are buffered");
    clean(&drain(&mut control, None));
    assert_eq!(fetch(&mut control, token.file, 0, MAX_FETCH).0, 1_000_000);
    broken.store(true, Ordering::Relaxed);
    assert!(read(&fleet, token, 1_000_000) == model);
    broken.store(false, Ordering::Relaxed);
    write(&fleet, token, 300_000, &pattern(2, 200_000));
    model[300_000..500_000].copy_from_slice(&pattern(2, 200_000));
    assert!(read(&fleet, token, 1_000_000) == model);
    clean(&drain(&mut control, None));
    assert!(read(&fleet, token, 1_000_000) == model);
    memory.put(&[name("f")], (Uid(0), Gid(0)), 0o644, &pattern(9, 700_000));
    assert_eq!(control.walk("f").unwrap().size, 700_000);
    assert!(read(&fleet, token, 700_000) == pattern(9, 700_000));
}

/// Every server has a cache of its own: a fetch succeeds if all caches together can hold the range, and it does not
/// evict what it has fetched itself.
#[test]
fn several_servers_cache_more_than_one() {
    let memory = Memory::default();
    let (backend, broken) = unreadable(&memory);
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    let striping = Some(Striping { width: 0, stripe: 4 * BLOCK });
    control.call(Request::SetLayout { dir: FileId::ROOT, striping }).unwrap();
    let capacity = report(&mut control, DrainCall::Look { ticket: None }).status.read_cache.1;
    let len = 2 * capacity + 12_345;
    let tokens = ["f", "g"].map(|text| control.create(FileId::ROOT, text, 0o644));
    for (token, salt) in tokens.into_iter().zip(1..) {
        write(&fleet, token, 0, &pattern(salt, len as usize));
        clean(&drain(&mut control, None));
    }
    let fetch = |control: &mut Raw, token: Token, turn| {
        let reported = report(control, DrainCall::Fetch { file: token.file, offset: 0, len, turn });
        (reported.fetched, reported.full)
    };
    assert_eq!(fetch(&mut control, tokens[0], 1), (len, false));
    let (more, full) = fetch(&mut control, tokens[1], 1);
    assert!(full && more < len, "{more} of {len}");
    broken.store(true, Ordering::Relaxed);
    assert!(read(&fleet, tokens[0], len) == pattern(1, len as usize), "the first file is still cached");
    broken.store(false, Ordering::Relaxed);
    assert_eq!(fetch(&mut control, tokens[1], 2), (len, false), "a fetch of another turn evicts it");
    broken.store(true, Ordering::Relaxed);
    assert!(read(&fleet, tokens[1], len) == pattern(2, len as usize));
}

/// Users create empty files in the back end to choose their striping before they are written.
#[test]
fn empty_file_in_the_back_end_gets_the_layout_of_its_directory() {
    let memory = Memory::default();
    let backend: Arc<dyn Backend> = Arc::new(memory.clone());
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    memory.put(&[name("empty")], (Uid(0), Gid(0)), 0o644, b"");
    memory.put(&[name("full")], (Uid(0), Gid(0)), 0o644, b"bytes");
    let full = open(&mut control, "full", Access::READ).unwrap();
    assert_eq!(layout(&mut control, full.file).servers.len(), 1);
    let token = open(&mut control, "empty", Access::BOTH).unwrap();
    let striped = layout(&mut control, token.file);
    assert_eq!(striped.servers.len(), 3);
    assert_eq!(striped.pieces(Span::new(0, 300_000)).count(), 5);
    write(&fleet, token, 0, &pattern(4, 300_000));
    assert!(read(&fleet, token, 300_000) == pattern(4, 300_000));
    clean(&drain(&mut control, None));
    assert!(memory.bytes(&[name("empty")]).unwrap() == pattern(4, 300_000));
    assert!(read(&fleet, token, 300_000) == pattern(4, 300_000));
}
