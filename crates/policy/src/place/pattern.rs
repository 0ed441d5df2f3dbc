//! How many stripes, of which size.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Ends of the first parts of a file of unknown size, and over how many targets they lie.
const GROWTH: [(u64, u32); 2] = [(4 << 20, 1), (256 << 20, 4)];

/// What a back end accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Most targets of one file.
    pub stripes: u32,
    /// Stripe sizes are multiples of this.
    pub unit: u64,
    /// The largest stripe.
    pub largest: u64,
    /// The stripe of a file of which nothing else is known.
    pub usual: u64,
    /// Whether a file can lie otherwise from some offset on.
    pub progressive: bool,
}

impl Limits {
    /// What Lustre accepts: its stripe size is a number of 32 bits and a multiple of 64 KiB.
    pub const LUSTRE: Limits =
        Limits { stripes: 2000, unit: 64 << 10, largest: 0xffff_0000, usual: 1 << 20, progressive: true };
    /// What a stripe set of our own accepts.
    pub const STRIPES: Limits =
        Limits { stripes: 1024, unit: 4096, largest: 1 << 40, usual: 1 << 20, progressive: false };

    /// The size of a stripe that is accepted and not smaller, if there is one.
    pub(super) fn accepted(self, size: u64) -> u64 {
        size.div_ceil(self.unit).saturating_mul(self.unit).clamp(self.unit, self.largest)
    }
}

/// Who writes which file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Pattern {
    /// Each writer its own (N:N).
    PerProcess,
    /// All one (N:1).
    Shared,
    /// So many at a time one (N:M).
    Grouped(u32),
}

/// Stripes of one size, dealt in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stripes {
    /// The targets, in the order of their stripes; as the topology numbers them.
    pub targets: Vec<u32>,
    /// Bytes in a stripe.
    pub size: u64,
}

/// A part of a file that lies in its own way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    /// Where it ends; `None`: where the file does.
    pub end: Option<u64>,
    /// How it lies.
    pub stripes: Stripes,
}

/// How a file lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// In one way.
    Striped(Stripes),
    /// Over more targets the longer it grows.
    Progressive(Vec<Component>),
    /// As the back end likes.
    Usual,
}

/// What was decided because something was not known or not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Fewer stripes than writers.
    Narrowed {
        /// One for each writer.
        wanted: u32,
        /// So many there are.
        given: u32,
    },
    /// The largest stripe is too small: stripes go round.
    Wraps {
        /// What it would have taken.
        wanted: u64,
        /// What there is.
        given: u64,
    },
    /// Nobody knows how large the file will be: it lies over more targets the longer it grows.
    Grows,
    /// Nobody knows how large the file will be, and the back end has one way for all of it.
    Usual,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Narrowed { wanted, given } => {
                write!(
                    f,
                    "{given} stripes for {wanted} writers: more targets are not allowed, or not reached"
                )
            }
            Note::Wraps { wanted, given } => {
                write!(
                    f,
                    "stripes of {given} bytes go round: {wanted} bytes were needed, but are not allowed"
                )
            }
            Note::Grows => {
                write!(f, "the size is not known: the file lies over more targets the longer it grows")
            }
            Note::Usual => write!(f, "the size is not known: the file lies as the back end likes"),
        }
    }
}

/// Stripes that are still without targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outline {
    pub(super) count: u32,
    pub(super) size: u64,
    pub(super) note: Option<Note>,
}

/// What was asked for besides the pattern.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Wish {
    pub(super) count: Option<u32>,
    pub(super) size: Option<u64>,
}

/// A stripe for each writer, or for as few of them as the limits need, so large that none goes round.
pub(super) fn outline(limits: &Limits, writers: u32, bytes: u64, most: u32, wish: Wish) -> Outline {
    let writers = writers.max(1);
    let wanted = wish.count.unwrap_or(writers).max(1);
    let most = most.min(limits.stripes).max(1);
    let (count, each) = match wish.count {
        Some(count) => (count.min(most), bytes.div_ceil(u64::from(count.min(most)))),
        None => {
            let together = writers.div_ceil(writers.min(most));
            let block = bytes.div_ceil(u64::from(writers));
            (writers.div_ceil(together), block.saturating_mul(u64::from(together)))
        }
    };
    let needed = each.div_ceil(limits.unit).saturating_mul(limits.unit);
    let size = limits.accepted(wish.size.unwrap_or(each));
    let note = if wish.size.is_none() && needed > limits.largest {
        Some(Note::Wraps { wanted: needed, given: size })
    } else if count < wanted {
        Some(Note::Narrowed { wanted, given: count })
    } else {
        None
    };
    Outline { count, size, note }
}

/// The parts of a shared file of unknown size: ends, and numbers of stripes.
pub(super) fn growth(limits: &Limits, count: u32) -> Vec<(Option<u64>, u32)> {
    let first = GROWTH.iter().filter(|(_, stripes)| *stripes < count && limits.progressive);
    first.map(|&(end, stripes)| (Some(end), stripes)).chain([(None, count)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_stripe_for_each_writer_and_none_goes_round() {
        // writers, bytes, most targets → count, size
        for (writers, bytes, most, count, size) in [
            (1, 5, 10, 1, 65_536),
            (4, 4 << 20, 10, 4, 1 << 20),
            (3, 10 << 20, 10, 3, 3_538_944),
            (32, 32_000_000, 2016, 32, 1 << 20),
            (100, 100 << 20, 30, 25, 4 << 20),
            (4096, 4 * GIB, 2016, 1366, 3 << 20),
            (4, 0, 10, 4, 65_536),
        ] {
            let found = outline(&Limits::LUSTRE, writers, bytes, most, Wish::default());
            assert_eq!((found.count, found.size), (count, size), "{writers} writers, {bytes} bytes");
            assert!(u64::from(found.count) * found.size >= bytes, "{found:?}");
            let block = bytes.div_ceil(u64::from(writers));
            let together = u64::from(writers.div_ceil(count));
            assert!(found.size >= block * together, "a writer's block goes over more than its stripe");
        }
        let wide = outline(&Limits::LUSTRE, 2, 16 * GIB, 9, Wish::default());
        assert_eq!(wide.note, Some(Note::Wraps { wanted: 8 * GIB, given: 0xffff_0000 }));
        let asked = Wish { count: Some(12), size: Some(3 << 20) };
        assert_eq!(outline(&Limits::LUSTRE, 2, 16 * GIB, 9, asked).count, 9);
        assert_eq!(
            outline(&Limits::LUSTRE, 2, 16 * GIB, 90, asked),
            Outline { count: 12, size: 3 << 20, note: None }
        );
    }

    #[test]
    fn what_grows_lies_over_more_and_more() {
        let ends = |count| growth(&Limits::LUSTRE, count).iter().map(|part| part.1).collect::<Vec<_>>();
        assert_eq!(ends(1), [1]);
        assert_eq!(ends(3), [1, 3]);
        assert_eq!(ends(64), [1, 4, 64]);
        assert_eq!(growth(&Limits::STRIPES, 64), [(None, 64)]);
    }
}
