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

/// A change of a file's bytes that concerns all who hold some.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reshape {
    /// The file gets this length.
    Cut(u64),
    /// This range becomes zeros.
    Punch(Span),
}

impl Reshape {
    /// The range whose bytes do not count any more.
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

    /// `len` bytes from `start` on; `None` where that passes the largest offset.
    #[must_use]
    pub fn at(start: u64, len: u64) -> Option<Span> {
        start.checked_add(len).map(|end| Span { start, end })
    }

    /// Everything from `start` on.
    #[must_use]
    pub fn from(start: u64) -> Span {
        Span { start, end: u64::MAX }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The bytes both have, if any.
    #[must_use]
    pub fn meet(self, other: Span) -> Option<Span> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Span { start, end })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
