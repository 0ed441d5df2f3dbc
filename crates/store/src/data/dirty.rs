//! What of a file the back end does not have yet.

use super::file::SizeRecord;
use super::index::{Bytes, Extent, Source};
use super::{Data, lock};
use crate::meta::Batch;
use forebay_model::{FileId, JobId, Result, Span, Stamp, Uid};
use forebay_shm::View;
use std::sync::atomic::Ordering;

/// Bytes of a file that are in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirty {
    /// Which bytes.
    pub span: Span,
    /// When they were written.
    pub stamp: Stamp,
    /// By which job.
    pub job: JobId,
    /// By whom.
    pub uid: Uid,
}

/// How much of a file is in regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// So many bytes.
    pub bytes: u64,
    /// When the oldest of them were written.
    pub oldest: Stamp,
}

/// Bytes of a file that are in a region, and stay there as long as this is held.
pub struct Picked {
    /// Which bytes.
    pub span: Span,
    /// When they were written.
    pub stamp: Stamp,
    /// The bytes.
    pub bytes: View,
}

impl Data {
    /// What of a file is in regions, in order. Empty for a file that is not in memory.
    pub fn dirty(&self, file: FileId) -> Vec<Dirty> {
        let Ok(Some(state)) = self.in_memory(file) else { return Vec::new() };
        let mut state = lock(&state);
        if self.hear(file, &mut state).is_err() {
            // What cannot be heard now leaves later.
            return Vec::new();
        }
        let dirty = |extent: &Extent| match extent.source {
            Source::Data(bytes) => {
                let Extent { span, stamp, .. } = *extent;
                Some(Dirty { span, stamp, job: bytes.job, uid: bytes.uid })
            }
            Source::Zero | Source::Behind => None,
        };
        state.index.extents().filter_map(dirty).collect()
    }

    /// How much of a file is in regions; nothing of a file that is not in memory.
    pub fn backlog(&self, file: FileId) -> Result<Option<Backlog>> {
        let Some(state) = self.in_memory(file)? else { return Ok(None) };
        let mut state = lock(&state);
        self.hear(file, &mut state)?;
        let bytes = state.index.buffered();
        Ok(state.index.oldest().map(|oldest| Backlog { bytes, oldest }))
    }

    /// What of a span is in regions, to be written behind. Fails if it is not what was written: clients can change what
    /// they have written by shared memory.
    pub fn pick(&self, file: FileId, span: Span) -> Result<Vec<Picked>> {
        let (mut picked, mut lent) = (Vec::new(), Vec::new());
        {
            let state = self.files.get(file, || self.load(file))?;
            let mut state = lock(&state);
            self.hear(file, &mut state)?;
            state.alive()?;
            for extent in state.index.pieces(span) {
                let Source::Data(bytes) = extent.source else { continue };
                let region = self.region(bytes.region);
                self.damage.check(&region, bytes.slot)?;
                let view = region.view(bytes.ticket(extent.span.len()))?;
                picked.push(Picked { span: extent.span, stamp: extent.stamp, bytes: view });
                let is_known =
                    |(_, other): &(_, Bytes)| (other.region, other.slot) == (bytes.region, bytes.slot);
                if region.lent.load(Ordering::Acquire) && !lent.iter().any(is_known) {
                    lent.push((region, bytes));
                }
            }
        }
        for (region, bytes) in lent {
            self.is_whole(&region, &bytes);
            self.damage.check(&region, bytes.slot)?;
        }
        Ok(picked)
    }

    /// The zeros of a file that are neither in a region nor behind, up to an offset.
    pub fn holes(&self, file: FileId, below: u64) -> Result<Vec<Span>> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = lock(&state);
        self.hear(file, &mut state)?;
        state.alive()?;
        if state.lost_below > 0 {
            return Err(state.lost(0));
        }
        Ok(state.index.holes(Span::new(0, below.min(state.size))))
    }

    /// What within a span is neither in a region nor behind, however long the file is here. Fails if some of it was lost.
    pub fn gaps(&self, file: FileId, within: Span) -> Result<Vec<Span>> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = lock(&state);
        self.hear(file, &mut state)?;
        state.alive()?;
        if state.lost_below > 0 {
            return Err(state.lost(0));
        }
        Ok(state.index.holes(within))
    }

    /// The zeros within these spans are zeros behind as well, or nobody's concern here: they count as behind from now
    /// on. The changes in `with` happen together with it.
    pub fn hollow(&self, file: FileId, within: &[Span], mut with: Batch) -> Result<()> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = lock(&state);
        self.hear(file, &mut state)?;
        state.alive()?;
        let all = Span::new(0, state.size);
        let within = within.iter().filter_map(|span| span.meet(all));
        let holes: Vec<Span> = within.flat_map(|span| state.index.holes(span)).collect();
        if holes.is_empty() {
            return if with.is_empty() { Ok(()) } else { self.kv.commit(with) };
        }
        let now = self.clock.next();
        self.put_behind(file, &mut state, &holes, now, &mut with)?;
        self.kv.commit(with)?;
        for span in holes {
            let extent = Extent { span, stamp: now, source: Source::Behind };
            state.index.apply(extent, &mut |_| unreachable!("nothing in a hole is in a region"));
            state.behind.put(span, now);
        }
        (state.unsettled, state.ordered) = (true, now);
        Ok(())
    }

    /// Whether nothing of a file is behind alone, of what counts.
    pub fn is_here(&self, file: FileId, counts: impl Fn(Span) -> bool) -> Result<bool> {
        let state = self.look_at(file)?;
        let state = lock(&state);
        Ok(!state.index.extents().any(|extent| extent.source == Source::Behind && counts(extent.span)))
    }

    /// What was behind of a file is there no more: forgotten if nothing of it counts, because all is in regions or zero, or
    /// is another server's. The changes in `with` happen together with it. False if something counts.
    pub fn forget_behind(
        &self,
        file: FileId,
        mut with: Batch,
        counts: impl Fn(Span) -> bool,
    ) -> Result<bool> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = lock(&state);
        self.hear(file, &mut state)?;
        state.alive()?;
        if state.index.extents().any(|extent| extent.source == Source::Behind && counts(extent.span)) {
            return Ok(false);
        }
        let before = std::mem::take(&mut state.behind);
        let record = state.record(&state.index, self.incarnation, true);
        let noted = record.and_then(|record| {
            with.put(SizeRecord::key(file), record.encode());
            self.kv.commit(with)
        });
        match noted {
            Ok(()) => state.unsettled = true,
            Err(_) => state.behind = before,
        }
        noted.map(|()| true)
    }
}
