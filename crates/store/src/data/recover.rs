//! Opening a store: replays the journals, drops what is torn, hides what was hidden.

use super::clock::Clock;
use super::damage::Damage;
use super::disk::Disk;
use super::file::{File, SizeRecord};
use super::index::{Bytes, Extent, Source};
use super::record::{Record, Slot};
use super::region::{Geometry, Region};
use super::space::Space;
use super::table::Table;
use super::tomb::Tombs;
use super::{Before, Data, lock};
use crate::meta::{Batch, Kv};
use crc32c::crc32c;
use forebay_model::{FileId, Incarnation, RegionId, Result, Stamp, Uid};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, RwLock};

const CLOCK_KEY: &[u8] = b"c";
/// How far ahead of the present the stored clock is set, so that it need not be stored often.
const CLOCK_LEAD: u64 = 60_000_000_000;

/// How the last run of the store ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The store is new.
    Fresh,
    /// In order.
    Clean,
    /// The process died, the machine did not: memory and page cache are as they were.
    ProcessDied,
    /// The machine died too: every payload is checked before it is used.
    MachineDied,
}

/// What recovery found.
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
struct Found {
    region: Arc<Region>,
    uid: Option<Uid>,
    records: Vec<(u32, Record)>,
    used_slots: u32,
    torn: u64,
}

impl Data {
    /// Makes the regions of a new store.
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
        before: Box<dyn Before>,
    ) -> Result<(Data, Recovery)> {
        let found = (0..geometry.regions)
            .map(|number| find(&*disk, geometry, incarnation, RegionId(number), start))
            .collect::<Result<Vec<Found>>>()?;
        let mut tombs = Tombs::load(&*kv)?;
        for (number, found) in found.iter().enumerate() {
            for (_, record) in &found.records {
                tombs.hold(record.file, RegionId(number as u32), record.stamp);
            }
        }
        let newest = found.iter().flat_map(|found| &found.records).map(|(_, record)| record.stamp).max();
        let floor = newest.unwrap_or_default().max(tombs.newest()).max(stored_clock(&*kv)?);
        let data = Data {
            disk,
            kv,
            geometry,
            incarnation,
            clock: Clock::after(floor),
            regions: found.iter().map(|found| RwLock::new(Arc::clone(&found.region))).collect(),
            space: Mutex::new(Space::new(geometry)),
            files: Table::new(),
            tombs: Mutex::new(tombs),
            reclaiming: Mutex::new(()),
            damage: Damage::default(),
            before,
        };
        let recovery = data.replay(&found)?;
        data.store_clock()?;
        Ok((data, recovery))
    }

    fn replay(&self, found: &[Found]) -> Result<Recovery> {
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
            self.adopt(found);
        }
        let deleted = self.drop_deleted(files)?;
        recovery.live_bytes = self.usage().live;
        recovery.superseded += deleted;
        self.sweep_tombs()?;
        Ok(recovery)
    }

    fn load_with_tombs(&self, id: FileId) -> Result<File> {
        let mut file = self.load(id)?;
        for tomb in lock(&self.tombs).of(id) {
            let zeros = Extent { span: tomb.span, stamp: tomb.stamp, source: Source::Zero };
            file.index.apply(zeros, &mut |_| {});
        }
        Ok(file)
    }

    /// Puts a record in its place; false if a tombstone hides all of it.
    fn replay_record(&self, file: &mut File, region: &Region, slot: u32, record: &Record) -> bool {
        let Some(ticket) = region.arena.adopt(record.position, record.len()) else { return false };
        lock(&region.files).insert(record.file);
        file.regions.insert(region.id, record.generation);
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
            file.unsettled = true;
        }
        live
    }

    fn adopt(&self, found: &Found) {
        let mut space = lock(&self.space);
        match found.records.first() {
            Some((_, record)) => {
                let room = found.region.arena.room() > 0;
                space.adopt(found.region.id, found.uid.unwrap_or(record.uid), found.used_slots, room);
            }
            None => space.stain(found.region.id, found.uid),
        }
    }

    /// Keeps the files that have live bytes or zeros; the others need no place in memory.
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

    /// Drops tombstones that protect against nothing any more.
    fn sweep_tombs(&self) -> Result<()> {
        let mut batch = Batch::default();
        let files: Vec<FileId> = lock(&self.tombs).files().collect();
        for file in files {
            let stamps = lock(&self.tombs).sweep(file, &mut batch);
            if let Some(state) = self.files.resident(file) {
                stamps.into_iter().for_each(|stamp| lock(&state).index.drop_zeros(stamp));
            }
        }
        self.kv.commit(batch)
    }

    /// Notes the present, so that a machine whose clock was set back does not make stamps a second time.
    pub fn store_clock(&self) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(CLOCK_KEY, (self.now().0 + CLOCK_LEAD).to_be_bytes());
        self.kv.commit(batch)
    }
}

/// The last stamp that an earlier run can have made, as far as the metadata store tells.
fn stored_clock(kv: &dyn Kv) -> Result<Stamp> {
    let mut clock = Stamp::default();
    kv.scan(CLOCK_KEY, b"", &mut |_, value| {
        if let Ok(bytes) = value.try_into() {
            clock = Stamp(u64::from_be_bytes(bytes).saturating_sub(CLOCK_LEAD));
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
    let (region, header) = Region::open(disk, geometry, incarnation, id)?;
    let region = Arc::new(region);
    let mut found = Found { region, uid: header.uid, records: Vec::new(), used_slots: 0, torn: 0 };
    for slot in 0..geometry.slots {
        match found.region.record(slot) {
            Slot::Empty => continue,
            Slot::Record(record) if record.generation != header.generation => continue,
            Slot::Record(record) if is_usable(&found.region, &record, start) => {
                found.records.push((slot, record));
            }
            Slot::Record(_) => {
                found.region.erase_record(slot);
                found.torn += 1;
            }
            Slot::Torn => found.torn += 1,
        }
        found.used_slots = slot + 1;
    }
    Ok(found)
}

fn is_usable(region: &Region, record: &Record, start: Start) -> bool {
    let Some(ticket) = region.arena.adopt(record.position, record.len()) else { return false };
    let whole = || region.arena.view(ticket).is_some_and(|view| crc32c(view.as_ref()) == record.payload_crc);
    start != Start::MachineDied || whole()
}
