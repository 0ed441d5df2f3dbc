//! A ring and its slabs: writes by shared memory, without a request.

use forebay_model::{Uid, lock};
use forebay_shm::{Commit, Doorbell, RING_RECORDS, Reader, RoMap, RwMap, Writer, monotonic};
use forebay_wire::{RingGrant, SlabGrant};
use rustix::fs::{FlockOperation, flock};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Maximum number of slabs at a time: one being filled, and two ahead.
pub(crate) const SLABS: usize = 3;
/// How long no ring is requested after the server had none available.
const REST: Duration = Duration::from_secs(1);
/// Maximum number of idle rings.
const MOST_IDLE: usize = 64;
/// Maximum number of mapped regions without a granted slab.
const MOST_MAPS: usize = 128;

/// The rings and mapped regions of a session.
#[derive(Default)]
pub(crate) struct SharedRings {
    idle: Mutex<Vec<RingWriter>>,
    rw_maps: Mutex<Known<RwMap>>,
    ro_maps: Mutex<Known<RoMap>>,
    /// On the monotonic clock: until when no ring is requested. For ever if this process cannot open the server's
    /// files.
    off: AtomicU64,
    /// Whether the file that was last closed after being open for writing was written to.
    pub(crate) last_was_written: AtomicBool,
    /// Whether the file that was last closed after being open for reading only was read.
    pub(crate) last_was_read: AtomicBool,
}

/// Mapped files by path, each with its inode number, which distinguishes it from earlier files at that path.
type Known<T> = HashMap<PathBuf, (u64, Arc<T>)>;

/// A ring to which this client writes. Its file lock shows the server that the client is alive.
pub(crate) struct RingWriter {
    pub(crate) ring: u32,
    binding: u32,
    uid: Uid,
    /// The number of the control connection on which it was bound.
    pub(crate) connection_epoch: u64,
    /// Whether it was bound for writing.
    pub(crate) writes: bool,
    writer: Writer,
    doorbell: Doorbell,
    slabs: VecDeque<Slab>,
    /// The number after the last granted slab.
    next_slab: u32,
    last: u64,
    _lock: File,
}

struct Slab {
    number: u32,
    region: Region,
    used: u32,
    end: u32,
    records: u32,
    epoch: u64,
}

/// The region of a slab.
enum Region {
    Mapped(Arc<RwMap>),
    /// A thread that needs the region and may wait maps it.
    Unmapped(SlabGrant),
}

/// Result of mapping regions.
pub(crate) struct Mapped {
    /// Newly mapped regions and their slabs.
    pub(crate) new: Vec<(Arc<RwMap>, SlabGrant)>,
    /// Whether all regions could be mapped.
    pub(crate) all: bool,
}

impl Slab {
    fn is_mapped(&self) -> bool {
        matches!(self.region, Region::Mapped(_))
    }

    fn room(&self) -> u32 {
        if self.records == 0 { 0 } else { self.end - self.used }
    }
}

/// Result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrote {
    /// The data is written. `ahead`: more space is needed soon.
    All { ahead: bool },
    /// The slabs have too little space.
    NoSpace,
    /// There is space, but in a region that is not mapped.
    Unmapped,
    /// The write does not fit even into the maximum number of slabs.
    TooMuch,
    /// The server recalled the slabs.
    Recalled,
    /// The server has not consumed the ring.
    Full,
}

fn open(path: &[u8]) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(OsString::from_vec(path.to_vec()))
}

impl SharedRings {
    pub(crate) fn is_off(&self) -> bool {
        match self.off.load(Ordering::Relaxed) {
            0 => false,
            u64::MAX => true,
            until => monotonic() < until,
        }
    }

    pub(crate) fn switch_off(&self) {
        self.off_until(u64::MAX);
    }

    /// Stops requests for rings for [`REST`]: the server has none available now.
    pub(crate) fn rest(&self) {
        self.off_until(monotonic() + REST.as_nanos() as u64);
    }

    /// Drops all rings and mappings that are not in use.
    pub(crate) fn close(&self) {
        self.switch_off();
        lock(&self.rw_maps).clear();
        lock(&self.ro_maps).clear();
    }

    /// Stops requests for rings: the server's files cannot be opened. Only for a while if the current credentials of
    /// this thread are the cause.
    pub(crate) fn unusable(&self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::PermissionDenied => self.rest(),
            _ => self.switch_off(),
        }
    }

    fn off_until(&self, until: u64) {
        self.off.store(until, Ordering::Relaxed);
        lock(&self.idle).clear();
    }

    /// Whether there is an idle ring for a user.
    pub(crate) fn has_idle(&self, uid: Uid) -> bool {
        lock(&self.idle).iter().any(|ring_writer| ring_writer.uid == uid)
    }

    /// Takes an idle ring of a user.
    pub(crate) fn take(&self, uid: Uid) -> Option<RingWriter> {
        let mut idle = lock(&self.idle);
        let at = idle.iter().position(|ring_writer| ring_writer.uid == uid)?;
        Some(idle.swap_remove(at))
    }

    /// Takes an idle ring of any user.
    pub(crate) fn take_any(&self) -> Option<RingWriter> {
        lock(&self.idle).pop()
    }

    /// Keeps a ring for another file.
    pub(crate) fn put(&self, ring_writer: RingWriter) {
        let mut idle = lock(&self.idle);
        if idle.len() < MOST_IDLE && !self.is_off() {
            idle.push(ring_writer);
        }
    }

    /// The mapped region of a slab; maps it if necessary.
    pub(crate) fn map(&self, grant: &SlabGrant) -> io::Result<Arc<RwMap>> {
        let path = PathBuf::from(OsString::from_vec(grant.path.clone()));
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        around(mapped(&self.rw_maps, path, &file, |file| RwMap::new(file, grant.size))?, grant)
    }

    /// The region of a slab if it is mapped already. For tasks that run beside the program, which must not find file
    /// descriptors that it did not open.
    pub(crate) fn known(&self, grant: &SlabGrant) -> Option<Arc<RwMap>> {
        let path = PathBuf::from(OsString::from_vec(grant.path.clone()));
        let inode = std::fs::metadata(&path).ok()?.ino();
        let known = lock(&self.rw_maps);
        let (_, rw_map) = known.get(&path).filter(|(number, _)| *number == inode)?;
        around(rw_map.clone(), grant).ok()
    }

    /// A region mapped read-only.
    pub(crate) fn ro_map(&self, path: PathBuf, size: u32) -> io::Result<Arc<RoMap>> {
        let inode = std::fs::metadata(&path)?.ino();
        if let Some((number, ro_map)) = lock(&self.ro_maps).get(&path)
            && *number == inode
        {
            return Ok(ro_map.clone());
        }
        let file = File::open(&path)?;
        mapped(&self.ro_maps, path, &file, |file| RoMap::new(file, size))
    }
}

/// The region, if the slab lies within it.
fn around(rw_map: Arc<RwMap>, grant: &SlabGrant) -> io::Result<Arc<RwMap>> {
    let end = grant.start.checked_add(grant.len).filter(|end| *end <= rw_map.len());
    match end {
        Some(_) => Ok(rw_map),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "the slab is outside its region")),
    }
}

/// Populates the pages of a slab.
pub(crate) fn touch(rw_map: &RwMap, grant: &SlabGrant) {
    // Older kernels cannot; pages are then populated on first access.
    let _ = rw_map.populate(grant.start..grant.start + grant.len);
}

/// The mapping of a file; maps it if necessary.
fn mapped<T>(
    known: &Mutex<Known<T>>,
    path: PathBuf,
    file: &File,
    map: impl FnOnce(&File) -> io::Result<T>,
) -> io::Result<Arc<T>> {
    let inode = file.metadata()?.ino();
    let mut known = lock(known);
    if let Some((number, mapping)) = known.get(&path)
        && *number == inode
    {
        return Ok(mapping.clone());
    }
    if known.len() >= MOST_MAPS {
        known.retain(|_, (_, mapping)| Arc::strong_count(mapping) > 1);
    }
    let mapping = Arc::new(map(file)?);
    known.insert(path, (inode, mapping.clone()));
    Ok(mapping)
}

impl RingWriter {
    /// Opens a ring that the server created for this client.
    pub(crate) fn open(grant: &RingGrant, uid: Uid) -> io::Result<RingWriter> {
        // The duplicated descriptor: within a preloaded program, only duplicates are moved out of the program's way.
        let file = open(&grant.path)?.try_clone()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let writer = Writer::open(&file, grant.nonce)?;
        let doorbell = Doorbell::new(&open(&grant.doorbell)?)?;
        Ok(RingWriter {
            ring: grant.ring,
            binding: grant.binding,
            uid,
            connection_epoch: 0,
            writes: false,
            writer,
            doorbell,
            slabs: VecDeque::new(),
            next_slab: 0,
            last: 0,
            _lock: file,
        })
    }

    /// Whether it is a ring of this user.
    pub(crate) fn is_of(&self, uid: Uid) -> bool {
        self.uid == uid
    }

    /// Binds the ring to a file.
    pub(crate) fn bound(&mut self, grant: &RingGrant, connection_epoch: u64, writes: bool) {
        (self.binding, self.connection_epoch, self.writes) = (grant.binding, connection_epoch, writes);
    }

    /// The reader of this ring's lease state.
    pub(crate) fn reader(&self) -> Reader {
        self.writer.reader()
    }

    /// The first slab that is still needed. A slab that is still to arrive has a higher number than all present ones.
    pub(crate) fn keep(&self) -> u32 {
        self.slabs.front().map_or(self.next_slab, |slab| slab.number)
    }

    /// Adds a slab. Slabs of earlier epochs were recalled.
    pub(crate) fn add(&mut self, grant: SlabGrant, rw_map: Option<Arc<RwMap>>) {
        let SlabGrant { slab: number, start: used, len, records, epoch, .. } = grant;
        self.next_slab = number.saturating_add(1);
        self.slabs.retain(|slab| slab.epoch == epoch);
        let region = rw_map.map_or(Region::Unmapped(grant), Region::Mapped);
        self.slabs.push_back(Slab { number, region, used, end: used.saturating_add(len), records, epoch });
    }

    /// Maps the regions of the slabs. Drops a slab whose region cannot be mapped.
    pub(crate) fn map(&mut self, shared_rings: &SharedRings) -> Mapped {
        let mut mapped = Mapped { new: Vec::new(), all: true };
        self.slabs.retain_mut(|slab| {
            let Region::Unmapped(grant) = &slab.region else { return true };
            let Ok(rw_map) = shared_rings.map(grant) else {
                mapped.all = false;
                return false;
            };
            mapped.new.push((rw_map.clone(), grant.clone()));
            slab.region = Region::Mapped(rw_map);
            true
        });
        mapped
    }

    /// Wakes the server's consumer.
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
    }

    /// Writes all of `data`, or nothing.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Wrote {
        while self.slabs.front().is_some_and(|slab| slab.room() == 0) && self.slabs.len() > 1 {
            self.slabs.pop_front();
        }
        let room: u64 = self.slabs.iter().map(|slab| u64::from(slab.room())).sum();
        if room < data.len() as u64 {
            return if self.slabs.len() > SLABS { Wrote::TooMuch } else { Wrote::NoSpace };
        }
        if self.writer.room() <= self.slabs.len() as u64 {
            return Wrote::Full;
        }
        let Some(epoch) = self.slabs.back().map(|slab| slab.epoch) else { return Wrote::NoSpace };
        let needed = if self.slabs[0].room() as usize >= data.len() { 1 } else { self.slabs.len() };
        if !self.slabs.iter().take(needed).all(Slab::is_mapped) {
            return Wrote::Unmapped;
        }
        let Some(filling) = self.writer.enter(epoch) else {
            self.slabs.clear();
            return Wrote::Recalled;
        };
        match &mut self.slabs[0] {
            first if first.room() as usize >= data.len() => {
                let filled = first.fill(self.writer.head(), self.binding, offset, data);
                let Some(commit) = filled else { return Wrote::Unmapped };
                let stamp = monotonic().max(self.last + 1);
                self.last = stamp;
                assert!(self.writer.push(&[Commit { stamp, ..commit }]), "the ring has free records");
            }
            _ => {
                let mut commits = Vec::with_capacity(self.slabs.len());
                let mut done = 0;
                for slab in &mut self.slabs {
                    let len = (slab.room() as usize).min(data.len() - done);
                    if len == 0 {
                        continue;
                    }
                    let (sequence, at) = (self.writer.head() + commits.len() as u64, offset + done as u64);
                    let filled = slab.fill(sequence, self.binding, at, &data[done..done + len]);
                    let Some(commit) = filled else { return Wrote::Unmapped };
                    commits.push(commit);
                    done += len;
                }
                let stamp = monotonic().max(self.last + 1);
                self.last = stamp;
                let last = commits.len() - 1;
                for (number, commit) in commits.iter_mut().enumerate() {
                    (commit.stamp, commit.more) = (stamp, number < last);
                }
                assert!(self.writer.push(&commits), "the ring has free records");
            }
        }
        drop(filling);
        if self.writer.room() < RING_RECORDS / 4 {
            self.doorbell.ring();
        }
        Wrote::All { ahead: self.slabs.len() < SLABS }
    }
}

impl Slab {
    /// Copies bytes into the slab if its region is mapped. The caller sets the stamp of the returned record.
    fn fill(&mut self, sequence: u64, binding: u32, offset: u64, data: &[u8]) -> Option<Commit> {
        let Region::Mapped(rw_map) = &self.region else { return None };
        let (position, len) = (self.used, data.len() as u32);
        rw_map.put(position, data);
        (self.used, self.records) = (position + len, self.records - 1);
        Some(Commit { sequence, binding, slab: self.number, position, len, offset, stamp: 0, more: false })
    }
}
