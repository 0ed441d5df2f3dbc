//! Regions in memory: allocated before they are granted, and not earlier.

#[path = "data/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use forebay_model::{Error, ErrorKind, FileId, Result, Uid};
use forebay_store::{Data, DirDisk, Disk, Geometry, MemoryKv, Place, Start};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use world::{INCARNATION, read, write};

const GEOMETRY: Geometry = Geometry { regions: 4, size: 1 << 20, slots: 512 };
const ALICE: Uid = Uid(1000);
const ONE: FileId = FileId(11);

/// A directory that counts as memory, of which there may be too little.
struct Memory {
    disk: DirDisk,
    dir: tempfile::TempDir,
    short: AtomicBool,
    allocated: AtomicU64,
}

impl Memory {
    fn new() -> Arc<Memory> {
        let dir = tempfile::tempdir().unwrap();
        let disk = DirDisk::new(dir.path().to_owned(), true);
        Arc::new(Memory { disk, dir, short: AtomicBool::new(false), allocated: AtomicU64::new(0) })
    }

    fn open(self: &Arc<Memory>, start: Start) -> Data {
        let kv = Arc::new(MemoryKv::new());
        Data::open(self.clone(), kv, GEOMETRY, INCARNATION, start).unwrap().0
    }

    /// The allocated bytes of all files.
    fn taken(&self) -> u64 {
        let files = std::fs::read_dir(self.dir.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
    }
}

impl Disk for Memory {
    fn create(&self, name: &str, len: u64) -> Result<File> {
        self.disk.create(name, len)
    }

    fn create_in_part(&self, name: &str, len: u64, ranges: &[Range<u64>]) -> Result<File> {
        self.disk.create_in_part(name, len, ranges)
    }

    fn allocate(&self, name: &str, file: &File, range: Range<u64>) -> Result<()> {
        if self.short.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::NoSpace, "the memory is short"));
        }
        self.allocated.fetch_add(range.end - range.start, Ordering::Relaxed);
        self.disk.allocate(name, file, range)
    }

    fn vacate(&self, name: &str) -> Result<()> {
        self.disk.vacate(name)
    }

    fn open(&self, name: &str) -> Result<Option<File>> {
        self.disk.open(name)
    }

    fn sync(&self, name: &str, file: &File) -> Result<()> {
        self.disk.sync(name, file)
    }

    fn is_volatile(&self) -> bool {
        self.disk.is_volatile()
    }

    fn names(&self) -> Result<Vec<String>> {
        self.disk.names()
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.disk.remove(name)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.disk.path(name)
    }
}

#[test]
fn memory_is_allocated_when_it_is_granted_and_found_after_a_restart() {
    let memory = Memory::new();
    Data::format(&*memory, GEOMETRY, INCARNATION).unwrap();
    let data = memory.open(Start::Fresh);
    assert!(memory.taken() < 256 << 10, "{} bytes before anything is granted", memory.taken());
    let bytes = vec![7; 300 << 10];
    write(&data, ONE, Place::At(0), &bytes, ALICE).unwrap();
    let region = u64::from(GEOMETRY.size);
    let (allocated, taken) = (memory.allocated.load(Ordering::Relaxed), memory.taken());
    assert!((region..2 * region).contains(&allocated), "one region and its journal, not {allocated} bytes");
    assert!(taken >= region, "{taken} bytes");
    drop(data);
    let data = memory.open(Start::ProcessDied);
    assert_eq!(read(&data, ONE, 0, 300 << 10).unwrap(), bytes);
    write(&data, ONE, Place::At(0), &bytes, ALICE).unwrap();
    assert_eq!(memory.allocated.load(Ordering::Relaxed), allocated, "the region is known to be allocated");
    assert!(memory.taken() < 2 * region, "recovery took {} bytes", memory.taken());
    data.warm(&|| false).unwrap();
    assert!(memory.taken() >= 4 * region, "{} bytes are warm", memory.taken());
}

#[test]
fn grant_without_memory_fails_with_the_reason_and_works_when_there_is_some() {
    let memory = Memory::new();
    Data::format(&*memory, GEOMETRY, INCARNATION).unwrap();
    let data = memory.open(Start::Fresh);
    write(&data, ONE, Place::At(0), &[1; 600 << 10], ALICE).unwrap();
    memory.short.store(true, Ordering::Relaxed);
    write(&data, ONE, Place::At(600 << 10), &[2; 400 << 10], ALICE).unwrap();
    assert!(data.try_reserve(ALICE, ONE, 1 << 20).is_none_or(|grant| grant.len() <= 24 << 10));
    let refused = write(&data, FileId(12), Place::At(0), &[3; 600 << 10], ALICE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(refused.to_string().contains("the memory is short"), "{refused}");
    assert!(data.warm(&|| false).is_err());
    let both = [vec![1; 600 << 10], vec![2; 400 << 10]].concat();
    assert!(read(&data, ONE, 0, 1 << 20).unwrap() == both, "what was written before stays");
    memory.short.store(false, Ordering::Relaxed);
    write(&data, FileId(12), Place::At(0), &[3; 600 << 10], ALICE).unwrap();
    assert!(read(&data, FileId(12), 0, 600 << 10).unwrap() == vec![3; 600 << 10]);
    assert!(read(&data, ONE, 0, 1 << 20).unwrap() == both);
}
