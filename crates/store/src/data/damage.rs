//! Bytes whose checksum is wrong.

use super::index::{Bytes, Extent, Source};
use super::record::Slot;
use super::region::Region;
use super::{Data, lock};
use crc32c::crc32c;
use forebay_model::{Error, ErrorKind, RegionId, Result};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most sentences that are kept.
const MOST: usize = 1000;

/// What was found to be damaged since the store was opened.
#[derive(Default)]
pub(super) struct Damage {
    any: AtomicBool,
    slots: Mutex<HashSet<(RegionId, u32, u32)>>,
    sentences: Mutex<Vec<String>>,
}

impl Damage {
    /// Fails if the bytes of a record are known to be damaged.
    pub(super) fn check(&self, region: &Region, slot: u32) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        if lock(&self.slots).contains(&(region.id, region.arena.generation(), slot)) {
            let text = format!("the bytes of record {slot} in region {} fail their checksum", region.id);
            return Err(Error::new(ErrorKind::Io, text));
        }
        Ok(())
    }

    /// Notes that the bytes of a record are damaged. Their region is kept as it is.
    fn lose(&self, region: &Region, slot: u32, why: &str) {
        if !lock(&self.slots).insert((region.id, region.arena.generation(), slot)) {
            return;
        }
        region.damaged.store(true, Ordering::Release);
        self.any.store(true, Ordering::Release);
        let mut sentences = lock(&self.sentences);
        if sentences.len() < MOST {
            let place = format!("region {}, record {slot}", region.id);
            sentences.push(format!("{place}: {why}; reading these bytes gives an I/O error"));
        }
    }

    /// Notes that nothing can be read from a region.
    pub(super) fn lose_region(&self, region: &Region, slots: impl Iterator<Item = u32>, why: &str) {
        let generation = region.arena.generation();
        let lost = {
            let mut known = lock(&self.slots);
            let before = known.len();
            known.extend(slots.map(|slot| (region.id, generation, slot)));
            known.len() - before
        };
        region.damaged.store(true, Ordering::Release);
        self.any.store(true, Ordering::Release);
        let text = format!("region {}: {why}: the bytes of {lost} records are lost", region.id);
        lock(&self.sentences).push(format!("{text}; reading them gives an I/O error"));
    }

    pub(super) fn list(&self) -> Vec<String> {
        lock(&self.sentences).clone()
    }
}

impl Data {
    /// Checks the bytes behind every live record, beside other work; what is damaged gives errors from then on.
    /// Ends early when `stop` says so. Returns how many records were checked.
    pub fn check_payloads(&self, stop: &dyn Fn() -> bool) -> u64 {
        let mut checked = 0;
        for file in self.files() {
            let Some(state) = self.files.resident(file) else { continue };
            let records: HashMap<(RegionId, u32), Bytes> = {
                let state = lock(&state);
                let data = |extent: &Extent| match extent.source {
                    Source::Zero | Source::Behind => None,
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

    /// Whether the record behind some bytes still has its checksum; notes it if not.
    pub(super) fn is_whole(&self, region: &Region, bytes: &Bytes) -> bool {
        if self.damage.check(region, bytes.slot).is_err() {
            return false;
        }
        // Without a view the region is used again already, and nobody reads these bytes any more.
        let Some(view) = region.arena.view(bytes.record) else { return true };
        let (Slot::Record(record) | Slot::Part(record)) = region.record(bytes.slot) else {
            self.damage.lose(region, bytes.slot, "its journal record is damaged");
            self.rings.end_leases();
            return false;
        };
        let whole = crc32c(view.as_ref()) == record.payload_crc;
        if !whole {
            let what = format!("the checksum of file {} bytes {} is wrong", record.file, record.span);
            self.damage.lose(region, bytes.slot, &what);
            self.rings.end_leases();
        }
        whole
    }
}
