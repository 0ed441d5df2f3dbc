//! The bytes of files: reserved, put, committed, read, hidden, synced.
//!
//! **Invariant**: what a commit acknowledged is found again by recovery after the death of the process, and after
//! the death of the machine once it was synced; what a tombstone hid is never found again. A region is used again
//! only when nothing in it is live and whatever replaced its bytes is as durable as they were.
//!
//! Locks are taken in this order: `reclaiming`, a file, its rings, then one of `space`, `tombs`, a region's files.
//!
//! **Deliberately absent**: names, permissions, sockets, turns; which bytes should be buffered at all.

mod behind;
mod clean;
mod clock;
mod crash;
mod damage;
mod dirty;
mod disk;
mod file;
mod held;
mod index;
mod journal;
mod past;
mod publish;
mod queues;
mod reclaim;
mod record;
mod recover;
mod region;
mod rings;
mod space;
mod table;
mod toll;
mod tomb;

pub use behind::changed_here_too;
pub use crash::{AtFlush, CrashDisk, Faults};
pub use dirty::{Backlog, Dirty, Picked};
pub use disk::{DirDisk, Disk};
pub use queues::{MOST_BELLS, MOST_QUEUES};
pub use recover::{Recovery, Start};
pub use region::Geometry;
pub use rings::{MapAt, MapOffer, MapPiece, RingId, RingOffer, SlabOffer, Traffic};

pub use journal::RecordView;

pub(crate) use disk::{UNFINISHED, sync_dir};
pub(crate) use held::{Held, Journals, Rest, forget, unsettle};
pub(crate) use journal::read_journal;
pub(crate) use queues::queues_cost;
pub(crate) use record::FORMAT;
pub(crate) use rings::rings_cost;

use crate::meta::{Batch, Kv};
use crate::names::Facts;
use clock::Clock;
use damage::Damage;
use file::{File, FileState, SizeRecord};
use forebay_model::{
    Error, ErrorKind, FileId, Incarnation, JobId, RegionId, Result, Span, Stamp, Uid, Usage,
};
use forebay_shm::{Epochs, View};
use index::{Delta, Extent, Source};
use publish::{Put, Write};
use region::Region;
use rings::Rings;
use space::{Space, State};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use table::{Looked, Table};
use toll::Toll;
use tomb::Tombs;

/// The largest file: offsets are signed on most interfaces.
pub const MAX_FILE: u64 = i64::MAX as u64;

/// Takes a lock. A thread that panicked while holding it has left values that are checked wherever they matter.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs before anything on a file is put in order or answered, while the file is locked. Writers that commit
/// without asking (shared-memory rings) are heard here.
pub trait Before: Send + Sync {
    /// The file is about to be looked at or changed.
    fn before(&self, file: FileId);
}

/// Nobody commits without asking.
pub struct NoRings;

impl Before for NoRings {
    fn before(&self, _: FileId) {}
}

/// Space in a region for one writer. Dropping it gives the space up.
pub struct Grant {
    region: Arc<Region>,
    /// The first of its journal slots, and how many there are.
    slot: u32,
    slots: u32,
    uid: Uid,
    bytes: forebay_shm::Grant,
}

impl Grant {
    /// How many bytes were granted.
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

/// A grant whose first `len` bytes are put.
pub struct Filled {
    /// The space.
    pub grant: Grant,
    /// How much of it is filled.
    pub len: u32,
    /// CRC32C of these bytes.
    pub crc: u32,
}

/// Where committed bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At an offset.
    At(u64),
    /// At the end of the file, as it is at the moment of the commit.
    End,
}

/// What a commit did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Offset of the first byte.
    pub offset: u64,
    /// Its place in time.
    pub stamp: Stamp,
}

/// A stretch of what was read.
pub enum Piece {
    /// Bytes in a region, which stay there as long as this is held.
    Bytes(View),
    /// So many zeros.
    Zeros(u32),
    /// Bytes of the file that the back end holds.
    Behind(Span),
}

/// How many regions are in which state.
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
    /// Empty, but not yet to be used again.
    pub resting: u32,
}

/// All bytes of a store.
pub struct Data {
    disk: Arc<dyn Disk>,
    kv: Arc<dyn Kv>,
    geometry: Geometry,
    incarnation: Incarnation,
    clock: Clock,
    regions: Vec<RwLock<Arc<Region>>>,
    space: Mutex<Space>,
    files: Table,
    tombs: Mutex<Tombs>,
    reclaiming: Mutex<()>,
    damage: Damage,
    /// What changes of the index cost that writes make.
    toll: Toll,
    before: Box<dyn Before>,
    rings: Rings,
}

impl Data {
    /// Changes of files are told from now on to those who remember what they were answered.
    pub(crate) fn tell(&self, epochs: Arc<Epochs>) {
        self.files.tell(epochs);
    }

    /// The present, later than everything that was stamped before.
    #[must_use]
    pub fn now(&self) -> Stamp {
        self.clock.next()
    }

    /// Makes put bytes count, all at once for every reader. They are applied at the next stamp, and survive the
    /// death of this process when this returns.
    pub fn commit(&self, file: FileId, place: Place, parts: Vec<Filled>, job: JobId) -> Result<Committed> {
        let state = self.files.get(file, || self.load(file))?;
        let (done, dead) = {
            let mut state = lock(&state);
            self.hear(file, &mut state)?;
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
            if !state.unsettled {
                self.note_size(file, &state, true)?;
                state.unsettled = true;
            }
            let dead = self.publish(
                Write { file, stamp, job },
                &mut state,
                offset,
                parts.into_iter().map(Put::from).collect(),
            );
            state.size = state.size.max(whole.end);
            state.touch(stamp);
            (Committed { offset, stamp }, dead)
        };
        self.reclaim_if(dead);
        Ok(done)
    }

    /// The bytes of a file, fewer than asked for only at its end.
    pub fn read(&self, file: FileId, offset: u64, len: u32) -> Result<Vec<Piece>> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = lock(&state);
        self.hear(file, &mut state)?;
        state.alive()?;
        let asked = Span::at(offset, u64::from(len)).unwrap_or(Span::from(offset));
        if asked.end > state.size && state.lost_below > state.size && !asked.is_empty() {
            return Err(state.lost(state.size));
        }
        let Some(span) = asked.meet(Span::new(0, state.size)) else { return Ok(Vec::new()) };
        let mut pieces = Vec::new();
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
            if extent.source == Source::Behind
                && let Some(Piece::Behind(before)) = pieces.last_mut()
                && before.end == from
            {
                before.end = at;
                continue;
            }
            pieces.push(match extent.source {
                Source::Zero => Piece::Zeros(extent.span.len() as u32),
                Source::Behind => Piece::Behind(extent.span),
                Source::Data(bytes) => {
                    let region = self.region(bytes.region);
                    self.damage.check(&region, bytes.slot)?;
                    Piece::Bytes(region.view(bytes.ticket(extent.span.len()))?)
                }
            });
        }
        pieces.extend(hole(at, span.end)?);
        Ok(pieces)
    }

    /// Size, last change and buffered bytes of a file.
    pub fn facts(&self, file: FileId) -> Result<Facts> {
        let state = self.look_at(file)?;
        let state = lock(&state);
        Ok(Facts {
            size: state.size,
            touched: state.touched,
            buffered: state.index.buffered(),
            ..Facts::default()
        })
    }

    /// Sets the length of a file. The changes in `with` happen together with it.
    pub fn truncate(&self, file: FileId, size: u64, with: Batch) -> Result<()> {
        if size > MAX_FILE {
            return Err(ErrorKind::TooLarge.into());
        }
        self.hide(file, Span::from(size), with, |state| {
            state.lost_below = state.lost_below.min(size);
            state.size = size;
        })
    }

    /// Makes a file at least so long, and never shorter. What is new is zero.
    pub fn extend(&self, file: FileId, size: u64) -> Result<()> {
        if size > MAX_FILE {
            return Err(ErrorKind::TooLarge.into());
        }
        self.hide(file, Span::new(0, 0), Batch::default(), |state| state.size = state.size.max(size))
    }

    /// Turns a range into zeros; the length stays. The changes in `with` happen together with it.
    pub fn punch(&self, file: FileId, span: Span, with: Batch) -> Result<()> {
        self.hide(file, span, with, |_| {})
    }

    fn hide(&self, id: FileId, span: Span, mut with: Batch, change: impl FnOnce(&mut File)) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let mut dead = false;
        {
            let mut state = lock(&state);
            self.hear(id, &mut state)?;
            state.alive()?;
            let stamp = self.clock.next();
            // In this order: a region that is used again meanwhile is either not named, or releases the tombstone.
            let mut tombs = lock(&self.tombs);
            let holders = self.holders(&mut state);
            let tomb =
                if span.is_empty() { None } else { tombs.plan(id, stamp, span, holders, &mut with)? };
            let (size, lost_below, behind) = (state.size, state.lost_below, state.behind.clone());
            let mut after = File { size, lost_below, behind, ..File::default() };
            after.behind.cut(span);
            change(&mut after);
            after.touch(stamp);
            let record = after.record(&state.index, self.incarnation, state.unsettled)?;
            with.put(SizeRecord::key(id), record.encode());
            self.kv.commit(with)?;
            (state.size, state.lost_below, state.behind) = (after.size, after.lost_below, after.behind);
            state.ordered = stamp;
            state.touch(stamp);
            match tomb {
                Some(tomb) => {
                    tombs.add(id, tomb);
                    let zeros = Extent { span, stamp, source: Source::Zero };
                    state.index.apply(zeros, &mut |delta| dead |= self.adjust(delta));
                }
                // No region holds anything of the file: there is nothing to hide.
                None => state.index.forget(span),
            }
        }
        self.reclaim_if(dead);
        Ok(())
    }

    /// The bytes that an earlier store held of a file, below this offset, are lost: reading them gives an I/O error.
    /// Does nothing if this store knows the file already.
    pub fn lose(&self, id: FileId, below: u64) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = lock(&state);
        state.alive()?;
        if self.kv.get(&SizeRecord::key(id))?.is_some() || state.index.extents().next().is_some() {
            return Ok(());
        }
        let lost = File { lost_below: below, ..File::default() };
        self.note_size(id, &lost, false)?;
        state.lost_below = below;
        Ok(())
    }

    /// How many of the first `limit` bytes of a file are lost with an earlier store or life of it, of those for which
    /// `share` says how many are to be here; and whether nobody knows how many more. If nothing is known of the file here,
    /// those below `limit` were in a store that is gone.
    pub fn missing(&self, id: FileId, limit: Option<u64>, share: &dyn Fn(u64) -> u64) -> Result<(u64, bool)> {
        let state = self.look_at(id)?;
        let state = lock(&state);
        let unknown = || Ok::<_, Error>(self.kv.get(&SizeRecord::key(id))?.is_none());
        let below = match limit {
            Some(limit) if state.index.extents().next().is_none() && unknown()? => limit,
            _ => state.lost_below,
        };
        let end = if below == u64::MAX { state.size } else { below };
        let there: u64 = state.index.pieces(Span::new(0, end)).map(|extent| extent.span.len()).sum();
        Ok((share(end).saturating_sub(there), below == u64::MAX))
    }

    /// Removes a file's bytes for ever. The changes in `with` happen together with it.
    pub fn delete(&self, id: FileId, mut with: Batch) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let mut dead = false;
        {
            let mut state = lock(&state);
            self.hear(id, &mut state)?;
            if state.deleted {
                return self.kv.commit(with);
            }
            let size = SizeRecord::key(id);
            let mut is_noted = false;
            self.kv.view(&size, &mut |value| is_noted = value.is_some())?;
            if is_noted {
                with.remove(size);
            }
            let mut tombs = lock(&self.tombs);
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
        }
        self.files.forget(id);
        self.reclaim_if(dead);
        Ok(())
    }

    /// Writes down the sizes of all files, for the end of the process.
    pub fn settle_all(&self) -> Result<()> {
        let closed = self.rings.take_closed();
        self.files.ids().into_iter().chain(closed).try_for_each(|id| self.settle(id))
    }

    /// Writes down a file's size after its last close, and lets go of what need not be in memory.
    pub fn settle(&self, id: FileId) -> Result<()> {
        let Some(state) = self.in_memory(id)? else { return Ok(()) };
        {
            let mut state = lock(&state);
            self.hear(id, &mut state)?;
            if state.unsettled && !state.deleted {
                self.note_size(id, &state, false)?;
                state.unsettled = false;
            }
        }
        drop(state);
        self.evict(id);
        Ok(())
    }

    /// Lets go of a file of which nothing is in a region, not even dead.
    fn evict(&self, id: FileId) {
        self.files.evict(id, |file| !self.holders(file).is_empty());
    }

    /// Makes everything acknowledged for a file durable: payload, then journal, and its metadata.
    pub fn sync(&self, id: FileId) -> Result<()> {
        if let Some(state) = self.in_memory(id)? {
            let holders = {
                let mut state = lock(&state);
                self.hear(id, &mut state)?;
                if state.unsettled && !state.deleted {
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
        self.listen_to_all()?;
        for number in 0..self.geometry.regions {
            self.region(RegionId(number)).flush(&*self.disk)?;
        }
        self.kv.sync()
    }

    /// How full the regions are. The number of files is not known here.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let size = u64::from(self.geometry.size);
        let free = lock(&self.space).count(State::Free) as u64;
        let live =
            (0..self.geometry.regions).map(|number| self.region(RegionId(number)).live().max(0) as u64);
        Usage {
            capacity: (u64::from(self.geometry.regions) - space::RESERVE as u64) * size,
            used: (u64::from(self.geometry.regions) - free) * size,
            live: live.sum(),
            files: 0,
        }
    }

    /// Pieces in regions that the index knows, and the memory that it takes for them at most. Each piece has a slot of a
    /// journal, or is a part of one that has: there are at most as many as slots and later cuts.
    #[must_use]
    pub fn index_size(&self) -> (u64, u64) {
        let pieces = |number| self.region(RegionId(number)).pieces().max(0) as u64;
        let pieces: u64 = (0..self.geometry.regions).map(pieces).sum();
        (pieces, pieces * index::EXTENT_BYTES)
    }

    /// Nanoseconds that went into putting into the index what was written, as far as that can be told.
    #[must_use]
    pub fn index_time(&self) -> u64 {
        self.toll.nanos()
    }

    /// Regions by state.
    #[must_use]
    pub fn regions(&self) -> Counts {
        let space = lock(&self.space);
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

    /// Files that have bytes here.
    #[must_use]
    pub fn files(&self) -> Vec<FileId> {
        self.files.ids()
    }

    /// Damage found so far, a sentence each.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        self.damage.list()
    }

    fn region(&self, id: RegionId) -> Arc<Region> {
        Arc::clone(&self.regions[id.0 as usize].read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies a change of the index to its region; true if nothing is live there any more.
    fn adjust(&self, delta: Delta) -> bool {
        self.region(delta.region).add_live(delta.bytes, delta.pieces) == 0
    }

    /// The regions that hold a record of a file; those that were used again meanwhile are forgotten.
    fn holders(&self, file: &mut File) -> BTreeSet<RegionId> {
        file.regions.retain(|&id, &mut generation| self.region(id).arena.generation() == generation);
        file.regions.keys().copied().collect()
    }

    fn note_size(&self, id: FileId, file: &File, unsettled: bool) -> Result<()> {
        let mut batch = Batch::default();
        let record = file.record(&file.index, self.incarnation, unsettled)?;
        batch.put(SizeRecord::key(id), record.encode());
        self.kv.commit(batch)
    }

    /// The state of a file that is in memory, or has to be because somebody writes to it by a ring.
    fn in_memory(&self, id: FileId) -> Result<Option<FileState>> {
        match self.files.resident(id) {
            None if self.rings.any_of(id) => self.files.get(id, || self.load(id)).map(Some),
            state => Ok(state),
        }
    }

    /// The state of a file for those who change nothing; its rings are heard.
    fn look_at(&self, id: FileId) -> Result<FileState> {
        let state = match self.in_memory(id)? {
            Some(state) => state,
            None => {
                self.before.before(id);
                match self.files.look(id, || self.load(id))? {
                    Looked::InMemory(state) => state,
                    // What is heard here would be forgotten at once.
                    Looked::Noted(file) => return Ok(Arc::new(Mutex::new(file))),
                }
            }
        };
        self.hear(id, &mut lock(&state))?;
        Ok(state)
    }

    fn load(&self, id: FileId) -> Result<File> {
        let record = self.kv.get(&SizeRecord::key(id))?;
        let record = record.map(|bytes| SizeRecord::decode(id, &bytes)).transpose()?;
        Ok(File::load(record, self.incarnation))
    }
}
