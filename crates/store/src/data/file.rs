//! The state of one file's bytes.

use super::backing::{Backing, Stretch};
use super::index::{Extent, Index, Source};
use super::mapped::Mapped;
use crate::meta::KeySpace;
use forebay_model::{Error, ErrorKind, FileId, Incarnation, RegionId, Result, Stamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The part of a file's state that is kept in the metadata store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SizeRecord {
    /// Minimum length: if `size_pending`, extents found in regions may reach further.
    pub(super) size: u64,
    /// The last recorded change of its bytes; recovery may find a later one.
    pub(super) touched: Option<Stamp>,
    /// The incarnation of the store that holds its bytes.
    pub(super) incarnation: Incarnation,
    /// Bytes may have been written since this record.
    pub(super) size_pending: bool,
    /// Bytes below this offset that are in no extent were lost with an earlier incarnation of the store.
    pub(super) lost_below: u64,
    /// Bytes in the back end.
    pub(super) backing: Vec<Stretch>,
}

impl SizeRecord {
    pub(super) fn key(file: FileId) -> [u8; 9] {
        let mut key = [KeySpace::Size as u8; 9];
        key[1..].copy_from_slice(&file.0.to_be_bytes());
        key
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a size record can always be encoded")
    }

    pub(super) fn decode(file: FileId, bytes: &[u8]) -> Result<SizeRecord> {
        postcard::from_bytes(bytes)
            .map_err(|error| Error::new(ErrorKind::BadStore, format!("size record of file {file}: {error}")))
    }
}

/// A file with bytes in the store, or about to have some. Its lock orders everything that happens to the file.
pub(super) type FileState = Arc<Mutex<File>>;

/// The state that the lock protects.
#[derive(Default)]
pub(super) struct File {
    pub(super) index: Index,
    pub(super) size: u64,
    pub(super) touched: Option<Stamp>,
    /// The last truncation or hole. A write that was stamped before it and consumed after it is concurrent, and counts
    /// as the later of the two.
    pub(super) ordered: Stamp,
    /// Bytes in the back end, including those that newer bytes overlay.
    pub(super) backing: Backing,
    /// Bytes below this offset that are in no extent were lost with an earlier incarnation of the store.
    pub(super) lost_below: u64,
    /// The metadata store records that extents may reach beyond the recorded size.
    pub(super) size_pending: bool,
    /// Regions, with their generation, that hold a record of this file, live or dead.
    pub(super) regions: BTreeMap<RegionId, u32>,
    /// The file is deleted: operations that still hold this state must fail.
    pub(super) deleted: bool,
    /// The shared-memory object through which processes of this machine map the file.
    pub(super) mapped: Option<Box<Mapped>>,
}

impl File {
    /// Loads the record from the metadata store. Must run before anything is applied to the index.
    pub(super) fn load(record: Option<SizeRecord>, incarnation: Incarnation) -> File {
        let mut file = File::default();
        if let Some(record) = record {
            file.size = record.size;
            file.touched = record.touched;
            let whole = record.incarnation == incarnation;
            file.size_pending = record.size_pending && whole;
            file.lost_below = match whole {
                true => record.lost_below,
                // If the size was not persisted, it is unknown how far the bytes reached.
                false if record.size_pending => u64::MAX,
                false => record.lost_below.max(record.size),
            };
            // It is also unknown which bytes of the back end they overlaid.
            if whole || !record.size_pending {
                file.backing = Backing::load(&record.backing, whole);
                file.backing.extents().for_each(|extent| file.index.apply(extent, &mut |_| {}));
                file.ordered = file.backing.extents().map(|extent| extent.stamp).max().unwrap_or_default();
            }
        }
        file
    }

    /// The record to persist, with these extents over the backing ranges. Fails if it is too large.
    pub(super) fn record(
        &self,
        extents: &Index,
        incarnation: Incarnation,
        size_pending: bool,
    ) -> Result<SizeRecord> {
        let (size, touched, lost_below) = (self.size, self.touched, self.lost_below);
        let backing = self.backing.written(extents)?;
        Ok(SizeRecord { size, touched, incarnation, size_pending, lost_below, backing })
    }

    /// Whether the file's content is exactly the data in the back end.
    pub(super) fn matches_backing(&self) -> bool {
        let mut end = 0;
        let follows = |extent: &Extent| {
            extent.source == Source::Backing
                && std::mem::replace(&mut end, extent.span.end) == extent.span.start
        };
        // Zeros that hide truncated records lie beyond the size.
        self.index.extents().take_while(|extent| extent.span.start < self.size).all(follows)
            && end == self.size
    }

    pub(super) fn touch(&mut self, stamp: Stamp) {
        self.touched = self.touched.max(Some(stamp));
        self.index.leases.notify();
    }

    /// The error for bytes that an earlier incarnation of the store held.
    pub(super) fn lost(&self, from: u64) -> Error {
        let text = format!(
            "the bytes from {from} on were lost with an earlier incarnation of the store: truncate the file"
        );
        Error::new(ErrorKind::Io, text)
    }

    /// Fails if the file is mapped: it is then read and written through requests only.
    pub(super) fn check_unmapped(&self) -> Result<()> {
        match self.mapped {
            None => Ok(()),
            Some(_) => {
                Err(Error::new(ErrorKind::Invalid, "the file is mapped: read and write it through requests"))
            }
        }
    }

    /// Fails if the file was deleted in the meantime.
    pub(super) fn alive(&self) -> Result<()> {
        if self.deleted { Err(Error::new(ErrorKind::Stale, "the file was removed")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lost_with_an_incarnation_stay_lost_in_later_ones() {
        let (one, two, three) = (Incarnation(1), Incarnation(2), Incarnation(3));
        for (size_pending, lost) in [(false, 100), (true, u64::MAX)] {
            let whole = File { size: 100, ..File::default() };
            assert_eq!(
                File::load(Some(whole.record(&whole.index, one, size_pending).unwrap()), one).lost_below,
                0
            );
            let rest = File::load(Some(whole.record(&whole.index, one, size_pending).unwrap()), two);
            assert_eq!(rest.lost_below, lost);
            let again = File::load(Some(rest.record(&rest.index, two, true).unwrap()), two);
            assert_eq!(again.lost_below, lost, "something was written, and the server started again");
        }
        let file = File { size: 40, lost_below: 100, ..File::default() };
        assert_eq!(File::load(Some(file.record(&file.index, two, false).unwrap()), three).lost_below, 100);
    }
}
