//! Granting and reclaiming space.

use super::region::Region;
use super::space::{State, UNUSABLE, WriteStream};
use super::{Data, Grant};
use crate::meta::Batch;
use forebay_model::{Bytes, Error, ErrorKind, FileId, RegionId, Result, Stamp, Uid};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The background cleaner starts below this share of free regions.
const LOW_WATER: u32 = 8;
/// How often, and with which pauses, a reservation retries while other threads hold dead space: one of them may have
/// stalled.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(2);
/// Bytes that are populated in the background at once.
const POPULATED: u32 = 8 << 20;

/// The space that a reservation requests.
#[derive(Clone, Copy)]
pub(super) struct Want {
    /// Largest number of bytes.
    pub(super) len: u32,
    /// Largest number of journal slots.
    pub(super) slots: u32,
}

impl Data {
    /// Reserves space for a user's bytes of a file without waiting; `None` does not mean that the buffer is full. May
    /// grant less than requested.
    #[must_use]
    pub fn try_reserve(&self, owner: Uid, file: FileId, len: u32) -> Option<Grant> {
        assert!(len > 0, "nothing to reserve");
        let stream = self.space.lock().stream(owner, file);
        self.grant(stream, Want { len, slots: 1 })
    }

    /// Limits each user to the given percentage of the regions, except root and `exempt`.
    pub fn bound_users(&self, percent: u8, exempt: Uid) {
        self.space.lock().bound_users(percent, exempt);
    }

    /// Reserves space for a user's bytes of a file. May flush and compact, and wait for both. May grant less than
    /// requested. Fails with *no space* when everything is live.
    pub fn reserve(&self, owner: Uid, file: FileId, len: u32) -> Result<Grant> {
        assert!(len > 0, "nothing to reserve");
        self.reserve_for(owner, file, Want { len, slots: 1 })
    }

    /// Does the same with the requested number of journal slots.
    pub(super) fn reserve_for(&self, owner: Uid, file: FileId, want: Want) -> Result<Grant> {
        *self.shortage.lock() = None;
        let stream = self.space.lock().stream(owner, file);
        if let Some(grant) = self.grant(stream, want) {
            return Ok(grant);
        }
        for _ in 0..TRIES {
            if let Some(grant) = self.make_space(owner, want)? {
                return Ok(grant);
            }
            // Slabs that clients on this machine do not fill at the moment can be recalled.
            let short = self.shortage.lock().is_some();
            if !self.recall_slabs()? && (short || !self.is_held_back(owner) && !self.rings.is_read()) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        if let Some(why) = self.shortage.lock().take() {
            return Err(why);
        }
        if self.space.lock().is_bounded(owner) {
            let text = format!(
                "user {owner} has as much of the buffer as one user may: remove files, or raise limits.user_space"
            );
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        let usage = self.usage();
        let (live, capacity) = (Bytes(usage.live), Bytes(usage.capacity));
        // With much of it dead, another resource is scarce.
        let scarce = match usage.live < usage.capacity / 2 {
            true => "; journals are full of small records, or regions belong to other users",
            false => "",
        };
        let text = format!(
            "the buffer is full ({live} of {capacity} are live{scarce}): remove files, or give it more capacity"
        );
        Err(Error::new(ErrorKind::NoSpace, text))
    }

    /// Grants space that is free, or can be freed by flushing and compacting.
    fn make_space(&self, owner: Uid, want: Want) -> Result<Option<Grant>> {
        let _alone = self.reclaiming.lock();
        // Another thread may have freed space while this one waited.
        if let Some(grant) = self.grant_anywhere(owner, want)? {
            return Ok(Some(grant));
        }
        self.seal_dead();
        self.reclaim()?;
        while !self.has_space(owner) && self.clean()? {
            self.reclaim()?;
        }
        self.grant_anywhere(owner, want)
    }

    /// Allocates and populates the memory of all regions, piece by piece: otherwise writers wait for the kernel to clear
    /// the pages. `pause` is called before each piece and may wait; it returns true to stop. Does nothing on a disk.
    pub fn warm(&self, pause: &dyn Fn() -> bool) -> Result<()> {
        if !self.disk.is_volatile() {
            return Ok(());
        }
        let size = self.geometry.size;
        for number in 0..self.geometry.regions {
            for from in (0..size).step_by(POPULATED as usize) {
                if pause() {
                    return Ok(());
                }
                // Looked up for each piece: its files may be recreated meanwhile.
                let region = self.region(RegionId(number));
                if region.damaged.load(Ordering::Acquire) {
                    break;
                }
                let piece = from..size.min(from + POPULATED);
                region.allocate(&*self.disk, piece.end)?;
                // Old kernels cannot populate ahead of time, and a file that is being recreated cannot be populated; the
                // first writer does it then.
                let _ = region.arena.populate(piece);
            }
        }
        Ok(())
    }

    /// Does one step of background reclaiming; true if there is more to do.
    pub fn tidy(&self) -> bool {
        let low = |data: &Data| {
            let free = data.space.lock().count(State::Free) as u32;
            free * LOW_WATER < data.geometry.regions
        };
        if !low(self) {
            return false;
        }
        let _alone = self.reclaiming.lock();
        self.seal_dead();
        // The next reservation hits the same error and reports it.
        let gained = self.reclaim().and_then(|freed| Ok(freed > 0 || (low(self) && self.clean()?)));
        gained.unwrap_or(false) && low(self)
    }

    /// Grants space from any region that can serve this user without taking space from another user.
    fn grant_anywhere(&self, owner: Uid, want: Want) -> Result<Option<Grant>> {
        let streams: Vec<WriteStream> = self.space.lock().streams(owner).collect();
        for &stream in &streams {
            if let Some(grant) = self.grant(stream, want) {
                return Ok(Some(grant));
            }
        }
        if self.open_region(streams[0])? {
            return Ok(self.grant(streams[0], want));
        }
        // The cleaner's region of this user may have space left.
        Ok(self.grant_from(WriteStream::Cleaner(owner), want).filter(|grant| self.allocate(grant)))
    }

    fn has_space(&self, owner: Uid) -> bool {
        let space = self.space.lock();
        let stream = WriteStream::Writer(owner, 0);
        space.choose(stream).is_some()
    }

    /// Grants space from a stream's region, or from a clean free one that replaces it. The bytes are allocated: touching
    /// others would kill the process. `None` if memory is short. Stops filling a region whose device cannot allocate.
    pub(super) fn grant(&self, stream: WriteStream, want: Want) -> Option<Grant> {
        loop {
            let grant = self.grant_unchecked(stream, want)?;
            if self.allocate(&grant) {
                return Some(grant);
            }
            if self.disk.is_volatile() {
                return None;
            }
        }
    }

    /// Allocates the bytes of a grant. If that fails, notes why, or stops filling the region if its device cannot.
    fn allocate(&self, grant: &Grant) -> bool {
        if self.disk.is_volatile() {
            let allocated = grant.region.allocate(&*self.disk, grant.bytes.end());
            return allocated.map_err(|error| *self.shortage.lock() = Some(error)).is_ok();
        }
        let populated = grant.bytes.populate().is_ok();
        if !populated {
            grant.region.damaged.store(true, Ordering::Release);
            self.space.lock().seal_where(|_, id| id == grant.region.id);
        }
        populated
    }

    fn grant_unchecked(&self, stream: WriteStream, want: Want) -> Option<Grant> {
        if let Some(grant) = self.grant_from(stream, want) {
            return Some(grant);
        }
        let mut space = self.space.lock();
        let to_open = space.stream_to_open(stream);
        if to_open != stream {
            drop(space);
            return self.grant(to_open, want);
        }
        if space.filling(stream).is_none() {
            let chosen = space.choose(stream).filter(|chosen| !chosen.stained)?;
            let region = self.region(chosen.region);
            region.set_header(Some(stream.uid()));
            space.fill(stream, chosen.region);
        }
        drop(space);
        self.grant_from(stream, want)
    }

    /// Grants space from a stream's region; seals it when it is full.
    fn grant_from(&self, stream: WriteStream, want: Want) -> Option<Grant> {
        let mut space = self.space.lock();
        let region = self.region(space.filling(stream)?);
        let free = (region.arena.room() > 0).then(|| space.slots(region.id, want.slots)).flatten();
        let granted = free.and_then(|slots| {
            let bytes = region.arena.grant(want.len)?;
            let (slot, slots) = (slots.start, slots.end - slots.start);
            Some(Grant { region: Arc::clone(&region), slot, slots, uid: stream.uid(), bytes })
        });
        if granted.is_none() {
            space.seal(stream);
        }
        granted
    }

    /// Gives a stream without a region a free one. A region that held another user's bytes gets new files.
    pub(super) fn open_region(&self, stream: WriteStream) -> Result<bool> {
        let mut space = self.space.lock();
        if space.filling(stream).is_some() {
            return Ok(true);
        }
        let Some(chosen) = space.choose(stream) else { return Ok(false) };
        // A client that noticed late that its lease ended may still be copying from a file that is to be removed.
        if chosen.stained && self.rings.is_read() {
            return Ok(false);
        }
        if chosen.stained {
            // Excluded from allocation while its files are replaced.
            space.set(chosen.region, State::Resting);
            drop(space);
            let made = self.remake(chosen.region, stream.uid());
            space = self.space.lock();
            space.set(chosen.region, State::Free);
            if made.is_err() {
                // Some of its files may be gone: the next use must recreate them.
                space.stain(chosen.region, Some(UNUSABLE));
            }
            made?;
        }
        let region = self.region(chosen.region);
        region.set_header(Some(stream.uid()));
        space.fill(stream, chosen.region);
        Ok(true)
    }

    /// Replaces the files of a free region.
    fn remake(&self, id: RegionId, uid: Uid) -> Result<()> {
        let generation = self.region(id).arena.generation().wrapping_add(1);
        let region = Region::create(&*self.disk, self.geometry, self.incarnation, id, generation, Some(uid))?;
        *self.regions[id.0 as usize].write() = Arc::new(region);
        Ok(())
    }

    /// Reclaims in the middle of other work if that is cheap: nothing to flush.
    pub(super) fn reclaim_if(&self, dead: bool) {
        if dead
            && self.disk.is_volatile()
            && let Some(_alone) = self.reclaiming.try_lock()
        {
            // The next reservation hits the same error and reports it.
            let _ = self.reclaim();
        }
    }

    /// Stops filling regions in which everything written is dead already.
    fn seal_dead(&self) {
        self.space.lock().seal_where(|_, id| {
            let region = self.region(id);
            region.is_dead() && region.arena.room() < region.arena.len()
        });
    }

    /// Frees every region without live bytes; returns how many. The caller holds `reclaiming`.
    ///
    /// First the data that replaced their bytes becomes durable. Then the journals begin a new generation, durably.
    /// Only then are the tombstones dropped that hid the old records.
    pub(super) fn reclaim(&self) -> Result<usize> {
        let dead: Vec<Arc<Region>> = {
            let mut space = self.space.lock();
            let sealed: Vec<RegionId> = space.with(State::Sealed).collect();
            for region in sealed.into_iter().filter(|&id| self.region(id).is_dead()) {
                space.set(region, State::Resting);
            }
            space.with(State::Resting).map(|id| self.region(id)).collect()
        };
        if dead.is_empty() {
            return Ok(0);
        }
        if !self.disk.is_volatile() {
            // Mapped files are not written back: that takes space, which waits for this.
            self.flush_all()?;
        }
        let mut freed = 0;
        for region in dead {
            // A reader that still uses the old bytes keeps the region resting until the next time.
            if region.damaged.load(Ordering::Acquire) || !region.arena.reset() {
                continue;
            }
            let uid = self.space.lock().uid(region.id);
            region.renew_header(&*self.disk, uid)?;
            let files = std::mem::take(&mut *region.files.lock());
            self.release_tombs(region.id, files.iter().copied())?;
            files.into_iter().for_each(|file| self.evict(file));
            self.space.lock().set(region.id, State::Free);
            freed += 1;
        }
        Ok(freed)
    }

    fn release_tombs(&self, region: RegionId, files: impl IntoIterator<Item = FileId>) -> Result<()> {
        let mut batch = Batch::default();
        let mut gone: Vec<(FileId, Stamp)> = Vec::new();
        {
            let mut tombs = self.tombs.lock();
            for file in files {
                let stamps = tombs.release(file, region, &mut batch);
                gone.extend(stamps.into_iter().map(|stamp| (file, stamp)));
            }
        }
        for (file, stamp) in gone {
            if let Some(state) = self.files.resident(file) {
                state.lock().index.drop_zeros(stamp);
            }
        }
        if batch.is_empty() { Ok(()) } else { self.kv.commit(batch) }
    }
}
