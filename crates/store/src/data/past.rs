//! Bytes that went past the buffer: the back end has them, and no region ever did.

use super::index::{Extent, Source};
use super::{Data, MAX_FILE, lock};
use crate::meta::Batch;
use forebay_model::{Error, ErrorKind, FileId, Result, Span};

impl Data {
    /// Whether nothing was ever written to a span, or all of it was cut off or punched since: neither a region nor the
    /// back end holds anything of it that counts.
    pub fn is_blank(&self, id: FileId, span: Span) -> Result<bool> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = lock(&state);
        self.hear(id, &mut state)?;
        state.alive()?;
        // What is lost stays lost until somebody writes it down here.
        Ok(state.lost_below == 0
            && !state.index.pieces(span).any(|extent| !matches!(extent.source, Source::Zero)))
    }

    /// The back end holds a span since just now. What was written to regions in the meantime lies over it, and the file
    /// reaches at least to its end. It is read from behind when this returns, also by another life of the server.
    pub fn past(&self, id: FileId, span: Span) -> Result<()> {
        if span.end > MAX_FILE {
            return Err(Error::from(ErrorKind::TooLarge));
        }
        let state = self.files.get(id, || self.load(id))?;
        let mut state = lock(&state);
        self.hear(id, &mut state)?;
        state.alive()?;
        let spans: Vec<Span> =
            state.index.free_of_data(span).map(|free| state.index.with_behind(free)).collect();
        let (now, before) = (self.clock.next(), (state.size, state.touched));
        state.size = state.size.max(span.end);
        state.touch(now);
        let mut batch = Batch::default();
        let noted =
            self.put_behind(id, &mut state, &spans, now, &mut batch).and_then(|()| self.kv.commit(batch));
        if let Err(error) = noted {
            (state.size, state.touched) = before;
            return Err(error);
        }
        for span in spans {
            state.behind.put(span, now);
            let extent = Extent { span, stamp: now, source: Source::Behind };
            state.index.apply(extent, &mut |_| unreachable!("nothing of it is in a region"));
        }
        (state.unsettled, state.ordered) = (true, now);
        Ok(())
    }
}
