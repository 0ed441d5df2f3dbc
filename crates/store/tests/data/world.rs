//! The data of a store on a simulated disk that can lose power, and helpers to drive it.

use forebay_model::{ErrorKind, FileId, Incarnation, JobId, Result, Span, Uid};
use forebay_store::{Batch, CrashDisk, Data, Filled, Geometry, Kv, MemoryKv, Piece, Place, Recovery, Start};
use forebay_testkit::Rng;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

pub(crate) const INCARNATION: Incarnation = Incarnation(7);
pub(crate) const SMALL: Geometry = Geometry { regions: 12, size: 16 << 10, slots: 48 };

/// The bytes of files in the back end, which are always durable.
pub(crate) type BackingFiles = Arc<Mutex<HashMap<FileId, Vec<u8>>>>;

pub(crate) struct World {
    pub(crate) disk: Arc<CrashDisk>,
    pub(crate) kv: Arc<MemoryKv>,
    pub(crate) data: Data,
    pub(crate) backing: BackingFiles,
}

impl World {
    pub(crate) fn new(geometry: Geometry) -> World {
        let disk = Arc::new(CrashDisk::default());
        Data::format(&*disk, geometry, INCARNATION).unwrap();
        World::open(disk, Arc::new(MemoryKv::new()), geometry, Start::Fresh).unwrap().0
    }

    pub(crate) fn open(
        disk: Arc<CrashDisk>,
        kv: Arc<MemoryKv>,
        geometry: Geometry,
        start: Start,
    ) -> Result<(World, Recovery)> {
        let meta: Arc<dyn Kv> = kv.clone();
        let (data, recovery) = Data::open(disk.clone(), meta, geometry, INCARNATION, start)?;
        Ok((World { disk, kv, data, backing: BackingFiles::default() }, recovery))
    }

    /// The process crashes and restarts.
    pub(crate) fn restart(self) -> World {
        let World { disk, kv, data, backing } = self;
        let geometry = data.geometry();
        drop(data);
        World { backing, ..World::open(disk, kv, geometry, Start::ProcessDied).unwrap().0 }
    }

    /// Registers a file found in the back end.
    pub(crate) fn find(&self, file: FileId, bytes: &[u8]) {
        self.backing.lock().unwrap().insert(file, bytes.to_vec());
        self.kv.commit(self.data.found(file, bytes.len() as u64).unwrap()).unwrap();
    }

    /// Acts as the drain: copies a range to the back end and releases it in the buffer.
    pub(crate) fn release(&self, file: FileId, span: Span) -> Result<u64> {
        let (now, size) = (self.data.now(), self.data.facts(file)?.size);
        let Some(span) = span.intersect(Span::new(0, size)) else { return Ok(0) };
        let bytes = self.read(file, span.start, span.len() as u32)?;
        {
            let mut backing = self.backing.lock().unwrap();
            let backed = backing.entry(file).or_default();
            backed.resize(backed.len().max(span.end as usize), 0);
            backed[span.start as usize..span.end as usize].copy_from_slice(&bytes);
        }
        self.data.backing(file, span, now)
    }

    pub(crate) fn write(&self, file: FileId, place: Place, bytes: &[u8], uid: Uid) -> Result<u64> {
        write(&self.data, file, place, bytes, uid)
    }

    pub(crate) fn read(&self, file: FileId, offset: u64, len: u32) -> Result<Vec<u8>> {
        read_before(&self.data, &self.backing, file, offset, len)
    }

    pub(crate) fn read_all(&self, file: FileId) -> Result<Vec<u8>> {
        let size = self.data.facts(file)?.size;
        self.read(file, 0, u32::try_from(size).unwrap())
    }
}

pub(crate) fn write(data: &Data, file: FileId, place: Place, bytes: &[u8], uid: Uid) -> Result<u64> {
    let mut parts = Vec::new();
    let mut left = bytes;
    while !left.is_empty() {
        let mut grant = data.reserve(uid, file, left.len() as u32)?;
        let (now, later) = left.split_at((grant.len() as usize).min(left.len()));
        grant.as_mut_slice()[..now.len()].copy_from_slice(now);
        parts.push(Filled { grant, len: now.len() as u32, crc: crc32c::crc32c(now) });
        left = later;
    }
    Ok(data.commit(file, place, parts, JobId(1))?.offset)
}

pub(crate) fn read(data: &Data, file: FileId, offset: u64, len: u32) -> Result<Vec<u8>> {
    read_before(data, &BackingFiles::default(), file, offset, len)
}

fn read_before(data: &Data, backing: &BackingFiles, file: FileId, offset: u64, len: u32) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in data.read(file, offset, len)? {
        match piece {
            Piece::Bytes(view) => bytes.extend_from_slice(view.as_ref()),
            Piece::Zeros(count) => bytes.resize(bytes.len() + count as usize, 0),
            Piece::Backing(span) => {
                let backing = backing.lock().unwrap();
                // Shorter only if power was cut between the truncation in the back end and in the buffer.
                let backed = (span.start..span.end).map(|at| backing[&file].get(at as usize).copied());
                bytes.extend(backed.map(Option::unwrap_or_default));
            }
            Piece::Copied(copied) => bytes.extend(copied),
        }
    }
    Ok(bytes)
}

/// One operation on a file.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write(u64, Vec<u8>),
    Append(Vec<u8>),
    Truncate(u64),
    Punch(u64, u64),
    Release(u64, u64),
    Delete,
}

pub(crate) const FILES: u64 = 6;
/// Maximum size of a file: all files together fit into the buffer.
pub(crate) const LONGEST: u64 = 12 << 10;

impl Op {
    pub(crate) fn random(random: &mut Rng) -> Op {
        let small = random.below(3) > 0;
        let len = 1 + random.below(if small { 300 } else { 5000 });
        let offset = random.below(LONGEST - len);
        match random.below(14) {
            0..=5 => Op::Write(offset, random.bytes(len as usize)),
            6..=7 => Op::Append(random.bytes(len as usize)),
            8..=9 => Op::Truncate(random.below(LONGEST)),
            10 => Op::Punch(offset, len),
            11..=12 => Op::Release(offset, len),
            _ => Op::Delete,
        }
    }

    /// Applies the operation to the model.
    pub(crate) fn apply(&self, file: &mut Vec<u8>) {
        let mut put = |offset: usize, bytes: &[u8]| {
            file.resize(file.len().max(offset + bytes.len()), 0);
            file[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        match self {
            Op::Write(offset, bytes) => put(*offset as usize, bytes),
            Op::Append(bytes) => {
                let end = file.len();
                file.resize(end + bytes.len(), 0);
                file[end..].copy_from_slice(bytes);
            }
            Op::Truncate(size) => file.resize(*size as usize, 0),
            Op::Punch(offset, len) => {
                let end = (offset + len).min(file.len() as u64) as usize;
                if let Some(hole) = file.get_mut(*offset as usize..end) {
                    hole.fill(0);
                }
            }
            Op::Release(..) => {}
            Op::Delete => file.clear(),
        }
    }

    /// Performs the operation. An append to a long file truncates it first, so that files stay small.
    pub(crate) fn perform(&self, world: &World, file: FileId, uid: Uid) -> Result<()> {
        match self {
            Op::Write(offset, bytes) => world.write(file, Place::At(*offset), bytes, uid).map(drop),
            Op::Append(bytes) => world.write(file, Place::End, bytes, uid).map(drop),
            Op::Truncate(size) => {
                if let Some(backed) = world.backing.lock().unwrap().get_mut(&file) {
                    backed.truncate(*size as usize);
                }
                world.data.truncate(file, *size, Batch::default())
            }
            Op::Punch(offset, len) => {
                world.data.punch(file, Span::at(*offset, *len).unwrap(), Batch::default())
            }
            Op::Release(offset, len) => world.release(file, Span::at(*offset, *len).unwrap()).map(drop),
            Op::Delete => world.data.delete(file, Batch::default()),
        }
    }

    pub(crate) fn fits(&self, file: &[u8]) -> bool {
        !matches!(self, Op::Append(bytes) if (file.len() + bytes.len()) as u64 > LONGEST)
    }
}

/// Allocates file ids; an id is never reused after the deletion of its file.
pub(crate) struct Ids(u64);

impl Ids {
    pub(crate) fn new() -> Ids {
        Ids(100)
    }

    pub(crate) fn next(&mut self) -> FileId {
        self.0 += 1;
        FileId(self.0)
    }
}

pub(crate) fn is_gone(world: &World, file: FileId) -> bool {
    match world.read_all(file) {
        Ok(bytes) => bytes.is_empty(),
        Err(error) => error.kind() == ErrorKind::Stale,
    }
}
