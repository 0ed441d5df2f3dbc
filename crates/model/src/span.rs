//! Byte ranges of a file.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A half-open range of bytes: `start..end`, never inverted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// A change of a file's bytes that affects all servers that hold some.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reshape {
    /// Truncates or extends the file to this length.
    Cut(u64),
    /// Replaces this range by zeros.
    Punch(Span),
}

/// What is looked for in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SeekTo {
    /// The next byte that may have been written.
    Data,
    /// The next byte of a hole; the end of the file counts as one.
    Hole,
}

/// The stripes of a file that one of its servers holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "(u64, u16, u16)", into = "(u64, u16, u16)")]
pub struct Stripes {
    stripe: u64,
    index: u16,
    count: u16,
}

impl Stripes {
    /// Of `count` servers, those of the one at place `index`, with so many bytes in a stripe; `None` if there is no such
    /// place or stripe.
    #[must_use]
    pub fn new(stripe: u64, index: u16, count: u16) -> Option<Stripes> {
        (stripe > 0 && index < count).then_some(Stripes { stripe, index, count })
    }

    /// The first byte at or behind an offset that the server holds.
    #[must_use]
    pub fn next(self, offset: u64) -> u64 {
        let (index, count) = (u64::from(self.index), u64::from(self.count));
        let number = offset / self.stripe;
        match (index + count - number % count) % count {
            0 => offset,
            ahead => (number + ahead).saturating_mul(self.stripe),
        }
    }
}

impl TryFrom<(u64, u16, u16)> for Stripes {
    type Error = &'static str;

    fn try_from((stripe, index, count): (u64, u16, u16)) -> Result<Stripes, &'static str> {
        Stripes::new(stripe, index, count).ok_or("no such stripes")
    }
}

impl From<Stripes> for (u64, u16, u16) {
    fn from(Stripes { stripe, index, count }: Stripes) -> (u64, u16, u16) {
        (stripe, index, count)
    }
}

impl Reshape {
    /// The range whose old bytes no longer count.
    #[must_use]
    pub fn hides(self) -> Span {
        match self {
            Reshape::Cut(size) => Span::from(size),
            Reshape::Punch(span) => span,
        }
    }
}

impl Span {
    /// The range `start..end`.
    #[must_use]
    pub fn new(start: u64, end: u64) -> Span {
        assert!(start <= end, "inverted span {start}..{end}");
        Span { start, end }
    }

    /// `len` bytes from `start` on; `None` if the end overflows.
    #[must_use]
    pub fn at(start: u64, len: u64) -> Option<Span> {
        start.checked_add(len).map(|end| Span { start, end })
    }

    /// All bytes from `start` on.
    #[must_use]
    pub fn from(start: u64) -> Span {
        Span { start, end: u64::MAX }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The common bytes, if any.
    #[must_use]
    pub fn intersect(self, other: Span) -> Option<Span> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Span { start, end })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_of_one_server_are_found_from_any_offset() {
        let second = Stripes::new(10, 1, 3).unwrap();
        for (offset, next) in [(0, 10), (10, 10), (19, 19), (20, 40), (39, 40), (49, 49), (50, 70)] {
            assert_eq!(second.next(offset), next, "from {offset}");
        }
        assert_eq!(Stripes::new(7, 0, 1).unwrap().next(100), 100);
        assert_eq!(Stripes::new(1 << 62, 0, 2).unwrap().next(u64::MAX - 1), u64::MAX);
        assert_eq!([Stripes::new(0, 0, 1), Stripes::new(1, 1, 1), Stripes::new(1, 0, 0)], [None; 3]);
    }
}
