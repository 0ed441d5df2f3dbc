//! Which region is in which state, and who fills which.
//!
//! ```text
//! free → filling → sealed → resting → free
//!                    └→ draining ┘
//! ```
//!
//! A sealed region without live bytes *rests* until whatever replaced them is durable and its readers are gone.
//! The cleaner *drains* mostly dead ones into its own lane. One free region is kept back for the cleaner.

use super::region::Geometry;
use forebay_model::{FileId, RegionId, Uid};
use std::collections::HashMap;
use std::ops::Range;

/// Free regions that only the cleaner may take.
pub(super) const RESERVE: usize = 1;

/// Nobody's user: a region stained by it has to be made anew for whomever it is chosen.
pub(super) const UNUSABLE: Uid = Uid(u32::MAX);

/// What a region is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Empty.
    Free,
    /// Grants are made from it.
    Filling,
    /// Grants nothing more.
    Sealed,
    /// The cleaner is moving its live bytes elsewhere.
    Draining,
    /// Nothing in it is live; not yet to be used again.
    Resting,
}

/// Who fills a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lane {
    /// Writers of a user, spread over a few regions.
    Writer(Uid, u8),
    /// The cleaner, for a user.
    Cleaner(Uid),
}

impl Lane {
    pub(super) fn uid(self) -> Uid {
        match self {
            Lane::Writer(uid, _) | Lane::Cleaner(uid) => uid,
        }
    }
}

#[derive(Clone, Copy)]
struct Entry {
    state: State,
    /// The user whose bytes the file has held, if any.
    uid: Option<Uid>,
    next_slot: u32,
}

/// A free region chosen for a user.
pub(super) struct Chosen {
    pub(super) region: RegionId,
    /// The file has held another user's bytes and must be made anew first.
    pub(super) stained: bool,
}

/// The states of all regions.
pub(super) struct Space {
    geometry: Geometry,
    entries: Vec<Entry>,
    lanes: HashMap<Lane, RegionId>,
}

impl Space {
    /// All regions free.
    pub(super) fn new(geometry: Geometry) -> Space {
        let entry = Entry { state: State::Free, uid: None, next_slot: 0 };
        Space { geometry, entries: vec![entry; geometry.regions as usize], lanes: HashMap::new() }
    }

    /// How many regions one user's writers fill at once.
    fn width(&self) -> u8 {
        (self.geometry.regions / 16).clamp(1, 4) as u8
    }

    /// The lane of a user's file: always the same, so that what is written together lies together.
    pub(super) fn lane(&self, uid: Uid, file: FileId) -> Lane {
        Lane::Writer(uid, (file.0 % u64::from(self.width())) as u8)
    }

    pub(super) fn lanes(&self, uid: Uid) -> impl Iterator<Item = Lane> + use<> {
        (0..self.width()).map(move |number| Lane::Writer(uid, number))
    }

    /// The region that a lane fills.
    pub(super) fn filling(&self, lane: Lane) -> Option<RegionId> {
        self.lanes.get(&lane).copied()
    }

    /// Journal slots of a region: as many as asked for, or what is left, or `None` when there are none.
    pub(super) fn slots(&mut self, region: RegionId, count: u32) -> Option<Range<u32>> {
        let entry = &mut self.entries[region.0 as usize];
        let first = entry.next_slot;
        let count = count.min(self.geometry.slots.saturating_sub(first));
        entry.next_slot += count;
        (count > 0).then_some(first..first + count)
    }

    /// A client of an earlier life holds part of a region that recovery found, up to a slot.
    pub(super) fn adopt_slab(&mut self, region: RegionId, uid: Uid, end_slot: u32) {
        if self.state(region) == State::Free {
            self.set(region, State::Sealed);
        }
        let entry = &mut self.entries[region.0 as usize];
        entry.uid = Some(uid);
        entry.next_slot = entry.next_slot.max(end_slot);
    }

    /// Chooses a free region for a lane: one of the same user's, or a fresh one, or (stained) another user's.
    pub(super) fn choose(&self, lane: Lane) -> Option<Chosen> {
        let keep = if matches!(lane, Lane::Cleaner(_)) { 0 } else { RESERVE };
        if self.count(State::Free) <= keep {
            return None;
        }
        let free = || self.with(State::Free);
        let own = free().find(|&id| self.uid(id) == Some(lane.uid()));
        let fresh = || free().find(|&id| self.uid(id).is_none());
        let stained = own.is_none() && fresh().is_none();
        let region = own.or_else(fresh).or_else(|| free().next())?;
        Some(Chosen { region, stained })
    }

    /// Starts to fill a free region.
    pub(super) fn fill(&mut self, lane: Lane, region: RegionId) {
        assert_eq!(self.state(region), State::Free);
        self.entries[region.0 as usize] =
            Entry { state: State::Filling, uid: Some(lane.uid()), next_slot: 0 };
        let before = self.lanes.insert(lane, region);
        assert!(before.is_none(), "{lane:?} fills two regions");
    }

    /// Stops filling.
    pub(super) fn seal(&mut self, lane: Lane) {
        if let Some(region) = self.lanes.remove(&lane) {
            self.set(region, State::Sealed);
        }
    }

    /// Stops filling the regions that `choose` picks.
    pub(super) fn seal_where(&mut self, choose: impl Fn(Lane, RegionId) -> bool) {
        let lanes: Vec<Lane> =
            self.lanes.iter().filter(|&(&lane, &id)| choose(lane, id)).map(|(&lane, _)| lane).collect();
        lanes.into_iter().for_each(|lane| self.seal(lane));
    }

    /// Takes over a region that recovery found in use: it goes on being filled if it can, up to a lane each.
    pub(super) fn adopt(&mut self, region: RegionId, uid: Uid, used_slots: u32, room: bool) {
        self.entries[region.0 as usize] =
            Entry { state: State::Sealed, uid: Some(uid), next_slot: used_slots };
        let vacant = self.lanes(uid).find(|lane| !self.lanes.contains_key(lane));
        if let Some(lane) = vacant.filter(|_| room && used_slots < self.geometry.slots) {
            self.set(region, State::Filling);
            self.lanes.insert(lane, region);
        }
    }

    /// Whose bytes a free region's file has held.
    pub(super) fn stain(&mut self, region: RegionId, uid: Option<Uid>) {
        self.entries[region.0 as usize].uid = uid;
    }

    pub(super) fn set(&mut self, region: RegionId, state: State) {
        self.entries[region.0 as usize].state = state;
    }

    pub(super) fn state(&self, region: RegionId) -> State {
        self.entries[region.0 as usize].state
    }

    pub(super) fn uid(&self, region: RegionId) -> Option<Uid> {
        self.entries[region.0 as usize].uid
    }

    pub(super) fn with(&self, state: State) -> impl Iterator<Item = RegionId> + '_ {
        let fits =
            move |(number, entry): (usize, &Entry)| (entry.state == state).then_some(RegionId(number as u32));
        self.entries.iter().enumerate().filter_map(fits)
    }

    pub(super) fn count(&self, state: State) -> usize {
        self.with(state).count()
    }
}
