//! The store's own record of a ring, in a file that no client can access.
//!
//! ```text
//! slot 0, 1   owner and binding of the ring; the newer of the two is valid
//! slot 2, 3   number of records taken; the larger is valid
//! slot 4 …    the slabs that are granted and not released
//! ```
//!
//! A crash while writing a slot leaves a wrong checksum. The other header, or the smaller count, is then used; a slab
//! whose slot is torn was not yet sent to the client, or is not needed any more.

use super::{RingId, unreadable};
use crate::data::disk::Disk;
use crc32c::crc32c;
use forebay_model::{Error, ErrorKind, FileId, JobId, RegionId, Result, Uid};
use forebay_shm::{Nonce, SLOT, Slots};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

/// Largest number of slabs of a ring.
pub(super) const MOST_SLABS: u32 = 56;
const TAKEN: u32 = 2;
const SLABS: u32 = 4;
const COUNT: u32 = SLABS + MOST_SLABS;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    crc: U32,
    sequence: U32,
    nonce: U128,
    boot: U64,
    base: U64,
    file: U64,
    job: U64,
    uid: U32,
    binding: U32,
}

/// The owner and the binding of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::data) struct Header {
    pub(super) nonce: Nonce,
    /// The machine boot in which its stamps are valid, and their clock base.
    pub(super) boot: u64,
    pub(super) base: u64,
    pub(super) uid: Uid,
    pub(super) job: JobId,
    /// File id 0 means none.
    pub(super) file: FileId,
    pub(super) binding: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawTaken {
    crc: U32,
    kind: U32,
    taken: U64,
    reserved: [u8; 48],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSlab {
    crc: U32,
    number: U32,
    region: U32,
    generation: U32,
    start: U32,
    len: U32,
    slot: U32,
    slots: U32,
    reserved: [u8; 32],
}

/// A slab as it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlabNote {
    pub(super) number: u32,
    pub(super) region: RegionId,
    pub(super) generation: u32,
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) slot: u32,
    pub(super) slots: u32,
}

/// The note file of a ring.
pub(in crate::data) struct Note {
    slots: Slots,
    sequence: u32,
    taken: u64,
}

const TAKEN_KIND: u32 = 2;

impl Note {
    pub(super) fn name(id: RingId) -> String {
        format!("m{:05}.note", id.0)
    }

    /// The ring of a note file.
    pub(super) fn id_of(name: &str) -> Option<RingId> {
        name.strip_prefix('m')?.strip_suffix(".note")?.parse().ok().map(RingId)
    }

    pub(super) fn create(disk: &dyn Disk, id: RingId, header: &Header) -> Result<Note> {
        let file = disk.create(&Note::name(id), u64::from(COUNT) * SLOT as u64)?;
        let slots = Slots::new(&file, COUNT).map_err(|error| unmapped(id, &error))?;
        let mut note = Note { slots, sequence: 0, taken: 0 };
        note.set_header(header);
        Ok(note)
    }

    /// Opens the note of an earlier process; `None` if that died while creating the ring. Fails if its device cannot
    /// read it.
    pub(super) fn open(disk: &dyn Disk, id: RingId) -> Result<Option<(Note, Header)>> {
        let Some(file) = disk.open(&Note::name(id))? else { return Ok(None) };
        // Notes of earlier versions have fewer slots.
        let len = file.metadata().map_or(0, |facts| facts.len());
        let count = COUNT.min((len / SLOT as u64) as u32);
        if count < SLABS {
            return Ok(None);
        }
        let slots = Slots::new(&file, count).map_err(|error| unreadable(disk, &Note::name(id), &error))?;
        let headers = [0, 1].map(|slot| header(slots.read(slot)));
        let Some((sequence, found)) = headers.into_iter().flatten().max_by_key(|(sequence, _)| *sequence)
        else {
            return Ok(None);
        };
        let taken = [TAKEN, TAKEN + 1].into_iter().filter_map(|slot| taken(slots.read(slot))).max();
        Ok(Some((Note { slots, sequence, taken: taken.unwrap_or(0) }, found)))
    }

    pub(super) fn set_header(&mut self, header: &Header) {
        self.sequence += 1;
        let mut raw = RawHeader {
            crc: U32::ZERO,
            sequence: self.sequence.into(),
            nonce: header.nonce.into(),
            boot: header.boot.into(),
            base: header.base.into(),
            file: header.file.0.into(),
            job: header.job.0.into(),
            uid: header.uid.0.into(),
            binding: header.binding.into(),
        };
        raw.crc = crc32c(&raw.as_bytes()[4..]).into();
        self.slots.write(self.sequence % 2, &transmute!(raw));
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn set_taken(&mut self, taken: u64) {
        self.taken = taken;
        let mut raw =
            RawTaken { crc: U32::ZERO, kind: TAKEN_KIND.into(), taken: taken.into(), reserved: [0; 48] };
        raw.crc = crc32c(&raw.as_bytes()[4..]).into();
        let older = match [0, 1].map(|other| self::taken(self.slots.read(TAKEN + other))) {
            [Some(first), Some(second)] if first > second => 1,
            [Some(_), None] => 1,
            _ => 0,
        };
        self.slots.write(TAKEN + older, &transmute!(raw));
    }

    /// Adds a slab; false if the note is full.
    pub(super) fn add_slab(&self, slab: &SlabNote) -> bool {
        let mut places = SLABS..self.slots.count();
        let Some(free) = places.find(|&slot| read_slab(self.slots.read(slot)).is_none()) else {
            return false;
        };
        let mut raw = RawSlab {
            crc: U32::ZERO,
            number: slab.number.into(),
            region: slab.region.0.into(),
            generation: slab.generation.into(),
            start: slab.start.into(),
            len: slab.len.into(),
            slot: slab.slot.into(),
            slots: slab.slots.into(),
            reserved: [0; 32],
        };
        raw.crc = crc32c(&raw.as_bytes()[4..]).into();
        self.slots.write(free, &transmute!(raw));
        true
    }

    pub(super) fn remove_slab(&self, number: u32) {
        for slot in SLABS..self.slots.count() {
            if read_slab(self.slots.read(slot)).is_some_and(|slab| slab.number == number) {
                self.slots.write(slot, &[0; SLOT]);
            }
        }
    }

    /// The slabs, oldest first.
    pub(super) fn slabs(&self) -> Vec<SlabNote> {
        let mut slabs: Vec<SlabNote> =
            (SLABS..self.slots.count()).filter_map(|slot| read_slab(self.slots.read(slot))).collect();
        slabs.sort_by_key(|slab| slab.number);
        slabs
    }
}

fn header(bytes: [u8; SLOT]) -> Option<(u32, Header)> {
    let raw: RawHeader = transmute!(bytes);
    let header = Header {
        nonce: raw.nonce.get(),
        boot: raw.boot.get(),
        base: raw.base.get(),
        uid: Uid(raw.uid.get()),
        job: JobId(raw.job.get()),
        file: FileId(raw.file.get()),
        binding: raw.binding.get(),
    };
    (raw.crc.get() == crc32c(&bytes[4..]) && raw.sequence.get() > 0).then_some((raw.sequence.get(), header))
}

fn taken(bytes: [u8; SLOT]) -> Option<u64> {
    let raw: RawTaken = transmute!(bytes);
    (raw.crc.get() == crc32c(&bytes[4..]) && raw.kind.get() == TAKEN_KIND).then_some(raw.taken.get())
}

fn read_slab(bytes: [u8; SLOT]) -> Option<SlabNote> {
    let raw: RawSlab = transmute!(bytes);
    (raw.crc.get() == crc32c(&bytes[4..]) && raw.len.get() > 0).then_some(SlabNote {
        number: raw.number.get(),
        region: RegionId(raw.region.get()),
        generation: raw.generation.get(),
        start: raw.start.get(),
        len: raw.len.get(),
        slot: raw.slot.get(),
        slots: raw.slots.get(),
    })
}

fn unmapped(id: RingId, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::BadStore, format!("cannot map the note of ring {}: {error}", id.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::CrashDisk;

    #[test]
    fn crash_while_writing_a_note_slot_leaves_the_previous_one() {
        let disk = CrashDisk::default();
        let id = RingId(7);
        assert_eq!(Note::id_of(&Note::name(id)), Some(id));
        let first =
            Header { nonce: 5, boot: 6, base: 7, uid: Uid(8), job: JobId(9), file: FileId(10), binding: 1 };
        let slab = SlabNote {
            number: 3,
            region: RegionId(2),
            generation: 4,
            start: 64,
            len: 128,
            slot: 5,
            slots: 6,
        };
        let second = Header { file: FileId(11), binding: 2, ..first };
        let mut note = Note::create(&disk, id, &first).unwrap();
        note.set_taken(41);
        note.set_header(&second);
        note.set_taken(42);
        for number in 0..MOST_SLABS {
            assert!(note.add_slab(&SlabNote { number, ..slab }));
        }
        assert!(!note.add_slab(&slab), "no more than fit");
        note.remove_slab(0);
        let open = || {
            let (note, header) = Note::open(&disk, id).unwrap().unwrap();
            (header, note.taken(), note.slabs().iter().map(|slab| slab.number).collect::<Vec<_>>())
        };
        assert_eq!(open(), (second, 42, (1..MOST_SLABS).collect()));
        let spoil = |slot: u32| disk.flip(&Note::name(id), u64::from(slot) * SLOT as u64 + 9);
        // The second header went to slot 0, the second count to slot 3.
        for slot in [0, 3, SLABS + 1] {
            spoil(slot);
        }
        assert_eq!(open(), (first, 41, (2..MOST_SLABS).collect()));
        // A note of an earlier version, with space for fewer slabs.
        let file = disk.open(&Note::name(id)).unwrap().unwrap();
        file.set_len(u64::from(SLABS + 4) * SLOT as u64).unwrap();
        assert_eq!(open(), (first, 41, vec![2, 3]));
        spoil(1);
        assert!(Note::open(&disk, id).unwrap().is_none());
    }
}
