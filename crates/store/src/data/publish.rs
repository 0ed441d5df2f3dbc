//! Publishing filled bytes: first all records of a write, then the index.
//!
//! **Invariant**: old bytes become dead only after recovery can find the write that replaces them. Recovery finds a
//! write with several records completely or not at all: all records but the last are valid only together with it, until
//! each is confirmed.

use super::file::File;
use super::index::{Bytes, Extent, Source};
use super::record::Record;
use super::region::Region;
use super::{Data, Filled, Grant};
use forebay_model::{FileId, JobId, Span, Stamp, Uid};
use forebay_shm::Ticket;
use std::sync::Arc;

/// Fields that all records of one write share.
#[derive(Clone, Copy)]
pub(super) struct Write {
    pub(super) file: FileId,
    pub(super) stamp: Stamp,
    pub(super) job: JobId,
}

/// Filled bytes without a record yet.
pub(super) struct Put {
    pub(super) region: Arc<Region>,
    pub(super) slot: u32,
    pub(super) uid: Uid,
    pub(super) len: u32,
    pub(super) crc: u32,
    pub(super) space: Space,
}

/// The space that they fill.
pub(super) enum Space {
    /// A whole grant, which ends with the record.
    Grant(forebay_shm::Grant),
    /// A piece of a slab, which remains granted.
    Slab(Ticket),
}

impl From<Filled> for Put {
    fn from(filled: Filled) -> Put {
        let Filled { grant: Grant { region, slot, uid, bytes, .. }, len, crc } = filled;
        Put { region, slot, uid, len, crc, space: Space::Grant(bytes) }
    }
}

/// A record in its journal, not yet in the index.
pub(super) struct Written {
    region: Arc<Region>,
    slot: u32,
    record: Record,
    ticket: Ticket,
}

impl Data {
    /// Publishes the parts of a write at an offset; true if a region has no live bytes any more.
    pub(super) fn publish(&self, write: Write, file: &mut File, offset: u64, parts: Vec<Put>) -> bool {
        let parts: Vec<Put> = parts.into_iter().filter(|part| part.len > 0).collect();
        let (count, mut at) = (parts.len(), offset);
        let written = parts.into_iter().enumerate().map(|(number, part)| {
            let span = Span::new(at, at + u64::from(part.len));
            at = span.end;
            self.write_down(write, file, span, part, number + 1 == count)
        });
        let written: Vec<Written> = written.collect();
        // The last record is written, so every part is valid: confirms each.
        for Written { region, slot, record, .. } in written.iter().rev().skip(1) {
            region.confirm_part(*slot, record);
        }
        self.take_effect(file, &written)
    }

    /// Writes one record. Counts its bytes as live until the index counts them, so that the region never appears dead
    /// in between.
    pub(super) fn write_down(
        &self,
        write: Write,
        file: &mut File,
        span: Span,
        part: Put,
        last: bool,
    ) -> Written {
        let Put { region, slot, uid, len, crc, space } = part;
        let Write { file: id, stamp, job } = write;
        let position = match &space {
            Space::Grant(grant) => grant.start(),
            Space::Slab(ticket) => ticket.start(),
        };
        let generation = region.arena.generation();
        region.files.lock().insert(id);
        file.regions.insert(region.id, generation);
        let record = Record { generation, file: id, span, position, stamp, job, uid, payload_crc: crc };
        region.add_live(i64::from(len), 0);
        let ticket = match space {
            Space::Grant(grant) => grant.publish(len),
            Space::Slab(ticket) => ticket,
        };
        match last {
            true => region.write_record(slot, &record),
            false => region.write_part(slot, &record),
        }
        Written { region, slot, record, ticket }
    }

    fn take_effect(&self, file: &mut File, written: &[Written]) -> bool {
        let mut dead = false;
        for Written { region, slot, record, ticket } in written {
            let (job, uid) = (record.job, record.uid);
            let bytes = Bytes { region: region.id, slot: *slot, record: *ticket, from: 0, job, uid };
            let extent = Extent { span: record.span, stamp: record.stamp, source: Source::Data(bytes) };
            self.index_cost.around(|| file.index.apply(extent, &mut |delta| dead |= self.adjust(delta)));
            dead |= region.add_live(-i64::from(record.len()), 0) == 0;
        }
        dead
    }
}
