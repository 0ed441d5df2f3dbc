//! Slabs: space that is granted to clients before they write, and how it is recalled.

use super::channel::{Channel, Granted, State};
use super::note::{MOST_SLABS, SlabNote};
use super::{Released, RingId, bytes_of};
use crate::data::reclaim::Want;
use crate::data::{Data, Grant};
use forebay_model::{Error, ErrorKind, FileId, Result, SlabGrant, Uid};
use forebay_shm::Slab;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The first grant to a ring; each is four times the previous one, up to a limit.
const FIRST_SLAB: u32 = 256 << 10;
/// The largest grant.
const LARGEST_SLAB: u64 = 32 << 20;
/// All rings together get at most 1/`SHARE` of the capacity at once; each gets at least 1/`LEAST_SHARE`, however many
/// rings there are.
const SHARE: u64 = 64;
const LEAST_SHARE: u64 = 512;
const LEAST_SLAB: u64 = 64 << 10;
/// One journal slot for this many bytes, as in a whole region.
const BYTES_PER_SLOT: u32 = 2048;

/// Slabs that are being recalled.
pub(super) struct Recall {
    /// The file that the ring was bound to.
    file: Option<FileId>,
    /// The slabs before this one.
    before: u32,
    /// Whether the client is not filling them.
    quiet: bool,
}

impl Recall {
    /// Makes a ring's client send a request before it fills anything again; `None` if it has no slabs.
    pub(super) fn begin(channel: &Channel) -> Option<Recall> {
        let mut state = channel.lock();
        if state.slabs.is_empty() {
            return None;
        }
        state.epoch += 1;
        let quiet = channel.taker.recall(state.epoch);
        Some(Recall { file: state.bound, before: state.next_slab, quiet })
    }
}

/// Whether a ring must be consumed before it gets more: it has the largest number of slabs, or its client has finished
/// all.
fn must_consume(state: &State, keep: u32) -> bool {
    state.slabs.len() >= MOST_SLABS as usize
        || state.slabs.last().is_some_and(|granted| keep > granted.note.number)
}

fn wanted(len: u32) -> Want {
    Want { len, slots: (len / BYTES_PER_SLOT).max(1) }
}

impl Data {
    /// The size of the next grant to a ring: at least `least` if possible.
    pub fn next_slab(&self, ring: RingId, least: u32) -> u32 {
        let usual =
            self.rings_state(ring, |state| FIRST_SLAB << (2 * state.grants).min(8)).unwrap_or(FIRST_SLAB);
        let capacity = u64::from(self.geometry.regions) * u64::from(self.geometry.size);
        let share = (SHARE * self.rings.table.lock().channels.len().max(1) as u64).min(LEAST_SHARE);
        let most = (capacity / share).clamp(LEAST_SLAB, LARGEST_SLAB).min(u64::from(self.geometry.size));
        usual.max(least).min(most as u32)
    }

    fn rings_state<T>(&self, ring: RingId, look: impl FnOnce(&State) -> T) -> Option<T> {
        let channel = self.rings.table.lock().channels.get(&ring).cloned()?;
        let state = channel.lock();
        Some(look(&state))
    }

    /// Grants a slab to a ring of a user, whose client has finished all slabs before `keep`. Waits for space as any
    /// reservation does.
    pub fn grant_slab(&self, uid: Uid, ring: RingId, keep: u32, len: u32) -> Result<SlabGrant> {
        let granted =
            self.grant_by(uid, ring, keep, |file| self.reserve_for(uid, file, wanted(len)).map(Some))?;
        granted.ok_or_else(|| ErrorKind::NoSpace.into())
    }

    /// Does the same without waiting; `None` does not mean that the buffer is full.
    pub fn try_grant_slab(&self, uid: Uid, ring: RingId, keep: u32, len: u32) -> Result<Option<SlabGrant>> {
        if self.rings_state(ring, |state| must_consume(state, keep)) == Some(true) {
            return Ok(None);
        }
        self.grant_by(uid, ring, keep, |file| {
            let stream = self.space.lock().stream(uid, file);
            Ok(self.grant(stream, wanted(len)))
        })
    }

    fn grant_by(
        &self,
        uid: Uid,
        ring: RingId,
        keep: u32,
        reserve: impl FnOnce(FileId) -> Result<Option<Grant>>,
    ) -> Result<Option<SlabGrant>> {
        let stale = || Error::new(ErrorKind::Stale, format!("ring {} no longer exists", ring.0));
        let channel = self.rings.table.lock().channels.get(&ring).cloned().ok_or_else(stale)?;
        let file = {
            let mut state = channel.lock();
            state.confirmed = true;
            state.bound.filter(|_| state.uid == uid && state.writes).ok_or_else(stale)?
        };
        self.announce(&channel, file, keep)?;
        let grant = reserve(file);
        let mut state = channel.lock();
        state.granting -= 1;
        let Some(grant) = grant? else { return Ok(None) };
        let (region, slot, slots) = (grant.region, grant.slot, grant.slots);
        region.lent.store(true, Ordering::Release);
        let note = SlabNote {
            number: state.next_slab,
            region: region.id,
            generation: region.arena.generation(),
            start: grant.bytes.start(),
            len: grant.bytes.len(),
            slot,
            slots,
        };
        if state.bound != Some(file) || !state.note.add_slab(&note) {
            return Err(Error::new(ErrorKind::Busy, "the ring was bound to another file meanwhile"));
        }
        (state.next_slab, state.grants) = (state.next_slab + 1, state.grants.saturating_add(1));
        state.granted = Instant::now();
        let path =
            self.disk.path(&crate::data::region::data_name(region.id)).ok_or(ErrorKind::Unsupported)?;
        let offer = SlabGrant {
            slab: note.number,
            path: bytes_of(path),
            size: self.geometry.size,
            start: note.start,
            len: note.len,
            records: slots,
            epoch: state.epoch,
        };
        let (filled, slots, slab) = (note.start, slot..slot + slots, Slab::new(grant.bytes));
        state.slabs.push(Granted { note, region, slab, slots, filled });
        Ok(Some(offer))
    }

    /// Prepares a grant to a client that has finished the slabs before `keep`: ends other clients' leases on the file.
    fn announce(&self, channel: &Channel, file: FileId, keep: u32) -> Result<()> {
        let locked = self.files.get(file, || self.load(file))?;
        let mut locked = locked.lock();
        locked.check_unmapped()?;
        // Otherwise its records are consumed later: the client is waiting for space.
        if must_consume(&channel.lock(), keep) {
            self.consume(file, &mut locked)?;
        }
        let mut state = channel.lock();
        if channel.taker.waiting(state.note.taken()).unwrap_or(0) == 0 {
            self.rings.release(state.job, state.release(keep));
        }
        if state.slabs.len() >= MOST_SLABS as usize {
            return Err(Error::new(ErrorKind::Busy, "the ring has the largest number of slabs"));
        }
        state.granting += 1;
        locked.index.leases.end_of_others(channel.id);
        Ok(())
    }

    /// Sets for how long after its last use a slab stays granted when space is short. Used when the drain frees space:
    /// clients keep the slabs that were granted to them in their turn.
    pub fn keep_slabs(&self, used_within: Duration) {
        let nanos = u64::try_from(used_within.as_nanos()).unwrap_or(u64::MAX);
        self.rings.keep_used_within.store(nanos, Ordering::Relaxed);
    }

    /// The granted bytes that were released unused since the last call.
    #[must_use]
    pub fn take_released(&self) -> Vec<Released> {
        std::mem::take(&mut *self.rings.released.lock())
    }

    /// Recalls all slabs that are not being filled at the moment; true if there were any.
    pub(in crate::data) fn recall_slabs(&self) -> Result<bool> {
        let kept = Duration::from_nanos(self.rings.keep_used_within.load(Ordering::Relaxed));
        let mut any = false;
        for channel in self.rings.all().into_iter().filter(|channel| channel.still() >= kept) {
            any |= self.recall(&channel)?;
        }
        Ok(any)
    }

    /// Recalls the slabs of a ring if they are not being filled at the moment; true if there were any.
    pub(super) fn recall(&self, channel: &Arc<Channel>) -> Result<bool> {
        match Recall::begin(channel) {
            Some(recall) => self.end_recall(channel, &recall).map(|()| true),
            None => Ok(false),
        }
    }

    /// Releases recalled slabs. Slabs granted meanwhile stay.
    pub(super) fn end_recall(&self, channel: &Channel, recall: &Recall) -> Result<()> {
        if !recall.quiet {
            // The client is filling: its next request reports the slabs that it has finished.
            return Ok(());
        }
        if let Some(file) = recall.file {
            self.poll_file(file)?;
        }
        let mut state = channel.lock();
        self.rings.release(state.job, state.release(recall.before));
        state.grants = 0;
        Ok(())
    }

    /// Makes clients that write to a file through a ring send a request before their next write.
    pub fn recall_file(&self, file: FileId) {
        self.rings.of(file).iter().for_each(|channel| channel.revoke());
    }

    /// Makes all clients with a ring send a request before their next write.
    pub fn recall_all(&self) {
        self.rings.all().iter().for_each(|channel| channel.revoke());
    }
}
