//! A mapped file, as successive processes see it.

use super::*;
use crate::data::{DirDisk, Geometry, Place, RingId, Start};
use crate::meta::{Fault, MemoryKv};
use crc32c::crc32c;
use forebay_model::Incarnation;
use rustix::fs::{FlockOperation, flock};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tempfile::TempDir;

const GEOMETRY: Geometry = Geometry { regions: 8, size: 256 << 10, slots: 64 };
const FILE: FileId = FileId(100);
const MAPPER: Mapper = Mapper { uid: Uid(1), job: JobId(1), write: true };

struct World {
    dir: TempDir,
    kv: Arc<MemoryKv>,
}

impl World {
    fn new() -> World {
        let world = World { dir: tempfile::tempdir().unwrap(), kv: Arc::new(MemoryKv::new()) };
        Data::format(&world.disk(), GEOMETRY, Incarnation(7)).unwrap();
        world
    }

    fn disk(&self) -> DirDisk {
        DirDisk::new(self.dir.path().to_owned(), true)
    }

    fn open(&self, start: Start) -> Data {
        let disk = Arc::new(self.disk());
        Data::open(disk, self.kv.clone(), GEOMETRY, Incarnation(7), start).unwrap().0
    }
}

fn write(data: &Data, offset: u64, bytes: &[u8]) {
    let mut grant = data.reserve(Uid(1), FILE, bytes.len() as u32).unwrap();
    grant.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let filled = Filled { grant, len: bytes.len() as u32, crc: crc32c(bytes) };
    data.commit(FILE, Place::At(offset), vec![filled], JobId(1)).unwrap();
}

fn read(data: &Data, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in data.read(FILE, offset, len).unwrap() {
        match piece {
            Piece::Bytes(view) => bytes.extend_from_slice(view.as_ref()),
            Piece::Zeros(count) => bytes.resize(bytes.len() + count as usize, 0),
            Piece::Backing(span) => panic!("{span} is in the back end"),
            Piece::Copied(copied) => bytes.extend(copied),
        }
    }
    bytes
}

fn map(data: &Data, span: Span, write: bool) -> std::fs::File {
    while let Some(missing) = data.prepare_map(FILE, span, Mapper { write, ..MAPPER }).unwrap() {
        let bytes = read(data, missing.span.start, missing.span.len() as u32);
        data.fill_map(FILE, missing, &bytes).unwrap();
    }
    data.share_map(FILE, span, write).unwrap().expect("it was prepared")
}

fn at(object: &std::fs::File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    object.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn stores_reads_and_writes_of_a_mapped_file_are_coherent() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 20_000]);
    let object = map(&data, Span::new(4096, 20_480), true);
    assert_eq!(at(&object, 4096, 3), b"aaa");
    object.write_all_at(b"stored", 5000).unwrap();
    assert_eq!(read(&data, 4999, 8), b"astoreda");
    write(&data, 4090, b"written over the edge");
    assert_eq!(at(&object, 4096, 3), b"n o", "bytes before the mapping are not in the object");
    assert_eq!(read(&data, 4088, 25), b"aawritten over the edgeaa");
    write(&data, 19_998, b"grown");
    assert_eq!(object.metadata().unwrap().len(), 20_003);
    assert_eq!(at(&object, 19_998, 5), b"grown");
    data.truncate(FILE, 5003, Batch::default()).unwrap();
    assert_eq!(object.metadata().unwrap().len(), 5003);
    data.truncate(FILE, 20_000, Batch::default()).unwrap();
    assert_eq!(at(&object, 5000, 6), b"sto\0\0\0");
    data.punch(FILE, Span::new(5001, 5002), Batch::default()).unwrap();
    assert_eq!(read(&data, 5000, 3), b"s\0o");
    assert!(!data.end_map(FILE).unwrap(), "a process has a descriptor");
    drop(object);
    assert!(data.end_map(FILE).unwrap());
    assert_eq!(read(&data, 4999, 5), b"as\0o\0");
    assert_eq!(data.mapped_bytes(), 0);
    assert!(world.disk().names_of_objects().is_empty());
}

impl DirDisk {
    fn names_of_objects(&self) -> Vec<String> {
        let names = crate::data::Disk::names(self).unwrap();
        names.into_iter().filter(|name| name.ends_with(".object")).collect()
    }
}

#[test]
fn store_into_a_mapping_is_synced_with_the_file() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 8192]);
    let object = map(&data, Span::new(0, 8192), true);
    object.write_all_at(b"stored", 100).unwrap();
    data.sync(FILE).unwrap();
    object.write_all_at(b"later", 5000).unwrap();
    drop(data);
    // The death of the machine loses exactly what was not synced.
    let data = world.open(Start::MachineDied);
    assert_eq!(read(&data, 99, 8), b"astoreda");
    assert_eq!(read(&data, 5000, 5), b"aaaaa");
    assert!(world.disk().names_of_objects().is_empty());
}

#[test]
fn store_into_a_mapping_outlives_the_server() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 8192]);
    data.truncate(FILE, 1 << 20, Batch::default()).unwrap();
    let object = map(&data, Span::new(0, 1 << 20), true);
    object.write_all_at(b"stored", 100).unwrap();
    write(&data, 9000, b"written");
    drop(data);
    object.write_all_at(b"meanwhile", 500_000).unwrap();
    let data = world.open(Start::ProcessDied);
    for (offset, bytes) in [(100, b"stored".as_slice()), (500_000, b"meanwhile"), (9000, b"written")] {
        assert_eq!(read(&data, offset, bytes.len() as u32), bytes);
    }
    assert!(!data.end_map(FILE).unwrap(), "its process lives");
    write(&data, 600_000, b"seen");
    assert_eq!(at(&object, 600_000, 4), b"seen");
    drop((data, object));
    let data = world.open(Start::ProcessDied);
    assert!(data.end_map(FILE).unwrap());
    for (offset, bytes) in [(100, b"stored".as_slice()), (500_000, b"meanwhile"), (600_000, b"seen")] {
        assert_eq!(read(&data, offset, bytes.len() as u32), bytes);
    }
    assert!(data.facts(FILE).unwrap().buffered < 64 << 10, "holes are not written back");
}

#[test]
fn mapped_file_can_be_neither_leased_nor_written_through_a_ring() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 8192]);
    let ring = RingId(data.bind_ring(Uid(1), JobId(1), FILE, None, true).unwrap().ring);
    data.grant_slab(Uid(1), ring, 0, 64 << 10).unwrap();
    let object = map(&data, Span::new(0, 8192), true);
    let refused = |result: Result<()>| result.unwrap_err().kind() == ErrorKind::Invalid;
    assert!(refused(data.grant_slab(Uid(1), ring, 0, 64 << 10).map(drop)));
    assert!(refused(data.lease(Uid(1), FILE, ring, 0).map(drop)));
    assert!(refused(data.bind_ring(Uid(1), JobId(1), FILE, Some(ring), true).map(drop)));
    drop(object);
    assert!(data.end_map(FILE).unwrap());
    data.bind_ring(Uid(1), JobId(1), FILE, Some(ring), true).unwrap();
    data.lease(Uid(1), FILE, ring, 0).unwrap();
}

#[test]
fn descriptor_for_reading_cannot_be_written() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 4096]);
    let object = map(&data, Span::new(0, 4096), false);
    assert!(object.write_all_at(b"b", 0).is_err() && object.set_len(0).is_err());
}

#[test]
fn mapped_files_take_no_more_than_the_capacity() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    let capacity = data.usage().capacity;
    data.truncate(FILE, capacity + 4096, Batch::default()).unwrap();
    let all = data.prepare_map(FILE, Span::new(0, capacity + 4096), MAPPER);
    assert_eq!(all.unwrap_err().kind(), ErrorKind::NoSpace);
    drop(map(&data, Span::new(0, capacity), true));
    assert_eq!(data.mapped_bytes(), capacity);
    assert!(data.end_map(FILE).unwrap() && data.mapped_bytes() == 0);
}

#[test]
fn deleting_a_file_removes_its_object() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 4096]);
    let object = map(&data, Span::new(0, 4096), true);
    data.delete(FILE, Batch::default()).unwrap();
    assert!(data.mapped().is_empty() && world.disk().names_of_objects().is_empty());
    assert_eq!(at(&object, 0, 1), b"a", "its process keeps the memory");
}

#[test]
fn store_that_restores_an_earlier_page_is_written_back() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 8192]);
    let object = map(&data, Span::new(0, 8192), true);
    // A write of part of a page, and one over the edge of two.
    for (offset, bytes) in [(0, b"b".as_slice()), (4095, b"bb")] {
        write(&data, offset, bytes);
        object.write_all_at(&b"aa"[..bytes.len()], offset).unwrap();
    }
    drop(object);
    assert!(data.end_map(FILE).unwrap());
    assert_eq!(read(&data, 0, 8192), [b'a'; 8192]);
}

#[test]
fn object_whose_note_cannot_be_removed_is_not_adopted() {
    for writes in [false, true] {
        let world = World::new();
        let data = world.open(Start::Fresh);
        write(&data, 0, &[b'a'; 8192]);
        drop(map(&data, Span::new(0, 8192), writes));
        world.kv.fail(Fault::Commit, 1, ErrorKind::NoSpace.into());
        assert_eq!(data.end_map(FILE).unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(data.mapped().is_empty() && data.mapped_bytes() == 0);
        write(&data, 0, b"newer");
        drop(data);
        let data = world.open(Start::ProcessDied);
        assert_eq!(read(&data, 0, 8), b"neweraaa");
        assert!(data.mapped().is_empty());
    }
}

#[test]
fn mapping_outlives_a_restart_without_changing_the_file() {
    for writes in [false, true] {
        let world = World::new();
        let data = world.open(Start::Fresh);
        write(&data, 0, &[b'a'; 100_000]);
        let object = map(&data, Span::new(0, 100_000), writes);
        data.write_back(FILE).unwrap();
        data.persist_size(FILE).unwrap();
        let before = data.facts(FILE).unwrap();
        drop(data);
        let data = world.open(Start::ProcessDied);
        data.write_back(FILE).unwrap();
        drop(object);
        assert!(data.end_map(FILE).unwrap());
        let after = data.facts(FILE).unwrap();
        assert_eq!((after.touched, after.buffered), (before.touched, before.buffered), "writes: {writes}");
    }
}

#[test]
fn lock_of_one_process_on_its_descriptor_does_not_stop_others() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 8192]);
    let span = Span::new(0, 8192);
    let greedy = map(&data, span, false);
    flock(&greedy, FlockOperation::NonBlockingLockExclusive).unwrap();
    let others = [map(&data, span, true), map(&data, span, true), map(&data, span, false)];
    others[1].write_all_at(b"stored", 10).unwrap();
    drop(greedy);
    for other in others {
        assert!(!data.end_map(FILE).unwrap(), "a process has a descriptor");
        drop(other);
    }
    assert!(data.end_map(FILE).unwrap());
    assert_eq!(read(&data, 9, 8), b"astoreda");
}

/// A file and its model: bytes of two values, so that pages often return to an earlier content.
struct Random {
    world: World,
    /// `None` while the process restarts.
    data: Option<Data>,
    object: Option<std::fs::File>,
    model: Vec<u8>,
    rng: forebay_testkit::Rng,
}

const MOST: u64 = 3 * PAGE + 100;

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.rng.below(below)
    }

    fn data(&self) -> &Data {
        self.data.as_ref().unwrap()
    }

    /// One byte at a few places, or a range of pages.
    fn place(&mut self) -> (usize, usize) {
        match self.below(4) {
            0 => (self.below(3) as usize * PAGE as usize, PAGE as usize * (1 + self.below(2) as usize)),
            _ => (self.below(7) as usize * 2048 + 2047, 1 + self.below(2) as usize),
        }
    }

    fn put(&mut self, start: usize, bytes: &[u8]) {
        let len = self.model.len().max(start + bytes.len());
        self.model.resize(len, 0);
        self.model[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn step(&mut self) {
        let (start, len) = self.place();
        let bytes = vec![b'a' + self.below(2) as u8; len];
        match self.below(16) {
            0..=4 => {
                let end = self.model.len().min(start + len);
                if let Some(object) = self.object.as_ref().filter(|_| start < end) {
                    object.write_all_at(&bytes[..end - start], start as u64).unwrap();
                    self.put(start, &bytes[..end - start]);
                }
            }
            5..=8 => {
                write(self.data(), start as u64, &bytes);
                self.put(start, &bytes);
            }
            9 => {
                let size = self.below(MOST);
                self.data().truncate(FILE, size, Batch::default()).unwrap();
                self.model.resize(size as usize, 0);
            }
            10 => {
                let end = self.model.len().min(start + len);
                if start < end {
                    self.data().punch(FILE, Span::new(start as u64, end as u64), Batch::default()).unwrap();
                    self.model[start..end].fill(0);
                }
            }
            11 => self.data().write_back(FILE).unwrap(),
            12 => {
                self.object = None;
                self.data().end_map(FILE).unwrap();
            }
            13 if self.below(4) == 0 => {
                self.data = None;
                self.data = Some(self.world.open(Start::ProcessDied));
            }
            _ => self.object = Some(map(self.data(), Span::new(0, 4 * PAGE), true)),
        }
    }

    fn check(&self, what: &str) {
        assert_eq!(self.data().facts(FILE).unwrap().size, self.model.len() as u64, "{what}");
        assert!(read(self.data(), 0, MOST as u32 * 2) == self.model, "{what}: the file differs");
        if let Some(object) = &self.object {
            assert!(at(object, 0, self.model.len()) == self.model, "{what}: the mapping differs");
        }
    }
}

#[test]
fn random_stores_and_writes_of_few_values_match_the_model() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("FOREBAY_SEED").unwrap_or(1);
    let soak = number("FOREBAY_SOAK_SECONDS").map(Duration::from_secs);
    let begin = Instant::now();
    for seed in first.. {
        if soak.map_or(seed >= first + 20, |soak| seed > first && begin.elapsed() >= soak) {
            break;
        }
        let world = World::new();
        let data = world.open(Start::Fresh);
        let rng = forebay_testkit::Rng::new(seed);
        let mut random = Random { world, data: Some(data), object: None, model: Vec::new(), rng };
        for step in 0..200 {
            random.step();
            random.check(&format!("FOREBAY_SEED={seed}, step {step}"));
        }
    }
}

#[test]
fn object_stays_while_it_is_being_filled() {
    let world = World::new();
    let data = world.open(Start::Fresh);
    write(&data, 0, &[b'a'; 8192]);
    let span = Span::new(0, 8192);
    let preparing = [data.begin_map(FILE), data.begin_map(FILE)];
    let missing = data.prepare_map(FILE, span, MAPPER).unwrap().expect("nothing is filled");
    for preparing in preparing {
        assert!(!data.end_map(FILE).unwrap(), "it is being filled");
        drop(preparing);
    }
    assert!(data.end_map(FILE).unwrap());
    assert!(!data.fill_map(FILE, missing, &[b'a'; 8192]).unwrap());
}

#[test]
fn one_user_cannot_take_all_memory_for_mapped_files() {
    let (alice, bob, owner) = (Uid(1), Uid(2), Uid(3));
    for (percent, bounded) in [(100, false), (50, true)] {
        let world = World::new();
        let data = world.open(Start::Fresh);
        data.bound_mapped(percent, owner);
        let capacity = data.usage().capacity;
        let prepare = |file: u64, uid: Uid, len: u64| {
            data.truncate(FileId(file), len, Batch::default()).unwrap();
            data.prepare_map(FileId(file), Span::new(0, len), Mapper { uid, ..MAPPER })
        };
        let half = capacity / 2;
        assert!(prepare(1, alice, half).unwrap().is_none());
        let more = prepare(2, alice, half);
        assert_eq!(more.is_err(), bounded);
        if let Err(full) = more {
            assert_eq!(full.kind(), ErrorKind::NoSpace);
            assert!(full.to_string().contains("limits.user_mapped"), "{full}");
            // A file that grows under a mapping counts as far as it fits, and its writer is not stopped.
            prepare(4, alice, 0).unwrap();
            data.prepare_map(FileId(4), Span::new(0, half), Mapper { uid: alice, ..MAPPER }).unwrap();
            data.truncate(FileId(4), half, Batch::default()).unwrap();
            assert_eq!(data.mapped_bytes(), half);
            data.end_map(FileId(1)).unwrap();
            assert!(prepare(5, owner, capacity).unwrap().is_none(), "an exempt user may take everything");
            data.end_map(FileId(5)).unwrap();
        }
        assert_eq!(prepare(3, bob, half).is_ok(), bounded);
    }
}
