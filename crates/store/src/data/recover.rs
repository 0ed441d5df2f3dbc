//! Opening a store: replays the journals, drops torn records, applies tombstones.

use super::clock::Clock;
use super::damage::Damage;
use super::disk::Disk;
use super::file::{File, SizeRecord};
use super::index::{Bytes, Extent, Source};
use super::index_cost::IndexCost;
use super::mapped::Objects;
use super::record::{Record, Slot};
use super::region::{Geometry, Opened, Region};
use super::rings::Rings;
use super::space::{Space, UNUSABLE};
use super::table::Table;
use super::tomb::Tombs;
use super::{Data, MAX_FILE};
use crate::meta::{Batch, KeySpace, Kv};
use crate::timeline::Timeline;
use forebay_model::{FileId, Incarnation, RegionId, Result, Stamp, Uid};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const CLOCK_KEY: &[u8] = KeySpace::Clock.prefix();

/// How the last run of the store ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The store is new.
    Fresh,
    /// It was closed cleanly.
    Clean,
    /// The process died, the machine did not: memory and page cache are as they were.
    ProcessDied,
    /// The machine died too: every payload is checked before it is used.
    MachineDied,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Start::Fresh => "a new store",
            Start::Clean => "after a clean end",
            Start::ProcessDied => "after the process died",
            Start::MachineDied => "after the machine died",
        })
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recovery { records, live_bytes, torn, superseded } = self;
        write!(f, "{records} records, {live_bytes} live bytes, {torn} torn, {superseded} superseded")
    }
}

/// The result of recovery.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Recovery {
    /// Records that were replayed.
    pub records: u64,
    /// Bytes of files that are live.
    pub live_bytes: u64,
    /// Records, or their bytes, that were torn and dropped.
    pub torn: u64,
    /// Records that a later truncation or deletion hides.
    pub superseded: u64,
}

/// A region with the records found in it.
pub(super) struct Found {
    pub(super) region: Arc<Region>,
    uid: Option<Uid>,
    pub(super) records: Vec<(u32, Record)>,
    /// Records that are valid only together with a later one of the same write.
    parts: Vec<(u32, Record)>,
    pub(super) used_slots: u32,
    torn: u64,
    /// Why the bytes of its records cannot be read, if so.
    fault: Option<String>,
    /// Records that could not be checked, with the reason.
    unreadable: Vec<(u32, String)>,
}

impl Data {
    /// Creates the regions of a new store.
    pub fn format(disk: &dyn Disk, geometry: Geometry, incarnation: Incarnation) -> Result<()> {
        for number in 0..geometry.regions {
            Region::create(disk, geometry, incarnation, RegionId(number), 1, None)?;
        }
        Ok(())
    }

    /// Opens the regions of a store and replays their journals.
    pub fn open(
        disk: Arc<dyn Disk>,
        kv: Arc<dyn Kv>,
        geometry: Geometry,
        incarnation: Incarnation,
        start: Start,
    ) -> Result<(Data, Recovery)> {
        let mut found = (0..geometry.regions)
            .map(|number| find(&*disk, geometry, incarnation, RegionId(number), start))
            .collect::<Result<Vec<Found>>>()?;
        join_parts(&mut found);
        let mut tombs = Tombs::load(&*kv)?;
        for (number, found) in found.iter().enumerate() {
            for (_, record) in &found.records {
                tombs.hold(record.file, RegionId(number as u32), record.stamp);
            }
        }
        let newest = found.iter().flat_map(|found| &found.records).map(|(_, record)| record.stamp).max();
        let floor = newest.unwrap_or_default().max(tombs.newest()).max(stored_clock(&*kv)?);
        let notes = Rings::notes(&*disk, start)?;
        super::queues::clear_queues(&*disk)?;
        let times = Timeline::load(Arc::clone(&kv))?;
        let data = Data {
            disk,
            kv,
            geometry,
            incarnation,
            clock: Clock::after(floor, Rings::base(&notes)),
            times: Arc::new(times),
            regions: found.iter().map(|found| RwLock::new(Arc::clone(&found.region))).collect(),
            space: Mutex::new(Space::new(geometry)),
            files: Table::new(),
            tombs: Mutex::new(tombs),
            reclaiming: Mutex::new(()),
            damage: Damage::default(),
            index_cost: IndexCost::default(),
            rings: Rings::default(),
            objects: Objects::default(),
            shortage: Mutex::default(),
        };
        let mut recovery = data.replay(&found, start)?;
        recovery.records += data.adopt_rings(notes, &found)?;
        data.adopt_objects(start)?;
        recovery.live_bytes = data.usage().live;
        data.store_clock()?;
        data.follow_clock()?;
        Ok((data, recovery))
    }

    fn replay(&self, found: &[Found], start: Start) -> Result<Recovery> {
        let mut recovery = Recovery::default();
        let mut files: HashMap<FileId, File> = HashMap::new();
        for found in found {
            recovery.torn += found.torn;
            for &(slot, ref record) in &found.records {
                let file = match files.entry(record.file) {
                    std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::hash_map::Entry::Vacant(entry) => {
                        entry.insert(self.load_with_tombs(record.file)?)
                    }
                };
                match self.replay_record(file, &found.region, slot, record) {
                    true => recovery.records += 1,
                    false => recovery.superseded += 1,
                }
            }
            self.adopt(found, start);
        }
        let deleted = self.drop_deleted(files)?;
        recovery.superseded += deleted;
        self.sweep_tombs()?;
        Ok(recovery)
    }

    fn load_with_tombs(&self, id: FileId) -> Result<File> {
        let mut file = self.load(id)?;
        for tomb in self.tombs.lock().of(id) {
            let zeros = Extent { span: tomb.span, stamp: tomb.stamp, source: Source::Zero };
            file.index.apply(zeros, &mut |_| {});
            file.ordered = file.ordered.max(tomb.stamp);
        }
        Ok(file)
    }

    /// Applies a record to the index; false if a tombstone hides all of it.
    fn replay_record(&self, file: &mut File, region: &Region, slot: u32, record: &Record) -> bool {
        let Some(ticket) = region.arena.adopt(record.position, record.len()) else { return false };
        region.files.lock().insert(record.file);
        file.regions.insert(region.id, region.arena.generation());
        let source = Source::Data(Bytes {
            region: region.id,
            slot,
            record: ticket,
            from: 0,
            job: record.job,
            uid: record.uid,
        });
        let mut live = false;
        let extent = Extent { span: record.span, stamp: record.stamp, source };
        file.index.apply(extent, &mut |delta| {
            live |= delta.region == region.id && delta.bytes > 0;
            self.adjust(delta);
        });
        if live {
            file.touch(record.stamp);
            file.size_pending = true;
        }
        live
    }

    fn adopt(&self, found: &Found, start: Start) {
        for (slot, why) in &found.unreadable {
            self.damage.mark_damaged(&found.region, *slot, why);
        }
        if let Some(why) = &found.fault {
            self.damage.mark_region_lost(&found.region, found.records.iter().map(|&(slot, _)| slot), why);
        }
        let mut space = self.space.lock();
        match found.records.first() {
            Some((_, record)) => {
                let space_left = found.region.arena.room() > 0 && found.fault.is_none();
                space.adopt(found.region.id, found.uid.unwrap_or(record.uid), found.used_slots, space_left);
            }
            None if found.fault.is_some() => space.stain(found.region.id, Some(UNUSABLE)),
            // Bytes may have reached the disk before the header that names their owner.
            None if start == Start::MachineDied => {
                space.stain(found.region.id, Some(found.uid.unwrap_or(UNUSABLE)));
            }
            None => space.stain(found.region.id, found.uid),
        }
    }

    /// Keeps the files that have live bytes or zeros; the others need no state in memory.
    fn drop_deleted(&self, files: HashMap<FileId, File>) -> Result<u64> {
        let mut deleted = 0;
        for (id, mut file) in files {
            if file.index.end() == 0 && self.kv.get(&SizeRecord::key(id))?.is_none() {
                deleted += 1;
                continue;
            }
            file.size = file.size.max(file.index.end());
            self.files.get(id, || Ok(file))?;
        }
        Ok(deleted)
    }

    /// Drops tombstones that hide nothing any more.
    fn sweep_tombs(&self) -> Result<()> {
        let mut batch = Batch::default();
        let files: Vec<FileId> = self.tombs.lock().files().collect();
        for file in files {
            let stamps = self.tombs.lock().sweep(file, &mut batch);
            if let Some(state) = self.files.resident(file) {
                stamps.into_iter().for_each(|stamp| state.lock().index.drop_zeros(stamp));
            }
        }
        self.kv.commit(batch)
    }

    /// Persists the current time, so that stamps do not go back if the machine's clock is set back while the store is
    /// closed. Stamps of records and tombstones are found by recovery.
    pub fn store_clock(&self) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(CLOCK_KEY, self.now().0.to_be_bytes());
        self.kv.commit(batch)
    }
}

/// The last persisted stamp.
pub(super) fn stored_clock(kv: &dyn Kv) -> Result<Stamp> {
    let mut clock = Stamp::default();
    kv.scan(CLOCK_KEY, b"", &mut |_, value| {
        if let Ok(bytes) = value.try_into() {
            clock = Stamp(u64::from_be_bytes(bytes));
        }
        ControlFlow::Break(())
    })?;
    Ok(clock)
}

fn find(
    disk: &dyn Disk,
    geometry: Geometry,
    incarnation: Incarnation,
    id: RegionId,
    start: Start,
) -> Result<Found> {
    let Opened { region, generation, uid, fault, unused } = Region::open(disk, geometry, incarnation, id)?;
    // It is unknown which clients have it mapped.
    region.lent.store(start != Start::Fresh, Ordering::Release);
    let region = Arc::new(region);
    let (records, parts) = (Vec::new(), Vec::new());
    let unreadable = Vec::new();
    let mut found = Found { region, uid, records, parts, used_slots: 0, torn: 0, fault, unreadable };
    let slots = if unused { 0 } else { geometry.slots };
    for slot in 0..slots {
        match found.region.record(slot) {
            Slot::Empty => continue,
            Slot::Record(record) | Slot::Part(record)
                if generation.is_some_and(|generation| generation != record.generation) =>
            {
                continue;
            }
            Slot::Record(record) if found.is_usable(slot, &record, start) => {
                found.records.push((slot, record));
            }
            Slot::Part(record) if found.is_usable(slot, &record, start) => found.parts.push((slot, record)),
            Slot::Record(_) | Slot::Part(_) => {
                found.region.erase_record(slot);
                found.torn += 1;
            }
            Slot::Torn => found.torn += 1,
        }
        found.used_slots = slot + 1;
    }
    Ok(found)
}

/// Resolves writes that were in progress when the process died: their parts are valid if the last record exists, and
/// are erased if not.
fn join_parts(found: &mut [Found]) {
    let pending = found.iter().flat_map(|found| &found.parts).map(|(_, part)| (part.file, part.stamp));
    let mut pending: HashMap<(FileId, Stamp), bool> = pending.map(|write| (write, false)).collect();
    if pending.is_empty() {
        return;
    }
    for (_, record) in found.iter().flat_map(|found| &found.records) {
        if let Some(whole) = pending.get_mut(&(record.file, record.stamp)) {
            *whole = true;
        }
    }
    for found in found {
        for (slot, part) in std::mem::take(&mut found.parts) {
            if pending[&(part.file, part.stamp)] {
                found.region.confirm_part(slot, &part);
                found.records.push((slot, part));
            } else {
                found.region.erase_record(slot);
                found.torn += 1;
            }
        }
    }
}

impl Found {
    /// Whether a record is accepted. A record with lost bytes stays in the index, so that nothing older is read in its
    /// place.
    fn is_usable(&mut self, slot: u32, record: &Record, start: Start) -> bool {
        let arena = &self.region.arena;
        if record.span.end > MAX_FILE {
            return false;
        }
        let Some(ticket) = arena.adopt(record.position, record.len()) else { return false };
        if start != Start::MachineDied || self.fault.is_some() {
            return true;
        }
        match self.region.checksum(ticket) {
            Some(Ok(sum)) => sum == record.payload_crc,
            // It is unknown whether the record is torn: nothing older may be read in its place.
            Some(Err(error)) => {
                let why = format!("file {} bytes {} cannot be read: {error}", record.file, record.span);
                self.unreadable.push((slot, why));
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::publish::Write;
    use crate::data::{CrashDisk, Filled, Piece, Place};
    use crate::meta::MemoryKv;
    use crc32c::crc32c;
    use forebay_model::{JobId, Span};

    const GEOMETRY: Geometry = Geometry { regions: 8, size: 64 << 10, slots: 32 };
    const FILE: FileId = FileId(100);
    const LEN: usize = 100 << 10;

    struct World {
        disk: Arc<CrashDisk>,
        kv: Arc<MemoryKv>,
    }

    impl World {
        fn open(&self, start: Start) -> (Data, Recovery) {
            let incarnation = Incarnation(7);
            Data::open(self.disk.clone(), self.kv.clone(), GEOMETRY, incarnation, start).unwrap()
        }
    }

    /// More bytes than a region holds, in as many parts as they need.
    fn put(data: &Data, byte: u8) -> Vec<Filled> {
        let (mut parts, mut left) = (Vec::new(), LEN as u32);
        while left > 0 {
            let mut grant = data.reserve(Uid(1), FILE, left).unwrap();
            let len = grant.len().min(left);
            grant.as_mut_slice().fill(byte);
            let crc = crc32c(&grant.as_mut_slice()[..len as usize]);
            parts.push(Filled { grant, len, crc });
            left -= len;
        }
        parts
    }

    fn read(data: &Data) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in data.read(FILE, 0, LEN as u32).unwrap() {
            match piece {
                Piece::Bytes(view) => bytes.extend_from_slice(view.as_ref()),
                Piece::Zeros(count) => bytes.resize(bytes.len() + count as usize, 0),
                Piece::Backing(span) => panic!("{span} is in the back end"),
                Piece::Copied(_) => panic!("the file is not mapped"),
            }
        }
        bytes
    }

    #[test]
    fn interrupted_write_is_recovered_completely_or_not_at_all() {
        const PARTS: usize = 3;
        for records in 0..=PARTS {
            let world = World { disk: Arc::default(), kv: Arc::new(MemoryKv::new()) };
            Data::format(&*world.disk, GEOMETRY, Incarnation(7)).unwrap();
            let (data, _) = world.open(Start::Fresh);
            data.commit(FILE, Place::At(0), put(&data, 1), JobId(1)).unwrap();
            let parts = put(&data, 2);
            assert_eq!(parts.len(), PARTS, "the write begins in a region that is half full");
            let (state, stamp, mut at) =
                (data.files.get(FILE, || data.load(FILE)).unwrap(), data.clock.next(), 0);
            // The process dies after the given number of records, before any part is confirmed.
            for (index, part) in parts.into_iter().enumerate().take(records) {
                let (span, last) = (Span::new(at, at + u64::from(part.len)), index + 1 == PARTS);
                at = span.end;
                let write = Write { file: FILE, stamp, job: JobId(1) };
                data.write_down(write, &mut state.lock(), span, part.into(), last);
            }
            drop(data);
            for run in 0..2 {
                let (data, recovery) = world.open(Start::ProcessDied);
                let expected = if records == PARTS { 2 } else { 1 };
                assert!(read(&data) == vec![expected; LEN], "{records} records, run {run}");
                let torn = if records < PARTS && run == 0 { records } else { 0 };
                assert_eq!(recovery.torn, torn as u64, "{records} records, run {run}");
            }
        }
    }
}
