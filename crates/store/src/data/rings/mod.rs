//! Rings: clients on this machine write without asking, and are heard before anything else happens to the file.
//!
//! A ring is bound to one file at a time, so that hearing it needs no other file's lock. Its client fills slabs,
//! which are granted with the journal slots that their records will need, and appends a record for each write. How the
//! two sides talk, and what becomes of everything when one of them dies, is decision 70.
//!
//! **Invariant**: a write whose record is in the ring counts, whoever dies; its place in time is its stamp, not when it
//! was heard; nothing in shared memory is believed; a slab is given up only when all its records were taken.

mod adopt;
mod attend;
mod channel;
mod lease;
mod note;
mod slabs;
mod sums;
#[cfg(test)]
mod tests;

use attend::Hearing;
pub use attend::Traffic;
pub(super) use lease::{Leases, Watch};
pub use lease::{MapAt, MapOffer, MapPiece};
pub(super) use note::{Header, Note};
pub use slabs::SlabOffer;

use super::clock::monotonic;
use super::file::{File, SizeRecord};
use super::publish::{Put, Space, Write};
use super::{Data, lock};
use crate::superblock::boot_id;
use channel::{Channel, Heard, State};
use crc32c::crc32c;
use forebay_model::{Error, ErrorKind, FileId, JobId, Result, Span, Stamp, Uid};
use forebay_shm::{BELL_BYTES, Bell, RING_BYTES, Taker};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Most rings of a store.
const MOST_RINGS: usize = 256;
/// Most jobs of which it is known what they did not use.
const MOST_JOBS: usize = 1024;
/// How long a client may take to say that it has a ring.
const UNCONFIRMED: Duration = Duration::from_secs(60);
const BELL: &str = "bell";

/// Which ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingId(pub u32);

/// A ring, for a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingOffer {
    /// Which.
    pub ring: RingId,
    /// Its file.
    pub path: PathBuf,
    /// The bell that wakes who hears it.
    pub bell: PathBuf,
    /// What tells it from others.
    pub nonce: u128,
    /// What it is bound to now.
    pub binding: u32,
    /// When, by the machine's monotonic clock.
    pub clock: u64,
}

/// How far rings are heard at once.
#[derive(Clone, Copy)]
struct Pass {
    /// When it began, by the machine's monotonic clock.
    begin: u64,
    /// Up to this record: less than all only of the one ring of a file.
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
    bell: OnceLock<Bell>,
    /// Something died of what was heard.
    dead: AtomicBool,
    /// Files that were closed before all was heard: they are settled when it is.
    closed: Mutex<BTreeSet<FileId>>,
    /// How many are hearing something just now.
    hearing: AtomicUsize,
    /// When space is short, what was used so many nanoseconds ago is left to clients.
    patience: AtomicU64,
    /// Bytes that were granted to jobs and came back unused, until somebody asks.
    unused: Mutex<HashMap<JobId, u64>>,
}

#[derive(Default)]
struct Table {
    channels: HashMap<RingId, Arc<Channel>>,
    bound: HashMap<FileId, Vec<Arc<Channel>>>,
    next: u32,
}

impl Rings {
    fn are_there(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The rings bound to a file.
    fn of(&self, file: FileId) -> Vec<Arc<Channel>> {
        match self.are_there() {
            true => lock(&self.table).bound.get(&file).cloned().unwrap_or_default(),
            false => Vec::new(),
        }
    }

    pub(super) fn any_of(&self, file: FileId) -> bool {
        !self.of(file).is_empty()
    }

    /// The files that are still to be settled, and are from now on somebody else's affair.
    pub(super) fn take_closed(&self) -> BTreeSet<FileId> {
        std::mem::take(&mut *lock(&self.closed))
    }

    fn all(&self) -> Vec<Arc<Channel>> {
        lock(&self.table).channels.values().cloned().collect()
    }

    /// A file was removed: whatever is still written to it is for nobody. The caller has its lock.
    pub(super) fn forget(&self, file: FileId) {
        for channel in self.of(file) {
            let mut state = channel.lock();
            if state.bound == Some(file) {
                state.bound = None;
                state.epoch += 1;
                // The client asks when it wants to write next, and is told then.
                let _ = channel.taker.recall(state.epoch);
            }
        }
        lock(&self.table).bound.remove(&file);
    }

    /// A job has not used so much of what it was granted.
    fn came_back(&self, job: JobId, bytes: u64) {
        if bytes > 0 {
            let mut unused = lock(&self.unused);
            if unused.len() >= MOST_JOBS {
                unused.clear();
            }
            *unused.entry(job).or_default() += bytes;
        }
    }

    fn insert(&self, channel: &Arc<Channel>) {
        let bound = channel.lock().bound;
        let mut table = lock(&self.table);
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

/// What the files of all rings may take.
pub(crate) fn rings_cost() -> u64 {
    const PAGE: u64 = 4096;
    MOST_RINGS as u64 * (RING_BYTES + PAGE) + BELL_BYTES
}

/// A ring's name in the store.
fn ring_name(id: RingId) -> String {
    format!("m{:05}.ring", id.0)
}

fn boot() -> Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = boot_id()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

fn unusable(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot make {what}: {error}"))
}

impl Data {
    /// Takes what the rings of a file hold, in the order of stamps. Called with the file locked, before anything else.
    pub(super) fn hear(&self, id: FileId, file: &mut File) -> Result<()> {
        self.before.before(id);
        if !self.rings.are_there() {
            return Ok(());
        }
        // Before it is known which rings there are: what is published in others was not heard.
        let pass = Pass::all(monotonic());
        let channels = self.rings.of(id);
        self.hear_from(&channels, pass, id, file)
    }

    /// The same of some rings, as far as a pass goes.
    fn hear_from(&self, channels: &[Arc<Channel>], pass: Pass, id: FileId, file: &mut File) -> Result<()> {
        if channels.is_empty() {
            return Ok(());
        }
        let _hearing = Hearing::begin(&self.rings.hearing);
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
        if !file.deleted && !file.unsettled {
            self.note_size(id, file, true)?;
            file.unsettled = true;
        }
        let mut heard = Vec::new();
        for (number, state, records) in &mut states {
            let (writes, taken) = channels[*number].collect(state, pass.until, monotonic);
            heard.extend(writes.into_iter().map(|write| (*number, write)));
            *records = taken;
        }
        if !file.deleted {
            heard.sort_by_key(|(number, write)| (write.stamp, *number));
            self.apply(id, file, pass.begin, heard, &states);
        }
        for (number, mut state, records) in states {
            let taken = state.note.taken() + records;
            state.note.set_taken(taken);
            channels[number].taker.take(taken);
            state.sums.clear();
            state.idle_since = Instant::now();
            // A client fills its slabs in order: those before the last that it used are done with.
            let used = state.slabs.iter().rev().find(|granted| granted.filled > granted.note.start);
            if let Some(last) = used.map(|granted| granted.note.number) {
                self.rings.came_back(state.job, state.release(last));
            }
        }
        Ok(())
    }

    /// Makes writes count, neighbours of one client as one record where nothing lies between them in time. What other
    /// rings published after `begin` may not have been seen: it is concurrent only with what was stamped before.
    fn apply(
        &self,
        id: FileId,
        file: &mut File,
        begin: u64,
        heard: Vec<(usize, Heard)>,
        states: &[(usize, std::sync::MutexGuard<'_, State>, u64)],
    ) {
        let state_of = |number: usize| {
            let state = states.iter().find(|(other, ..)| *other == number).map(|(_, state, _)| state);
            state.expect("what was heard was heard from somebody")
        };
        let mut rest = heard.into_iter().peekable();
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

    /// Hears the rings of a file, and does nothing else.
    fn listen(&self, id: FileId) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        self.hear(id, &mut lock(&state))
    }

    /// Hears all rings.
    pub(super) fn listen_to_all(&self) -> Result<()> {
        let files: Vec<FileId> = lock(&self.rings.table).bound.keys().copied().collect();
        files.into_iter().try_for_each(|file| self.listen(file))
    }

    /// Binds a ring to a file for a user: one that its client has already, or a new one. The client must be allowed to
    /// read the file, or to write to it.
    pub fn bind_ring(
        &self,
        uid: Uid,
        job: JobId,
        file: FileId,
        own: Option<RingId>,
        writes: bool,
    ) -> Result<RingOffer> {
        let bell = self.bell_path()?;
        // Found again by recovery, even if nothing but the ring holds its bytes.
        let state = self.files.get(file, || self.load(file))?;
        {
            let mut state = lock(&state);
            self.hear(file, &mut state)?;
            state.alive()?;
            if writes && (!state.unsettled || self.kv.get(&SizeRecord::key(file))?.is_none()) {
                self.note_size(file, &state, true)?;
                state.unsettled = true;
            }
        }
        let known = own.and_then(|id| lock(&self.rings.table).channels.get(&id).cloned());
        let channel = match known.filter(|channel| channel.lock().uid == uid) {
            Some(channel) => {
                self.rebind(&channel, job, file, writes)?;
                channel
            }
            None => self.make_ring(uid, job, file, writes)?,
        };
        if writes {
            // It may still have space to fill.
            lock(&state).index.leases.end_of_others(channel.id);
        }
        let state = channel.lock();
        let path = self.disk.path(&ring_name(channel.id)).ok_or(ErrorKind::Unsupported)?;
        let (ring, nonce, binding) = (channel.id, channel.taker.nonce(), state.binding);
        Ok(RingOffer { ring, path, bell, nonce, binding, clock: monotonic() })
    }

    fn rebind(&self, channel: &Arc<Channel>, job: JobId, file: FileId, writes: bool) -> Result<()> {
        let before = channel.lock().bound;
        if let Some(before) = before {
            self.listen(before)?;
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
        let mut table = lock(&self.rings.table);
        // Who binds it twice at once has it bound once.
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
            let mut table = lock(&self.rings.table);
            if table.channels.len() >= MOST_RINGS {
                let text = format!("{MOST_RINGS} rings are in use already");
                return Err(Error::new(ErrorKind::Busy, text));
            }
            table.next += 1;
            RingId(table.next - 1)
        };
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce)
            .map_err(|error| Error::new(ErrorKind::Io, format!("no randomness: {error}")))?;
        let nonce = u128::from_le_bytes(nonce);
        let base = self.clock.base();
        let header = Header { nonce, boot: boot()?, base, uid, job, file, binding: 1 };
        let name = ring_name(id);
        let ring = self.disk.create(&name, RING_BYTES)?;
        let taker = Taker::create(&ring, nonce).map_err(|error| unusable(&name, &error))?;
        taker.set_epoch(1);
        let note = Note::create(&*self.disk, id, &header)?;
        // A descriptor of the store's own: with its client's the lock would be shared.
        let ring = self.disk.open(&name)?.ok_or(ErrorKind::Io)?;
        let state = State { writes, ..State::new(note, &header, 1) };
        let channel = Arc::new(Channel::new(id, ring, taker, state));
        self.rings.insert(&channel);
        Ok(channel)
    }

    fn bell_path(&self) -> Result<PathBuf> {
        let path = self.disk.path(BELL).ok_or(ErrorKind::Unsupported)?;
        if self.rings.bell.get().is_none() {
            let file = match self.disk.open(BELL)? {
                Some(file) => file,
                None => self.disk.create(BELL, BELL_BYTES)?,
            };
            let bell = Bell::new(&file).map_err(|error| unusable(BELL, &error))?;
            // Somebody else may have been faster, with the same file.
            let _ = self.rings.bell.set(bell);
        }
        Ok(path)
    }

    /// Takes back what clients have not used for so long, and removes the rings of clients that are gone; says how
    /// many these were, and how many records of them were not believed.
    pub fn tend_rings(&self, idle: Duration) -> Result<(usize, u64)> {
        let (mut gone, mut refused) = (0, 0);
        for channel in self.rings.all() {
            let (confirmed, since) = {
                let mut state = channel.lock();
                refused += std::mem::take(&mut state.refused);
                (state.confirmed, state.idle_since)
            };
            let dead = match confirmed {
                true => adopt::is_abandoned(&channel.file),
                false => since.elapsed() > UNCONFIRMED,
            };
            if dead {
                self.end_ring(&channel)?;
                gone += 1;
            } else if since.elapsed() > idle {
                self.recall(&channel)?;
                channel.lock().idle_since = Instant::now();
            }
        }
        Ok((gone, refused))
    }

    /// Hears a ring whose client is gone for the last time, and removes it.
    fn end_ring(&self, channel: &Arc<Channel>) -> Result<()> {
        let bound = channel.lock().bound;
        if let Some(file) = bound {
            self.listen(file)?;
        }
        {
            let mut table = lock(&self.rings.table);
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
        self.rings.came_back(job, unused);
        // The note goes first: a ring without one is nobody's.
        self.disk.remove(&Note::name(channel.id))?;
        self.disk.remove(&ring_name(channel.id))
    }
}
