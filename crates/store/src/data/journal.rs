//! Reading a journal's bytes without opening its region.

use super::record::{Header, Record, Slot};
use crate::inspect::RegionView;
use forebay_model::{FileId, Incarnation, JobId, RegionId, Stamp, Uid};
use forebay_shm::SLOT;
use serde::Serialize;

/// A record as a person may want to see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct RecordView {
    /// Its slot.
    pub slot: u32,
    /// Which file.
    pub file: FileId,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
    /// Where in the region.
    pub position: u32,
    /// Its place in time.
    pub stamp: Stamp,
    /// The job that wrote it.
    pub job: JobId,
    /// The user who wrote it.
    pub uid: Uid,
    /// CRC32C of the bytes.
    pub crc: u32,
    /// Whether it counts only together with a later record of the same write.
    pub part: bool,
}

/// What the bytes of a journal say. Never fails: what cannot be read is told.
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
        Err(fault) => view.fault = Some(format!("neither header can be used: {fault:?}")),
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
