//! Rings of an earlier life: what they hold counts, and the clients that live go on with them.

use super::channel::{Channel, Granted, State, over};
use super::note::SlabNote;
use super::{Header, Note, RingId, Rings, boot, ring_name};
use crate::data::disk::Disk;
use crate::data::file::SizeRecord;
use crate::data::recover::{Found, Start};
use crate::data::{Data, lock};
use forebay_model::Result;
use forebay_shm::{RING_BYTES, Slab, Taker};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::sync::Arc;

/// A ring that was found.
pub(in crate::data) struct Left {
    id: RingId,
    note: Note,
    header: Header,
}

/// Whether nobody holds a ring's lock, which its client does while it lives.
pub(super) fn is_abandoned(ring: &File) -> bool {
    let free = flock(ring, FlockOperation::NonBlockingLockExclusive).is_ok();
    if free {
        // Nobody asks again; but should it, it finds what this one found.
        let _ = flock(ring, FlockOperation::Unlock);
    }
    free
}

/// Removes a ring that nobody can go on with. Should its client live, it is told to ask before it writes again.
fn discard(disk: &dyn Disk, id: RingId) -> Result<()> {
    let ring = disk.open(&ring_name(id))?;
    if let Some(taker) = ring.and_then(|ring| Taker::open(&ring, 0).ok()) {
        taker.set_epoch(u64::MAX);
        taker.set_lease(over(taker.lease()));
    }
    disk.remove(&Note::name(id))?;
    disk.remove(&ring_name(id))
}

impl Rings {
    /// The rings that an earlier life left. With the machine, what was not synced died; of another boot nobody can
    /// compare the stamps.
    pub(in crate::data) fn notes(disk: &dyn Disk, start: Start) -> Result<Vec<Left>> {
        let (mut left, boot) = (Vec::new(), boot()?);
        for name in disk.names()? {
            let Some(id) = Note::id_of(&name) else {
                continue;
            };
            match Note::open(disk, id)? {
                Some((note, header)) if start != Start::MachineDied && header.boot == boot => {
                    left.push(Left { id, note, header });
                }
                _ => discard(disk, id)?,
            }
        }
        Ok(left)
    }

    /// What the stamps in these rings are counted from.
    pub(in crate::data) fn base(left: &[Left]) -> Option<u64> {
        left.iter().map(|left| left.header.base).max()
    }
}

impl Data {
    /// Takes over the rings of an earlier life, and hears them; says how many records were taken.
    pub(in crate::data) fn adopt_rings(&self, left: Vec<Left>, found: &[Found]) -> Result<u64> {
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
                // Removed with its last name.
                Some(file) if self.kv.get(&SizeRecord::key(file))?.is_none() => {
                    channel.lock().bound = None;
                    lock(&self.rings.table).bound.remove(&file);
                }
                Some(file) => self.listen(file)?,
                None => {}
            }
            records += taken(&channel) - before;
            if is_abandoned(&channel.file) {
                self.end_ring(&channel)?;
            } else {
                self.bell_path()?;
            }
        }
        Ok(records)
    }

    fn reopen(&self, left: Left, found: &[Found]) -> Result<Option<Channel>> {
        let Left { id, note, header } = left;
        let Some(ring) = self.disk.open(&ring_name(id))? else { return Ok(None) };
        if ring.metadata().map_or(0, |facts| facts.len()) < RING_BYTES {
            return Ok(None);
        }
        let Ok(taker) = Taker::open(&ring, header.nonce) else { return Ok(None) };
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
        // Who has nothing to fill has to ask anyway, and says then whether it may.
        state.writes = !state.slabs.is_empty();
        state.confirmed = true;
        Ok(Some(Channel::new(id, ring, taker, state)))
    }

    /// A slab, if its region is still what it was. What of it the journal holds is not taken again.
    fn regrant(&self, note: SlabNote, header: &Header, found: &[Found]) -> Option<Granted> {
        let found = found.get(note.region.0 as usize)?;
        let region = Arc::clone(&found.region);
        if region.arena.generation() != note.generation {
            return None;
        }
        let bytes = region.arena.regrant(note.start, note.len)?;
        let end_slot = note.slot + note.slots;
        let here = found.records.iter().filter(|(slot, _)| (note.slot..end_slot).contains(slot));
        let (slot, filled) = here.fold((note.slot, note.start), |(next, filled), (slot, record)| {
            (next.max(slot + 1), filled.max(record.position + record.len()))
        });
        lock(&self.space).adopt_slab(region.id, header.uid, end_slot);
        Some(Granted { note, region, slab: Slab::new(bytes), slots: slot..end_slot, filled })
    }
}
