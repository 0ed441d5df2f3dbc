//! Where a file has data, and where holes.
//!
//! As on file systems with pages, data begins and ends at pages: a page counts as data if one of its bytes does. Bytes that
//! the back end holds count as data, and so do lost bytes, so that a reader gets the error.

use super::Data;
use super::index::{Index, Source};
use forebay_model::{FileId, Result, SeekTo, Span, Stripes};

const PAGE: u64 = 4096;

impl Data {
    /// The first byte at or behind an offset that is data or in a hole, as far as this store knows the file. `end` is the
    /// end of the file, if this store does not know it; `stripes` says which bytes are to be here, if not all are. A hole is
    /// always found: the end is one. `None` behind the end, and where no data follows.
    ///
    /// What was stored into mappings is written back first.
    pub fn seek(
        &self,
        file: FileId,
        offset: u64,
        to: SeekTo,
        end: Option<u64>,
        stripes: Option<Stripes>,
    ) -> Result<Option<u64>> {
        self.write_back(file)?;
        let state = self.look_at(file)?;
        let state = state.lock();
        state.alive()?;
        if end.is_none() && state.lost_below > state.size {
            return Err(state.lost(state.size));
        }
        let end = end.unwrap_or(state.size);
        if offset >= end {
            return Ok(None);
        }
        let found = state.index.seek(Span::new(offset, end), to, state.lost_below, stripes);
        Ok(found.or((to == SeekTo::Hole).then_some(end)))
    }
}

impl Index {
    /// The first byte of a span that is data or in a hole; bytes below `lost_below` are data, those of other servers neither.
    fn seek(&self, span: Span, to: SeekTo, lost_below: u64, stripes: Option<Stripes>) -> Option<u64> {
        let held = |at: u64| stripes.map_or(at, |stripes| stripes.next(at));
        let pages = Span::new(span.start / PAGE * PAGE, up(span.end));
        let lost = (lost_below > 0).then(|| Span::new(0, lost_below));
        let stored = self.pieces(pages).filter(|extent| extent.source != Source::Zero);
        let stored = stored.map(|extent| Span::new(extent.span.start / PAGE * PAGE, up(extent.span.end)));
        let mut at = held(span.start);
        for data in lost.into_iter().chain(stored) {
            if data.end <= at {
                continue;
            }
            match to {
                SeekTo::Data => {
                    let found = held(at.max(data.start));
                    if found < data.end.min(span.end) {
                        return Some(found);
                    }
                }
                SeekTo::Hole if at < data.start => break,
                SeekTo::Hole => at = held(data.end),
            }
        }
        (to == SeekTo::Hole && at < span.end).then_some(at)
    }
}

/// The end of the page before which a range ends.
fn up(end: u64) -> u64 {
    end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::index::Extent;
    use super::*;
    use forebay_model::Stamp;

    /// An index with these ranges behind, and zeros over some of them.
    fn index(backing: &[(u64, u64)], zeros: &[(u64, u64)]) -> Index {
        let mut index = Index::default();
        let sources = [(backing, Source::Backing, 1), (zeros, Source::Zero, 2)];
        for (ranges, source, stamp) in sources {
            for &(start, end) in ranges {
                let extent = Extent { span: Span::new(start, end), stamp: Stamp(stamp), source };
                index.apply(extent, &mut |_| {});
            }
        }
        index
    }

    #[test]
    fn data_and_holes_alternate_page_by_page() {
        let index = index(&[(0, 10), (8192, 16384), (20_490, 20_500)], &[(12_288, 16_384)]);
        let whole = |offset, to| index.seek(Span::new(offset, 30_000), to, 0, None);
        for (offset, data, hole) in [
            (0, Some(0), Some(4096)),
            (4000, Some(4000), Some(4096)),
            (4096, Some(8192), Some(4096)),
            (5000, Some(8192), Some(5000)),
            (9000, Some(9000), Some(12_288)),
            (12_288, Some(20_480), Some(12_288)),
            (20_481, Some(20_481), Some(24_576)),
            (24_576, None, Some(24_576)),
        ] {
            assert_eq!(whole(offset, SeekTo::Data), data, "data from {offset}");
            assert_eq!(whole(offset, SeekTo::Hole), hole, "hole from {offset}");
        }
        assert_eq!(index.seek(Span::new(9000, 12_000), SeekTo::Hole, 0, None), None);
        assert_eq!(index.seek(Span::new(4096, 30_000), SeekTo::Data, 9999, None), Some(4096), "lost bytes");
        assert_eq!(index.seek(Span::new(4096, 30_000), SeekTo::Hole, 9999, None), Some(12_288), "lost bytes");
    }

    #[test]
    fn stripes_of_other_servers_are_neither_data_nor_holes() {
        let index = index(&[(0, 8192), (16_384, 24_576)], &[]);
        let first = Stripes::new(8192, 0, 2);
        let seek = |offset, to| index.seek(Span::new(offset, 40_000), to, 0, first);
        assert_eq!(seek(0, SeekTo::Hole), Some(32_768));
        assert_eq!(seek(9000, SeekTo::Data), Some(16_384));
        assert_eq!(seek(9000, SeekTo::Hole), Some(32_768));
        assert_eq!(seek(24_576, SeekTo::Data), None);
        assert_eq!(index.seek(Span::new(0, 30_000), SeekTo::Hole, 0, first), None);
    }
}
