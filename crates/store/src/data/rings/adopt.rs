//! Rings of an earlier server process: their records are committed, and clients that still live continue with them.

use super::channel::{Channel, Granted, State, ended};
use super::note::SlabNote;
use super::{Header, Note, RingId, Rings, boot, ring_name, unreadable};
use crate::data::Data;
use crate::data::disk::Disk;
use crate::data::file::SizeRecord;
use crate::data::recover::{Found, Start};
use forebay_model::Result;
use forebay_shm::{RING_BYTES, Slab, Taker};
use std::sync::Arc;

/// A ring that recovery found.
pub(in crate::data) struct OldRing {
    id: RingId,
    note: Note,
    header: Header,
}

/// Removes a ring that cannot be adopted. If its client lives, it must send a request before it writes again.
fn discard(disk: &dyn Disk, id: RingId) -> Result<()> {
    let ring = disk.open(&ring_name(id))?;
    if let Some(taker) = ring.and_then(|ring| Taker::open(&ring, 0).ok()) {
        taker.set_epoch(u64::MAX);
        taker.set_lease(ended(taker.lease()));
    }
    disk.remove(&Note::name(id))?;
    disk.remove(&ring_name(id))
}

impl Rings {
    /// The rings that an earlier process left. After the machine died they are discarded with all unsynced data; stamps
    /// of another boot cannot be compared.
    pub(in crate::data) fn notes(disk: &dyn Disk, start: Start) -> Result<Vec<OldRing>> {
        let (mut left, boot) = (Vec::new(), boot()?);
        for name in disk.names()? {
            let Some(id) = Note::id_of(&name) else {
                continue;
            };
            let note = match start {
                Start::MachineDied => None,
                Start::Fresh | Start::Clean | Start::ProcessDied => Note::open(disk, id)?,
            };
            match note {
                Some((note, header)) if header.boot == boot => left.push(OldRing { id, note, header }),
                _ => discard(disk, id)?,
            }
        }
        Ok(left)
    }

    /// The clock base of the stamps in these rings.
    pub(in crate::data) fn base(left: &[OldRing]) -> Option<u64> {
        left.iter().map(|left| left.header.base).max()
    }
}

impl Data {
    /// Adopts and consumes the rings of an earlier process; returns the number of records taken.
    pub(in crate::data) fn adopt_rings(&self, left: Vec<OldRing>, found: &[Found]) -> Result<u64> {
        let mut records = 0;
        for left in left {
            let id = left.id;
            let Some(channel) = self.reopen(left, found)? else {
                discard(&*self.disk, id)?;
                continue;
            };
            let channel = Arc::new(channel);
            self.rings.insert(&channel);
            let taken = |channel: &Channel| channel.lock().note.taken();
            let before = taken(&channel);
            let bound = channel.lock().bound;
            match bound {
                // The file was deleted with its last name.
                Some(file) if self.kv.get(&SizeRecord::key(file))?.is_none() => {
                    channel.lock().bound = None;
                    self.rings.table.lock().bound.remove(&file);
                }
                Some(file) => self.poll_file(file)?,
                None => {}
            }
            records += taken(&channel) - before;
            self.doorbell_path()?;
        }
        Ok(records)
    }

    fn reopen(&self, left: OldRing, found: &[Found]) -> Result<Option<Channel>> {
        let OldRing { id, note, header } = left;
        let Some(ring) = self.disk.open(&ring_name(id))? else { return Ok(None) };
        if ring.metadata().map_or(0, |facts| facts.len()) < RING_BYTES {
            return Ok(None);
        }
        let taker = Taker::open(&ring, header.nonce)
            .map_err(|error| unreadable(&*self.disk, &ring_name(id), &error))?;
        taker.take(note.taken());
        let slabs = note.slabs();
        let mut state = State::new(note, &header, taker.epoch());
        state.next_slab = slabs.last().map_or(0, |slab| slab.number + 1);
        for slab in slabs {
            match self.regrant(slab, &header, found) {
                Some(granted) => state.slabs.push(granted),
                None => state.note.remove_slab(slab.number),
            }
        }
        // A client without slabs must send a request anyway, which sets its permission.
        state.writes = !state.slabs.is_empty();
        state.confirmed = true;
        Ok(Some(Channel::new(id, ring, taker, state)))
    }

    /// Grants a slab again, if its region was not reused. Skips the records that the journal already holds.
    fn regrant(&self, note: SlabNote, header: &Header, found: &[Found]) -> Option<Granted> {
        let found = found.get(note.region.0 as usize)?;
        let region = Arc::clone(&found.region);
        if region.arena.generation() != note.generation {
            return None;
        }
        let bytes = region.arena.regrant(note.start, note.len)?;
        let end_slot = note.slot + note.slots;
        let journaled = found.records.iter().filter(|(slot, _)| (note.slot..end_slot).contains(slot));
        let (slot, filled) = journaled.fold((note.slot, note.start), |(next, filled), (slot, record)| {
            (next.max(slot + 1), filled.max(record.position + record.len()))
        });
        self.space.lock().adopt_slab(region.id, header.uid, end_slot);
        Some(Granted { note, region, slab: Slab::new(bytes), slots: slot..end_slot, filled })
    }
}
