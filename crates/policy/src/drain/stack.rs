//! The stacked index: layers of ordered keys over the pieces of a file.

use super::few::Few;
use forebay_model::{Span, Stamp};

/// Bytes to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The bytes of the file.
    pub span: Span,
    /// When the client wrote them.
    pub stamp: Stamp,
}

impl Piece {
    fn part(&self, span: Span) -> Piece {
        Piece { span, ..*self }
    }
}

/// A piece that was added to a layer or removed from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The piece.
    pub piece: Piece,
    /// Whether it was added.
    pub came: bool,
}

/// A layer of the stack, with all layers below.
pub trait Layer: Default {
    /// The keys from this layer to one file's pieces.
    type Path: Copy;

    /// Inserts a piece, where newer stamps win, and reports added and removed pieces.
    fn insert(&mut self, path: Self::Path, piece: Piece, notify: &mut dyn FnMut(Changed));

    /// Removes a span, whatever its stamps.
    fn remove(&mut self, path: Self::Path, span: Span, notify: &mut dyn FnMut(Changed));

    /// Bytes in this layer.
    fn bytes(&self) -> u64;
}

/// A layer of keys above another.
#[derive(Clone, Debug)]
pub struct StackLevel<K, L> {
    below: Few<K, L>,
    bytes: u64,
}

impl<K, L> Default for StackLevel<K, L> {
    fn default() -> StackLevel<K, L> {
        StackLevel { below: Few::default(), bytes: 0 }
    }
}

impl<K: Ord + Copy, L: Layer> StackLevel<K, L> {
    /// The layer below a key.
    pub fn get(&self, key: K) -> Option<&L> {
        self.below.get(key)
    }

    /// All keys with the layers below, in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &L)> {
        self.below.iter()
    }

    /// Removes a key with everything below.
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

impl<K: Ord + Copy, L: Layer> Layer for StackLevel<K, L> {
    type Path = (K, L::Path);

    fn insert(&mut self, (key, path): Self::Path, piece: Piece, notify: &mut dyn FnMut(Changed)) {
        self.within(key, |layer| layer.insert(path, piece, notify));
    }

    fn remove(&mut self, (key, path): Self::Path, span: Span, notify: &mut dyn FnMut(Changed)) {
        self.within(key, |layer| layer.remove(path, span, notify));
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The lowest layer: pieces of one file by offset, without overlaps.
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

    /// The pieces that end after an offset, in order.
    pub fn from(&self, offset: u64) -> impl Iterator<Item = &Piece> {
        let before = self.pieces.before(offset).filter(move |piece| piece.span.end > offset);
        before.into_iter().chain(self.pieces.from(offset))
    }

    /// Prefetches the memory that an insertion or removal reads.
    pub(super) fn prefetch(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.span.end)
            + self.iter().next().map_or(0, |piece| piece.span.end)
    }

    fn overlapping(&self, span: Span) -> Vec<Piece> {
        self.from(span.start).take_while(|piece| piece.span.start < span.end).copied().collect()
    }

    fn add(&mut self, piece: Piece, notify: &mut dyn FnMut(Changed)) {
        if !piece.span.is_empty() {
            self.bytes += piece.span.len();
            self.pieces.insert(piece.span.start, piece);
            notify(Changed { piece, came: true });
        }
    }

    fn drop(&mut self, piece: Piece, notify: &mut dyn FnMut(Changed)) {
        self.bytes -= piece.span.len();
        self.pieces.remove(piece.span.start);
        notify(Changed { piece, came: false });
    }

    /// Removes the part of an old piece that lies inside a span.
    fn cut_out(&mut self, old: Piece, span: Span, notify: &mut dyn FnMut(Changed)) {
        self.drop(old, notify);
        self.add(old.part(Span::new(old.span.start, old.span.start.max(span.start))), notify);
        self.add(old.part(Span::new(old.span.end.min(span.end), old.span.end)), notify);
    }
}

impl Layer for Ranges {
    type Path = ();

    fn insert(&mut self, (): (), piece: Piece, notify: &mut dyn FnMut(Changed)) {
        let mut at = piece.span.start;
        for old in self.overlapping(piece.span) {
            if old.stamp > piece.stamp {
                self.add(piece.part(Span::new(at, at.max(old.span.start))), notify);
                at = old.span.end.min(piece.span.end);
            } else {
                self.cut_out(old, piece.span, notify);
            }
        }
        self.add(piece.part(Span::new(at, piece.span.end)), notify);
    }

    fn remove(&mut self, (): (), span: Span, notify: &mut dyn FnMut(Changed)) {
        for old in self.overlapping(span) {
            self.cut_out(old, span, notify);
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

    /// The paper's example: a timestamp above the same layers, without a change to them.
    #[test]
    fn another_level_adds_a_layer() {
        type Files = StackLevel<FileId, Ranges>;
        let mut by_time: StackLevel<u32, StackLevel<u32, Files>> = StackLevel::default();
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
        let first = by_time.take(1).expect("time 1 has pieces");
        assert_eq!((first.bytes(), by_time.bytes()), (30, 10));
        by_time.remove((2, (0, (FileId(1), ()))), Span::from(0), &mut |_| {});
        assert_eq!((by_time.bytes(), by_time.iter().count()), (0, 0), "empty layers are removed");
    }
}
