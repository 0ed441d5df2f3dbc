//! The bytes of each file in a store that no server has open, from its records and, if they are read, its journals.

use super::file::{File, SizeRecord};
use super::index::{Extent, Source};
use super::recover::stored_clock;
use super::tomb::{self, Tombs};
use crate::inspect::RegionView;
use crate::meta::{Batch, KeySpace, Kv};
use crate::store::INCARNATION_KEY;
use forebay_model::{FileId, Incarnation, Result, Span, Stamp};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;

/// The content of a store.
#[derive(Default)]
pub(crate) struct Rest {
    /// The incarnation of the store, if recorded.
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) files: BTreeMap<FileId, Held>,
    /// The latest stamp in the store; `None` if the journals were not read.
    pub(crate) newest: Option<Stamp>,
    /// Files with a distributed truncation or hole in progress: the servers finish it when they run.
    pub(crate) changing: BTreeSet<FileId>,
    /// Records that cannot be read.
    pub(crate) faults: Vec<String>,
}

/// Key prefixes of distributed changes: prepared, and decided.
const CHANGES: [&[u8]; 2] = [KeySpace::PreparedReshape.prefix(), KeySpace::DecidedReshape.prefix()];

/// The bytes of a file in a store.
#[derive(Default)]
pub(crate) struct Held {
    /// The recorded size, if any.
    pub(crate) noted: Option<u64>,
    /// Whether bytes may have been written since.
    pub(crate) size_pending: bool,
    /// One past the last byte that was found in a region.
    pub(crate) end: u64,
    /// Bytes below this offset that are not in the store were lost with an earlier incarnation of it.
    pub(crate) lost_below: u64,
    extents: Vec<Span>,
}

impl Held {
    /// One past the last known byte.
    pub(crate) fn size(&self) -> u64 {
        self.noted.unwrap_or(0).max(self.end)
    }

    /// The number of bytes below an offset that are in the store.
    pub(crate) fn there_below(&self, end: u64) -> u64 {
        let below = Span::new(0, end);
        self.extents.iter().filter_map(|span| span.intersect(below)).map(Span::len).sum()
    }
}

/// The content of journals, and whether their store was closed cleanly.
#[derive(Clone, Copy)]
pub(crate) struct Journals<'a> {
    pub(crate) regions: &'a [RegionView],
    pub(crate) clean: bool,
}

impl Rest {
    pub(crate) fn read(kv: &dyn Kv, journals: Option<Journals<'_>>) -> Result<Rest> {
        let incarnation = kv
            .get(INCARNATION_KEY)?
            .and_then(|bytes| Some(Incarnation(u128::from_be_bytes(bytes.try_into().ok()?))));
        let mut rest = Rest { incarnation, ..Rest::default() };
        for letter in CHANGES {
            kv.scan(letter, &[], &mut |key, _| {
                rest.changing.extend(file_of(key));
                ControlFlow::Continue(())
            })?;
        }
        let mut files = BTreeMap::new();
        kv.scan(KeySpace::Size.prefix(), &[], &mut |key, value| {
            match file_of(key).map(|id| (id, SizeRecord::decode(id, value))) {
                Some((id, Ok(record))) => {
                    let (noted, incarnation) = (record.size, incarnation.unwrap_or(record.incarnation));
                    files.insert(id, (Some(noted), File::load(Some(record), incarnation)));
                }
                Some((_, Err(error))) => rest.faults.push(error.to_string()),
                None => {
                    rest.faults.push(format!("\"{}\" is not the key of a size record", key.escape_ascii()));
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(journals) = journals {
            rest.newest = Some(replay(kv, journals, &mut files)?);
        }
        let unclean = journals.is_some_and(|journals| !journals.clean);
        rest.files = files.into_iter().map(|(id, (noted, file))| (id, held(noted, &file, unclean))).collect();
        Ok(rest)
    }
}

fn file_of(key: &[u8]) -> Option<FileId> {
    Some(FileId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

fn held(noted: Option<u64>, file: &File, unclean: bool) -> Held {
    let found = |extent: &&Extent| extent.source == Source::Backing;
    let end = file.index.extents().filter(found).map(|extent| extent.span.end).max();
    let extents = match file.lost_below {
        0 => Vec::new(),
        _ => file.index.extents().map(|extent| extent.span).collect(),
    };
    Held {
        noted,
        size_pending: file.size_pending || unclean,
        end: end.unwrap_or(0),
        lost_below: file.lost_below,
        extents,
    }
}

/// Replays the journals as recovery would. The region of a record does not matter, so all data is indexed as backing.
fn replay(
    kv: &dyn Kv,
    journals: Journals<'_>,
    files: &mut BTreeMap<FileId, (Option<u64>, File)>,
) -> Result<Stamp> {
    let tombs = Tombs::load(kv)?;
    let records = || journals.regions.iter().flat_map(|region| &region.records);
    let whole: HashSet<(FileId, Stamp)> =
        records().filter(|record| !record.part).map(|record| (record.file, record.stamp)).collect();
    let mut newest = tombs.newest().max(stored_clock(kv)?);
    for record in records() {
        newest = newest.max(record.stamp);
        let Some(span) = Span::at(record.offset, u64::from(record.len)) else { continue };
        if record.part && !whole.contains(&(record.file, record.stamp)) {
            continue;
        }
        let (_, file) = files.entry(record.file).or_insert_with(|| (None, File::default()));
        file.index.apply(Extent { span, stamp: record.stamp, source: Source::Backing }, &mut |_| {});
    }
    for id in tombs.files() {
        let Some((_, file)) = files.get_mut(&id) else { continue };
        for tomb in tombs.of(id) {
            let zeros = Extent { span: tomb.span, stamp: tomb.stamp, source: Source::Zero };
            file.index.apply(zeros, &mut |_| {});
        }
    }
    // A deleted file is hidden by its tombstone until its regions are reused.
    let is_gone = |noted: &Option<u64>, file: &File| {
        noted.is_none() && file.index.extents().all(|extent| extent.source == Source::Zero)
    };
    files.retain(|_, (noted, file)| !is_gone(noted, file));
    Ok(newest)
}

/// Marks the size of a file as pending, so that recovery computes it again.
pub(crate) fn mark_size_pending(kv: &dyn Kv, file: FileId, batch: &mut Batch) -> Result<()> {
    if let Some(value) = kv.get(&SizeRecord::key(file))? {
        let record = SizeRecord { size_pending: true, ..SizeRecord::decode(file, &value)? };
        batch.put(SizeRecord::key(file), record.encode());
    }
    Ok(())
}

/// Deletes all bytes of a file, with a tombstone later than all of them.
pub(crate) fn forget(file: FileId, after: Stamp, batch: &mut Batch) {
    batch.remove(SizeRecord::key(file));
    let (key, value) = tomb::of_everything(file, Stamp(after.0.saturating_add(1)));
    batch.put(key, value);
}
