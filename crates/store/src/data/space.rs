//! The state of each region, and the streams that fill them.
//!
//! ```text
//! free → filling → sealed → resting → free
//!                    └→ draining ┘
//! ```
//!
//! A sealed region without live bytes *rests* until the data that replaced them is durable and its readers are gone.
//! The cleaner *drains* mostly dead regions into its own stream. One free region is reserved for the cleaner.

use super::region::Geometry;
use forebay_model::{FileId, RegionId, Uid};
use std::collections::HashMap;
use std::ops::Range;

/// Free regions that only the cleaner may take.
pub(super) const RESERVE: usize = 1;

/// No user's id: a region stained by it must be recreated before any user gets it.
pub(super) const UNUSABLE: Uid = Uid(u32::MAX);

/// The state of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Empty.
    Free,
    /// Grants are made from it.
    Filling,
    /// Grants nothing more.
    Sealed,
    /// The cleaner is moving its live bytes to another region.
    Draining,
    /// Nothing in it is live; not yet reusable.
    Resting,
}

/// The stream of writes that fills a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum WriteStream {
    /// Writers of a user, spread over a few regions.
    Writer(Uid, u8),
    /// The cleaner, for a user.
    Cleaner(Uid),
}

impl WriteStream {
    pub(super) fn uid(self) -> Uid {
        match self {
            WriteStream::Writer(uid, _) | WriteStream::Cleaner(uid) => uid,
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
    /// The file has held another user's bytes and must be recreated first.
    pub(super) stained: bool,
}

/// The states of all regions.
pub(super) struct Space {
    geometry: Geometry,
    entries: Vec<Entry>,
    streams: HashMap<WriteStream, RegionId>,
    /// Largest number of regions of one user, and the user who is exempt besides root.
    bound: Option<(usize, Uid)>,
}

impl Space {
    /// All regions are free.
    pub(super) fn new(geometry: Geometry) -> Space {
        let entry = Entry { state: State::Free, uid: None, next_slot: 0 };
        let entries = vec![entry; geometry.regions as usize];
        Space { geometry, entries, streams: HashMap::new(), bound: None }
    }

    /// Limits each user to the given percentage of the regions; root and `exempt` may use all.
    pub(super) fn bound_users(&mut self, percent: u8, exempt: Uid) {
        let most = self.entries.len() * usize::from(percent.min(100)) / 100;
        self.bound = Some((most.max(1), exempt));
    }

    /// Whether a user has reached the limit.
    pub(super) fn is_bounded(&self, uid: Uid) -> bool {
        self.bound.is_some_and(|(most, _)| !self.is_exempt(uid) && self.held(uid) >= most)
    }

    fn is_exempt(&self, uid: Uid) -> bool {
        self.bound.is_none_or(|(_, exempt)| uid == exempt || uid == Uid(0))
    }

    /// The number of regions with bytes of a user.
    fn held(&self, uid: Uid) -> usize {
        self.entries.iter().filter(|entry| entry.state != State::Free && entry.uid == Some(uid)).count()
    }

    /// The stream in which a new region is opened. A user with few regions fills one after the other, so that a few bytes
    /// in several files do not take a region each.
    pub(super) fn stream_to_open(&self, stream: WriteStream) -> WriteStream {
        match stream {
            WriteStream::Writer(uid, 1..)
                if !self.is_exempt(uid) && self.held(uid) < usize::from(self.width()) =>
            {
                WriteStream::Writer(uid, 0)
            }
            stream => stream,
        }
    }

    /// The number of regions that one user's writers fill at once.
    fn width(&self) -> u8 {
        (self.geometry.regions / 16).clamp(1, 4) as u8
    }

    /// The stream of a user's file: always the same, so that bytes written together are stored together.
    pub(super) fn stream(&self, uid: Uid, file: FileId) -> WriteStream {
        WriteStream::Writer(uid, (file.0 % u64::from(self.width())) as u8)
    }

    pub(super) fn streams(&self, uid: Uid) -> impl Iterator<Item = WriteStream> + use<> {
        (0..self.width()).map(move |number| WriteStream::Writer(uid, number))
    }

    /// The region that a stream fills.
    pub(super) fn filling(&self, stream: WriteStream) -> Option<RegionId> {
        self.streams.get(&stream).copied()
    }

    /// Allocates journal slots of a region: as many as requested, or the rest; `None` if none are left.
    pub(super) fn slots(&mut self, region: RegionId, count: u32) -> Option<Range<u32>> {
        let entry = &mut self.entries[region.0 as usize];
        let first = entry.next_slot;
        let count = count.min(self.geometry.slots.saturating_sub(first));
        entry.next_slot += count;
        (count > 0).then_some(first..first + count)
    }

    /// Records that a client of an earlier server process holds part of a region that recovery found, up to a slot.
    pub(super) fn adopt_slab(&mut self, region: RegionId, uid: Uid, end_slot: u32) {
        if self.state(region) == State::Free {
            self.set(region, State::Sealed);
        }
        let entry = &mut self.entries[region.0 as usize];
        entry.uid = Some(uid);
        entry.next_slot = entry.next_slot.max(end_slot);
    }

    /// Chooses a free region for a stream: one of the same user's, or an unused one, or (stained) another user's.
    pub(super) fn choose(&self, stream: WriteStream) -> Option<Chosen> {
        let keep = if matches!(stream, WriteStream::Cleaner(_)) { 0 } else { RESERVE };
        let is_bounded = matches!(stream, WriteStream::Writer(uid, _) if self.is_bounded(uid));
        if self.count(State::Free) <= keep || is_bounded {
            return None;
        }
        let free = || self.with(State::Free);
        let own = free().find(|&id| self.uid(id) == Some(stream.uid()));
        let fresh = || free().find(|&id| self.uid(id).is_none());
        let stained = own.is_none() && fresh().is_none();
        let region = own.or_else(fresh).or_else(|| free().next())?;
        Some(Chosen { region, stained })
    }

    /// Starts filling a free region.
    pub(super) fn fill(&mut self, stream: WriteStream, region: RegionId) {
        assert_eq!(self.state(region), State::Free);
        self.entries[region.0 as usize] =
            Entry { state: State::Filling, uid: Some(stream.uid()), next_slot: 0 };
        let before = self.streams.insert(stream, region);
        assert!(before.is_none(), "{stream:?} fills two regions");
    }

    /// Stops filling.
    pub(super) fn seal(&mut self, stream: WriteStream) {
        if let Some(region) = self.streams.remove(&stream) {
            self.set(region, State::Sealed);
        }
    }

    /// Stops filling the regions that `choose` picks.
    pub(super) fn seal_where(&mut self, choose: impl Fn(WriteStream, RegionId) -> bool) {
        let streams: Vec<WriteStream> = self
            .streams
            .iter()
            .filter(|&(&stream, &id)| choose(stream, id))
            .map(|(&stream, _)| stream)
            .collect();
        streams.into_iter().for_each(|stream| self.seal(stream));
    }

    /// Adopts a region that recovery found in use: it continues to be filled if the user has a vacant stream.
    pub(super) fn adopt(&mut self, region: RegionId, uid: Uid, used_slots: u32, space_left: bool) {
        self.entries[region.0 as usize] =
            Entry { state: State::Sealed, uid: Some(uid), next_slot: used_slots };
        let vacant = self.streams(uid).find(|stream| !self.streams.contains_key(stream));
        if let Some(stream) = vacant.filter(|_| space_left && used_slots < self.geometry.slots) {
            self.set(region, State::Filling);
            self.streams.insert(stream, region);
        }
    }

    /// Sets the user whose bytes a free region's file has held.
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
