//! What a store that nobody serves holds of each file's bytes: as its records say, and its journals where they are read.

use super::file::{File, SizeRecord};
use super::index::{Extent, Source};
use super::recover::stored_clock;
use super::tomb::{self, Tombs};
use crate::inspect::RegionView;
use crate::meta::{Batch, Kv};
use crate::store::INCARNATION_KEY;
use forebay_model::{FileId, Incarnation, Result, Span, Stamp};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;

/// What a store holds.
#[derive(Default)]
pub(crate) struct Rest {
    /// Which life of the store this is, where it says so.
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) files: BTreeMap<FileId, Held>,
    /// Later than everything that was stamped; only where the journals were read.
    pub(crate) newest: Option<Stamp>,
    /// Files of which a change is under way that several stores make: it is finished when they are served.
    pub(crate) changing: BTreeSet<FileId>,
    /// What cannot be read.
    pub(crate) faults: Vec<String>,
}

/// Where changes are noted that several stores make: prepared, and decided.
const CHANGES: [&[u8]; 2] = [b"r", b"u"];

/// What a store holds of a file.
#[derive(Default)]
pub(crate) struct Held {
    /// The length that is noted, if one is.
    pub(crate) noted: Option<u64>,
    /// Whether bytes may have been written since.
    pub(crate) unsettled: bool,
    /// One past the last byte that was found in a region.
    pub(crate) end: u64,
    /// Bytes below this offset that are not there were lost with an earlier life of the store.
    pub(crate) lost_below: u64,
    there: Vec<Span>,
}

impl Held {
    /// One past the last byte that it knows of.
    pub(crate) fn size(&self) -> u64 {
        self.noted.unwrap_or(0).max(self.end)
    }

    /// How many bytes below an offset are there.
    pub(crate) fn there_below(&self, end: u64) -> u64 {
        let below = Span::new(0, end);
        self.there.iter().filter_map(|span| span.meet(below)).map(Span::len).sum()
    }
}

/// What journals say, and whether their server left them in order.
#[derive(Clone, Copy)]
pub(crate) struct Journals<'a> {
    pub(crate) regions: &'a [RegionView],
    pub(crate) clean: bool,
}

impl Rest {
    pub(crate) fn read(kv: &dyn Kv, journals: Option<Journals<'_>>) -> Result<Rest> {
        let life = kv
            .get(INCARNATION_KEY)?
            .and_then(|bytes| Some(Incarnation(u128::from_be_bytes(bytes.try_into().ok()?))));
        let mut rest = Rest { incarnation: life, ..Rest::default() };
        for letter in CHANGES {
            kv.scan(letter, &[], &mut |key, _| {
                rest.changing.extend(file_of(key));
                ControlFlow::Continue(())
            })?;
        }
        let mut files = BTreeMap::new();
        kv.scan(b"s", &[], &mut |key, value| {
            match file_of(key).map(|id| (id, SizeRecord::decode(id, value))) {
                Some((id, Ok(record))) => {
                    let (noted, life) = (record.size, life.unwrap_or(record.incarnation));
                    files.insert(id, (Some(noted), File::load(Some(record), life)));
                }
                Some((_, Err(error))) => rest.faults.push(error.to_string()),
                None => rest.faults.push(format!("\"{}\" is not the key of a length", key.escape_ascii())),
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
    let found = |extent: &&Extent| extent.source == Source::Behind;
    let end = file.index.extents().filter(found).map(|extent| extent.span.end).max();
    let there = match file.lost_below {
        0 => Vec::new(),
        _ => file.index.extents().map(|extent| extent.span).collect(),
    };
    Held {
        noted,
        unsettled: file.unsettled || unclean,
        end: end.unwrap_or(0),
        lost_below: file.lost_below,
        there,
    }
}

/// Puts what the journals say in its place, as recovery would. Which regions hold it does not matter here: everything that
/// is not zero stands as if it were behind.
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
        file.index.apply(Extent { span, stamp: record.stamp, source: Source::Behind }, &mut |_| {});
    }
    for id in tombs.files() {
        let Some((_, file)) = files.get_mut(&id) else { continue };
        for tomb in tombs.of(id) {
            let zeros = Extent { span: tomb.span, stamp: tomb.stamp, source: Source::Zero };
            file.index.apply(zeros, &mut |_| {});
        }
    }
    // What was deleted is hidden until its regions are used again.
    let is_gone = |noted: &Option<u64>, file: &File| {
        noted.is_none() && file.index.extents().all(|extent| extent.source == Source::Zero)
    };
    files.retain(|_, (noted, file)| !is_gone(noted, file));
    Ok(newest)
}

/// Has the length of what a store holds of a file found out again when the store is opened.
pub(crate) fn unsettle(kv: &dyn Kv, file: FileId, batch: &mut Batch) -> Result<()> {
    if let Some(value) = kv.get(&SizeRecord::key(file))? {
        let record = SizeRecord { unsettled: true, ..SizeRecord::decode(file, &value)? };
        batch.put(SizeRecord::key(file), record.encode());
    }
    Ok(())
}

/// Forgets all bytes of a file, as of a moment after all of them were written.
pub(crate) fn forget(file: FileId, after: Stamp, batch: &mut Batch) {
    batch.remove(SizeRecord::key(file));
    let (key, value) = tomb::of_everything(file, Stamp(after.0.saturating_add(1)));
    batch.put(key, value);
}
