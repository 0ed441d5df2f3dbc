//! Reading a journal's bytes without opening its region.

use super::record::{Header, HeaderFault, Record, Slot};
use crate::inspect::RegionView;
use forebay_model::{FileId, Incarnation, JobId, RegionId, Stamp, Uid};
use forebay_shm::SLOT;
use serde::Serialize;

/// A decoded record for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct RecordView {
    /// Its slot in the journal.
    pub slot: u32,
    /// The file.
    pub file: FileId,
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
    /// Position in the region.
    pub position: u32,
    /// Its stamp.
    pub stamp: Stamp,
    /// The job that wrote it.
    pub job: JobId,
    /// The user who wrote it.
    pub uid: Uid,
    /// CRC32C of the bytes.
    pub crc: u32,
    /// Whether it is valid only together with a later record of the same write.
    pub part: bool,
}

/// Decodes a journal. Never fails: damage is reported in the result.
pub(crate) fn read_journal(region: RegionId, bytes: &[u8], incarnation: Incarnation) -> RegionView {
    let mut view = RegionView {
        region,
        generation: None,
        uid: None,
        records: Vec::new(),
        stale: 0,
        torn: 0,
        fault: None,
    };
    let [first, slots @ .., last] = bytes.as_chunks::<SLOT>().0 else {
        view.fault = Some("the journal is empty".to_owned());
        return view;
    };
    match Header::newest(*first, *last) {
        Ok(header) => (view.generation, view.uid) = (Some(header.generation), header.uid),
        Err(HeaderFault::Damaged) => view.fault = Some("both headers of the journal are damaged".to_owned()),
        Err(HeaderFault::Format(format)) => view.fault = Some(format!("the journal has format {format}")),
    }
    for (number, slot) in slots.iter().enumerate() {
        match Record::decode(*slot, incarnation) {
            Slot::Empty => {}
            slot @ (Slot::Record(record) | Slot::Part(record))
                if view.generation.is_none_or(|generation| generation == record.generation) =>
            {
                view.records.push(show(number as u32, &record, matches!(slot, Slot::Part(_))));
            }
            Slot::Record(_) | Slot::Part(_) => view.stale += 1,
            Slot::Torn => view.torn += 1,
        }
    }
    view
}

fn show(slot: u32, record: &Record, part: bool) -> RecordView {
    RecordView {
        slot,
        file: record.file,
        offset: record.span.start,
        len: record.len(),
        position: record.position,
        stamp: record.stamp,
        job: record.job,
        uid: record.uid,
        crc: record.payload_crc,
        part,
    }
}
