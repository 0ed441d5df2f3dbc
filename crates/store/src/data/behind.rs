//! Which bytes of a file are behind: in the back end, and in no region.
//!
//! **Invariant**: only a truncation, a punch or a deletion takes bytes away from here. Newer bytes in a region lie
//! *over* them, so that a machine that dies before those are durable finds the older ones, and never zeros.

use super::file::{File, SizeRecord};
use super::index::{Extent, Index, Source};
use super::{Data, MAX_FILE, lock};
use crate::meta::Batch;
use forebay_model::{Error, ErrorKind, FileId, Result, Span, Stamp};
use serde::{Deserialize, Serialize};

/// Most stretches of one file. A drain that empties one target after the other leaves every so manieth stripe behind.
const MOST: usize = 1 << 18;

/// Bytes that are behind, and since when: records of the same bytes that are older are dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Stretch {
    pub(super) span: Span,
    pub(super) stamp: Stamp,
    /// Newer bytes lay over them when this was written down: whoever lost those must not read these.
    pub(super) hidden: bool,
}

/// A file was changed on both sides: there is no one state of it that could be taken.
#[must_use]
pub fn changed_here_too(file: FileId) -> Error {
    let text =
        format!("file {file} was changed behind while it was changed here too: copy what you need of both");
    Error::new(ErrorKind::Stale, text)
}

/// All stretches of a file, in order, none over another.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Behind {
    stretches: Vec<Stretch>,
}

impl Behind {
    /// What was written down. `whole` says that the regions are those of that time.
    pub(super) fn load(stretches: &[Stretch], whole: bool) -> Behind {
        let kept = stretches.iter().filter(|stretch| whole || !stretch.hidden);
        Behind { stretches: kept.map(|stretch| Stretch { hidden: false, ..*stretch }).collect() }
    }

    /// The first `size` bytes.
    pub(super) fn first(size: u64, stamp: Stamp) -> Behind {
        let mut behind = Behind::default();
        behind.insert(Span::new(0, size), stamp);
        behind
    }

    /// What the index knows of it.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.stretches.iter().map(|one| Extent { span: one.span, stamp: one.stamp, source: Source::Behind })
    }

    /// How many stretches there are.
    pub(super) fn ranges(&self) -> usize {
        self.stretches.len()
    }

    /// These bytes are not behind any more.
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

    /// These bytes are behind from now on.
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

    /// What is to be written down, seen under an index: neighbours that nothing covers become one, under the latest of
    /// their stamps, because no record of theirs is newer.
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
            let text = format!("more than {MOST} separate ranges of the file are behind: write it anew");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(written)
    }

    /// The same as fewer: whatever has newer bytes over any of it counts as hidden. Who loses those loses more than he had to.
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
    /// The changes that make a new file one whose bytes are all behind, for the caller to commit with its name.
    pub fn found(&self, file: FileId, size: u64) -> Result<Batch> {
        if size > MAX_FILE {
            return Err(ErrorKind::TooLarge.into());
        }
        let state = File { size, behind: Behind::first(size, self.now()), ..File::default() };
        let mut batch = Batch::default();
        batch.put(SizeRecord::key(file), state.record(&Index::default(), self.incarnation, false)?.encode());
        Ok(batch)
    }

    /// Somebody else replaced the bytes behind: all of the file is what is there now. Fails with *stale* if any of it
    /// was written, cut or punched here, because the two cannot be brought together. The changes in `with` happen
    /// together with it.
    pub fn found_anew(&self, id: FileId, size: u64, mut with: Batch) -> Result<()> {
        if size > MAX_FILE {
            return Err(ErrorKind::TooLarge.into());
        }
        let state = self.files.get(id, || self.load(id))?;
        let mut state = lock(&state);
        self.hear(id, &mut state)?;
        state.alive()?;
        if !state.is_as_behind() {
            return Err(changed_here_too(id));
        }
        let (now, beyond) = (self.clock.next(), Span::from(size));
        // What regions still hold of a file that was longer, and was drained, is not to come back.
        let mut tombs = lock(&self.tombs);
        let holders = self.holders(&mut state);
        let tomb = tombs.plan(id, now, beyond, holders, &mut with)?;
        let behind = Behind::first(size, now);
        let after = File { size, touched: state.touched, behind, ..File::default() };
        let record = after.record(&Index::default(), self.incarnation, state.unsettled)?;
        with.put(SizeRecord::key(id), record.encode());
        self.kv.commit(with)?;
        (state.size, state.behind, state.ordered) = (after.size, after.behind, now);
        state.lost_below = after.lost_below;
        state.index.forget(Span::from(0));
        let File { index, behind, .. } = &mut *state;
        behind.extents().for_each(|extent| index.apply(extent, &mut |_| {}));
        if let Some(tomb) = tomb {
            tombs.add(id, tomb);
            index.apply(Extent { span: beyond, stamp: now, source: Source::Zero }, &mut |_| {});
        }
        Ok(())
    }

    /// Whether a file is what is behind, and nothing of it was changed here.
    pub fn is_as_behind(&self, id: FileId) -> Result<bool> {
        let state = self.look_at(id)?;
        let state = lock(&state);
        Ok(state.is_as_behind())
    }

    /// Lets go of bytes in regions that the back end holds by now: of a span, those that are not newer than `stamp`.
    /// They are read from behind when this returns; returns how many they were.
    pub fn behind(&self, id: FileId, span: Span, stamp: Stamp) -> Result<u64> {
        self.behind_all(id, &[(span, stamp)])
    }

    /// The same for several spans at once.
    pub fn behind_all(&self, id: FileId, written: &[(Span, Stamp)]) -> Result<u64> {
        let state = self.files.get(id, || self.load(id))?;
        let (mut dead, mut released) = (false, 0);
        {
            let mut state = lock(&state);
            self.hear(id, &mut state)?;
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
            // Written down first: a crash finds the bytes in their region, or behind.
            self.put_behind(id, &mut state, &spans, now, &mut batch)?;
            self.kv.commit(batch)?;
            (state.unsettled, state.ordered) = (true, now);
            for span in spans {
                state.behind.put(span, now);
                let extent = Extent { span, stamp: now, source: Source::Behind };
                state.index.apply(extent, &mut |delta| dead |= self.adjust(delta));
                released += span.len();
            }
        }
        self.reclaim_if(dead);
        Ok(released)
    }

    /// The record of a file of which these spans are behind too, for the caller to commit.
    pub(super) fn put_behind(
        &self,
        id: FileId,
        state: &mut File,
        spans: &[Span],
        now: Stamp,
        batch: &mut Batch,
    ) -> Result<()> {
        let before = state.behind.clone();
        spans.iter().for_each(|&span| state.behind.put(span, now));
        let record = state.record(&state.index, self.incarnation, true);
        state.behind = before;
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

    fn shape(behind: &Behind) -> Vec<(u64, u64, u64)> {
        behind.stretches.iter().map(|one| (one.span.start, one.span.end, one.stamp.0)).collect()
    }

    #[test]
    fn stretches_are_cut_and_put_and_written_as_few() {
        let mut behind = Behind::first(100, Stamp(1));
        behind.cut(Span::new(40, 50));
        assert_eq!(shape(&behind), [(0, 40, 1), (50, 100, 1)]);
        behind.put(Span::new(30, 60), Stamp(7));
        assert_eq!(shape(&behind), [(0, 30, 1), (30, 60, 7), (60, 100, 1)]);
        let mut index = Index::default();
        behind.extents().for_each(|extent| index.apply(extent, &mut |_| {}));
        let written = behind.written(&index).unwrap();
        assert_eq!(written, [Stretch { span: Span::new(0, 100), stamp: Stamp(7), hidden: false }]);
        behind.cut(Span::from(10));
        assert_eq!(shape(&Behind::load(&behind.written(&Index::default()).unwrap(), true)), [(0, 10, 1)]);
        assert_eq!(Behind::first(0, Stamp(1)), Behind::default());
        let apart = |count: u64| {
            let mut behind = Behind::default();
            (0..count).for_each(|number| behind.insert(Span::new(number * 2, number * 2 + 1), Stamp(1)));
            behind.written(&Index::default()).map(|written| written.len())
        };
        assert_eq!(apart(MOST as u64), Ok(MOST));
        assert_eq!(apart(MOST as u64 + 1).unwrap_err().kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn many_islands_over_what_is_behind_are_written_down_as_one() {
        let most = MOST as u64;
        let (behind, mut index) = (Behind::first(most * 4, Stamp(1)), Index::default());
        behind.extents().for_each(|extent| index.apply(extent, &mut |_| {}));
        let over = data(0, 1, 2, 0);
        for number in 0..most {
            let span = Span::new(number * 4, number * 4 + 1);
            index.apply(Extent { span, ..over }, &mut |_| {});
        }
        let hidden = Stretch { span: Span::new(0, most * 4), stamp: Stamp(1), hidden: true };
        assert_eq!(behind.written(&index).unwrap(), [hidden]);
    }
}
