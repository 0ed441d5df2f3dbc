//! The layout of a striped file: which directory holds which of its bytes.

use crate::dir::birth;
use forebay_model::Name;
use rustix::fs::Statx;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most bytes in one round over all parts, as in a file.
const LARGEST: u64 = i64::MAX as u64;

/// Layout of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) id: Id,
    pub(crate) count: u32,
    pub(crate) size: u64,
    pub(crate) start: Start,
}

/// Which file a layout belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Id {
    pub(crate) inode: u64,
    /// When it was created, in nanoseconds; missing in layouts of earlier versions and where it is unknown.
    birth: Option<u64>,
}

impl Id {
    pub(crate) fn of(head: &Statx) -> Id {
        Id { inode: head.stx_ino, birth: birth(head) }
    }

    fn parse(word: &str) -> Option<Id> {
        let (inode, birth) = match word.split_once('.') {
            Some((inode, birth)) => (inode, Some(birth.parse().ok()?)),
            None => (word, None),
        };
        Some(Id { inode: inode.parse().ok()?, birth })
    }

    pub(crate) fn text(self) -> String {
        match self.birth {
            Some(birth) => format!("{}.{birth}", self.inode),
            None => self.inode.to_string(),
        }
    }

    /// Whether the layout of this file belongs to this head.
    pub(crate) fn is_of(self, head: &Statx) -> bool {
        self == Id::of(head) || self == Id { inode: head.stx_ino, birth: None }
    }
}

/// Directories of a file's parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// Consecutive ones, from this one on.
    Turn(u32),
    /// These.
    On(Arc<[u32]>),
}

impl Start {
    fn parse(word: &str, count: u32) -> Option<Start> {
        if !word.contains(',') {
            return word.parse().ok().map(Start::Turn);
        }
        let list = word.split(',').map(|number| number.parse().ok()).collect::<Option<Arc<[u32]>>>()?;
        (list.len() == count as usize).then_some(Start::On(list))
    }

    fn text(&self) -> String {
        match self {
            Start::Turn(first) => first.to_string(),
            Start::On(list) => list.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        }
    }
}

impl Plan {
    /// A layout over this many directories, as an attribute has it that the owner of the file may have written.
    pub(crate) fn parse(text: &[u8], dirs: usize) -> Option<Plan> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let (id, count) = (Id::parse(words.next()?)?, words.next()?.parse().ok()?);
        let size = words.next()?.parse().ok()?;
        let plan = Plan { id, count, size, start: Start::parse(words.next()?, count)? };
        (words.next().is_none() && plan.fits(dirs)).then_some(plan)
    }

    /// Whether each part has a directory of its own, and no length of a file or part overflows.
    pub(crate) fn fits(&self, dirs: usize) -> bool {
        let round = self.size.checked_mul(u64::from(self.count));
        let in_range = (1..=dirs).contains(&(self.count as usize))
            && round.is_some_and(|round| (1..=LARGEST).contains(&round));
        in_range && {
            let used: BTreeSet<usize> = (0..self.count).map(|part| self.dir(part, dirs)).collect();
            used.len() == self.count as usize
        }
    }

    pub(crate) fn text(&self) -> String {
        format!("{} {} {} {}", self.id.text(), self.count, self.size, self.start.text())
    }

    pub(crate) fn object(&self) -> [Name; 1] {
        [Name::new(self.id.text().as_bytes()).expect("a name")]
    }

    /// The number of the directory that holds a part, out of `dirs`.
    pub(crate) fn dir(&self, part: u32, dirs: usize) -> usize {
        let number = match &self.start {
            Start::Turn(first) => u64::from(*first) + u64::from(part),
            Start::On(list) => u64::from(list[part as usize]),
        };
        (number % dirs as u64) as usize
    }

    /// Location of a byte: the part, the offset in its object, and the number of bytes that follow there.
    pub(crate) fn place(&self, offset: u64) -> (u32, u64, u64) {
        let stripe = offset / self.size;
        let within = offset % self.size;
        let part = (stripe % u64::from(self.count)) as u32;
        (part, stripe / u64::from(self.count) * self.size + within, self.size - within)
    }

    /// Length of a part's object when the file has the given size.
    pub(crate) fn length(&self, part: u32, size: u64) -> u64 {
        let round = self.size * u64::from(self.count);
        let (whole, rest) = (size / round, size % round);
        whole * self.size + rest.saturating_sub(u64::from(part) * self.size).min(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: Id = Id { inode: 5, birth: Some(17) };

    #[test]
    fn every_byte_has_one_location_and_lengths_add_up() {
        for (count, size) in [(1, 7), (3, 4), (4, 1)] {
            let plan = Plan { id: FIVE, count, size, start: Start::Turn(2) };
            assert_eq!(Plan::parse(plan.text().as_bytes(), 8), Some(plan.clone()));
            for length in 0..60 {
                let mut lengths = vec![0; count as usize];
                for offset in 0..length {
                    let (part, at, follow) = plan.place(offset);
                    assert_eq!(lengths[part as usize], at, "bytes of an object come one after the other");
                    assert_eq!(follow, size - offset % size);
                    lengths[part as usize] += 1;
                }
                let computed: Vec<u64> = (0..count).map(|part| plan.length(part, length)).collect();
                assert_eq!(computed, lengths, "{count} × {size}, {length} bytes");
            }
        }
        let chosen = Plan { id: FIVE, count: 3, size: 4, start: Start::On([7, 0, 3].into()) };
        assert_eq!(chosen.text(), "5.17 3 4 7,0,3");
        assert_eq!(Plan::parse(b"5.17 3 4 7,0,3", 8), Some(chosen.clone()));
        let earlier = Plan { id: Id { inode: 5, birth: None }, ..chosen.clone() };
        assert_eq!(
            (earlier.text().as_str(), Plan::parse(b"5 3 4 7,0,3", 8)),
            ("5 3 4 7,0,3", Some(earlier.clone()))
        );
        assert_eq!((0..3).map(|part| chosen.dir(part, 8)).collect::<Vec<_>>(), [7, 0, 3]);
        for bad in [
            "",
            "1. 1 4 0",
            "1.x 1 4 0",
            "1 2 3",
            "1 2 3 4,",
            "1 2 3 4,x",
            "1 3 3 4,5",
            "1 0 3 4",
            "1 2 0 4",
            "1 2 3 4 5",
            "x 2 3 4",
        ] {
            assert_eq!(Plan::parse(bad.as_bytes(), 8), None, "{bad}");
        }
    }

    #[test]
    fn layouts_that_do_not_fit_the_directories_are_refused() {
        let fits = [
            "1 8 4 0",
            "1 8 4 4294967295",
            "1 2 4611686018427387903 0",
            "1 1 9223372036854775807 0",
            "1 8 4 0,1,2,3,4,5,6,7",
        ];
        for good in fits {
            let plan = Plan::parse(good.as_bytes(), 8).expect(good);
            for size in [0, 1, LARGEST] {
                let lengths: u64 = (0..plan.count).map(|part| plan.length(part, size)).sum();
                assert_eq!(lengths, size, "{good}");
                plan.place(size);
            }
        }
        for bad in [
            // More parts than directories: two would share an object.
            "1 9 4 0",
            "1 4294967295 4 0",
            "1 4294967296 4 0",
            "1 2 4 3,3",
            "1 2 4 3,11",
            // A round of stripes is longer than any file.
            "1 2 4611686018427387904 0",
            "1 2 9223372036854775808 0",
            "1 1 18446744073709551615 0",
            "1 4 4611686018427387904 0",
            "18446744073709551616 1 4 0",
        ] {
            assert_eq!(Plan::parse(bad.as_bytes(), 8), None, "{bad}");
        }
    }
}
