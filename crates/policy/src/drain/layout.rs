//! The layout of a file over targets.

use forebay_model::Span;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A storage target of the back end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TargetId(pub u32);

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Stripes of one size, round-robin over targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    targets: Targets,
    /// Stripe size in bytes.
    stripe: u64,
}

/// The targets of a layout, in the order of their stripes.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Targets {
    /// Avoids an allocation for a single target.
    One(TargetId),
    Many(Arc<[TargetId]>),
}

impl Layout {
    /// Stripes over targets.
    #[must_use]
    pub fn new(targets: Vec<TargetId>, stripe: u64) -> Layout {
        assert!(!targets.is_empty() && stripe > 0, "a layout has targets and a positive stripe size");
        let targets = match targets[..] {
            [one] => Targets::One(one),
            _ => Targets::Many(targets.into()),
        };
        Layout { targets, stripe }
    }

    /// A file on one target.
    #[must_use]
    pub fn whole(target: TargetId) -> Layout {
        Layout::single(target, u64::MAX)
    }

    /// Stripes on one target.
    #[must_use]
    pub fn single(target: TargetId, stripe: u64) -> Layout {
        assert!(stripe > 0, "the stripe size is positive");
        Layout { targets: Targets::One(target), stripe }
    }

    /// The targets, in the order of their stripes.
    #[must_use]
    pub fn targets(&self) -> &[TargetId] {
        match &self.targets {
            Targets::One(target) => std::slice::from_ref(target),
            Targets::Many(targets) => targets,
        }
    }

    /// Offset of a byte within its target's part of the file.
    #[must_use]
    pub fn inside(&self, at: u64) -> u64 {
        at / self.stripe / self.targets().len() as u64 * self.stripe + at % self.stripe
    }

    /// Splits a span at stripe boundaries, with the target of each part.
    pub fn cut(&self, span: Span) -> impl Iterator<Item = (TargetId, Span)> + '_ {
        let (mut at, targets) = (span.start, self.targets());
        std::iter::from_fn(move || {
            if at >= span.end {
                return None;
            }
            let number = at / self.stripe;
            let end = (number + 1).saturating_mul(self.stripe).min(span.end);
            let piece = Span::new(at, end);
            at = end;
            Some((targets[(number % targets.len() as u64) as usize], piece))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_round_robin_and_spans_split_at_boundaries() {
        let layout = Layout::new(vec![TargetId(7), TargetId(3), TargetId(5)], 10);
        let cut = |start, end| {
            layout.cut(Span::new(start, end)).map(|(target, span)| (target.0, span.start, span.end))
        };
        assert_eq!(cut(5, 35).collect::<Vec<_>>(), [(7, 5, 10), (3, 10, 20), (5, 20, 30), (7, 30, 35)]);
        assert_eq!(cut(20, 20).count(), 0);
        let inside: Vec<u64> = [0, 9, 10, 29, 30, 35, 60].map(|at| layout.inside(at)).to_vec();
        assert_eq!(inside, [0, 9, 0, 9, 10, 15, 20]);
        let whole = Layout::whole(TargetId(1));
        assert_eq!(whole.cut(Span::from(3)).collect::<Vec<_>>(), [(TargetId(1), Span::from(3))]);
    }
}
