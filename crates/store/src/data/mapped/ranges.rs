//! Sets of ranges of a file.

use forebay_model::Span;

/// Disjoint ranges in order, neighbours merged.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Ranges(Vec<Span>);

impl Ranges {
    pub(super) fn all(&self) -> &[Span] {
        &self.0
    }

    /// Adds a range.
    pub(super) fn add(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let from = self.0.partition_point(|known| known.end < span.start);
        let to = self.0.partition_point(|known| known.start <= span.end);
        let joined = self.0[from..to]
            .iter()
            .fold(span, |joined, known| Span::new(joined.start.min(known.start), joined.end.max(known.end)));
        self.0.splice(from..to, [joined]);
    }

    /// The parts of a range that are in the set.
    pub(super) fn within(&self, span: Span) -> impl Iterator<Item = Span> + '_ {
        let from = self.0.partition_point(|known| known.end <= span.start);
        self.0[from..].iter().map_while(move |known| known.intersect(span))
    }

    /// The parts of a range that are not in the set.
    pub(super) fn missing(&self, span: Span) -> Vec<Span> {
        let (mut missing, mut at) = (Vec::new(), span.start);
        for known in self.within(span) {
            if at < known.start {
                missing.push(Span::new(at, known.start));
            }
            at = known.end;
        }
        if at < span.end {
            missing.push(Span::new(at, span.end));
        }
        missing
    }

    /// The number of bytes below an offset.
    pub(super) fn len_below(&self, end: u64) -> u64 {
        self.within(Span::new(0, end)).map(Span::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_their_neighbours() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (40, 50), (20, 25), (0, 5), (49, 60)] {
            ranges.add(Span::new(start, end));
        }
        let spans = |list: &[(u64, u64)]| list.iter().map(|&(a, b)| Span::new(a, b)).collect::<Vec<_>>();
        assert_eq!(ranges.all(), spans(&[(0, 5), (10, 25), (40, 60)]));
        assert_eq!(ranges.missing(Span::new(3, 45)), spans(&[(5, 10), (25, 40)]));
        assert_eq!(ranges.missing(Span::new(11, 25)), []);
        assert_eq!(ranges.len_below(42), 5 + 15 + 2);
        ranges.add(Span::new(4, 41));
        assert_eq!(ranges.all(), spans(&[(0, 60)]));
    }
}
