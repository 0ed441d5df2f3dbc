//! Rings: clients on this machine write without a request. The store consumes a file's rings before any other operation
//! on the file.
//!
//! A ring is bound to one file at a time, so that consuming it needs no other file's lock. Its client fills slabs,
//! which are granted with the journal slots that their records will need, and appends a record for each write. Decision
//! 70 describes the protocol, and what happens when either side dies.
//!
//! **Invariant**: a write whose record is in the ring is committed, whichever process dies; it is ordered by its stamp,
//! not by when it was consumed; nothing in shared memory is trusted; a slab is released only when all its records were
//! taken.

mod adopt;
mod channel;
mod consume;
mod lease;
mod note;
mod slabs;
mod sums;
#[cfg(test)]
mod tests;

use consume::Consuming;
pub use consume::Traffic;
pub(super) use lease::{Leases, Watch};
pub(super) use note::{Header, Note};

use super::Data;
use super::disk::Disk;
use super::file::File;
use super::publish::{Put, Space, Write};
use crate::superblock::boot_id;
use channel::{Channel, RingWrite, State};
use crc32c::crc32c;
use forebay_model::{Error, ErrorKind, FileId, JobId, Result, RingGrant, Span, Stamp, Uid};
use forebay_shm::{DOORBELL_BYTES, Doorbell, RING_BYTES, Taker, monotonic};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::fs::File as DiskFile;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Largest number of rings of a store.
const MOST_RINGS: usize = 256;
/// Most releases that are kept for [`Data::take_released`].
const MOST_RELEASED: usize = 4096;
const DOORBELL: &str = "bell";

/// The number of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingId(pub u32);

/// Granted bytes that were released unused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// The job that they were granted to.
    pub job: JobId,
    /// How many.
    pub bytes: u64,
}

/// A ring at one moment, for its owner to decide whether it stays.
pub struct RingView {
    /// The ring.
    pub id: RingId,
    /// Whether its client has sent a request since it got the ring, so that the lock on the ring is meaningful.
    pub confirmed: bool,
    /// How long it has not been used, or since its slabs were recalled.
    pub idle: Duration,
    /// How long its client has published nothing and was granted nothing.
    pub still: Duration,
    channel: Arc<Channel>,
}

impl RingView {
    /// The ring's file, which its client locks as long as the client lives.
    #[must_use]
    pub fn file(&self) -> &DiskFile {
        &self.channel.file
    }
}

/// How far rings are consumed at once.
#[derive(Clone, Copy)]
struct Pass {
    /// When it began, by the machine's monotonic clock.
    begin: u64,
    /// The record to stop before: less than all only for the only ring of a file.
    until: u64,
}

impl Pass {
    fn all(begin: u64) -> Pass {
        Pass { begin, until: u64::MAX }
    }
}

/// All rings of a store.
#[derive(Default)]
pub(super) struct Rings {
    table: Mutex<Table>,
    count: AtomicUsize,
    doorbell: OnceLock<Doorbell>,
    /// Consumed records made all bytes of a region dead.
    dead: AtomicBool,
    /// Closed files whose sizes are still to be persisted, once their rings are consumed.
    closed: Mutex<BTreeSet<FileId>>,
    /// The number of threads that are consuming rings.
    consuming: AtomicUsize,
    /// When space is short, slabs used within this many nanoseconds are left to clients.
    keep_used_within: AtomicU64,
    /// What was released since [`Data::take_released`].
    released: Mutex<Vec<Released>>,
}

#[derive(Default)]
struct Table {
    channels: HashMap<RingId, Arc<Channel>>,
    bound: HashMap<FileId, Vec<Arc<Channel>>>,
    next: u32,
}

impl Rings {
    fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The rings bound to a file.
    fn of(&self, file: FileId) -> Vec<Arc<Channel>> {
        match self.any() {
            true => self.table.lock().bound.get(&file).cloned().unwrap_or_default(),
            false => Vec::new(),
        }
    }

    pub(super) fn any_of(&self, file: FileId) -> bool {
        !self.of(file).is_empty()
    }

    /// Takes the files whose sizes are still to be persisted; the caller persists them.
    pub(super) fn take_closed(&self) -> BTreeSet<FileId> {
        std::mem::take(&mut *self.closed.lock())
    }

    fn all(&self) -> Vec<Arc<Channel>> {
        self.table.lock().channels.values().cloned().collect()
    }

    /// Unbinds the rings of a deleted file: further records in them are ignored. The caller holds the file's lock.
    pub(super) fn forget(&self, file: FileId) {
        for channel in self.of(file) {
            let mut state = channel.lock();
            if state.bound == Some(file) {
                state.bound = None;
                state.epoch += 1;
                // The client must send a request before its next write, and then learns of the deletion.
                let _ = channel.taker.recall(state.epoch);
            }
        }
        self.table.lock().bound.remove(&file);
    }

    /// Records granted bytes that a job did not use.
    fn release(&self, job: JobId, bytes: u64) {
        if bytes > 0 {
            let mut released = self.released.lock();
            if released.len() >= MOST_RELEASED {
                released.clear();
            }
            released.push(Released { job, bytes });
        }
    }

    fn insert(&self, channel: &Arc<Channel>) {
        let bound = channel.lock().bound;
        let mut table = self.table.lock();
        table.channels.insert(channel.id, channel.clone());
        table.next = table.next.max(channel.id.0 + 1);
        if let Some(file) = bound {
            table.bound.entry(file).or_default().push(channel.clone());
        }
        self.count.store(table.channels.len(), Ordering::Release);
    }

    fn unbind(table: &mut Table, channel: &Arc<Channel>, file: FileId) {
        if let Some(list) = table.bound.get_mut(&file) {
            list.retain(|other| other.id != channel.id);
            if list.is_empty() {
                table.bound.remove(&file);
            }
        }
    }
}

/// Upper bound of the bytes of all ring files.
pub(crate) fn rings_cost() -> u64 {
    const PAGE: u64 = 4096;
    MOST_RINGS as u64 * (RING_BYTES + PAGE) + DOORBELL_BYTES
}

/// The file name of a ring.
fn ring_name(id: RingId) -> String {
    format!("m{:05}.ring", id.0)
}

pub(super) fn boot() -> Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = boot_id()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

fn bytes_of(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

fn unusable(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot create {what}: {error}"))
}

/// The error if a file through which a client wrote cannot be read: the store does not start without it.
fn unreadable(disk: &dyn Disk, name: &str, error: &std::io::Error) -> Error {
    let path = disk.path(name).unwrap_or_else(|| name.into());
    let text = format!(
        "cannot read {} ({error}), so the last writes of a client are unknown: copy the regions to a good disk, or remove \
         the file to give up these bytes",
        path.display()
    );
    Error::new(ErrorKind::BadStore, text)
}

impl Data {
    /// Consumes the rings of a file, in the order of stamps. Called first, with the file locked.
    pub(super) fn consume(&self, id: FileId, file: &mut File) -> Result<()> {
        if !self.rings.any() {
            return Ok(());
        }
        // Taken before the rings are listed: records published later, in other rings, may be missed.
        let pass = Pass::all(monotonic());
        let channels = self.rings.of(id);
        self.consume_from(&channels, pass, id, file)
    }

    /// Consumes some rings, as far as a pass goes.
    fn consume_from(&self, channels: &[Arc<Channel>], pass: Pass, id: FileId, file: &mut File) -> Result<()> {
        if channels.is_empty() {
            return Ok(());
        }
        let _consuming = Consuming::begin(&self.rings.consuming);
        let mut states = Vec::with_capacity(channels.len());
        for (number, channel) in channels.iter().enumerate() {
            let state = channel.lock();
            if state.bound == Some(id) && channel.taker.waiting(state.note.taken()) != Some(0) {
                states.push((number, state, 0));
            }
        }
        if states.is_empty() {
            return Ok(());
        }
        if !file.deleted && !file.size_pending {
            self.note_size(id, file, true)?;
            file.size_pending = true;
        }
        let mut collected = Vec::new();
        for (number, state, records) in &mut states {
            let (writes, taken) = channels[*number].collect(state, pass.until, monotonic);
            collected.extend(writes.into_iter().map(|write| (*number, write)));
            *records = taken;
        }
        if !file.deleted {
            collected.sort_by_key(|(number, write)| (write.stamp, *number));
            self.apply(id, file, pass.begin, collected, &states);
        }
        for (number, mut state, records) in states {
            let taken = state.note.taken() + records;
            state.note.set_taken(taken);
            channels[number].taker.take(taken);
            state.sums.clear();
            state.idle_since = Instant::now();
            // A client fills its slabs in order: it has finished those before the last used one.
            let used = state.slabs.iter().rev().find(|granted| granted.filled > granted.note.start);
            if let Some(last) = used.map(|granted| granted.note.number) {
                self.rings.release(state.job, state.release(last));
            }
        }
        Ok(())
    }

    /// Commits writes. Adjacent writes of one client become one record if no other write lies between them in time.
    /// Records that other rings published after `begin` may be missing: they are concurrent only with writes stamped
    /// before.
    fn apply(
        &self,
        id: FileId,
        file: &mut File,
        begin: u64,
        collected: Vec<(usize, RingWrite)>,
        states: &[(usize, parking_lot::MutexGuard<'_, State>, u64)],
    ) {
        let state_of = |number: usize| {
            let state = states.iter().find(|(other, ..)| *other == number).map(|(_, state, _)| state);
            state.expect("every write comes from one of the rings")
        };
        let mut rest = collected.into_iter().peekable();
        while let Some((number, mut write)) = rest.next() {
            let mut stamp = Stamp(self.clock.base() + write.stamp);
            if stamp <= file.ordered {
                stamp = Stamp(file.ordered.0 + 1);
                file.ordered = stamp;
            }
            while let Some((_, next)) = rest.next_if(|(other, next)| {
                *other == number && next.stamp < begin && write.continues(next) && {
                    let span = Span::new(next.offset, next.offset + next.len);
                    file.index.pieces(span).all(|extent| extent.stamp < stamp)
                }
            }) {
                write.join(&next);
            }
            let (state, len) = (state_of(number), write.len);
            let (uid, job) = (state.uid, state.job);
            let puts = write.parts.into_iter().map(|part| {
                // A view cannot fail: the slab holds the generation.
                let made = || part.region.arena.view(part.ticket).map_or(0, |view| crc32c(view.as_ref()));
                let crc = state.sums.of(part.ticket).unwrap_or_else(made);
                let (region, slot, len) = (part.region, part.slot, part.ticket.len());
                Put { region, slot, uid, len, crc, space: Space::Slab(part.ticket) }
            });
            let puts = puts.collect();
            if self.publish(Write { file: id, stamp, job }, file, write.offset, puts) {
                self.rings.dead.store(true, Ordering::Release);
            }
            file.size = file.size.max(write.offset + len);
            file.touch(stamp);
            self.clock.observe(stamp);
        }
    }

    /// Recalls the slabs of all rings of a file that are not being filled at the moment.
    pub(super) fn recall_rings(&self, file: FileId) -> Result<()> {
        self.rings.of(file).iter().try_for_each(|channel| self.recall(channel).map(drop))
    }

    /// Consumes the rings of a file, without another operation.
    fn poll_file(&self, id: FileId) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        self.consume(id, &mut state.lock())
    }

    /// Consumes all rings.
    pub(super) fn poll_all_files(&self) -> Result<()> {
        let files: Vec<FileId> = self.rings.table.lock().bound.keys().copied().collect();
        files.into_iter().try_for_each(|file| self.poll_file(file))
    }

    /// Binds a ring to a file for a user: one that its client already has, or a new one. The client must have
    /// permission to read the file, or to write to it.
    pub fn bind_ring(
        &self,
        uid: Uid,
        job: JobId,
        file: FileId,
        own: Option<RingId>,
        writes: bool,
    ) -> Result<RingGrant> {
        let doorbell = self.doorbell_path()?;
        // Recorded so that recovery finds the file, even if only the ring holds its bytes.
        let state = self.files.get(file, || self.load(file))?;
        {
            let mut state = state.lock();
            self.consume(file, &mut state)?;
            state.alive()?;
            state.check_unmapped()?;
            if writes {
                // The size is pending for as long as the ring may be filled.
                self.rings.closed.lock().remove(&file);
            }
            if writes && !(state.size_pending && self.has_record(file)?) {
                self.note_size(file, &state, true)?;
                state.size_pending = true;
            }
        }
        let known = own.and_then(|id| self.rings.table.lock().channels.get(&id).cloned());
        let channel = match known.filter(|channel| channel.lock().uid == uid) {
            Some(channel) => {
                self.rebind(&channel, job, file, writes)?;
                channel
            }
            None => self.make_ring(uid, job, file, writes)?,
        };
        {
            let mut state = state.lock();
            // A concurrent map of the file does not wait for this ring, so the binding must fail.
            state.check_unmapped()?;
            if writes {
                // The client may still have space to fill.
                state.index.leases.end_of_others(channel.id);
            }
        }
        let state = channel.lock();
        let path = self.disk.path(&ring_name(channel.id)).ok_or(ErrorKind::Unsupported)?;
        let (ring, nonce, binding) = (channel.id.0, channel.taker.nonce(), state.binding);
        let (path, doorbell) = (bytes_of(path), bytes_of(doorbell));
        Ok(RingGrant { ring, path, doorbell, nonce, binding, clock: monotonic() })
    }

    fn rebind(&self, channel: &Arc<Channel>, job: JobId, file: FileId, writes: bool) -> Result<()> {
        let before = channel.lock().bound;
        if let Some(before) = before {
            self.poll_file(before)?;
        }
        let mut state = channel.lock();
        let left = channel.taker.waiting(state.note.taken()).unwrap_or(0);
        if left > 0 && state.bound.is_some() {
            return Err(Error::new(ErrorKind::Busy, "the ring is being written to"));
        }
        let taken = state.note.taken() + left;
        state.note.set_taken(taken);
        channel.taker.take(taken);
        channel.end_leases();
        state.binding = state.binding.wrapping_add(1);
        (state.bound, state.job, state.writes) = (Some(file), job, writes);
        let header = self.header_of(channel, &state)?;
        state.note.set_header(&header);
        drop(state);
        let mut table = self.rings.table.lock();
        // Two concurrent binds of the same ring must leave one entry.
        for bound in before.into_iter().chain([file]) {
            Rings::unbind(&mut table, channel, bound);
        }
        table.bound.entry(file).or_default().push(channel.clone());
        Ok(())
    }

    fn header_of(&self, channel: &Channel, state: &State) -> Result<Header> {
        Ok(Header {
            nonce: channel.taker.nonce(),
            boot: boot()?,
            base: self.clock.base(),
            uid: state.uid,
            job: state.job,
            file: state.bound.unwrap_or(FileId(0)),
            binding: state.binding,
        })
    }

    fn make_ring(&self, uid: Uid, job: JobId, file: FileId, writes: bool) -> Result<Arc<Channel>> {
        let id = {
            let mut table = self.rings.table.lock();
            if table.channels.len() >= MOST_RINGS {
                let text = format!("{MOST_RINGS} rings are in use already");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            table.next += 1;
            RingId(table.next - 1)
        };
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce)
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot get random bytes: {error}")))?;
        let nonce = u128::from_le_bytes(nonce);
        let base = self.clock.base();
        let header = Header { nonce, boot: boot()?, base, uid, job, file, binding: 1 };
        let name = ring_name(id);
        let ring = self.disk.create(&name, RING_BYTES)?;
        let taker = Taker::create(&ring, nonce).map_err(|error| unusable(&name, &error))?;
        taker.set_epoch(1);
        let note = Note::create(&*self.disk, id, &header)?;
        // A separate open file: on a shared one the store would share the client's lock.
        let ring = self.disk.open(&name)?.ok_or(ErrorKind::Io)?;
        let state = State { writes, ..State::new(note, &header, 1) };
        let channel = Arc::new(Channel::new(id, ring, taker, state));
        self.rings.insert(&channel);
        Ok(channel)
    }

    fn doorbell_path(&self) -> Result<PathBuf> {
        let path = self.disk.path(DOORBELL).ok_or(ErrorKind::Unsupported)?;
        if self.rings.doorbell.get().is_none() {
            let left = self.disk.open(DOORBELL)?.and_then(|file| Doorbell::new(&file).ok());
            let doorbell = match left {
                Some(doorbell) => doorbell,
                // The doorbell does not exist, or its device cannot read it. Clients of the old doorbell are noticed a
                // little later.
                None => {
                    let file = self.disk.create(DOORBELL, DOORBELL_BYTES)?;
                    Doorbell::new(&file).map_err(|error| unusable(DOORBELL, &error))?
                }
            };
            // Another thread may have set it first, with the same file.
            let _ = self.rings.doorbell.set(doorbell);
        }
        Ok(path)
    }

    /// All rings.
    #[must_use]
    pub fn rings(&self) -> Vec<RingView> {
        let view = |channel: Arc<Channel>| {
            let still = channel.still();
            let (confirmed, idle) = {
                let state = channel.lock();
                (state.confirmed, state.idle_since.elapsed())
            };
            RingView { id: channel.id, confirmed, idle, still, channel }
        };
        self.rings.all().into_iter().map(view).collect()
    }

    /// The number of records that were rejected since the last call.
    #[must_use]
    pub fn take_refused(&self) -> u64 {
        self.rings.all().iter().map(|channel| std::mem::take(&mut channel.lock().refused)).sum()
    }

    /// Recalls the slabs of a ring; it counts as used now.
    pub fn recall_ring(&self, ring: &RingView) -> Result<()> {
        self.recall(&ring.channel)?;
        ring.channel.lock().idle_since = Instant::now();
        Ok(())
    }

    /// Consumes a ring for the last time, and removes it.
    pub fn end_ring(&self, RingView { channel, .. }: &RingView) -> Result<()> {
        let bound = channel.lock().bound;
        if let Some(file) = bound {
            self.poll_file(file)?;
        }
        {
            let mut table = self.rings.table.lock();
            if let Some(file) = bound {
                Rings::unbind(&mut table, channel, file);
            }
            table.channels.remove(&channel.id);
            self.rings.count.store(table.channels.len(), Ordering::Release);
        }
        channel.end_leases();
        let (job, unused) = {
            let mut state = channel.lock();
            (state.job, state.release(u32::MAX))
        };
        self.rings.release(job, unused);
        // The note goes first: a ring without one is ignored.
        self.disk.remove(&Note::name(channel.id))?;
        self.disk.remove(&ring_name(channel.id))
    }
}
