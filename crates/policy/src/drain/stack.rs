//! The stacked index: layers of ordered keys over the pieces of a file.

use super::few::Few;
use forebay_model::{Span, Stamp};

/// Bytes that are to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Which bytes of the file.
    pub span: Span,
    /// When they were written here.
    pub stamp: Stamp,
}

impl Piece {
    fn part(&self, span: Span) -> Piece {
        Piece { span, ..*self }
    }
}

/// A piece that came into a layer or left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Which.
    pub piece: Piece,
    /// Whether it came.
    pub came: bool,
}

/// A layer of the stack, with everything below it.
pub trait Layer: Default {
    /// What leads from here to one file's pieces.
    type Path: Copy;

    /// Puts a piece in its place in time; says what came and what left.
    fn insert(&mut self, path: Self::Path, piece: Piece, tell: &mut dyn FnMut(Changed));

    /// Takes a span out, whatever its stamps.
    fn remove(&mut self, path: Self::Path, span: Span, tell: &mut dyn FnMut(Changed));

    /// Bytes in here.
    fn bytes(&self) -> u64;
}

/// A layer of keys over another.
#[derive(Clone, Debug)]
pub struct Level<K, L> {
    below: Few<K, L>,
    bytes: u64,
}

impl<K, L> Default for Level<K, L> {
    fn default() -> Level<K, L> {
        Level { below: Few::default(), bytes: 0 }
    }
}

impl<K: Ord + Copy, L: Layer> Level<K, L> {
    /// What is under a key.
    pub fn get(&self, key: K) -> Option<&L> {
        self.below.get(key)
    }

    /// All keys with what is under them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &L)> {
        self.below.iter()
    }

    /// Takes everything under a key out.
    pub fn take(&mut self, key: K) -> Option<L> {
        let layer = self.below.remove(key)?;
        self.bytes -= layer.bytes();
        Some(layer)
    }

    fn within(&mut self, key: K, change: impl FnOnce(&mut L)) {
        let layer = self.below.or_insert_with(key, L::default);
        let before = layer.bytes();
        change(layer);
        let after = layer.bytes();
        if after == 0 {
            self.below.remove(key);
        }
        self.bytes = self.bytes - before + after;
    }
}

impl<K: Ord + Copy, L: Layer> Layer for Level<K, L> {
    type Path = (K, L::Path);

    fn insert(&mut self, (key, path): Self::Path, piece: Piece, tell: &mut dyn FnMut(Changed)) {
        self.within(key, |layer| layer.insert(path, piece, tell));
    }

    fn remove(&mut self, (key, path): Self::Path, span: Span, tell: &mut dyn FnMut(Changed)) {
        self.within(key, |layer| layer.remove(path, span, tell));
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The lowest layer: pieces of one file by their offset, none over another.
#[derive(Clone, Default, Debug)]
pub struct Ranges {
    pieces: Few<u64, Piece>,
    bytes: u64,
}

impl Ranges {
    /// All pieces, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.values()
    }

    /// The pieces that end behind an offset, in order.
    pub fn from(&self, offset: u64) -> impl Iterator<Item = &Piece> {
        let before = self.pieces.before(offset).filter(move |piece| piece.span.end > offset);
        before.into_iter().chain(self.pieces.from(offset))
    }

    /// Reads what is read when a piece comes or goes.
    pub(super) fn glance(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.span.end)
            + self.iter().next().map_or(0, |piece| piece.span.end)
    }

    fn overlapping(&self, span: Span) -> Vec<Piece> {
        self.from(span.start).take_while(|piece| piece.span.start < span.end).copied().collect()
    }

    fn add(&mut self, piece: Piece, tell: &mut dyn FnMut(Changed)) {
        if !piece.span.is_empty() {
            self.bytes += piece.span.len();
            self.pieces.insert(piece.span.start, piece);
            tell(Changed { piece, came: true });
        }
    }

    fn drop(&mut self, piece: Piece, tell: &mut dyn FnMut(Changed)) {
        self.bytes -= piece.span.len();
        self.pieces.remove(piece.span.start);
        tell(Changed { piece, came: false });
    }

    /// Takes an old piece out but for what lies outside of a span.
    fn carve(&mut self, old: Piece, span: Span, tell: &mut dyn FnMut(Changed)) {
        self.drop(old, tell);
        self.add(old.part(Span::new(old.span.start, old.span.start.max(span.start))), tell);
        self.add(old.part(Span::new(old.span.end.min(span.end), old.span.end)), tell);
    }
}

impl Layer for Ranges {
    type Path = ();

    fn insert(&mut self, (): (), piece: Piece, tell: &mut dyn FnMut(Changed)) {
        let mut at = piece.span.start;
        for old in self.overlapping(piece.span) {
            if old.stamp > piece.stamp {
                self.add(piece.part(Span::new(at, at.max(old.span.start))), tell);
                at = old.span.end.min(piece.span.end);
            } else {
                self.carve(old, piece.span, tell);
            }
        }
        self.add(piece.part(Span::new(at, piece.span.end)), tell);
    }

    fn remove(&mut self, (): (), span: Span, tell: &mut dyn FnMut(Changed)) {
        for old in self.overlapping(span) {
            self.carve(old, span, tell);
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::FileId;

    fn piece(start: u64, end: u64, stamp: u64) -> Piece {
        Piece { span: Span::new(start, end), stamp: Stamp(stamp) }
    }

    fn shape(ranges: &Ranges) -> Vec<(u64, u64, u64)> {
        ranges.iter().map(|piece| (piece.span.start, piece.span.end, piece.stamp.0)).collect()
    }

    #[test]
    fn newer_pieces_cut_older_ones_and_older_ones_fill_gaps() {
        let mut ranges = Ranges::default();
        for (start, end, stamp) in [(0, 10, 5), (3, 7, 7), (2, 22, 6)] {
            ranges.insert((), piece(start, end, stamp), &mut |_| {});
        }
        assert_eq!(shape(&ranges), [(0, 2, 5), (2, 3, 6), (3, 7, 7), (7, 22, 6)]);
        ranges.remove((), Span::new(1, 9), &mut |_| {});
        assert_eq!((shape(&ranges), ranges.bytes()), (vec![(0, 1, 5), (9, 22, 6)], 14));
    }

    /// The paper's example: a timestamp over the same layers, and nothing of them is touched.
    #[test]
    fn a_layer_more_is_a_level_more() {
        type Files = Level<FileId, Ranges>;
        let mut by_time: Level<u32, Level<u32, Files>> = Level::default();
        for (time, target, file, start) in [(2, 0, 1, 0), (1, 1, 1, 10), (1, 0, 2, 0), (1, 0, 1, 30)] {
            by_time.insert(
                (time, (target, (FileId(file), ()))),
                piece(start, start + 10, start),
                &mut |_| {},
            );
        }
        assert_eq!(by_time.bytes(), 40);
        let order: Vec<_> = by_time
            .iter()
            .flat_map(|(time, targets)| targets.iter().map(move |(target, files)| (time, target, files)))
            .flat_map(|(time, target, files)| files.iter().map(move |(file, _)| (time, target, file.0)))
            .collect();
        assert_eq!(order, [(1, 0, 1), (1, 0, 2), (1, 1, 1), (2, 0, 1)]);
        let first = by_time.take(1).expect("there is such a time");
        assert_eq!((first.bytes(), by_time.bytes()), (30, 10));
        by_time.remove((2, (0, (FileId(1), ()))), Span::from(0), &mut |_| {});
        assert_eq!((by_time.bytes(), by_time.iter().count()), (0, 0), "empty layers go");
    }
}
