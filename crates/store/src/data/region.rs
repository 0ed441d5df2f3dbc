//! One region: its mapped bytes, its journal, and what is live in it.

use super::disk::Disk;
use super::record::{Header, Record, Slot};
use forebay_model::{Error, ErrorKind, FileId, Incarnation, RegionId, Result, Uid};
use forebay_shm::{Arena, Slots, Ticket, View};
use std::collections::HashSet;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Sizes that all regions of a store share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of regions.
    pub regions: u32,
    /// Bytes of payload in a region.
    pub size: u32,
    /// Records in a region's journal.
    pub slots: u32,
}

impl Geometry {
    /// Bytes of a region's journal: a header and the records.
    fn log_len(&self) -> u64 {
        (u64::from(self.slots) + 1) * forebay_shm::SLOT as u64
    }
}

/// One region. What state it is in is the business of [`Space`](super::space::Space).
pub(super) struct Region {
    pub(super) id: RegionId,
    pub(super) arena: Arc<Arena>,
    geometry: Geometry,
    incarnation: Incarnation,
    log: Slots,
    data_file: File,
    log_file: File,
    /// Bytes and pieces that an index points to.
    live: AtomicI64,
    pieces: AtomicI64,
    /// Files with a record in this generation, live or not.
    pub(super) files: Mutex<HashSet<FileId>>,
    /// Counts commits; what of them is durable; and whether a flush ever failed.
    written: AtomicU64,
    flushed: Mutex<u64>,
    flush_failed: AtomicBool,
    /// Holds bytes whose checksum is wrong: kept as it is, never cleaned.
    pub(super) damaged: AtomicBool,
}

fn data_name(id: RegionId) -> String {
    format!("r{:05}.data", id.0)
}

fn log_name(id: RegionId) -> String {
    format!("r{:05}.log", id.0)
}

impl Region {
    /// Makes the files of a region anew, empty, for a user.
    pub(super) fn create(
        disk: &dyn Disk,
        geometry: Geometry,
        incarnation: Incarnation,
        id: RegionId,
        generation: u32,
        uid: Option<Uid>,
    ) -> Result<Region> {
        // The journal goes first: a crash in between must not leave old records over new zeros.
        let log_file = disk.create(&log_name(id), geometry.log_len())?;
        let data_file = disk.create(&data_name(id), u64::from(geometry.size))?;
        let region = Region::map(geometry, incarnation, id, generation, data_file, log_file)?;
        region.set_header(uid);
        disk.sync(&log_name(id), &region.log_file)?;
        Ok(region)
    }

    /// Opens the files of a region and checks that they are what they should be.
    pub(super) fn open(
        disk: &dyn Disk,
        geometry: Geometry,
        incarnation: Incarnation,
        id: RegionId,
    ) -> Result<(Region, Header)> {
        let log_file = disk.open(&log_name(id))?;
        let log = map_log(&log_file, geometry, id)?;
        if (0..=geometry.slots).all(|slot| log.read(slot) == [0; forebay_shm::SLOT]) {
            // The machine died after the files were made and before the header was durable.
            let region = Region::create(disk, geometry, incarnation, id, 1, None)?;
            let header = region.header(None);
            return Ok((region, header));
        }
        let data_file = disk.open(&data_name(id))?;
        let mut region = Region::map(geometry, incarnation, id, 0, data_file, log_file)?;
        let header = Header::decode(region.log.read(0)).map_err(|fault| {
            Error::new(ErrorKind::BadStore, format!("the journal of region {id} cannot be used: {fault:?}"))
        })?;
        let expected =
            Header { region: id, incarnation, size: geometry.size, slots: geometry.slots, ..header };
        if header != expected {
            let text = format!(
                "region {id} belongs to another store (incarnation {}, region {}): give the store its own \
                 regions back, or run \"forebay store replace\" to give up what they held",
                header.incarnation, header.region
            );
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        region.arena = arena(&region.data_file, geometry, header.generation, id)?;
        Ok((region, header))
    }

    fn map(
        geometry: Geometry,
        incarnation: Incarnation,
        id: RegionId,
        generation: u32,
        data_file: File,
        log_file: File,
    ) -> Result<Region> {
        let log = map_log(&log_file, geometry, id)?;
        Ok(Region {
            id,
            arena: arena(&data_file, geometry, generation, id)?,
            geometry,
            incarnation,
            log,
            data_file,
            log_file,
            live: AtomicI64::new(0),
            pieces: AtomicI64::new(0),
            files: Mutex::default(),
            written: AtomicU64::new(0),
            flushed: Mutex::new(0),
            flush_failed: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
        })
    }

    /// Records to whom the region belongs, in its present generation.
    pub(super) fn set_header(&self, uid: Option<Uid>) {
        self.log.write(0, &self.header(uid).encode());
    }

    fn header(&self, uid: Option<Uid>) -> Header {
        Header {
            region: self.id,
            generation: self.arena.generation(),
            uid,
            incarnation: self.incarnation,
            size: self.geometry.size,
            slots: self.geometry.slots,
        }
    }

    /// What the `slot`-th record says.
    pub(super) fn record(&self, slot: u32) -> Slot {
        Record::decode(self.log.read(slot + 1), self.incarnation)
    }

    /// Writes the `slot`-th record: from here on its bytes count.
    pub(super) fn write_record(&self, slot: u32, record: &Record) {
        self.log.write(slot + 1, &record.encode(self.incarnation));
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Writes the `slot`-th record, whose bytes count when those of the last record of the same write do.
    pub(super) fn write_part(&self, slot: u32, record: &Record) {
        self.log.write(slot + 1, &record.encode_part(self.incarnation));
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes the bytes of a part count by themselves: the last record of its write is there.
    pub(super) fn confirm_part(&self, slot: u32, record: &Record) {
        let [a, b, c, d, ..] = record.encode(self.incarnation);
        self.log.write_head(slot + 1, [a, b, c, d]);
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes a record back whose bytes never arrived, so that no later recovery believes it.
    pub(super) fn erase_record(&self, slot: u32) {
        self.log.write(slot + 1, &[0; forebay_shm::SLOT]);
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Opens published bytes. They are there as long as an index points to them.
    pub(super) fn view(&self, ticket: Ticket) -> Result<View> {
        self.arena.view(ticket).ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("the index points to bytes that region {} gave up", self.id))
        })
    }

    pub(super) fn live(&self) -> i64 {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn pieces(&self) -> i64 {
        self.pieces.load(Ordering::Acquire)
    }

    pub(super) fn add_live(&self, bytes: i64, pieces: i64) -> i64 {
        self.pieces.fetch_add(pieces, Ordering::AcqRel);
        self.live.fetch_add(bytes, Ordering::AcqRel) + bytes
    }

    /// Whether nobody holds any byte of it and nothing in it is live. Once true of a region that grants nothing
    /// more, it stays true: a commit counts its bytes as live before it lets go of its grant.
    pub(super) fn is_dead(&self) -> bool {
        !self.arena.is_held() && self.live() == 0
    }

    /// Flushes payload, then journal, if anything was committed since the last time.
    pub(super) fn flush(&self, disk: &dyn Disk) -> Result<()> {
        if disk.is_volatile() {
            return Ok(());
        }
        let mut flushed = super::lock(&self.flushed);
        if self.flush_failed.load(Ordering::Acquire) {
            let text = format!("region {} could not be flushed earlier: its device is failing", self.id);
            return Err(Error::new(ErrorKind::Io, text));
        }
        let written = self.written.load(Ordering::Acquire);
        if *flushed == written {
            return Ok(());
        }
        let flush = || {
            disk.sync(&data_name(self.id), &self.data_file)?;
            self.flush_log(disk)
        };
        // After a failed flush the kernel may have thrown the bytes away: a later success would prove nothing.
        flush().inspect_err(|_| self.flush_failed.store(true, Ordering::Release))?;
        *flushed = written;
        Ok(())
    }

    pub(super) fn flush_log(&self, disk: &dyn Disk) -> Result<()> {
        disk.sync(&log_name(self.id), &self.log_file)
    }
}

fn arena(file: &File, geometry: Geometry, generation: u32, id: RegionId) -> Result<Arc<Arena>> {
    Arena::new(file, geometry.size, generation)
        .map_err(|error| unusable(format!("cannot map the bytes of region {id}: {error}")))
}

fn map_log(file: &File, geometry: Geometry, id: RegionId) -> Result<Slots> {
    Slots::new(file, geometry.slots + 1)
        .map_err(|error| unusable(format!("cannot map the journal of region {id}: {error}")))
}

fn unusable(text: String) -> Error {
    Error::new(ErrorKind::BadStore, text)
}
