//! The source and age of every byte of a file.
//!
//! **Invariant**: at every byte the newest stamp wins, in whatever order extents are applied; with equal stamps the
//! later application wins (the cleaner moves bytes without making them newer).

use super::rings::Leases;
use forebay_model::{JobId, RegionId, Span, Stamp, Uid};
use forebay_shm::Ticket;
use std::collections::BTreeMap;

/// Where the bytes of an extent are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// Nowhere: the bytes are zeros and hide everything older.
    Zero,
    /// In a region.
    Data(Bytes),
    /// In the back end.
    Backing,
}

/// Bytes in a region, with their job and user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    pub(super) region: RegionId,
    /// The journal slot of the record that committed them.
    pub(super) slot: u32,
    /// All bytes of that record, and the offset of this extent in it.
    pub(super) record: Ticket,
    pub(super) from: u32,
    pub(super) job: JobId,
    pub(super) uid: Uid,
}

impl Bytes {
    /// The first `len` bytes.
    pub(super) fn ticket(&self, len: u64) -> Ticket {
        self.record.part(self.from..self.from + len as u32)
    }
}

/// A contiguous range of a file with one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) span: Span,
    pub(super) stamp: Stamp,
    pub(super) source: Source,
}

impl Extent {
    fn part(&self, span: Span) -> Extent {
        let source = match self.source {
            Source::Zero | Source::Backing => self.source,
            Source::Data(bytes) => {
                let skipped = (span.start - self.span.start) as u32;
                Source::Data(Bytes { from: bytes.from + skipped, ..bytes })
            }
        };
        Extent { span, stamp: self.stamp, source }
    }
}

/// Upper bound of the memory of one extent. A B-tree node holds up to eleven; all but one per file are at least five
/// elevenths full. Inner nodes of twelve words come on top, one for every six nodes.
pub(super) const EXTENT_BYTES: u64 = {
    let node = 11 * (size_of::<u64>() + size_of::<Extent>()) + 16;
    ((node + (node + 12 * size_of::<usize>()) / 5) / 5) as u64
};

/// How an index change affects the live data of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Delta {
    pub(super) region: RegionId,
    pub(super) bytes: i64,
    pub(super) pieces: i64,
}

/// The extents of one file. Every change ends the leases of clients that read them through shared memory.
#[derive(Default)]
pub(super) struct Index {
    extents: BTreeMap<u64, Extent>,
    /// Bytes in regions.
    buffered: u64,
    /// The oldest stamp of bytes in regions; `None` if it has to be computed.
    oldest: Option<Stamp>,
    pub(super) leases: Leases,
}

impl Index {
    /// Applies an extent in stamp order; reports which bytes became live or dead.
    pub(super) fn apply(&mut self, new: Extent, change: &mut impl FnMut(Delta)) {
        self.leases.end();
        if new.span.is_empty() {
            return;
        }
        let mut uncovered = new.span.start;
        for old in self.overlapping(new.span) {
            if old.stamp > new.stamp {
                if uncovered < old.span.start {
                    self.insert(new.part(Span::new(uncovered, old.span.start)), change);
                }
                uncovered = old.span.end.min(new.span.end);
                continue;
            }
            self.remove(&old, change);
            if old.span.start < new.span.start {
                self.insert(old.part(Span::new(old.span.start, new.span.start)), change);
            }
            if old.span.end > new.span.end {
                self.insert(old.part(Span::new(new.span.end, old.span.end)), change);
            }
        }
        if uncovered < new.span.end {
            self.insert(new.part(Span::new(uncovered, new.span.end)), change);
        }
    }

    /// Drops the zeros with this stamp, when no older record is left for them to hide.
    pub(super) fn drop_zeros(&mut self, stamp: Stamp) {
        self.extents.retain(|_, extent| extent.stamp != stamp || extent.source != Source::Zero);
    }

    /// Drops the extents of a span that has nothing in a region.
    pub(super) fn forget(&mut self, span: Span) {
        self.leases.end();
        for old in self.overlapping(span) {
            self.remove(&old, &mut |_| unreachable!("bytes in a region are hidden, never forgotten"));
            for rest in [(old.span.start, span.start), (span.end, old.span.end)] {
                if rest.0 < rest.1 {
                    self.insert(old.part(Span::new(rest.0, rest.1)), &mut |_| {});
                }
            }
        }
    }

    /// Drops all extents.
    pub(super) fn clear(&mut self, change: &mut impl FnMut(Delta)) {
        self.leases.end();
        for (_, extent) in std::mem::take(&mut self.extents) {
            self.account(&extent, -1, change);
        }
    }

    /// The extents that overlap a span, cut to it, in order.
    pub(super) fn pieces(&self, span: Span) -> impl Iterator<Item = Extent> + '_ {
        self.from(span).filter_map(move |extent| Some(extent.part(extent.span.intersect(span)?)))
    }

    /// The parts of a span that are neither in a region nor in the back end.
    pub(super) fn holes(&self, span: Span) -> Vec<Span> {
        let (mut holes, mut at) = (Vec::new(), span.start);
        for extent in self.pieces(span).filter(|extent| extent.source != Source::Zero) {
            if at < extent.span.start {
                holes.push(Span::new(at, extent.span.start));
            }
            at = extent.span.end;
        }
        if at < span.end {
            holes.push(Span::new(at, span.end));
        }
        holes
    }

    /// Extends a span by the adjacent backing extents, so that neighbours merge.
    pub(super) fn with_backing(&self, span: Span) -> Span {
        let backing = |extent: &&Extent| extent.source == Source::Backing;
        let before = self.extents.range(..span.start).next_back().map(|(_, extent)| extent);
        let before = before.filter(backing).filter(|extent| extent.span.end >= span.start);
        let after = self.extents.get(&span.end).filter(backing);
        Span::new(
            before.map_or(span.start, |extent| extent.span.start),
            after.map_or(span.end, |extent| extent.span.end),
        )
    }

    /// All extents, in order.
    pub(super) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.values()
    }

    /// The number of extents.
    pub(super) fn len(&self) -> usize {
        self.extents.len()
    }

    /// One past the last byte that is in a region.
    pub(super) fn end(&self) -> u64 {
        let data = |extent: &&Extent| matches!(extent.source, Source::Data(_));
        self.extents.values().rev().find(data).map_or(0, |extent| extent.span.end)
    }

    /// How many bytes are in regions.
    pub(super) fn buffered(&self) -> u64 {
        self.buffered
    }

    /// The oldest stamp of bytes in regions.
    pub(super) fn oldest(&mut self) -> Option<Stamp> {
        if self.oldest.is_none() {
            let data = self.extents.values().filter(|extent| matches!(extent.source, Source::Data(_)));
            self.oldest = data.map(|extent| extent.stamp).min();
        }
        self.oldest
    }

    /// Whether all extents are in the back end: nothing is in a region, and no zeros hide anything.
    pub(super) fn is_all_in_backing(&self) -> bool {
        self.extents.values().all(|extent| extent.source == Source::Backing)
    }

    fn overlapping(&self, span: Span) -> Vec<Extent> {
        self.from(span).filter(|extent| extent.span.intersect(span).is_some()).copied().collect()
    }

    fn from(&self, span: Span) -> impl Iterator<Item = &Extent> {
        let before = self.extents.range(..span.start).next_back();
        before.into_iter().chain(self.extents.range(span.start..span.end)).map(|(_, extent)| extent)
    }

    fn insert(&mut self, extent: Extent, change: &mut impl FnMut(Delta)) {
        self.account(&extent, 1, change);
        let replaced = self.extents.insert(extent.span.start, extent);
        assert!(replaced.is_none(), "two extents at {}", extent.span.start);
    }

    fn remove(&mut self, extent: &Extent, change: &mut impl FnMut(Delta)) {
        self.account(extent, -1, change);
        self.extents.remove(&extent.span.start);
    }

    fn account(&mut self, extent: &Extent, sign: i64, change: &mut impl FnMut(Delta)) {
        let Source::Data(place) = extent.source else { return };
        let bytes = sign * extent.span.len() as i64;
        self.buffered = self.buffered.wrapping_add_signed(bytes);
        self.oldest = match self.oldest {
            Some(oldest) if sign < 0 => (extent.stamp != oldest).then_some(oldest),
            Some(oldest) => Some(oldest.min(extent.stamp)),
            None => None,
        };
        change(Delta { region: place.region, bytes, pieces: sign });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::HashMap;

    const SPACE: u64 = 64;

    fn ticket(len: u32) -> Ticket {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let file = std::fs::File::from(memfd_create("index", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 4096).unwrap();
        forebay_shm::Arena::new(&file, 4096, 1).unwrap().grant(len).unwrap().publish(len)
    }

    pub(in super::super) fn data(start: u64, len: u32, stamp: u64, region: u32) -> Extent {
        let bytes = Bytes {
            region: RegionId(region),
            slot: 0,
            record: ticket(len),
            from: 0,
            job: JobId(0),
            uid: Uid(0),
        };
        Extent {
            span: Span::new(start, start + u64::from(len)),
            stamp: Stamp(stamp),
            source: Source::Data(bytes),
        }
    }

    fn shape(index: &Index) -> Vec<(u64, u64, u64, u32)> {
        let from = |extent: &Extent| match extent.source {
            Source::Zero | Source::Backing => 0,
            Source::Data(bytes) => bytes.from,
        };
        index.extents().map(|one| (one.span.start, one.span.end, one.stamp.0, from(one))).collect()
    }

    #[test]
    fn newer_extents_split_older_ones_and_older_ones_fill_gaps() {
        let mut index = Index::default();
        index.apply(data(0, 10, 5, 1), &mut |_| {});
        index.apply(data(3, 4, 7, 2), &mut |_| {});
        assert_eq!(shape(&index), [(0, 3, 5, 0), (3, 7, 7, 0), (7, 10, 5, 7)]);
        index.apply(data(2, 20, 6, 3), &mut |_| {});
        assert_eq!(shape(&index), [(0, 2, 5, 0), (2, 3, 6, 0), (3, 7, 7, 0), (7, 22, 6, 5)]);
        index.apply(Extent { span: Span::from(5), stamp: Stamp(9), source: Source::Zero }, &mut |_| {});
        assert_eq!(index.end(), 5);
        assert_eq!(index.buffered(), 5);
    }

    /// Every order of application gives the same bytes: those of the newest stamp.
    #[test]
    fn random_order_of_extents_always_yields_the_newest_stamp() {
        let seed = forebay_testkit::seed();
        let mut rng = forebay_testkit::Rng::new(seed);
        let mut random = move |below: u64| rng.below(below);
        for round in 0..300 {
            let mut index = Index::default();
            let mut model: Vec<Option<(u64, u32, Option<u64>)>> = vec![None; SPACE as usize];
            let mut live: HashMap<RegionId, i64> = HashMap::new();
            let mut stamps: Vec<u64> = (1..=20).collect();
            while !stamps.is_empty() {
                let stamp = stamps.swap_remove(random(stamps.len() as u64) as usize);
                let start = random(SPACE - 1);
                let len = 1 + random(SPACE - start - 1);
                let mut extent = data(start, len as u32, stamp, (stamp % 3) as u32);
                match random(8) {
                    0 | 1 => extent.source = Source::Zero,
                    2 | 3 => extent.source = Source::Backing,
                    _ => {}
                }
                index.apply(extent, &mut |delta| *live.entry(delta.region).or_default() += delta.bytes);
                let in_regions = index.extents().filter(|one| matches!(one.source, Source::Data(_)));
                let (bytes, stamps): (Vec<u64>, Vec<Stamp>) =
                    in_regions.map(|one| (one.span.len(), one.stamp)).unzip();
                assert_eq!(index.buffered(), bytes.iter().sum(), "seed {seed}, round {round}");
                assert_eq!(index.oldest(), stamps.into_iter().min(), "seed {seed}, round {round}");
                for at in start..start + len {
                    let cell = &mut model[at as usize];
                    if cell.is_none_or(|(old, ..)| old < stamp) {
                        let offset = matches!(extent.source, Source::Data(_)).then_some(at - start);
                        *cell = Some((stamp, (stamp % 3) as u32, offset));
                    }
                }
            }
            let mut seen = vec![None; SPACE as usize];
            for extent in index.extents() {
                for at in extent.span.start..extent.span.end {
                    let (region, offset) = match extent.source {
                        Source::Zero | Source::Backing => ((extent.stamp.0 % 3) as u32, None),
                        Source::Data(bytes) => {
                            (bytes.region.0, Some(u64::from(bytes.from) + at - extent.span.start))
                        }
                    };
                    seen[at as usize] = Some((extent.stamp.0, region, offset));
                }
            }
            assert_eq!(seen, model, "seed {seed}, round {round}");
            for region in 0..3 {
                let expected =
                    model.iter().flatten().filter(|cell| cell.1 == region && cell.2.is_some()).count();
                assert_eq!(live.get(&RegionId(region)).copied().unwrap_or(0), expected as i64, "seed {seed}");
            }
        }
    }
}
