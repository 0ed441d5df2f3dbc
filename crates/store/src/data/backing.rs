//! Which bytes of a file are in the back end and in no region.
//!
//! **Invariant**: only a truncation, a punch or a deletion removes backing ranges. Newer bytes in a region *overlay*
//! them, so that a machine that dies before those are durable finds the older ones, and never zeros.

use super::file::{File, SizeRecord};
use super::index::{Extent, Index, Source};
use super::{Data, MAX_FILE};
use crate::meta::Batch;
use forebay_model::{Error, ErrorKind, FileId, Result, Span, Stamp};
use serde::{Deserialize, Serialize};

/// Largest number of ranges of one file. A drain that empties one target after the other leaves every n-th stripe in
/// the back end.
const MOST: usize = 1 << 18;

/// A range in the back end with its stamp: older records of the same bytes are dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Stretch {
    pub(super) span: Span,
    pub(super) stamp: Stamp,
    /// Newer bytes overlaid the range when it was persisted: if those are lost, these must not be read.
    pub(super) hidden: bool,
}

/// The error for a file that was changed both in the buffer and in the back end: neither state can replace the other.
#[must_use]
pub fn changed_here_too(file: FileId) -> Error {
    let text =
        format!("file {file} was changed in the back end and in the buffer: copy what you need of both");
    Error::new(ErrorKind::Stale, text)
}

/// All backing ranges of a file, in order, without overlap.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Backing {
    stretches: Vec<Stretch>,
}

impl Backing {
    /// Loads the persisted ranges. `whole` means that the regions are still those of that time.
    pub(super) fn load(stretches: &[Stretch], whole: bool) -> Backing {
        let kept = stretches.iter().filter(|stretch| whole || !stretch.hidden);
        Backing { stretches: kept.map(|stretch| Stretch { hidden: false, ..*stretch }).collect() }
    }

    /// A backing range of the first `size` bytes.
    pub(super) fn first(size: u64, stamp: Stamp) -> Backing {
        let mut backing = Backing::default();
        backing.insert(Span::new(0, size), stamp);
        backing
    }

    /// The index extents of the ranges.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.stretches.iter().map(|one| Extent { span: one.span, stamp: one.stamp, source: Source::Backing })
    }

    /// The number of ranges.
    pub(super) fn ranges(&self) -> usize {
        self.stretches.len()
    }

    /// Removes a range.
    pub(super) fn cut(&mut self, span: Span) {
        let from = self.stretches.partition_point(|stretch| stretch.span.end <= span.start);
        let to = self.stretches.partition_point(|stretch| stretch.span.start < span.end);
        if from >= to {
            return;
        }
        let (first, last) = (self.stretches[from], self.stretches[to - 1]);
        let before = (first.span.start < span.start)
            .then(|| Stretch { span: Span::new(first.span.start, span.start), ..first });
        let after =
            (last.span.end > span.end).then(|| Stretch { span: Span::new(span.end, last.span.end), ..last });
        self.stretches.splice(from..to, before.into_iter().chain(after));
    }

    /// Adds a range.
    pub(super) fn put(&mut self, span: Span, stamp: Stamp) {
        self.cut(span);
        self.insert(span, stamp);
    }

    fn insert(&mut self, span: Span, stamp: Stamp) {
        if !span.is_empty() {
            let at = self.stretches.partition_point(|stretch| stretch.span.start < span.start);
            self.stretches.insert(at, Stretch { span, stamp, hidden: false });
        }
    }

    /// The ranges to persist, split by what overlays them in an index. Uncovered neighbours merge under the latest of
    /// their stamps, because they have no newer record.
    pub(super) fn written(&self, index: &Index) -> Result<Vec<Stretch>> {
        let mut written: Vec<Stretch> = Vec::new();
        for &Stretch { span, stamp, .. } in &self.stretches {
            let mut at = span.start;
            for extent in index.pieces(span) {
                let hidden = matches!(extent.source, Source::Data(_)) && extent.stamp > stamp;
                if at < extent.span.start {
                    append(
                        &mut written,
                        Stretch { span: Span::new(at, extent.span.start), stamp, hidden: false },
                    );
                }
                append(&mut written, Stretch { span: extent.span, stamp, hidden });
                at = extent.span.end;
            }
            if at < span.end {
                append(&mut written, Stretch { span: Span::new(at, span.end), stamp, hidden: false });
            }
        }
        if written.len() > MOST {
            written = self.roughly(index);
        }
        if written.len() > MOST {
            let text =
                format!("more than {MOST} separate ranges of the file are in the back end: rewrite the file");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(written)
    }

    /// Fewer ranges: a range counts as hidden if newer bytes overlay any part of it. If those are lost, more than
    /// necessary is lost.
    fn roughly(&self, index: &Index) -> Vec<Stretch> {
        let mut written = Vec::new();
        for one in &self.stretches {
            let is_over =
                |extent: Extent| matches!(extent.source, Source::Data(_)) && extent.stamp > one.stamp;
            append(&mut written, Stretch { hidden: index.pieces(one.span).any(is_over), ..*one });
        }
        written
    }
}

impl Data {
    /// The changes that create a file whose bytes are all in the back end. The caller commits them with its name.
    pub fn found(&self, file: FileId, size: u64) -> Result<Batch> {
        if size > MAX_FILE {
            return Err(ErrorKind::TooLarge.into());
        }
        let state = File { size, backing: Backing::first(size, self.now()), ..File::default() };
        let mut batch = Batch::default();
        batch.put(SizeRecord::key(file), state.record(&Index::default(), self.incarnation, false)?.encode());
        Ok(batch)
    }

    /// Accepts new content of a file in the back end, which another program replaced there. Fails with *stale* if the
    /// file was written, truncated or punched in the buffer, because the two states cannot be merged. The changes in
    /// `with` are committed together with it.
    pub fn found_anew(&self, id: FileId, size: u64, mut with: Batch) -> Result<()> {
        if size > MAX_FILE {
            return Err(ErrorKind::TooLarge.into());
        }
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        self.consume(id, &mut state)?;
        state.alive()?;
        if !state.matches_backing() || state.mapped.is_some() {
            return Err(changed_here_too(id));
        }
        let (now, beyond) = (self.clock.next(), Span::from(size));
        // Records in regions beyond the new end, from before the file was drained, must stay hidden.
        let mut tombs = self.tombs.lock();
        let holders = self.holders(&mut state);
        let tomb = tombs.plan(id, now, beyond, holders, &mut with)?;
        let backing = Backing::first(size, now);
        let after = File { size, touched: state.touched, backing, ..File::default() };
        let record = after.record(&Index::default(), self.incarnation, state.size_pending)?;
        with.put(SizeRecord::key(id), record.encode());
        self.kv.commit(with)?;
        (state.size, state.backing, state.ordered) = (after.size, after.backing, now);
        state.lost_below = after.lost_below;
        state.index.forget(Span::from(0));
        let File { index, backing, .. } = &mut *state;
        backing.extents().for_each(|extent| index.apply(extent, &mut |_| {}));
        if let Some(tomb) = tomb {
            tombs.add(id, tomb);
            index.apply(Extent { span: beyond, stamp: now, source: Source::Zero }, &mut |_| {});
        }
        Ok(())
    }

    /// Whether a file's content is exactly the data in the back end.
    pub fn matches_backing(&self, id: FileId) -> Result<bool> {
        let state = self.look_at(id)?;
        let state = state.lock();
        Ok(state.matches_backing())
    }

    /// Releases bytes of a span in regions that the back end now holds: those not newer than `stamp`. When this returns
    /// they are read from the back end; returns their number.
    pub fn backing(&self, id: FileId, span: Span, stamp: Stamp) -> Result<u64> {
        self.backing_all(id, &[(span, stamp)])
    }

    /// Does the same for several spans at once.
    pub fn backing_all(&self, id: FileId, written: &[(Span, Stamp)]) -> Result<u64> {
        let state = self.files.get(id, || self.load(id))?;
        let (mut dead, mut released) = (false, 0);
        {
            let mut state = state.lock();
            self.consume(id, &mut state)?;
            state.alive()?;
            let mut spans: Vec<Span> = Vec::new();
            for &(span, stamp) in written {
                let old = |extent: &Extent| matches!(extent.source, Source::Data(_)) && extent.stamp <= stamp;
                spans.extend(state.index.pieces(span).filter(old).map(|extent| extent.span));
            }
            if spans.is_empty() {
                return Ok(0);
            }
            let (now, mut batch) = (self.clock.next(), Batch::default());
            // Recorded first: after a crash the bytes are in their region or in the back end.
            self.put_backing(id, &mut state, &spans, now, &mut batch)?;
            self.kv.commit(batch)?;
            (state.size_pending, state.ordered) = (true, now);
            for span in spans {
                state.backing.put(span, now);
                let extent = Extent { span, stamp: now, source: Source::Backing };
                state.index.apply(extent, &mut |delta| dead |= self.adjust(delta));
                released += span.len();
            }
        }
        self.reclaim_if(dead);
        Ok(released)
    }

    /// Prepares the record of a file with these additional backing spans. The caller commits it.
    pub(super) fn put_backing(
        &self,
        id: FileId,
        state: &mut File,
        spans: &[Span],
        now: Stamp,
        batch: &mut Batch,
    ) -> Result<()> {
        let before = state.backing.clone();
        spans.iter().for_each(|&span| state.backing.put(span, now));
        let record = state.record(&state.index, self.incarnation, true);
        state.backing = before;
        batch.put(SizeRecord::key(id), record?.encode());
        Ok(())
    }
}

fn append(written: &mut Vec<Stretch>, next: Stretch) {
    match written.last_mut() {
        Some(last)
            if last.span.end == next.span.start
                && last.hidden == next.hidden
                && (!next.hidden || last.stamp == next.stamp) =>
        {
            last.span.end = next.span.end;
            last.stamp = last.stamp.max(next.stamp);
        }
        _ => written.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::tests::data;
    use super::*;

    fn shape(backing: &Backing) -> Vec<(u64, u64, u64)> {
        backing.stretches.iter().map(|one| (one.span.start, one.span.end, one.stamp.0)).collect()
    }

    #[test]
    fn backing_ranges_are_cut_inserted_and_merged() {
        let mut backing = Backing::first(100, Stamp(1));
        backing.cut(Span::new(40, 50));
        assert_eq!(shape(&backing), [(0, 40, 1), (50, 100, 1)]);
        backing.put(Span::new(30, 60), Stamp(7));
        assert_eq!(shape(&backing), [(0, 30, 1), (30, 60, 7), (60, 100, 1)]);
        let mut index = Index::default();
        backing.extents().for_each(|extent| index.apply(extent, &mut |_| {}));
        let written = backing.written(&index).unwrap();
        assert_eq!(written, [Stretch { span: Span::new(0, 100), stamp: Stamp(7), hidden: false }]);
        backing.cut(Span::from(10));
        assert_eq!(shape(&Backing::load(&backing.written(&Index::default()).unwrap(), true)), [(0, 10, 1)]);
        assert_eq!(Backing::first(0, Stamp(1)), Backing::default());
        let apart = |count: u64| {
            let mut backing = Backing::default();
            (0..count).for_each(|number| backing.insert(Span::new(number * 2, number * 2 + 1), Stamp(1)));
            backing.written(&Index::default()).map(|written| written.len())
        };
        assert_eq!(apart(MOST as u64), Ok(MOST));
        assert_eq!(apart(MOST as u64 + 1).unwrap_err().kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn too_many_overlays_are_persisted_as_one_hidden_range() {
        let most = MOST as u64;
        let (backing, mut index) = (Backing::first(most * 4, Stamp(1)), Index::default());
        backing.extents().for_each(|extent| index.apply(extent, &mut |_| {}));
        let over = data(0, 1, 2, 0);
        for number in 0..most {
            let span = Span::new(number * 4, number * 4 + 1);
            index.apply(Extent { span, ..over }, &mut |_| {});
        }
        let hidden = Stretch { span: Span::new(0, most * 4), stamp: Stamp(1), hidden: true };
        assert_eq!(backing.written(&index).unwrap(), [hidden]);
    }
}
