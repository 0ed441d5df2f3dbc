//! What the store knows of one file's bytes.

use super::behind::{Behind, Stretch};
use super::index::{Extent, Index, Source};
use forebay_model::{Error, ErrorKind, FileId, Incarnation, RegionId, Result, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What is kept of a file's bytes in the metadata store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SizeRecord {
    /// Length, at least: extents found in regions may reach further if `unsettled`.
    pub(super) size: u64,
    /// The last change of its bytes, at least.
    pub(super) touched: Option<Stamp>,
    /// The life of the store that holds its bytes.
    pub(super) incarnation: Incarnation,
    /// Bytes may have been written since this record.
    pub(super) unsettled: bool,
    /// Bytes below this offset that are in no extent were lost with an earlier life of the store.
    pub(super) lost_below: u64,
    /// Bytes that the back end holds.
    pub(super) behind: Vec<Stretch>,
}

impl SizeRecord {
    pub(super) fn key(file: FileId) -> [u8; 9] {
        let mut key = [b's'; 9];
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

/// A file with bytes in the store, or about to have some. Its lock is the one point where everything that happens
/// to the file is put in order.
pub(super) type FileState = Arc<Mutex<File>>;

/// The state behind the lock.
#[derive(Default)]
pub(super) struct File {
    pub(super) index: Index,
    pub(super) size: u64,
    pub(super) touched: Option<Stamp>,
    /// The last change of its length, or hole in it. A write that was stamped before and heard of after it happened at
    /// the same time, and counts as the later of the two.
    pub(super) ordered: Stamp,
    /// Bytes that the back end holds, those that newer bytes lie over among them.
    pub(super) behind: Behind,
    /// Bytes below this offset that are in no extent were lost with an earlier life of the store.
    pub(super) lost_below: u64,
    /// The metadata store says that extents may reach beyond its size record.
    pub(super) unsettled: bool,
    /// Regions, with their generation, that hold a record of this file, live or dead.
    pub(super) regions: BTreeMap<RegionId, u32>,
    /// No longer a file: whoever still holds this state is too late.
    pub(super) deleted: bool,
}

impl File {
    /// Takes over what the metadata store knows. To be called before anything is applied to the index.
    pub(super) fn load(record: Option<SizeRecord>, incarnation: Incarnation) -> File {
        let mut file = File::default();
        if let Some(record) = record {
            file.size = record.size;
            file.touched = record.touched;
            let whole = record.incarnation == incarnation;
            file.unsettled = record.unsettled && whole;
            file.lost_below = match whole {
                true => record.lost_below,
                // Of an unsettled file nobody knows how far its bytes reached.
                false if record.unsettled => u64::MAX,
                false => record.lost_below.max(record.size),
            };
            // Nor which of the bytes behind they lay over.
            if whole || !record.unsettled {
                file.behind = Behind::load(&record.behind, whole);
                file.behind.extents().for_each(|extent| file.index.apply(extent, &mut |_| {}));
                file.ordered = file.behind.extents().map(|extent| extent.stamp).max().unwrap_or_default();
            }
        }
        file
    }

    /// What is to be kept, with these extents over what is behind. Fails if it is too much.
    pub(super) fn record(
        &self,
        extents: &Index,
        incarnation: Incarnation,
        unsettled: bool,
    ) -> Result<SizeRecord> {
        let (size, touched, lost_below) = (self.size, self.touched, self.lost_below);
        let behind = self.behind.written(extents)?;
        Ok(SizeRecord { size, touched, incarnation, unsettled, lost_below, behind })
    }

    /// Whether its bytes are those behind, all of them, and nothing else.
    pub(super) fn is_as_behind(&self) -> bool {
        let mut end = 0;
        let follows = |extent: &Extent| {
            extent.source == Source::Behind
                && std::mem::replace(&mut end, extent.span.end) == extent.span.start
        };
        // What hides records that were cut off lies beyond.
        self.index.extents().take_while(|extent| extent.span.start < self.size).all(follows)
            && end == self.size
    }

    pub(super) fn touch(&mut self, stamp: Stamp) {
        self.touched = self.touched.max(Some(stamp));
        self.index.leases.tell();
    }

    /// The error for bytes that an earlier life of the store held.
    pub(super) fn lost(&self, from: u64) -> Error {
        let text = format!(
            "the bytes from {from} on were lost with an earlier life of the store: truncate the file"
        );
        Error::new(ErrorKind::Io, text)
    }

    /// Fails if somebody deleted the file in the meantime.
    pub(super) fn alive(&self) -> Result<()> {
        if self.deleted { Err(Error::new(ErrorKind::Stale, "the file was removed")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_life_of_the_store_lost_stays_lost_in_all_later_ones() {
        let (one, two, three) = (Incarnation(1), Incarnation(2), Incarnation(3));
        for (unsettled, lost) in [(false, 100), (true, u64::MAX)] {
            let whole = File { size: 100, ..File::default() };
            assert_eq!(
                File::load(Some(whole.record(&whole.index, one, unsettled).unwrap()), one).lost_below,
                0
            );
            let rest = File::load(Some(whole.record(&whole.index, one, unsettled).unwrap()), two);
            assert_eq!(rest.lost_below, lost);
            let again = File::load(Some(rest.record(&rest.index, two, true).unwrap()), two);
            assert_eq!(again.lost_below, lost, "something was written, and the server started again");
        }
        let file = File { size: 40, lost_below: 100, ..File::default() };
        assert_eq!(File::load(Some(file.record(&file.index, two, false).unwrap()), three).lost_below, 100);
    }
}
