//! A file while it is being written: an object plus later writes and truncations.

use forebay_model::Span;
use std::collections::BTreeMap;

/// Location of bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// In the file's own object.
    Base,
    /// Not stored: zeros.
    Zero,
    /// In a private object, by its number.
    Part(u64),
}

/// Contiguous bytes at one location.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Their place in the file.
    pub(super) span: Span,
    pub(super) source: Source,
    /// Their offset in the object.
    pub(super) from: u64,
}

impl Piece {
    /// Its intersection with a span, if any.
    fn within(self, span: Span) -> Option<Piece> {
        let (start, end) = (self.span.start.max(span.start), self.span.end.min(span.end));
        (start < end).then(|| Piece {
            span: Span::new(start, end),
            from: self.from + (start - self.span.start),
            ..self
        })
    }
}

/// The contents of a file that is being written.
#[derive(Clone, Debug)]
pub(super) struct Overlay {
    /// By their first byte, without gaps.
    pieces: BTreeMap<u64, Piece>,
    size: u64,
    /// The number of the last change.
    last: u64,
}

impl Overlay {
    /// A file that is one object of the given size.
    pub(super) fn new(base: u64) -> Overlay {
        let mut overlay = Overlay { pieces: BTreeMap::new(), size: 0, last: 0 };
        overlay.put(Piece { span: Span::new(0, base), source: Source::Base, from: 0 });
        overlay
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// A private object replaces these bytes.
    pub(super) fn write(&mut self, number: u64, span: Span) {
        self.last = self.last.max(number);
        self.put(Piece {
            span: Span::new(self.size, self.size.max(span.start)),
            source: Source::Zero,
            from: 0,
        });
        self.put(Piece { span, source: Source::Part(number), from: 0 });
    }

    /// Sets the length of the file.
    pub(super) fn cut(&mut self, number: u64, size: u64) {
        self.last = self.last.max(number);
        if size >= self.size {
            self.put(Piece { span: Span::new(self.size, size), source: Source::Zero, from: 0 });
            return;
        }
        self.clear(Span::from(size));
        self.size = size;
    }

    /// The locations of the bytes of a span, in order.
    pub(super) fn pieces(&self, span: Span) -> impl Iterator<Item = Piece> + '_ {
        let before = self.pieces.range(..=span.start).next_back().map_or(0, |(&start, _)| start);
        self.pieces
            .range(before..)
            .take_while(move |(start, _)| **start < span.end)
            .filter_map(move |(_, piece)| piece.within(span))
    }

    fn put(&mut self, piece: Piece) {
        if piece.span.is_empty() {
            return;
        }
        self.clear(piece.span);
        self.pieces.insert(piece.span.start, piece);
        self.size = self.size.max(piece.span.end);
    }

    fn clear(&mut self, span: Span) {
        let touched: Vec<Piece> = {
            let before = self.pieces.range(..=span.start).next_back().map_or(0, |(&start, _)| start);
            self.pieces
                .range(before..)
                .take_while(|(start, _)| **start < span.end)
                .map(|(_, piece)| *piece)
                .collect()
        };
        for piece in touched {
            self.pieces.remove(&piece.span.start);
            for side in [Span::new(0, span.start), Span::from(span.end)] {
                if let Some(rest) = piece.within(side) {
                    self.pieces.insert(rest.span.start, rest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::{Rng, seed};

    /// Compares the location of every byte with a plain array.
    #[test]
    fn random_writes_and_truncations_match_a_plain_array() {
        let mut rng = Rng::new(seed());
        for _ in 0..100 {
            let base = rng.below(50);
            let mut overlay = Overlay::new(base);
            let mut model: Vec<(Source, u64)> = (0..base).map(|at| (Source::Base, at)).collect();
            for number in 1..30 {
                if rng.below(4) == 0 {
                    let size = rng.below(80);
                    overlay.cut(number, size);
                    model.resize(size as usize, (Source::Zero, 0));
                } else {
                    let (start, len) = (rng.below(60), rng.below(20));
                    overlay.write(number, Span::new(start, start + len));
                    if len > 0 || start as usize > model.len() {
                        model.resize(model.len().max((start + len) as usize), (Source::Zero, 0));
                    }
                    for at in 0..len {
                        model[(start + at) as usize] = (Source::Part(number), at);
                    }
                }
                assert_eq!((overlay.size(), overlay.last()), (model.len() as u64, number));
                let (start, end) = (rng.below(90), rng.below(90));
                let span = Span::new(start.min(end), start.max(end));
                let found: Vec<(Source, u64)> = overlay.pieces(span).flat_map(bytes).collect();
                let (from, to) =
                    ((span.start as usize).min(model.len()), (span.end as usize).min(model.len()));
                assert_eq!(found, model[from..to], "seed {}", seed());
            }
        }
    }

    fn bytes(piece: Piece) -> impl Iterator<Item = (Source, u64)> {
        let zero = piece.source == Source::Zero;
        (0..piece.span.len()).map(move |at| (piece.source, if zero { 0 } else { piece.from + at }))
    }
}
