//! Bytes that went past the buffer: the back end has them, and no region ever did.

use super::file::File;
use super::index::{Extent, Source};
use super::{Data, MAX_FILE, lock};
use crate::meta::Batch;
use forebay_model::{Error, ErrorKind, FileId, Result, Span};

/// Of a file of which so many separate ranges are behind, nothing more goes past the buffer, unless it lies next to one of
/// them: all of them are written down with every write.
const MOST_RANGES: usize = 1024;

impl File {
    /// Whether neither a region nor the back end holds anything of a span that counts. What is lost stays lost until
    /// somebody writes it down here.
    fn is_blank(&self, span: Span) -> bool {
        self.lost_below == 0 && !self.index.pieces(span).any(|extent| !matches!(extent.source, Source::Zero))
    }
}

impl Data {
    /// Whether a span can go past the buffer: nothing was ever written to it, or all of it was cut off or punched since,
    /// and not too much of the file is behind in ranges of its own.
    pub fn can_pass(&self, id: FileId, span: Span) -> Result<bool> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = lock(&state);
        self.hear(id, &mut state)?;
        state.alive()?;
        let few = state.behind.ranges() < MOST_RANGES || state.index.with_behind(span) != span;
        Ok(few && state.is_blank(span))
    }

    /// The back end holds a span since just now, and the file reaches at least to its end. It is read from behind when this
    /// returns, also by another life of the server. False, and nothing has changed, if somebody wrote there meanwhile:
    /// whose bytes are the later cannot be told any more.
    pub fn past(&self, id: FileId, span: Span) -> Result<bool> {
        if span.end > MAX_FILE {
            return Err(Error::from(ErrorKind::TooLarge));
        }
        let state = self.files.get(id, || self.load(id))?;
        let mut state = lock(&state);
        self.hear(id, &mut state)?;
        state.alive()?;
        if !state.is_blank(span) {
            return Ok(false);
        }
        let range = state.index.with_behind(span);
        let (now, before) = (self.clock.next(), (state.size, state.touched));
        state.size = state.size.max(span.end);
        state.touch(now);
        let mut batch = Batch::default();
        let noted =
            self.put_behind(id, &mut state, &[range], now, &mut batch).and_then(|()| self.kv.commit(batch));
        if let Err(error) = noted {
            (state.size, state.touched) = before;
            return Err(error);
        }
        state.behind.put(range, now);
        let extent = Extent { span: range, stamp: now, source: Source::Behind };
        state.index.apply(extent, &mut |_| unreachable!("nothing of it is in a region"));
        (state.unsettled, state.ordered) = (true, now);
        Ok(true)
    }
}
