//! The cleaner: moves live bytes out of mostly dead regions.
//!
//! Bytes keep their stamp when they move, so a crash in the middle leaves two equal copies. Neighbours in a file that
//! move together become one record with the latest of their stamps. The file is locked, so no write can be stamped
//! between them, unless a ring is bound to the file: then only neighbours with the same stamp move together.

use super::file::File;
use super::index::{Bytes, Extent, Index, Source};
use super::publish::Write;
use super::reclaim::Want;
use super::region::Region;
use super::space::{State, WriteStream};
use super::{Data, Filled, Grant};
use crc32c::crc32c;
use forebay_model::{FileId, RegionId, Result, Span, Uid};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Largest number of bytes moved while a file is locked.
const RUN: u64 = 1 << 20;

/// A region that could be cleaned, and the share of it in use: of bytes or journal slots, whichever is larger.
struct Candidate {
    region: RegionId,
    weight: f64,
}

impl Data {
    /// Cleans the regions of the user with the most dead space, until one more region is free. False if no user's
    /// regions together hold a region's worth of dead space. The caller holds `reclaiming`.
    pub(super) fn clean(&self) -> Result<bool> {
        let Some((uid, victims)) = self.most_dead() else { return Ok(false) };
        let before = self.space.lock().count(State::Free);
        for victim in victims {
            if !self.empty_region(uid, victim.region)? {
                break;
            }
            self.reclaim()?;
            if self.space.lock().count(State::Free) > before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The user with the most dead space, and that user's regions, emptiest first. Seals them.
    fn most_dead(&self) -> Option<(Uid, Vec<Candidate>)> {
        let in_use: Vec<(Uid, RegionId)> = {
            let space = self.space.lock();
            let in_use = space.with(State::Sealed).chain(space.with(State::Filling));
            in_use.map(|id| (space.uid(id).expect("a region in use belongs to a user"), id)).collect()
        };
        let mut users: BTreeMap<Uid, Vec<Candidate>> = BTreeMap::new();
        for (uid, id) in in_use {
            let region = self.region(id);
            if !region.damaged.load(Ordering::Acquire) && !region.arena.is_held() {
                users.entry(uid).or_default().push(Candidate { region: id, weight: self.weight(&region) });
            }
        }
        let gain = |candidates: &[Candidate]| candidates.iter().map(|one| 1.0 - one.weight).sum::<f64>();
        let (uid, mut candidates) = users.into_iter().max_by(|(_, a), (_, b)| gain(a).total_cmp(&gain(b)))?;
        // Moving bytes between regions frees one only if their dead space adds up to a whole region.
        if gain(&candidates) <= 1.0 {
            return None;
        }
        candidates.sort_by(|a, b| a.weight.total_cmp(&b.weight));
        self.space.lock().seal_where(|stream, _| stream.uid() == uid);
        Some((uid, candidates))
    }

    /// Whether a region's worth of dead space, of this user or in resting regions, is only held back by writers or
    /// readers that are still active, or was taken by other threads meanwhile.
    pub(super) fn is_held_back(&self, owner: Uid) -> bool {
        let mine: Vec<(State, RegionId)> = {
            let space = self.space.lock();
            let states = [State::Filling, State::Sealed, State::Draining, State::Resting];
            let all = states.into_iter().flat_map(|state| space.with(state).map(move |id| (state, id)));
            all.filter(|&(state, id)| state == State::Resting || space.uid(id) == Some(owner)).collect()
        };
        let whole = mine.into_iter().map(|(state, id)| (state, self.region(id)));
        let whole = whole.filter(|(_, region)| !region.damaged.load(Ordering::Acquire));
        let gain = whole.map(|(state, region)| match state {
            // Nothing in it is live.
            State::Resting => 1.0,
            _ => 1.0 - self.weight(&region),
        });
        gain.sum::<f64>() >= 1.0
    }

    /// The share of another region that this one's live bytes would take.
    fn weight(&self, region: &Region) -> f64 {
        let slots = f64::from(self.geometry.slots);
        let bytes = region.live() as f64 / f64::from(self.geometry.size);
        if region.pieces() as f64 / slots <= bytes {
            return bytes;
        }
        // Journal slots are scarcer: counts how many are needed after neighbours are merged.
        let files: Vec<FileId> = region.files.lock().iter().copied().collect();
        let runs = files.into_iter().filter_map(|file| self.files.resident(file)).map(|state| {
            let state = state.lock();
            let first = next_run(&state.index, region.id, 0);
            std::iter::successors(first, |run| next_run(&state.index, region.id, run[run.len() - 1].span.end))
                .count()
        });
        bytes.max(runs.sum::<usize>() as f64 / slots)
    }

    /// Moves everything live out of a region; false if no region could take it, or it is damaged.
    fn empty_region(&self, uid: Uid, victim: RegionId) -> Result<bool> {
        {
            let mut space = self.space.lock();
            if space.state(victim) != State::Sealed {
                return Ok(true);
            }
            space.set(victim, State::Draining);
        }
        let region = self.region(victim);
        let files: Vec<FileId> = region.files.lock().iter().copied().collect();
        let moved =
            files.into_iter().try_fold(true, |all, file| Ok(all && self.move_file(uid, &region, file)?));
        self.space.lock().set(victim, State::Sealed);
        moved
    }

    fn move_file(&self, uid: Uid, victim: &Arc<Region>, file: FileId) -> Result<bool> {
        let Some(state) = self.files.resident(file) else { return Ok(true) };
        let (stream, mut from) = (WriteStream::Cleaner(uid), 0);
        loop {
            // Before the file is locked: a region may have to be created.
            if !self.open_region(stream)? {
                return Ok(false);
            }
            let mut state = state.lock();
            self.consume(file, &mut state)?;
            let Some(mut run) = next_run(&state.index, victim.id, from) else { return Ok(true) };
            if self.rings.any_of(file) {
                // A client may have stamped a write between the stamps of neighbours, and not published it yet.
                let stamp = run[0].stamp;
                run.truncate(run.iter().take_while(|extent| extent.stamp == stamp).count());
            }
            if !self.run_is_whole(victim, &run) {
                return Ok(false);
            }
            // A full region is replaced in the next round.
            let Some((moved, grant)) = self.copy_run(stream, victim, &run)? else { continue };
            from = moved.end;
            self.place_run(file, &mut state, moved, &run, grant);
        }
    }

    /// Checks the records of a run; a damaged one keeps its region unchanged.
    fn run_is_whole(&self, region: &Region, run: &[Extent]) -> bool {
        run.iter().all(|extent| {
            let Source::Data(bytes) = extent.source else { return true };
            self.is_whole(region, &bytes)
        })
    }

    /// Copies as much of a run as the cleaner's region can take.
    fn copy_run(
        &self,
        stream: WriteStream,
        victim: &Region,
        run: &[Extent],
    ) -> Result<Option<(Span, Grant)>> {
        let whole = Span::new(run[0].span.start, run[run.len() - 1].span.end);
        let Some(mut grant) = self.grant(stream, Want { len: whole.len() as u32, slots: 1 }) else {
            return Ok(None);
        };
        let moved = Span::new(whole.start, whole.start + u64::from(grant.len()));
        let target = grant.as_mut_slice();
        for extent in run {
            let Some(part) = extent.span.intersect(moved) else { break };
            let Source::Data(bytes) = extent.source else { continue };
            let view = victim.view(bytes.ticket(part.len()))?;
            let at = (part.start - moved.start) as usize;
            target[at..at + view.as_ref().len()].copy_from_slice(view.as_ref());
        }
        Ok(Some((moved, grant)))
    }

    fn place_run(&self, id: FileId, file: &mut File, span: Span, run: &[Extent], mut grant: Grant) {
        let moved = run.iter().filter(|extent| extent.span.intersect(span).is_some());
        let newest = moved.max_by_key(|extent| extent.stamp).expect("a run has extents");
        let Source::Data(Bytes { job, .. }) = newest.source else { return };
        let (len, crc) = (grant.len(), crc32c(grant.as_mut_slice()));
        let write = Write { file: id, stamp: newest.stamp, job };
        self.publish(write, file, span.start, vec![Filled { grant, len, crc }.into()]);
    }
}

/// The next extents of a file that are in a region and adjacent in the file.
fn next_run(index: &Index, region: RegionId, from: u64) -> Option<Vec<Extent>> {
    let mut run: Vec<Extent> = Vec::new();
    for extent in index.pieces(Span::from(from)) {
        let in_region = matches!(extent.source, Source::Data(bytes) if bytes.region == region);
        let follows = run.last().is_none_or(|last| last.span.end == extent.span.start);
        let small = run.first().is_none_or(|first| extent.span.end - first.span.start <= RUN);
        match (in_region, run.is_empty()) {
            (true, _) if follows && small => run.push(extent),
            (_, true) => {}
            _ => break,
        }
    }
    (!run.is_empty()).then_some(run)
}
