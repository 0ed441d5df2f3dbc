//! Tombstones of truncations, punches and deletions: stamped zeros that outlive the bytes they hide.
//!
//! **Invariant**: a tombstone stays until no region holds an older record of its file; otherwise recovery would bring
//! dead bytes back.

use crate::meta::{Batch, KeySpace, Kv};
use forebay_model::{Error, ErrorKind, FileId, RegionId, Result, Span, Stamp};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

/// Largest number of tombstones of one file. Reached only by punching thousands of separate holes.
const MOST: usize = 4096;

/// One range of zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tomb {
    pub(super) stamp: Stamp,
    pub(super) span: Span,
    /// Regions that hold, or may hold, older records of the file.
    regions: BTreeSet<RegionId>,
}

/// All tombstones.
#[derive(Default)]
pub(super) struct Tombs {
    files: HashMap<FileId, Vec<Tomb>>,
}

fn key(file: FileId, stamp: Stamp) -> Vec<u8> {
    [KeySpace::Tombstone.prefix(), &file.0.to_be_bytes(), &stamp.0.to_be_bytes()].concat()
}

fn value(span: Span) -> Vec<u8> {
    [span.start.to_be_bytes(), span.end.to_be_bytes()].concat()
}

fn decode(key: &[u8], value: &[u8]) -> Option<(FileId, Stamp, Span)> {
    let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    if key.len() != 17 || value.len() != 16 {
        return None;
    }
    let (start, end) = (number(&value[..8])?, number(&value[8..])?);
    let span = (start < end).then(|| Span::new(start, end))?;
    Some((FileId(number(&key[1..9])?), Stamp(number(&key[9..])?), span))
}

/// The record of a tombstone that hides a whole file.
pub(super) fn of_everything(file: FileId, stamp: Stamp) -> (Vec<u8>, Vec<u8>) {
    (key(file, stamp), value(Span::from(0)))
}

impl Tombs {
    /// Loads all tombstones of the metadata store. [`Tombs::hold`] then adds the regions that they still hide records
    /// in.
    pub(super) fn load(kv: &dyn Kv) -> Result<Tombs> {
        let mut tombs = Tombs::default();
        let mut fault = None;
        kv.scan(KeySpace::Tombstone.prefix(), b"", &mut |key, value| match decode(key, value) {
            Some((file, stamp, span)) => {
                let tomb = Tomb { stamp, span, regions: BTreeSet::new() };
                tombs.files.entry(file).or_default().push(tomb);
                ControlFlow::Continue(())
            }
            None => {
                fault = Some(Error::new(ErrorKind::BadStore, "a tombstone in the metadata store is damaged"));
                ControlFlow::Break(())
            }
        })?;
        fault.map_or(Ok(tombs), Err)
    }

    /// The tombstones of a file.
    pub(super) fn of(&self, file: FileId) -> &[Tomb] {
        self.files.get(&file).map_or(&[], Vec::as_slice)
    }

    /// The latest stamp on any tombstone.
    pub(super) fn newest(&self) -> Stamp {
        self.files.values().flatten().map(|tomb| tomb.stamp).max().unwrap_or_default()
    }

    /// Files that have tombstones.
    pub(super) fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.files.keys().copied()
    }

    /// Records that a region holds a record of a file with this stamp.
    pub(super) fn hold(&mut self, file: FileId, region: RegionId, stamp: Stamp) {
        for tomb in self.files.get_mut(&file).into_iter().flatten().filter(|tomb| tomb.stamp > stamp) {
            tomb.regions.insert(region);
        }
    }

    /// Prepares the changes for a new tombstone; `None` if no region holds a record. Removes tombstones that it covers.
    pub(super) fn plan(
        &self,
        file: FileId,
        stamp: Stamp,
        span: Span,
        regions: BTreeSet<RegionId>,
        batch: &mut Batch,
    ) -> Result<Option<Tomb>> {
        if regions.is_empty() {
            return Ok(None);
        }
        let covered = self.of(file).iter().filter(|tomb| tomb.span.intersect(span) == Some(tomb.span));
        let left =
            self.of(file).len() - covered.clone().map(|tomb| batch.remove(key(file, tomb.stamp))).count();
        if left >= MOST {
            let text = format!("file {file} has {MOST} punched ranges over older bytes: rewrite the file");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        batch.put(key(file, stamp), value(span));
        Ok(Some(Tomb { stamp, span, regions }))
    }

    /// Adds a planned tombstone after its batch is committed.
    pub(super) fn add(&mut self, file: FileId, tomb: Tomb) {
        let tombs = self.files.entry(file).or_default();
        tombs.retain(|old| old.span.intersect(tomb.span) != Some(old.span));
        tombs.push(tomb);
    }

    /// Records that a region holds no record of a file any more; returns the tombstones that became unnecessary.
    pub(super) fn release(&mut self, file: FileId, region: RegionId, batch: &mut Batch) -> Vec<Stamp> {
        if let Some(tombs) = self.files.get_mut(&file) {
            for tomb in &mut *tombs {
                tomb.regions.remove(&region);
            }
        }
        self.sweep(file, batch)
    }

    /// Removes and returns the tombstones of a file that hide nothing.
    pub(super) fn sweep(&mut self, file: FileId, batch: &mut Batch) -> Vec<Stamp> {
        let Some(tombs) = self.files.get_mut(&file) else { return Vec::new() };
        let (gone, left): (Vec<Tomb>, Vec<Tomb>) =
            std::mem::take(tombs).into_iter().partition(|tomb| tomb.regions.is_empty());
        *tombs = left;
        if tombs.is_empty() {
            self.files.remove(&file);
        }
        gone.iter().for_each(|tomb| batch.remove(key(file, tomb.stamp)));
        gone.into_iter().map(|tomb| tomb.stamp).collect()
    }
}
