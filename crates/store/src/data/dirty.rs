//! The bytes of a file that the back end does not have yet.

use super::Data;
use super::file::SizeRecord;
use super::index::{Bytes, Extent, Source};
use crate::meta::Batch;
use forebay_model::{Error, ErrorKind, FileId, JobId, Result, Span, Stamp, Uid};
use forebay_shm::View;

/// Bytes of a file that are in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirty {
    /// The range in the file.
    pub span: Span,
    /// When they were written.
    pub stamp: Stamp,
    /// The job that wrote them.
    pub job: JobId,
    /// The user who wrote them.
    pub uid: Uid,
}

/// The amount of a file's bytes in regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// Number of bytes.
    pub bytes: u64,
    /// When the oldest of them were written.
    pub oldest: Stamp,
}

/// Bytes of a file in a region, which is not reused while this is held.
pub struct Picked {
    /// The range in the file.
    pub span: Span,
    /// When they were written.
    pub stamp: Stamp,
    /// The bytes.
    pub bytes: View,
}

impl Data {
    /// The ranges of a file in regions, in order. Empty for a file that is not in memory.
    pub fn dirty(&self, file: FileId) -> Vec<Dirty> {
        let Ok(Some(state)) = self.in_memory(file) else { return Vec::new() };
        let mut state = state.lock();
        if self.consume(file, &mut state).is_err() {
            // If the rings cannot be consumed now, their writes are drained later.
            return Vec::new();
        }
        let dirty = |extent: &Extent| match extent.source {
            Source::Data(bytes) => {
                let Extent { span, stamp, .. } = *extent;
                Some(Dirty { span, stamp, job: bytes.job, uid: bytes.uid })
            }
            Source::Zero | Source::Backing => None,
        };
        state.index.extents().filter_map(dirty).collect()
    }

    /// The amount of a file's bytes in regions; `None` for a file that is not in memory.
    pub fn backlog(&self, file: FileId) -> Result<Option<Backlog>> {
        let Some(state) = self.in_memory(file)? else { return Ok(None) };
        let mut state = state.lock();
        self.consume(file, &mut state)?;
        let bytes = state.index.buffered();
        Ok(state.index.oldest().map(|oldest| Backlog { bytes, oldest }))
    }

    /// The bytes of a span in regions, to be written to the back end. Fails if they do not match their checksum: memory
    /// and devices fail, and clients can modify bytes that they wrote through shared memory.
    pub fn pick(&self, file: FileId, span: Span) -> Result<Vec<Picked>> {
        let (mut picked, mut records) = (Vec::new(), Vec::new());
        {
            let state = self.files.get(file, || self.load(file))?;
            let mut state = state.lock();
            self.consume(file, &mut state)?;
            state.alive()?;
            for extent in state.index.pieces(span) {
                let Source::Data(bytes) = extent.source else { continue };
                let region = self.region(bytes.region);
                self.damage.check(&region, bytes.slot)?;
                let view = region.view(bytes.ticket(extent.span.len()))?;
                picked.push(Picked { span: extent.span, stamp: extent.stamp, bytes: view });
                let is_known =
                    |(_, other): &(_, Bytes)| (other.region, other.slot) == (bytes.region, bytes.slot);
                if !records.iter().any(is_known) {
                    records.push((region, bytes));
                }
            }
        }
        for (region, bytes) in records {
            if !self.is_whole(&region, &bytes) {
                self.damage.check(&region, bytes.slot)?;
                let text = format!("record {} in region {} cannot be checked", bytes.slot, region.id);
                return Err(Error::new(ErrorKind::Io, text));
            }
        }
        Ok(picked)
    }

    /// The ranges of a file that are neither in a region nor in the back end, up to an offset.
    pub fn holes(&self, file: FileId, below: u64) -> Result<Vec<Span>> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = state.lock();
        self.consume(file, &mut state)?;
        state.alive()?;
        if state.lost_below > 0 {
            return Err(state.lost(0));
        }
        Ok(state.index.holes(Span::new(0, below.min(state.size))))
    }

    /// The parts of a span that are neither in a region nor in the back end, whatever the size of the file on this
    /// server. Fails if some bytes were lost.
    pub fn gaps(&self, file: FileId, within: Span) -> Result<Vec<Span>> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = state.lock();
        self.consume(file, &mut state)?;
        state.alive()?;
        if state.lost_below > 0 {
            return Err(state.lost(0));
        }
        Ok(state.index.holes(within))
    }

    /// Records the holes within these spans as backing: they are zero in the back end as well, or belong to another
    /// server. The changes in `with` are committed together with it.
    pub fn hollow(&self, file: FileId, within: &[Span], mut with: Batch) -> Result<()> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = state.lock();
        self.consume(file, &mut state)?;
        state.alive()?;
        let all = Span::new(0, state.size);
        let within = within.iter().filter_map(|span| span.intersect(all));
        let holes: Vec<Span> = within.flat_map(|span| state.index.holes(span)).collect();
        if holes.is_empty() {
            return if with.is_empty() { Ok(()) } else { self.kv.commit(with) };
        }
        let now = self.clock.next();
        self.put_backing(file, &mut state, &holes, now, &mut with)?;
        self.kv.commit(with)?;
        for span in holes {
            let extent = Extent { span, stamp: now, source: Source::Backing };
            state.index.apply(extent, &mut |_| unreachable!("nothing in a hole is in a region"));
            state.backing.put(span, now);
        }
        (state.size_pending, state.ordered) = (true, now);
        Ok(())
    }

    /// Whether no relevant byte of a file is only in the back end.
    pub fn is_here(&self, file: FileId, counts: impl Fn(Span) -> bool) -> Result<bool> {
        let state = self.look_at(file)?;
        let state = state.lock();
        Ok(!state.index.extents().any(|extent| extent.source == Source::Backing && counts(extent.span)))
    }

    /// Drops the backing ranges of a file that no longer exists in the back end, if none of them is relevant, because
    /// all its bytes are in regions, zero, or on another server. The changes in `with` are committed together with it.
    /// False if a relevant range remains.
    pub fn forget_backing(
        &self,
        file: FileId,
        mut with: Batch,
        counts: impl Fn(Span) -> bool,
    ) -> Result<bool> {
        let state = self.files.get(file, || self.load(file))?;
        let mut state = state.lock();
        self.consume(file, &mut state)?;
        state.alive()?;
        if state.index.extents().any(|extent| extent.source == Source::Backing && counts(extent.span)) {
            return Ok(false);
        }
        let before = std::mem::take(&mut state.backing);
        let record = state.record(&state.index, self.incarnation, true);
        let noted = record.and_then(|record| {
            with.put(SizeRecord::key(file), record.encode());
            self.kv.commit(with)
        });
        match noted {
            Ok(()) => state.size_pending = true,
            Err(_) => state.backing = before,
        }
        noted.map(|()| true)
    }
}
