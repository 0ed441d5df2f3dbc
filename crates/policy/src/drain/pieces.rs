//! The pieces of one write, mostly one.

use super::stack::Piece;
use std::ops::Deref;

/// Pieces in order. A single one needs no heap memory.
#[derive(Clone, Default, Debug)]
pub struct Pieces(Kind);

#[derive(Clone, Default, Debug)]
enum Kind {
    #[default]
    None,
    One(Piece),
    Many(Vec<Piece>),
}

impl Pieces {
    pub(super) fn push(&mut self, piece: Piece) {
        self.0 = match std::mem::take(&mut self.0) {
            Kind::None => Kind::One(piece),
            Kind::One(first) => Kind::Many(vec![first, piece]),
            Kind::Many(mut pieces) => {
                pieces.push(piece);
                Kind::Many(pieces)
            }
        };
    }
}

impl Deref for Pieces {
    type Target = [Piece];

    fn deref(&self) -> &[Piece] {
        match &self.0 {
            Kind::None => &[],
            Kind::One(piece) => std::slice::from_ref(piece),
            Kind::Many(pieces) => pieces,
        }
    }
}

impl PartialEq for Pieces {
    fn eq(&self, other: &Pieces) -> bool {
        **self == **other
    }
}

impl Eq for Pieces {}

impl FromIterator<Piece> for Pieces {
    fn from_iter<I: IntoIterator<Item = Piece>>(pieces: I) -> Pieces {
        let mut all = Pieces::default();
        pieces.into_iter().for_each(|piece| all.push(piece));
        all
    }
}

impl<'a> IntoIterator for &'a Pieces {
    type Item = &'a Piece;
    type IntoIter = std::slice::Iter<'a, Piece>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{Span, Stamp};

    #[test]
    fn one_or_many_pieces_read_the_same() {
        let piece = |at: u64| Piece { span: Span::new(at, at + 1), stamp: Stamp(at) };
        for count in 0..4 {
            let wanted: Vec<Piece> = (0..count).map(piece).collect();
            let pieces: Pieces = wanted.iter().copied().collect();
            assert_eq!((&*pieces, pieces.clone()), (&wanted[..], pieces.clone()));
            assert!((&pieces).into_iter().eq(&wanted));
        }
        assert_ne!(Pieces::from_iter([piece(1)]), Pieces::default());
    }
}
