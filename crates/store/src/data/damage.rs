//! Bytes with a wrong checksum, or that their device cannot read.

use super::Data;
use super::index::{Bytes, Extent, Source};
use super::record::Slot;
use super::region::Region;
use forebay_model::{Error, ErrorKind, RegionId, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest number of sentences that are kept.
const MOST: usize = 1000;

/// The damage found since the store was opened.
#[derive(Default)]
pub(super) struct Damage {
    any: AtomicBool,
    slots: Mutex<HashSet<(RegionId, u32, u32)>>,
    /// Records with some unreadable bytes: only reads of these bytes fail.
    unreadable: Mutex<HashSet<(RegionId, u32, u32)>>,
    sentences: Mutex<Vec<String>>,
}

impl Damage {
    /// Fails if the bytes of a record are known to be damaged.
    pub(super) fn check(&self, region: &Region, slot: u32) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.slots.lock().contains(&(region.id, region.arena.generation(), slot)) {
            let text = format!("the bytes of record {slot} in region {} fail their checksum", region.id);
            return Err(Error::new(ErrorKind::Io, text));
        }
        Ok(())
    }

    /// Records that the bytes of a record are damaged. Their region is kept unchanged.
    pub(super) fn mark_damaged(&self, region: &Region, slot: u32, why: &str) {
        if !self.slots.lock().insert((region.id, region.arena.generation(), slot)) {
            return;
        }
        region.damaged.store(true, Ordering::Release);
        self.any.store(true, Ordering::Release);
        self.report(region, slot, &format!("{why}; reading these bytes gives an I/O error"));
    }

    /// Records that the device cannot read some bytes of a record. Their region is kept unchanged; the other bytes can
    /// be read.
    fn mark_unreadable(&self, region: &Region, slot: u32, why: &str) {
        if self.unreadable.lock().insert((region.id, region.arena.generation(), slot)) {
            region.damaged.store(true, Ordering::Release);
            self.report(region, slot, &format!("{why}; reading the damaged bytes gives an I/O error"));
        }
    }

    fn report(&self, region: &Region, slot: u32, what: &str) {
        let mut sentences = self.sentences.lock();
        if sentences.len() < MOST {
            sentences.push(format!("region {}, record {slot}: {what}", region.id));
        }
    }

    /// Records that nothing can be read from a region.
    pub(super) fn mark_region_lost(&self, region: &Region, slots: impl Iterator<Item = u32>, why: &str) {
        let generation = region.arena.generation();
        let lost = {
            let mut known = self.slots.lock();
            let before = known.len();
            known.extend(slots.map(|slot| (region.id, generation, slot)));
            known.len() - before
        };
        region.damaged.store(true, Ordering::Release);
        self.any.store(true, Ordering::Release);
        let text = format!("region {}: {why}: the bytes of {lost} records are lost", region.id);
        self.sentences.lock().push(format!("{text}; reading them gives an I/O error"));
    }

    pub(super) fn list(&self) -> Vec<String> {
        self.sentences.lock().clone()
    }
}

impl Data {
    /// Checks the bytes of every live record in the background; reads of damaged bytes fail from then on. Stops when
    /// `stop` returns true. Returns how many records were checked.
    pub fn check_payloads(&self, stop: &dyn Fn() -> bool) -> u64 {
        let mut checked = 0;
        for file in self.files() {
            let Some(state) = self.files.resident(file) else { continue };
            let records: HashMap<(RegionId, u32), Bytes> = {
                let state = state.lock();
                let data = |extent: &Extent| match extent.source {
                    Source::Zero | Source::Backing => None,
                    Source::Data(bytes) => Some(((bytes.region, bytes.slot), bytes)),
                };
                state.index.extents().filter_map(data).collect()
            };
            for bytes in records.values() {
                if stop() {
                    return checked;
                }
                self.is_whole(&self.region(bytes.region), bytes);
                checked += 1;
            }
        }
        checked
    }

    /// Whether the record of some bytes still matches its checksum; records the damage if not.
    pub(super) fn is_whole(&self, region: &Region, bytes: &Bytes) -> bool {
        if self.damage.check(region, bytes.slot).is_err() {
            return false;
        }
        // Without a checksum the region is already reused, and no reader needs these bytes.
        let Some(sum) = region.checksum(bytes.record) else { return true };
        let (Slot::Record(record) | Slot::Part(record)) = region.record(bytes.slot) else {
            self.damage.mark_damaged(region, bytes.slot, "its journal record is damaged");
            self.rings.end_leases();
            return false;
        };
        let sum = match sum {
            Ok(sum) => sum,
            Err(error) => {
                let what = format!("file {} bytes {} cannot be read: {error}", record.file, record.span);
                self.damage.mark_unreadable(region, bytes.slot, &what);
                return false;
            }
        };
        let whole = sum == record.payload_crc;
        if !whole {
            let what = format!("the checksum of file {} bytes {} is wrong", record.file, record.span);
            self.damage.mark_damaged(region, bytes.slot, &what);
            self.rings.end_leases();
        }
        whole
    }
}
