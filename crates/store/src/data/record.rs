//! The records of a region's journal, byte by byte as in `docs/format.md`.

use crc32c::{crc32c, crc32c_append};
use forebay_model::{FileId, Incarnation, JobId, RegionId, Span, Stamp, Uid};
use forebay_shm::SLOT;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

const HEADER_MAGIC: [u8; 4] = *b"FBRG";
const KIND_DATA: u32 = 1;
const NO_UID: u32 = u32::MAX;

/// The version of the store's format.
pub(crate) const FORMAT: u32 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    crc: U32,
    magic: [u8; 4],
    format: U32,
    region: U32,
    generation: U32,
    uid: U32,
    incarnation: U128,
    size: U32,
    slots: U32,
    sequence: U64,
    reserved: [u8; 8],
}

/// The first or the last slot of a journal: the region and its generation. A new header overwrites the older of the
/// two, so that a crash while writing it leaves the other intact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) region: RegionId,
    pub(super) generation: u32,
    /// The only user whose bytes this file has ever held.
    pub(super) uid: Option<Uid>,
    pub(super) incarnation: Incarnation,
    pub(super) size: u32,
    pub(super) slots: u32,
    /// Sequence number of the header within this journal.
    pub(super) sequence: u64,
}

/// Why a header cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeaderFault {
    /// Not a header, or a damaged one.
    Damaged,
    /// A header of another version of the format.
    Format(u32),
}

impl Header {
    pub(super) fn encode(&self) -> [u8; SLOT] {
        let mut raw = RawHeader {
            crc: U32::ZERO,
            magic: HEADER_MAGIC,
            format: FORMAT.into(),
            region: self.region.0.into(),
            generation: self.generation.into(),
            uid: self.uid.map_or(NO_UID, |uid| uid.0).into(),
            incarnation: self.incarnation.0.into(),
            size: self.size.into(),
            slots: self.slots.into(),
            sequence: self.sequence.into(),
            reserved: [0; 8],
        };
        raw.crc = crc32c(&raw.as_bytes()[4..]).into();
        transmute!(raw)
    }

    pub(super) fn decode(bytes: [u8; SLOT]) -> Result<Header, HeaderFault> {
        let raw: RawHeader = transmute!(bytes);
        if raw.magic != HEADER_MAGIC || raw.crc.get() != crc32c(&bytes[4..]) {
            return Err(HeaderFault::Damaged);
        }
        if raw.format.get() != FORMAT {
            return Err(HeaderFault::Format(raw.format.get()));
        }
        Ok(Header {
            region: RegionId(raw.region.get()),
            generation: raw.generation.get(),
            uid: Some(raw.uid.get()).filter(|&uid| uid != NO_UID).map(Uid),
            incarnation: Incarnation(raw.incarnation.get()),
            size: raw.size.get(),
            slots: raw.slots.get(),
            sequence: raw.sequence.get(),
        })
    }

    /// The newer of a journal's two headers. A torn header is ignored; a header of another format is an error.
    pub(super) fn newest(first: [u8; SLOT], last: [u8; SLOT]) -> Result<Header, HeaderFault> {
        match (Header::decode(first), Header::decode(last)) {
            (Ok(first), Ok(last)) if last.sequence > first.sequence => Ok(last),
            (Err(HeaderFault::Damaged), other) => other,
            (one, Err(HeaderFault::Damaged)) => one,
            (Ok(_), Err(fault)) => Err(fault),
            (first, _) => first,
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRecord {
    crc: U32,
    generation: U32,
    file: U64,
    offset: U64,
    len: U32,
    position: U32,
    stamp: U64,
    job: U64,
    uid: U32,
    payload_crc: U32,
    kind: U32,
    reserved: [u8; 4],
}

/// The record that commits bytes in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) generation: u32,
    pub(super) file: FileId,
    pub(super) span: Span,
    /// Position of the bytes in the region.
    pub(super) position: u32,
    pub(super) stamp: Stamp,
    pub(super) job: JobId,
    pub(super) uid: Uid,
    pub(super) payload_crc: u32,
}

/// The content of a journal slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// Never written.
    Empty,
    /// A complete record, of any generation.
    Record(Record),
    /// A complete record of a write with several records: valid only if the last of them, with the same file and stamp,
    /// exists.
    Part(Record),
    /// Not a complete record.
    Torn,
}

impl Record {
    pub(super) fn len(&self) -> u32 {
        self.span.len() as u32
    }

    /// Encodes a record that is valid only with a later one. Its checksum is inverted, so that one store of four bytes
    /// turns it into a full record.
    pub(super) fn encode_part(&self, incarnation: Incarnation) -> [u8; SLOT] {
        let mut bytes = self.encode(incarnation);
        bytes[..4].iter_mut().for_each(|byte| *byte = !*byte);
        bytes
    }

    pub(super) fn encode(&self, incarnation: Incarnation) -> [u8; SLOT] {
        let mut raw = RawRecord {
            crc: U32::ZERO,
            generation: self.generation.into(),
            file: self.file.0.into(),
            offset: self.span.start.into(),
            len: self.len().into(),
            position: self.position.into(),
            stamp: self.stamp.0.into(),
            job: self.job.0.into(),
            uid: self.uid.0.into(),
            payload_crc: self.payload_crc.into(),
            kind: KIND_DATA.into(),
            reserved: [0; 4],
        };
        raw.crc = checksum(incarnation, &raw.as_bytes()[4..]).into();
        transmute!(raw)
    }

    pub(super) fn decode(bytes: [u8; SLOT], incarnation: Incarnation) -> Slot {
        if bytes == [0; SLOT] {
            return Slot::Empty;
        }
        let raw: RawRecord = transmute!(bytes);
        let span = Span::at(raw.offset.get(), u64::from(raw.len.get()));
        let crc = checksum(incarnation, &bytes[4..]);
        let Some(span) = span.filter(|span| raw.kind.get() == KIND_DATA && !span.is_empty()) else {
            return Slot::Torn;
        };
        let record = Record {
            generation: raw.generation.get(),
            file: FileId(raw.file.get()),
            span,
            position: raw.position.get(),
            stamp: Stamp(raw.stamp.get()),
            job: JobId(raw.job.get()),
            uid: Uid(raw.uid.get()),
            payload_crc: raw.payload_crc.get(),
        };
        match raw.crc.get() {
            found if found == crc => Slot::Record(record),
            found if found == !crc => Slot::Part(record),
            _ => Slot::Torn,
        }
    }
}

/// The checksum covers the incarnation, so that a record of another store is never accepted.
fn checksum(incarnation: Incarnation, bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&incarnation.0.to_le_bytes()), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Incarnation = Incarnation(42);

    fn record() -> Record {
        Record {
            generation: 3,
            file: FileId(9),
            span: Span::new(4096, 8192),
            position: 512,
            stamp: Stamp(77),
            job: JobId(5),
            uid: Uid(1000),
            payload_crc: 0xdead_beef,
        }
    }

    #[test]
    fn record_encoding_round_trips_and_detects_any_bit_flip() {
        let bytes = record().encode(OURS);
        assert_eq!(Record::decode(bytes, OURS), Slot::Record(record()));
        assert_eq!(Record::decode(bytes, Incarnation(43)), Slot::Torn);
        assert_eq!(Record::decode([0; SLOT], OURS), Slot::Empty);
        let part = record().encode_part(OURS);
        assert_eq!(Record::decode(part, OURS), Slot::Part(record()));
        assert_eq!(part[4..], bytes[4..], "they differ only in the checksum");
        for bit in 0..SLOT * 8 {
            for mut bad in [bytes, part] {
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(bad, OURS), Slot::Torn, "bit {bit}");
            }
        }
    }

    #[test]
    fn header_encoding_round_trips_and_reports_other_formats() {
        let header = Header {
            region: RegionId(3),
            generation: 8,
            uid: None,
            incarnation: OURS,
            size: 1 << 20,
            slots: 512,
            sequence: 5,
        };
        let bytes = header.encode();
        assert_eq!(Header::decode(bytes), Ok(header));
        assert_eq!(Header::decode([0; SLOT]), Err(HeaderFault::Damaged));
        let mut foreign: RawHeader = transmute!(bytes);
        foreign.format = 9.into();
        foreign.crc = crc32c(&foreign.as_bytes()[4..]).into();
        let foreign = transmute!(foreign);
        assert_eq!(Header::decode(foreign), Err(HeaderFault::Format(9)));

        let (old, torn) = (Header { sequence: 4, generation: 7, ..header }.encode(), [7; SLOT]);
        for (first, last, expected) in [
            (bytes, old, Ok(header)),
            (old, bytes, Ok(header)),
            (bytes, torn, Ok(header)),
            ([0; SLOT], bytes, Ok(header)),
            (torn, [0; SLOT], Err(HeaderFault::Damaged)),
            (bytes, foreign, Err(HeaderFault::Format(9))),
            (foreign, bytes, Err(HeaderFault::Format(9))),
            (foreign, torn, Err(HeaderFault::Format(9))),
        ] {
            assert_eq!(Header::newest(first, last), expected);
        }
    }
}
