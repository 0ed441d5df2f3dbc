//! A ring and the slabs that go with it: how a write gets there without asking anybody.

use forebay_model::Uid;
use forebay_shm::{Bell, Commit, Pane, RING_RECORDS, Reader, Window, Writer};
use forebay_wire::{RingGrant, SlabGrant};
use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most slabs that are worth having at once: one that is filled, and two ahead.
pub(crate) const SLABS: usize = 3;
/// How long nobody asks again after the server had nothing for us.
const REST: Duration = Duration::from_secs(1);
/// Most rings that wait for their next file.
const MOST_IDLE: usize = 64;
/// Most regions that stay mapped although nothing is granted there.
const MOST_WINDOWS: usize = 128;

/// What a session has in shared memory.
#[derive(Default)]
pub(crate) struct Lanes {
    idle: Mutex<Vec<Lane>>,
    windows: Mutex<Known<Window>>,
    panes: Mutex<Known<Pane>>,
    /// By the machine's clock, until when nobody asks for any: for ever where it cannot be reached from here.
    off: AtomicU64,
}

/// Mapped files by their paths, each with the number that tells it from others that had the same path.
type Known<T> = HashMap<PathBuf, (u64, Arc<T>)>;

/// A ring that this client writes to. Its lock tells the server that the client lives.
pub(crate) struct Lane {
    pub(crate) ring: u32,
    binding: u32,
    uid: Uid,
    /// In which life of the control connection it was bound.
    pub(crate) life: u64,
    /// Whether it was bound to be written to.
    pub(crate) writes: bool,
    writer: Writer,
    bell: Bell,
    slabs: VecDeque<Slab>,
    /// The number behind the last slab that it was given.
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

/// Where the bytes of a slab are.
enum Region {
    Mapped(Arc<Window>),
    /// It is mapped by whoever needs it and waits anyway.
    Unmapped(SlabGrant),
}

/// What came of mapping regions.
pub(crate) struct Mapped {
    /// Slabs whose regions were mapped, with those.
    pub(crate) new: Vec<(Arc<Window>, SlabGrant)>,
    /// Whether nothing went wrong.
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

/// What came of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrote {
    /// It counts. `ahead`: more space will be needed soon.
    All { ahead: bool },
    /// There is not enough space in the slabs.
    NoSpace,
    /// There is, in a region that has to be mapped first.
    Unmapped,
    /// Nor would there be with as many slabs as are worth having.
    TooMuch,
    /// The slabs were taken back.
    Recalled,
    /// The server has not taken what is in the ring.
    Full,
}

/// Nanoseconds of the machine's monotonic clock.
pub(crate) fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn open(path: &[u8]) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(OsString::from_vec(path.to_vec()))
}

impl Lanes {
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

    /// The server has none for us as things are, which may change.
    pub(crate) fn rest(&self) {
        self.off_until(monotonic() + REST.as_nanos() as u64);
    }

    fn off_until(&self, until: u64) {
        self.off.store(until, Ordering::Relaxed);
        lock(&self.idle).clear();
    }

    /// Whether a ring of a user waits for its next file.
    pub(crate) fn has_idle(&self, uid: Uid) -> bool {
        lock(&self.idle).iter().any(|lane| lane.uid == uid)
    }

    /// A ring of a user that waits for its next file.
    pub(crate) fn take(&self, uid: Uid) -> Option<Lane> {
        let mut idle = lock(&self.idle);
        let at = idle.iter().position(|lane| lane.uid == uid)?;
        Some(idle.swap_remove(at))
    }

    /// Keeps a ring for the next file.
    pub(crate) fn put(&self, lane: Lane) {
        let mut idle = lock(&self.idle);
        if idle.len() < MOST_IDLE && !self.is_off() {
            idle.push(lane);
        }
    }

    /// The mapped region of a slab.
    pub(crate) fn map(&self, grant: &SlabGrant) -> io::Result<Arc<Window>> {
        let path = PathBuf::from(OsString::from_vec(grant.path.clone()));
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        around(mapped(&self.windows, path, &file, |file| Window::new(file, grant.size))?, grant)
    }

    /// The same if it is mapped already. For those who work while the program goes on: it must not find descriptors that it
    /// has not made.
    pub(crate) fn known(&self, grant: &SlabGrant) -> Option<Arc<Window>> {
        let path = PathBuf::from(OsString::from_vec(grant.path.clone()));
        let inode = std::fs::metadata(&path).ok()?.ino();
        let known = lock(&self.windows);
        let (_, window) = known.get(&path).filter(|(number, _)| *number == inode)?;
        around(window.clone(), grant).ok()
    }

    /// A mapped region to read from.
    pub(crate) fn pane(&self, path: PathBuf, size: u32) -> io::Result<Arc<Pane>> {
        let file = File::open(&path)?;
        mapped(&self.panes, path, &file, |file| Pane::new(file, size))
    }
}

/// A region, if a slab is in it.
fn around(window: Arc<Window>, grant: &SlabGrant) -> io::Result<Arc<Window>> {
    let end = grant.start.checked_add(grant.len).filter(|end| *end <= window.len());
    match end {
        Some(_) => Ok(window),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "a slab outside its region")),
    }
}

/// Makes a slab in its region ready to be filled.
pub(crate) fn touch(window: &Window, grant: &SlabGrant) {
    // An older kernel cannot; then the pages come when they are touched.
    let _ = window.populate(grant.start..grant.start + grant.len);
}

/// The mapping of a file, made if it is not known.
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
    if known.len() >= MOST_WINDOWS {
        known.retain(|_, (_, mapping)| Arc::strong_count(mapping) > 1);
    }
    let mapping = Arc::new(map(file)?);
    known.insert(path, (inode, mapping.clone()));
    Ok(mapping)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    /// Opens a ring that the server made for this client.
    pub(crate) fn open(grant: &RingGrant, uid: Uid) -> io::Result<Lane> {
        // A second descriptor: inside a program that does not know of us, only those are out of its way.
        let file = open(&grant.path)?.try_clone()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let writer = Writer::open(&file, grant.nonce)?;
        let bell = Bell::new(&open(&grant.bell)?)?;
        Ok(Lane {
            ring: grant.ring,
            binding: grant.binding,
            uid,
            life: 0,
            writes: false,
            writer,
            bell,
            slabs: VecDeque::new(),
            next_slab: 0,
            last: 0,
            _lock: file,
        })
    }

    /// The ring is bound to another file, or to the same one again.
    pub(crate) fn bound(&mut self, grant: &RingGrant, life: u64, writes: bool) {
        (self.binding, self.life, self.writes) = (grant.binding, life, writes);
    }

    /// Whoever reads what this ring's client is leased.
    pub(crate) fn reader(&self) -> Reader {
        self.writer.reader()
    }

    /// The first slab that is still needed. One that is on its way is behind all that were here.
    pub(crate) fn keep(&self) -> u32 {
        self.slabs.front().map_or(self.next_slab, |slab| slab.number)
    }

    /// Adds a slab. What was granted in earlier epochs was taken back.
    pub(crate) fn add(&mut self, grant: SlabGrant, window: Option<Arc<Window>>) {
        let SlabGrant { slab: number, start: used, len, records, epoch, .. } = grant;
        self.next_slab = number.saturating_add(1);
        self.slabs.retain(|slab| slab.epoch == epoch);
        let region = window.map_or(Region::Unmapped(grant), Region::Mapped);
        self.slabs.push_back(Slab { number, region, used, end: used.saturating_add(len), records, epoch });
    }

    /// Maps the regions of its slabs. A slab whose region cannot be mapped is as if it had not come.
    pub(crate) fn map(&mut self, lanes: &Lanes) -> Mapped {
        let mut mapped = Mapped { new: Vec::new(), all: true };
        self.slabs.retain_mut(|slab| {
            let Region::Unmapped(grant) = &slab.region else { return true };
            let Ok(window) = lanes.map(grant) else {
                mapped.all = false;
                return false;
            };
            mapped.new.push((window.clone(), grant.clone()));
            slab.region = Region::Mapped(window);
            true
        });
        mapped
    }

    /// Asks the server to look.
    pub(crate) fn ring(&self) {
        self.bell.ring();
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
                assert!(self.writer.push(&[Commit { stamp, ..commit }]), "there was room");
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
                assert!(self.writer.push(&commits), "there was room");
            }
        }
        drop(filling);
        if self.writer.room() < RING_RECORDS / 4 {
            self.bell.ring();
        }
        Wrote::All { ahead: self.slabs.len() < SLABS }
    }
}

impl Slab {
    /// Puts bytes there, if its region is mapped; what says so has still to be stamped.
    fn fill(&mut self, sequence: u64, binding: u32, offset: u64, data: &[u8]) -> Option<Commit> {
        let Region::Mapped(window) = &self.region else { return None };
        let (position, len) = (self.used, data.len() as u32);
        window.put(position, data);
        (self.used, self.records) = (position + len, self.records - 1);
        Some(Commit { sequence, binding, slab: self.number, position, len, offset, stamp: 0, more: false })
    }
}
