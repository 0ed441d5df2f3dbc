//! Direct writes: bytes that bypassed the buffer and are only in the back end.

use super::file::File;
use super::index::{Extent, Source};
use super::{Data, MAX_FILE};
use crate::meta::Batch;
use forebay_model::{Error, ErrorKind, FileId, Result, Span};

/// A file with this many separate ranges in the back end gets no further direct writes, except next to one of the
/// ranges: every write persists all ranges.
const MOST_RANGES: usize = 1024;

impl File {
    /// Whether neither a region nor the back end holds valid bytes of a span. Lost bytes stay lost until a buffered
    /// write replaces them.
    fn is_blank(&self, span: Span) -> bool {
        self.lost_below == 0 && !self.index.pieces(span).any(|extent| !matches!(extent.source, Source::Zero))
    }
}

impl Data {
    /// Whether a span can be written directly: nothing was written to it since it was last truncated or punched, and
    /// the file does not have too many separate ranges in the back end.
    pub fn can_pass(&self, id: FileId, span: Span) -> Result<bool> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        self.consume(id, &mut state)?;
        state.alive()?;
        let few = state.backing.ranges() < MOST_RANGES || state.index.with_backing(span) != span;
        Ok(few && state.mapped.is_none() && state.is_blank(span))
    }

    /// Records that the back end holds a span after a direct write, and that the file reaches at least to its end. From
    /// then on it is read from the back end, also after a restart of the server. Returns false without a change if the
    /// span was written meanwhile: the order of the two writes is unknown.
    pub fn record_direct(&self, id: FileId, span: Span) -> Result<bool> {
        if span.end > MAX_FILE {
            return Err(Error::from(ErrorKind::TooLarge));
        }
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        self.consume(id, &mut state)?;
        state.alive()?;
        if state.mapped.is_some() || !state.is_blank(span) {
            return Ok(false);
        }
        let range = state.index.with_backing(span);
        let (now, before) = (self.clock.next(), (state.size, state.touched));
        state.size = state.size.max(span.end);
        state.touch(now);
        let mut batch = Batch::default();
        let noted =
            self.put_backing(id, &mut state, &[range], now, &mut batch).and_then(|()| self.kv.commit(batch));
        if let Err(error) = noted {
            (state.size, state.touched) = before;
            return Err(error);
        }
        state.backing.put(range, now);
        let extent = Extent { span: range, stamp: now, source: Source::Backing };
        state.index.apply(extent, &mut |_| unreachable!("nothing of it is in a region"));
        (state.size_pending, state.ordered) = (true, now);
        Ok(true)
    }
}
