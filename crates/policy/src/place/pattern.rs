//! Stripe count and stripe size.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Ends of the first components of a file of unknown size, and their stripe counts.
const GROWTH: [(u64, u32); 2] = [(4 << 20, 1), (256 << 20, 4)];

/// Limits of a back end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Largest stripe count.
    pub stripes: u32,
    /// Stripe sizes are multiples of this.
    pub unit: u64,
    /// The largest stripe.
    pub largest: u64,
    /// Default stripe size.
    pub usual: u64,
    /// Whether the striping can change at an offset (progressive layouts).
    pub progressive: bool,
}

impl Limits {
    /// Lustre's limits: its stripe size is a 32-bit number and a multiple of 64 KiB.
    pub const LUSTRE: Limits =
        Limits { stripes: 2000, unit: 64 << 10, largest: 0xffff_0000, usual: 1 << 20, progressive: true };
    /// Limits of Forebay's own stripe sets.
    pub const STRIPES: Limits =
        Limits { stripes: 1024, unit: 4096, largest: 1 << 40, usual: 1 << 20, progressive: false };
    /// What all back ends with targets accept.
    pub const BACK_END: Limits = Limits { progressive: false, ..Limits::LUSTRE };

    /// The smallest accepted stripe size that is not smaller than `size`, if there is one.
    pub(super) fn accepted(self, size: u64) -> u64 {
        size.div_ceil(self.unit).saturating_mul(self.unit).clamp(self.unit, self.largest)
    }
}

/// Bytes of a file on each target, if the number of targets is not requested.
pub const PART: u64 = 64 << 20;

/// How many of the usable targets a file of this size lies on: one for each [`PART`]. A file that many processes share
/// needs many targets, and a file per process does not.
#[must_use]
pub fn width(size: u64, usable: u32, limits: &Limits) -> u32 {
    u32::try_from(size.div_ceil(PART)).unwrap_or(u32::MAX).clamp(1, usable.min(limits.stripes).max(1))
}

/// How writers map to files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Pattern {
    /// Each writer has its own file (N:N).
    PerProcess,
    /// All writers share one file (N:1).
    Shared,
    /// Groups of this many writers share a file (N:M).
    Grouped(u32),
}

/// Stripes of one size, round-robin over targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stripes {
    /// The targets, in the order of their stripes, by their number in the topology.
    pub targets: Vec<u32>,
    /// Stripe size in bytes.
    pub size: u64,
}

/// A component of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    /// Its end; `None`: the end of the file.
    pub end: Option<u64>,
    /// Its striping.
    pub stripes: Stripes,
}

/// Layout of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One striping.
    Striped(Stripes),
    /// More targets as the file grows.
    Progressive(Vec<Component>),
    /// The back end's default.
    Usual,
}

/// A fallback that was taken because something was unknown or impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Fewer stripes than writers.
    Narrowed {
        /// Number of writers.
        wanted: u32,
        /// Number of stripes.
        given: u32,
    },
    /// The largest stripe is too small: stripes wrap around.
    Wraps {
        /// Stripe size that would avoid it.
        wanted: u64,
        /// Stripe size in use.
        given: u64,
    },
    /// The file size is unknown: the layout uses more targets as the file grows.
    Grows,
    /// The file size is unknown, and the back end supports one striping only.
    Usual,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Narrowed { wanted, given } => {
                write!(
                    f,
                    "{given} stripes for {wanted} writers: the limits or the topology allow no more targets"
                )
            }
            Note::Wraps { wanted, given } => {
                write!(
                    f,
                    "stripes of {given} bytes wrap around: the back end does not allow the needed {wanted} bytes"
                )
            }
            Note::Grows => {
                write!(f, "the file size is unknown: the layout uses more targets as the file grows")
            }
            Note::Usual => write!(f, "the file size is unknown: the file gets the back end's default layout"),
        }
    }
}

/// Stripes without targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outline {
    pub(super) count: u32,
    pub(super) size: u64,
    pub(super) note: Option<Note>,
}

/// Requested stripe count and size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct StripeHint {
    pub(super) count: Option<u32>,
    pub(super) size: Option<u64>,
}

/// One stripe per writer, or for as few writers as the limits allow, large enough that stripes do not wrap
/// around.
pub(super) fn outline(limits: &Limits, writers: u32, bytes: u64, most: u32, hint: StripeHint) -> Outline {
    let writers = writers.max(1);
    let wanted = hint.count.unwrap_or(writers).max(1);
    let most = most.min(limits.stripes).max(1);
    let (count, each) = match hint.count {
        Some(count) => (count.min(most), bytes.div_ceil(u64::from(count.min(most)))),
        None => {
            let together = writers.div_ceil(writers.min(most));
            let block = bytes.div_ceil(u64::from(writers));
            (writers.div_ceil(together), block.saturating_mul(u64::from(together)))
        }
    };
    let needed = each.div_ceil(limits.unit).saturating_mul(limits.unit);
    let size = limits.accepted(hint.size.unwrap_or(each));
    let note = if hint.size.is_none() && needed > limits.largest {
        Some(Note::Wraps { wanted: needed, given: size })
    } else if count < wanted {
        Some(Note::Narrowed { wanted, given: count })
    } else {
        None
    };
    Outline { count, size, note }
}

/// The components of a shared file of unknown size: ends and stripe counts.
pub(super) fn growth(limits: &Limits, count: u32) -> Vec<(Option<u64>, u32)> {
    let first = GROWTH.iter().filter(|(_, stripes)| *stripes < count && limits.progressive);
    first.map(|&(end, stripes)| (Some(end), stripes)).chain([(None, count)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn each_writer_gets_a_stripe_that_does_not_wrap_around() {
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
            let found = outline(&Limits::LUSTRE, writers, bytes, most, StripeHint::default());
            assert_eq!((found.count, found.size), (count, size), "{writers} writers, {bytes} bytes");
            assert!(u64::from(found.count) * found.size >= bytes, "{found:?}");
            let block = bytes.div_ceil(u64::from(writers));
            let together = u64::from(writers.div_ceil(count));
            assert!(found.size >= block * together, "a writer's block goes over more than its stripe");
        }
        let wide = outline(&Limits::LUSTRE, 2, 16 * GIB, 9, StripeHint::default());
        assert_eq!(wide.note, Some(Note::Wraps { wanted: 8 * GIB, given: 0xffff_0000 }));
        let asked = StripeHint { count: Some(12), size: Some(3 << 20) };
        assert_eq!(outline(&Limits::LUSTRE, 2, 16 * GIB, 9, asked).count, 9);
        assert_eq!(
            outline(&Limits::LUSTRE, 2, 16 * GIB, 90, asked),
            Outline { count: 12, size: 3 << 20, note: None }
        );
    }

    #[test]
    fn growing_file_uses_more_targets() {
        let ends = |count| growth(&Limits::LUSTRE, count).iter().map(|part| part.1).collect::<Vec<_>>();
        assert_eq!(ends(1), [1]);
        assert_eq!(ends(3), [1, 3]);
        assert_eq!(ends(64), [1, 4, 64]);
        assert_eq!(growth(&Limits::STRIPES, 64), [(None, 64)]);
    }
}
