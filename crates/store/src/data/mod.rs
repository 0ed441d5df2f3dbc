//! The bytes of files: reserve, fill, commit, read, hide, sync.
//!
//! **Invariant**: recovery finds every acknowledged commit after the process died, and every synced commit after the
//! machine died; it never finds bytes that a tombstone hid. A region is reused only when nothing in it is live and the
//! data that replaced its bytes is as durable as they were.
//!
//! Lock order: `reclaiming`, a file, its rings, then one of `space`, `tombs`, a region's files.
//!
//! **Deliberately absent**: names, permissions, sockets, turns, the decision which bytes to buffer.

mod backing;
mod clean;
mod clock;
mod crash;
mod damage;
mod direct;
mod dirty;
mod disk;
mod file;
mod held;
mod holes;
mod index;
mod index_cost;
mod journal;
mod mapped;
mod publish;
mod queues;
mod reclaim;
mod record;
mod recover;
mod region;
mod rings;
mod space;
mod table;
mod tomb;

pub use backing::changed_here_too;
pub use crash::{AtFlush, CrashDisk, Faults};
pub use dirty::{Backlog, Dirty, Picked};
pub use disk::{DirDisk, Disk};
pub use mapped::{Mapper, Missing, Preparing};
pub use queues::{MAX_DOORBELLS, MAX_QUEUES};
pub use recover::{Recovery, Start};
pub use region::Geometry;
pub use rings::{Released, RingId, RingView, Traffic};

pub use journal::RecordView;

pub(crate) use disk::{UNFINISHED, sync_dir};
pub(crate) use held::{Held, Journals, Rest, forget, mark_size_pending};
pub(crate) use journal::read_journal;
pub(crate) use queues::queues_cost;
pub(crate) use record::FORMAT;
pub(crate) use region::{checksum_at, data_name};
pub(crate) use rings::rings_cost;

use crate::meta::{Batch, Kv};
use crate::names::Facts;
use crate::timeline::Timeline;
use clock::Clock;
use damage::Damage;
use file::{File, FileState, SizeRecord};
use forebay_model::{
    Error, ErrorKind, FileId, Incarnation, JobId, RegionId, Result, Span, Stamp, Uid, Usage,
};
use forebay_shm::{Epochs, View};
use index::{Delta, Extent, Index, Source};
use index_cost::IndexCost;
use mapped::Objects;
use parking_lot::{Mutex, RwLock};
use publish::{Put, Write};
use region::Region;
use rings::Rings;
use space::{Space, State};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use table::{Looked, Table};
use tomb::Tombs;

/// The largest file: offsets are signed in most interfaces.
pub const MAX_FILE: u64 = i64::MAX as u64;

/// Space in a region for one writer. Dropping it gives the space up.
pub struct Grant {
    region: Arc<Region>,
    /// The first of its journal slots, and the number of slots.
    slot: u32,
    slots: u32,
    uid: Uid,
    bytes: forebay_shm::Grant,
}

impl Grant {
    /// The number of bytes granted.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.bytes.len()
    }

    /// Never true: a grant has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The space, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.bytes.as_mut_slice()
    }
}

/// A grant whose first `len` bytes are filled.
pub struct Filled {
    /// The space.
    pub grant: Grant,
    /// How many of its bytes are filled.
    pub len: u32,
    /// CRC32C of these bytes.
    pub crc: u32,
}

/// Where a commit places its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At an offset.
    At(u64),
    /// At the end of the file at the moment of the commit.
    End,
}

/// The result of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Offset of the first byte.
    pub offset: u64,
    /// Its position in the order of commits.
    pub stamp: Stamp,
}

/// A part of the bytes that were read.
pub enum Piece {
    /// Bytes in a region, which is not reused while this is held.
    Bytes(View),
    /// The given number of zeros.
    Zeros(u32),
    /// Bytes of the file in the back end.
    Backing(Span),
    /// A copy of bytes of a mapped file.
    Copied(Vec<u8>),
}

/// The number of regions in each state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Empty.
    pub free: u32,
    /// Being written.
    pub filling: u32,
    /// Full.
    pub sealed: u32,
    /// Being emptied by the cleaner.
    pub draining: u32,
    /// Empty, but not yet reusable.
    pub resting: u32,
}

/// All bytes of a store.
pub struct Data {
    disk: Arc<dyn Disk>,
    kv: Arc<dyn Kv>,
    geometry: Geometry,
    incarnation: Incarnation,
    clock: Clock,
    times: Arc<Timeline>,
    regions: Vec<RwLock<Arc<Region>>>,
    space: Mutex<Space>,
    files: Table,
    tombs: Mutex<Tombs>,
    reclaiming: Mutex<()>,
    damage: Damage,
    /// The cost of index updates by writes.
    index_cost: IndexCost,
    rings: Rings,
    objects: Objects,
    /// Why the last grant could not be allocated.
    shortage: Mutex<Option<Error>>,
}

impl Data {
    /// Sets the epochs to advance when a file changes, so that clients drop cached answers.
    pub(crate) fn notify(&self, epochs: Arc<Epochs>) {
        self.files.notify(epochs);
    }

    /// The current time, later than every earlier stamp.
    #[must_use]
    pub fn now(&self) -> Stamp {
        self.clock.next()
    }

    /// What time it was when something was stamped.
    #[must_use]
    pub fn times(&self) -> &Arc<Timeline> {
        &self.times
    }

    /// Has times from now on be those of the machine's clock, if it was set; true if it was.
    pub fn follow_clock(&self) -> Result<bool> {
        self.clock.follow(&self.times)
    }

    /// How far [`now`](Data::now) is ahead of the machine's clock: an earlier one was in the future.
    #[must_use]
    pub fn ahead_of_clock(&self) -> Duration {
        self.clock.ahead()
    }

    /// Commits filled grants, atomically for every reader, at the next stamp. When this returns, the bytes survive the
    /// death of this process.
    pub fn commit(
        &self,
        file: FileId,
        place: Place,
        mut parts: Vec<Filled>,
        job: JobId,
    ) -> Result<Committed> {
        let state = self.files.get(file, || self.load(file))?;
        let (done, dead) = {
            let mut state = state.lock();
            self.consume(file, &mut state)?;
            state.alive()?;
            let total = parts.iter().map(|part| u64::from(part.len)).sum();
            let offset = match place {
                Place::At(offset) => offset,
                Place::End if state.lost_below > state.size => return Err(state.lost(state.size)),
                Place::End => state.size,
            };
            let whole = Span::at(offset, total).filter(|span| span.end <= MAX_FILE);
            let whole = whole.ok_or_else(|| Error::from(ErrorKind::TooLarge))?;
            let stamp = self.clock.next();
            if !state.size_pending {
                self.note_size(file, &state, true)?;
                state.size_pending = true;
            }
            let shown = self.put_mapped(file, &mut state, offset, &mut parts)?;
            let dead = self.publish(
                Write { file, stamp, job },
                &mut state,
                offset,
                parts.into_iter().map(Put::from).collect(),
            );
            state.size = state.size.max(whole.end);
            state.touch(stamp);
            state.mapped.iter_mut().for_each(|mapped| mapped.committed(&shown));
            (Committed { offset, stamp }, dead)
        };
        self.reclaim_if(dead);
        Ok(done)
    }

    /// Reads bytes of a file; fewer than requested only at its end.
    pub fn read(&self, file: FileId, offset: u64, len: u32) -> Result<Vec<Piece>> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = state.lock();
        self.consume(file, &mut state)?;
        state.alive()?;
        let requested = Span::at(offset, u64::from(len)).unwrap_or(Span::from(offset));
        if requested.end > state.size && state.lost_below > state.size && !requested.is_empty() {
            return Err(state.lost(state.size));
        }
        let Some(span) = requested.intersect(Span::new(0, state.size)) else { return Ok(Vec::new()) };
        let mut pieces = Vec::new();
        match &state.mapped {
            None => self.read_stored(&state, span, &mut pieces)?,
            Some(mapped) => self.read_mapped(file, &state, mapped, span, &mut pieces)?,
        }
        Ok(pieces)
    }

    /// Reads bytes of a file from regions, holes and the back end.
    fn read_stored(&self, state: &File, span: Span, pieces: &mut Vec<Piece>) -> Result<()> {
        let mut at = span.start;
        let hole = |from: u64, to: u64| {
            if from < to && from < state.lost_below {
                return Err(state.lost(from));
            }
            Ok((from < to).then(|| Piece::Zeros((to - from) as u32)))
        };
        for extent in state.index.pieces(span) {
            pieces.extend(hole(at, extent.span.start)?);
            let from = std::mem::replace(&mut at, extent.span.end);
            if extent.source == Source::Backing
                && let Some(Piece::Backing(before)) = pieces.last_mut()
                && before.end == from
            {
                before.end = at;
                continue;
            }
            pieces.push(match extent.source {
                Source::Zero => Piece::Zeros(extent.span.len() as u32),
                Source::Backing => Piece::Backing(extent.span),
                Source::Data(bytes) => {
                    let region = self.region(bytes.region);
                    self.damage.check(&region, bytes.slot)?;
                    Piece::Bytes(region.view(bytes.ticket(extent.span.len()))?)
                }
            });
        }
        pieces.extend(hole(at, span.end)?);
        Ok(())
    }

    /// Size, last change and buffered bytes of a file.
    pub fn facts(&self, file: FileId) -> Result<Facts> {
        let state = self.look_at(file)?;
        let state = state.lock();
        Ok(Facts {
            size: state.size,
            touched: state.touched,
            buffered: state.index.buffered(),
            ..Facts::default()
        })
    }

    /// Sets the length of a file. The changes in `with` are committed together with it.
    pub fn truncate(&self, file: FileId, size: u64, with: Batch) -> Result<()> {
        if size > MAX_FILE {
            return Err(ErrorKind::TooLarge.into());
        }
        self.hide(file, Span::from(size), with, |state| {
            state.lost_below = state.lost_below.min(size);
            state.size = size;
        })
    }

    /// Extends a file to at least the given size; never shortens it. New bytes are zero.
    pub fn extend(&self, file: FileId, size: u64) -> Result<()> {
        if size > MAX_FILE {
            return Err(ErrorKind::TooLarge.into());
        }
        self.hide(file, Span::new(0, 0), Batch::default(), |state| state.size = state.size.max(size))
    }

    /// Turns a range into zeros; the length stays. The changes in `with` are committed together with it.
    pub fn punch(&self, file: FileId, span: Span, with: Batch) -> Result<()> {
        self.hide(file, span, with, |_| {})
    }

    fn hide(&self, id: FileId, span: Span, mut with: Batch, change: impl FnOnce(&mut File)) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let mut dead = false;
        {
            let mut state = state.lock();
            self.consume(id, &mut state)?;
            state.alive()?;
            let stamp = self.clock.next();
            // Tombstones are locked before the regions are listed: a region that is reused meanwhile is either not
            // listed, or releases the tombstone.
            let mut tombs = self.tombs.lock();
            let holders = self.holders(&mut state);
            let tomb =
                if span.is_empty() { None } else { tombs.plan(id, stamp, span, holders, &mut with)? };
            let (size, lost_below, backing) = (state.size, state.lost_below, state.backing.clone());
            let mut after = File { size, lost_below, backing, ..File::default() };
            after.backing.cut(span);
            change(&mut after);
            after.touch(stamp);
            let record = after.record(&state.index, self.incarnation, state.size_pending)?;
            with.put(SizeRecord::key(id), record.encode());
            self.kv.commit(with)?;
            (state.size, state.lost_below, state.backing) = (after.size, after.lost_below, after.backing);
            state.ordered = stamp;
            state.touch(stamp);
            match tomb {
                Some(tomb) => {
                    tombs.add(id, tomb);
                    let zeros = Extent { span, stamp, source: Source::Zero };
                    state.index.apply(zeros, &mut |delta| dead |= self.adjust(delta));
                }
                // No region holds a record of the file, so nothing has to be hidden.
                None => state.index.forget(span),
            }
            drop(tombs);
            self.cut_mapped(id, &mut state, size, span)?;
        }
        self.reclaim_if(dead);
        Ok(())
    }

    /// Marks the bytes of a file below an offset as lost with an earlier store: reading them returns an I/O error. Does
    /// nothing if this store already has a record of the file.
    pub fn lose(&self, id: FileId, below: u64) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        state.alive()?;
        if self.kv.get(&SizeRecord::key(id))?.is_some() || state.index.extents().next().is_some() {
            return Ok(());
        }
        let lost = File { lost_below: below, ..File::default() };
        self.note_size(id, &lost, false)?;
        state.lost_below = below;
        Ok(())
    }

    /// Counts the bytes of a file that are lost with an earlier store or incarnation; true if an unknown number of
    /// further bytes is lost too. `share(end)` is the number of bytes below `end` that this server should hold. If the
    /// store has no record of the file, all bytes below `limit` were in a lost store.
    pub fn missing(&self, id: FileId, limit: Option<u64>, share: &dyn Fn(u64) -> u64) -> Result<(u64, bool)> {
        let state = self.look_at(id)?;
        let state = state.lock();
        let unknown = || Ok::<_, Error>(self.kv.get(&SizeRecord::key(id))?.is_none());
        let below = match limit {
            Some(limit) if state.index.extents().next().is_none() && unknown()? => limit,
            _ => state.lost_below,
        };
        let end = if below == u64::MAX { state.size } else { below };
        let held: u64 = state.index.pieces(Span::new(0, end)).map(|extent| extent.span.len()).sum();
        Ok((share(end).saturating_sub(held), below == u64::MAX))
    }

    /// Deletes a file's bytes. The changes in `with` are committed together with it.
    pub fn delete(&self, id: FileId, mut with: Batch) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let mut dead = false;
        {
            let mut state = state.lock();
            self.consume(id, &mut state)?;
            if state.deleted {
                return self.kv.commit(with);
            }
            if self.has_record(id)? {
                with.remove(SizeRecord::key(id));
            }
            let mut tombs = self.tombs.lock();
            let holders = self.holders(&mut state);
            let tomb = tombs.plan(id, self.clock.next(), Span::from(0), holders, &mut with)?;
            self.kv.commit(with)?;
            if let Some(tomb) = tomb {
                tombs.add(id, tomb);
            }
            drop(tombs);
            state.deleted = true;
            self.rings.forget(id);
            state.size = 0;
            state.index.clear(&mut |delta| dead |= self.adjust(delta));
            self.drop_object(id, &mut state)?;
        }
        self.files.forget(id);
        self.reclaim_if(dead);
        Ok(())
    }

    /// Adds to the batch that creates a file that it is about to be filled by a ring, so that binding the ring needs no
    /// commit of its own. Call [`await_bytes`](Data::await_bytes) after the commit.
    pub fn will_be_filled(&self, file: FileId, batch: &mut Batch) -> Result<()> {
        let record = File::default().record(&Index::default(), self.incarnation, true)?;
        batch.put(SizeRecord::key(file), record.encode());
        Ok(())
    }

    /// Has the size of a file that [may be filled](Data::will_be_filled) persisted after its last close, even if it
    /// remains empty.
    pub fn await_bytes(&self, file: FileId) -> Result<()> {
        self.files.get(file, || self.load(file)).map(drop)
    }

    /// Persists the sizes of all files when the process ends.
    pub fn persist_all_sizes(&self) -> Result<()> {
        let closed = self.rings.take_closed();
        self.files.ids().into_iter().chain(closed).try_for_each(|id| self.persist_size(id))
    }

    /// Persists a file's size after its last close, and evicts the file from memory if possible.
    pub fn persist_size(&self, id: FileId) -> Result<()> {
        let Some(state) = self.in_memory(id)? else { return Ok(()) };
        {
            let mut state = state.lock();
            self.consume(id, &mut state)?;
            if state.size_pending && !state.deleted {
                self.note_size(id, &state, false)?;
                state.size_pending = false;
            }
        }
        drop(state);
        self.evict(id);
        Ok(())
    }

    /// Removes a file from memory if no region holds a record of it, live or dead.
    fn evict(&self, id: FileId) {
        self.files.evict(id, |file| !self.holders(file).is_empty());
    }

    /// Makes everything acknowledged for a file durable: payload, then journal, and its metadata.
    pub fn sync(&self, id: FileId) -> Result<()> {
        self.write_back(id)?;
        if let Some(state) = self.in_memory(id)? {
            let holders = {
                let mut state = state.lock();
                self.consume(id, &mut state)?;
                if state.size_pending && !state.deleted {
                    self.note_size(id, &state, true)?;
                }
                self.holders(&mut state)
            };
            for region in holders {
                self.region(region).flush(&*self.disk)?;
            }
        }
        self.kv.sync()
    }

    /// Makes everything acknowledged durable.
    pub fn sync_all(&self) -> Result<()> {
        self.write_back_all()?;
        self.flush_all()
    }

    /// Makes everything durable that is in the regions or the metadata store.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.poll_all_files()?;
        for number in 0..self.geometry.regions {
            self.region(RegionId(number)).flush(&*self.disk)?;
        }
        self.kv.sync()
    }

    /// How full the regions are. Does not count files.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let size = u64::from(self.geometry.size);
        let free = self.space.lock().count(State::Free) as u64;
        let live =
            (0..self.geometry.regions).map(|number| self.region(RegionId(number)).live().max(0) as u64);
        Usage {
            capacity: self.capacity(),
            used: (u64::from(self.geometry.regions) - free) * size,
            live: live.sum(),
            files: 0,
        }
    }

    /// Bytes that files can fill.
    fn capacity(&self) -> u64 {
        (u64::from(self.geometry.regions) - space::RESERVE as u64) * u64::from(self.geometry.size)
    }

    /// The number of index entries for bytes in regions, and an upper bound of their memory. Each entry has a journal
    /// slot, or is part of one that has: their number is limited by slots and later splits.
    #[must_use]
    pub fn index_size(&self) -> (u64, u64) {
        let pieces = |number| self.region(RegionId(number)).pieces().max(0) as u64;
        let pieces: u64 = (0..self.geometry.regions).map(pieces).sum();
        (pieces, pieces * index::EXTENT_BYTES)
    }

    /// Approximate nanoseconds that writes spent updating the index.
    #[must_use]
    pub fn index_time(&self) -> u64 {
        self.index_cost.nanos()
    }

    /// Regions by state.
    #[must_use]
    pub fn regions(&self) -> Counts {
        let space = self.space.lock();
        let count = |state| space.count(state) as u32;
        Counts {
            free: count(State::Free),
            filling: count(State::Filling),
            sealed: count(State::Sealed),
            draining: count(State::Draining),
            resting: count(State::Resting),
        }
    }

    /// The sizes of the regions.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Files with bytes in this store.
    #[must_use]
    pub fn files(&self) -> Vec<FileId> {
        self.files.ids()
    }

    /// Damage found so far, one sentence each.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        self.damage.list()
    }

    fn region(&self, id: RegionId) -> Arc<Region> {
        Arc::clone(&self.regions[id.0 as usize].read())
    }

    /// Applies an index change to its region; true if nothing in it is live any more.
    fn adjust(&self, delta: Delta) -> bool {
        self.region(delta.region).add_live(delta.bytes, delta.pieces) == 0
    }

    /// The regions that hold a record of a file; drops those that were reused meanwhile.
    fn holders(&self, file: &mut File) -> BTreeSet<RegionId> {
        file.regions.retain(|&id, &mut generation| self.region(id).arena.generation() == generation);
        file.regions.keys().copied().collect()
    }

    fn note_size(&self, id: FileId, file: &File, size_pending: bool) -> Result<()> {
        let mut batch = Batch::default();
        let record = file.record(&file.index, self.incarnation, size_pending)?;
        batch.put(SizeRecord::key(id), record.encode());
        self.kv.commit(batch)
    }

    /// Whether the metadata store has a record of the file.
    fn has_record(&self, file: FileId) -> Result<bool> {
        let mut has = false;
        self.kv.view(&SizeRecord::key(file), &mut |value| has = value.is_some())?;
        Ok(has)
    }

    /// The state of a file that is in memory, or must be because a client writes to it through a ring.
    fn in_memory(&self, id: FileId) -> Result<Option<FileState>> {
        match self.files.resident(id) {
            None if self.rings.any_of(id) => self.files.get(id, || self.load(id)).map(Some),
            state => Ok(state),
        }
    }

    /// The state of a file for reading only, after its rings were consumed.
    fn look_at(&self, id: FileId) -> Result<FileState> {
        let state = match self.in_memory(id)? {
            Some(state) => state,
            None => match self.files.look(id, || self.load(id))? {
                Looked::InMemory(state) => state,
                // State from records consumed now would be dropped at once.
                Looked::Noted(file) => return Ok(Arc::new(Mutex::new(file))),
            },
        };
        self.consume(id, &mut state.lock())?;
        Ok(state)
    }

    fn load(&self, id: FileId) -> Result<File> {
        let record = self.kv.get(&SizeRecord::key(id))?;
        let record = record.map(|bytes| SizeRecord::decode(id, &bytes)).transpose()?;
        Ok(File::load(record, self.incarnation))
    }
}
