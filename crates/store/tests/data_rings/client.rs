//! A store, and clients as they run in other processes.

use crate::leases::Leased;
use forebay_model::{ErrorKind, FileId, Incarnation, JobId, SlabGrant, Uid};
use forebay_shm::{Commit, RwMap, Writer, is_locked};
use forebay_store::{Data, DirDisk, Filled, Geometry, MemoryKv, Piece, Place, RingId, Start};
use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const GEOMETRY: Geometry = Geometry { regions: 24, size: 128 << 10, slots: 128 };
const INCARNATION: Incarnation = Incarnation(3);
pub(crate) const OWNER: Uid = Uid(7);
pub(crate) const SPACE: u64 = 60_000;

pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Opens a file whose path the store has granted.
pub(crate) fn open_granted(path: &[u8]) -> File {
    open(Path::new(OsStr::from_bytes(path)))
}

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) kv: Arc<MemoryKv>,
    pub(crate) data: Option<Data>,
    geometry: Geometry,
}

impl World {
    pub(crate) fn new() -> World {
        World::of(GEOMETRY)
    }

    pub(crate) fn of(geometry: Geometry) -> World {
        let dir = tempfile::tempdir().unwrap();
        let kv = Arc::new(MemoryKv::new());
        Data::format(&DirDisk::new(dir.path().to_owned(), true), geometry, INCARNATION).unwrap();
        let mut world = World { dir, kv, data: None, geometry };
        world.start(Start::Fresh);
        world
    }

    pub(crate) fn start(&mut self, start: Start) {
        let disk = Arc::new(DirDisk::new(self.dir.path().to_owned(), true));
        let opened = Data::open(disk, self.kv.clone(), self.geometry, INCARNATION, start);
        self.data = Some(opened.unwrap().0);
    }

    pub(crate) fn stop(&mut self) {
        self.data = None;
    }

    pub(crate) fn data(&self) -> &Data {
        self.data.as_ref().expect("the store is open")
    }

    pub(crate) fn read(&self, file: FileId) -> Vec<u8> {
        let size = self.data().facts(file).unwrap().size;
        let mut bytes = Vec::new();
        for piece in self.data().read(file, 0, size as u32).unwrap() {
            match piece {
                Piece::Bytes(view) => bytes.extend_from_slice(view.as_ref()),
                Piece::Zeros(count) => bytes.resize(bytes.len() + count as usize, 0),
                Piece::Backing(span) => panic!("{span} is in the backing store"),
                Piece::Copied(copied) => bytes.extend(copied),
            }
        }
        bytes
    }

    pub(crate) fn write(&self, file: FileId, offset: u64, bytes: &[u8]) {
        let (mut parts, mut left) = (Vec::new(), bytes);
        while !left.is_empty() {
            let mut grant = self.data().reserve(OWNER, file, left.len() as u32).unwrap();
            let (some, rest) = left.split_at(left.len().min(grant.len() as usize));
            grant.as_mut_slice()[..some.len()].copy_from_slice(some);
            parts.push(Filled { grant, len: some.len() as u32, crc: crc32c::crc32c(some) });
            left = rest;
        }
        self.data().commit(file, Place::At(offset), parts, JobId(1)).unwrap();
    }

    /// What the server does from time to time: removes the rings of dead clients, and recalls slabs that were not used
    /// for the given time. Returns the number of removed rings, and of records that were rejected.
    pub(crate) fn tend_rings(&self, idle: Duration) -> (usize, u64) {
        let (data, mut gone) = (self.data(), 0);
        let refused = data.take_refused();
        for ring in data.rings() {
            if ring.confirmed && !is_locked(ring.file()) {
                data.end_ring(&ring).unwrap();
                gone += 1;
            } else if ring.idle > idle {
                data.recall_ring(&ring).unwrap();
            }
        }
        (gone, refused)
    }

    pub(crate) fn ring_files(&self) -> usize {
        let names = std::fs::read_dir(self.dir.path()).unwrap();
        names
            .filter(|name| name.as_ref().unwrap().path().extension().is_some_and(|end| end == "ring"))
            .count()
    }
}

/// A slab from the client's point of view.
pub(crate) struct Held {
    pub(crate) offer: SlabGrant,
    pub(crate) window: RwMap,
    pub(crate) used: u32,
    pub(crate) records: u32,
}

/// A client with one ring.
pub(crate) struct Client {
    pub(crate) ring: RingId,
    pub(crate) nonce: u128,
    pub(crate) binding: u32,
    pub(crate) file: FileId,
    pub(crate) writer: Writer,
    pub(crate) slabs: VecDeque<Held>,
    pub(crate) leased: Option<Leased>,
    pub(crate) _lock: File,
}

impl Client {
    pub(crate) fn new(world: &World, file: FileId) -> Client {
        let offer = world.data().bind_ring(OWNER, JobId(2), file, None, true).unwrap();
        let lock = open_granted(&offer.path);
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let writer = Writer::open(&lock, offer.nonce).unwrap();
        let (ring, nonce, binding) = (RingId(offer.ring), offer.nonce, offer.binding);
        let slabs = VecDeque::new();
        let mut client = Client { ring, nonce, binding, file, writer, slabs, leased: None, _lock: lock };
        client.request_slab(world);
        client
    }

    pub(crate) fn rebind(&mut self, world: &World, file: FileId) {
        let offer = world.data().bind_ring(OWNER, JobId(2), file, Some(self.ring), true).unwrap();
        assert_eq!(offer.ring, self.ring.0);
        (self.binding, self.file, self.leased) = (offer.binding, file, None);
    }

    pub(crate) fn request_slab(&mut self, world: &World) {
        let keep = self.slabs.front().map_or(u32::MAX, |held| held.offer.slab);
        let len = world.data().next_slab(self.ring, 1).min(10_000);
        let offer = match world.data().grant_slab(OWNER, self.ring, keep, len) {
            // The store has restarted, and this writer is not registered with it yet.
            Err(error) if error.kind() == ErrorKind::Stale => {
                self.rebind(world, self.file);
                world.data().grant_slab(OWNER, self.ring, keep, len)
            }
            other => other,
        };
        let offer = offer.unwrap();
        let window = RwMap::new(&open_granted(&offer.path), offer.size).unwrap();
        self.slabs.retain(|held| held.offer.epoch == offer.epoch);
        let (used, records) = (offer.start, offer.records);
        self.slabs.push_back(Held { offer, window, used, records });
    }

    pub(crate) fn room(&self) -> u32 {
        let room =
            |held: &Held| if held.records == 0 { 0 } else { held.offer.start + held.offer.len - held.used };
        self.slabs.iter().map(room).sum()
    }

    /// What the preload library does for `pwrite`; false if a request to the server is needed and the server is down.
    pub(crate) fn write(&mut self, world: &World, offset: u64, bytes: &[u8]) -> bool {
        loop {
            let epoch = self.slabs.back().map_or(0, |held| held.offer.epoch);
            let fits = self.room() >= bytes.len() as u32 && self.writer.room() >= 8;
            if let (true, Some(_filling)) = (fits, self.writer.enter(epoch)) {
                break;
            }
            if world.data.is_none() {
                return false;
            }
            if fits {
                self.slabs.clear();
            }
            self.request_slab(world);
        }
        // An earlier lease does not cover the client's own write.
        self.leased = None;
        let (stamp, mut commits, mut done) = (now(), Vec::new(), 0);
        while done < bytes.len() {
            let held = self.slabs.front_mut().unwrap();
            let left = (held.offer.start + held.offer.len - held.used) as usize;
            let len = left.min(bytes.len() - done);
            if len == 0 || held.records == 0 {
                self.slabs.pop_front();
                continue;
            }
            held.window.put(held.used, &bytes[done..done + len]);
            commits.push(Commit {
                sequence: self.writer.head() + commits.len() as u64,
                binding: self.binding,
                slab: held.offer.slab,
                position: held.used,
                len: len as u32,
                offset: offset + done as u64,
                stamp,
                more: done + len < bytes.len(),
            });
            (held.used, held.records, done) = (held.used + len as u32, held.records - 1, done + len);
        }
        assert!(self.writer.push(&commits));
        true
    }
}
