//! A mapped file, as successive processes see it.

use super::*;
use crate::data::{DirDisk, Geometry, NoRings, Place, Start};
use crate::meta::MemoryKv;
use crc32c::crc32c;
use forebay_model::Incarnation;
use std::os::unix::fs::FileExt;
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
        Data::open(disk, self.kv.clone(), GEOMETRY, Incarnation(7), start, Box::new(NoRings)).unwrap().0
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
    let ring = data.bind_ring(Uid(1), JobId(1), FILE, None, true).unwrap().ring;
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
