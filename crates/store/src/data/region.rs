//! One region: its mapped bytes, its journal, and the amount of live data in it.

use super::disk::Disk;
use super::record::{Header, HeaderFault, Record, Slot};
use crc32c::{crc32c, crc32c_append};
use forebay_model::{Error, ErrorKind, FileId, Incarnation, RegionId, Result, Uid};
use forebay_shm::{Arena, Slots, Ticket, View};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

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

/// Largest number of regions of a store, and largest size of one.
const MOST_REGIONS: u32 = 1 << 20;
const LARGEST: u32 = 1 << 30;
/// Memory of a region is allocated in steps of this size.
const STEP: u32 = 32 << 20;
/// Bytes read at once to compute a checksum.
const PIECE: u64 = 256 << 10;

impl Geometry {
    /// Whether these sizes are valid: at least two regions, and one for the cleaner.
    pub(crate) fn is_possible(&self) -> bool {
        (3..=MOST_REGIONS).contains(&self.regions)
            && (1..=LARGEST).contains(&self.size)
            && (1..=self.size).contains(&self.slots)
    }

    /// Bytes of a region's journal: a header, the records, and a second header.
    pub(crate) fn log_len(&self) -> u64 {
        (u64::from(self.slots) + 2) * forebay_shm::SLOT as u64
    }

    /// The parts of a journal that hold its headers.
    fn headers(&self) -> [std::ops::Range<u64>; 2] {
        let (slot, len) = (forebay_shm::SLOT as u64, self.log_len());
        [0..slot, len - slot..len]
    }

    /// The journal slot of the header with this sequence number.
    fn header_slot(&self, sequence: u64) -> u32 {
        if sequence.is_multiple_of(2) { 0 } else { self.slots + 1 }
    }
}

/// The state of a journal's headers.
struct Headers {
    /// The sequence number of the last one.
    sequence: u64,
    /// Whether it is durable.
    flushed: bool,
}

/// A region after opening its files.
pub(super) struct Opened {
    pub(super) region: Region,
    /// The generation whose records are valid; `None` if both headers are damaged, so that any record may be.
    pub(super) generation: Option<u32>,
    /// The only user whose bytes its file has ever held.
    pub(super) uid: Option<Uid>,
    /// Why its bytes cannot be read, if so.
    pub(super) fault: Option<String>,
    /// Its journal has only headers: nothing was ever granted in it.
    pub(super) unused: bool,
}

/// One region. [`Space`](super::space::Space) keeps its state.
pub(super) struct Region {
    pub(super) id: RegionId,
    pub(super) arena: Arc<Arena>,
    geometry: Geometry,
    incarnation: Incarnation,
    /// Whether its files are on a device, where a read can fail.
    device: bool,
    log: Slots,
    data_file: File,
    log_file: File,
    /// Bytes and extents that an index refers to.
    live: AtomicI64,
    pieces: AtomicI64,
    /// Files with a record in this generation, live or not.
    pub(super) files: Mutex<HashSet<FileId>>,
    /// The number of commits, how many of them are durable, and whether a flush ever failed.
    written: AtomicU64,
    flushed: Mutex<u64>,
    flush_failed: AtomicBool,
    headers: Mutex<Headers>,
    /// Holds bytes with a wrong checksum: kept unchanged, never cleaned.
    pub(super) damaged: AtomicBool,
    /// The bytes before this position, and the journal if there are any, are allocated. Others must not be touched.
    allocated: Mutex<u32>,
    /// Whether clients may have its pages mapped writable through a grant.
    pub(super) lent: AtomicBool,
}

pub(crate) fn data_name(id: RegionId) -> String {
    format!("r{:05}.data", id.0)
}

fn log_name(id: RegionId) -> String {
    format!("r{:05}.log", id.0)
}

impl Region {
    /// Creates the files of a region anew, empty, for a user.
    pub(super) fn create(
        disk: &dyn Disk,
        geometry: Geometry,
        incarnation: Incarnation,
        id: RegionId,
        generation: u32,
        uid: Option<Uid>,
    ) -> Result<Region> {
        // The journal is created first: a crash in between must not leave old records over new zeros.
        let log_file = disk.create_in_part(&log_name(id), geometry.log_len(), &geometry.headers())?;
        // Clients may keep the old file mapped as long as they run. They have no grants in it any more and do not touch
        // it, but its memory must be freed.
        disk.vacate(&data_name(id))?;
        let data_file = disk.create_in_part(&data_name(id), u64::from(geometry.size), &[])?;
        let log = map_log(disk, &log_file, geometry, id)?;
        let arena =
            Arena::new(&data_file, geometry.size, generation).map_err(|error| unmapped(id, &error))?;
        let device = !disk.is_volatile();
        let region = Region::new(geometry, incarnation, id, device, arena, log, data_file, log_file, 0);
        region.set_header(uid);
        region.flush_log(disk)?;
        Ok(region)
    }

    /// Opens the files of a region and checks them. Fails if its content cannot be known; reports a fault if the
    /// journal is readable but the bytes are lost.
    pub(super) fn open(
        disk: &dyn Disk,
        geometry: Geometry,
        incarnation: Incarnation,
        id: RegionId,
    ) -> Result<Opened> {
        let log_file = disk.open(&log_name(id))?.ok_or_else(|| {
            let text = format!("{} is missing, so the content of region {id} is unknown", log_name(id));
            unusable(format!(
                "{text}: bring it back, or run \"forebay store replace\" to give up the bytes of all files"
            ))
        })?;
        if !disk.is_volatile() {
            check_log(&log_file, geometry, id)?;
        }
        let log = map_log(disk, &log_file, geometry, id)?;
        let used = allocated_bytes(&log_file).map_err(|error| unmapped(id, &error))? >= geometry.log_len();
        let unused = disk.is_volatile() && !used;
        let header = match Header::newest(log.read(0), log.read(geometry.slots + 1)) {
            Ok(header) => Some(header),
            Err(HeaderFault::Damaged) => None,
            Err(HeaderFault::Format(format)) => {
                return Err(unusable(format!("the journal of region {id} has format {format}")));
            }
        };
        header.iter().try_for_each(|header| check_owner(header, geometry, incarnation, id))?;
        let generation = header.map(|header| header.generation);
        let (data_file, arena, lost) = match map_data(disk, geometry, generation.unwrap_or(0), id)? {
            Ok((file, arena)) => (file, arena, None),
            Err(why) => {
                let (file, arena) = stand_in(geometry, generation.unwrap_or(0), id)?;
                (file, arena, Some(why))
            }
        };
        let no_header = header.is_none().then(|| "both headers of its journal are damaged".to_owned());
        let fault = lost.or(no_header);
        let empty = || unused || (1..=geometry.slots).all(|slot| log.read(slot) == [0; forebay_shm::SLOT]);
        if fault.is_some() && empty() {
            // A process died while creating the region. Without any record nothing can be lost.
            let region = Region::create(disk, geometry, incarnation, id, 1, None)?;
            return Ok(Opened { region, generation: Some(1), uid: None, fault: None, unused: true });
        }
        let sequence = header.map_or(0, |header| header.sequence);
        let device = !disk.is_volatile();
        let region =
            Region::new(geometry, incarnation, id, device, arena, log, data_file, log_file, sequence);
        Ok(Opened { region, generation, uid: header.and_then(|header| header.uid), fault, unused })
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one region, each of a type of its own")]
    fn new(
        geometry: Geometry,
        incarnation: Incarnation,
        id: RegionId,
        device: bool,
        arena: Arc<Arena>,
        log: Slots,
        data_file: File,
        log_file: File,
        sequence: u64,
    ) -> Region {
        let whole = device || allocated_bytes(&data_file).is_ok_and(|bytes| bytes >= geometry.size.into());
        Region {
            id,
            arena,
            geometry,
            incarnation,
            device,
            log,
            data_file,
            log_file,
            live: AtomicI64::new(0),
            pieces: AtomicI64::new(0),
            files: Mutex::default(),
            written: AtomicU64::new(0),
            flushed: Mutex::new(0),
            flush_failed: AtomicBool::new(false),
            headers: Mutex::new(Headers { sequence, flushed: false }),
            damaged: AtomicBool::new(false),
            allocated: Mutex::new(if whole { geometry.size } else { 0 }),
            lent: AtomicBool::new(false),
        }
    }

    /// Allocates the journal, and the bytes before `end` at least.
    pub(super) fn allocate(&self, disk: &dyn Disk, end: u32) -> Result<()> {
        let mut allocated = self.allocated.lock();
        if end <= *allocated {
            return Ok(());
        }
        if *allocated == 0 {
            disk.allocate(&log_name(self.id), &self.log_file, 0..self.geometry.log_len())?;
        }
        let to = end.next_multiple_of(STEP).min(self.geometry.size);
        disk.allocate(&data_name(self.id), &self.data_file, u64::from(*allocated)..u64::from(to))?;
        *allocated = to;
        Ok(())
    }

    /// Records the owner of the region in its current generation.
    pub(super) fn set_header(&self, uid: Option<Uid>) {
        let mut headers = self.headers.lock();
        *headers = Headers { sequence: headers.sequence + 1, flushed: false };
        let header = Header { sequence: headers.sequence, ..self.header(uid) };
        self.log.write(self.geometry.header_slot(header.sequence), &header.encode());
    }

    /// Does the same, durably.
    pub(super) fn renew_header(&self, disk: &dyn Disk, uid: Option<Uid>) -> Result<()> {
        // At most one header may be in flight to the disk: a crash could tear both.
        if !self.headers.lock().flushed {
            self.flush_log(disk)?;
        }
        self.set_header(uid);
        self.flush_log(disk)
    }

    fn header(&self, uid: Option<Uid>) -> Header {
        Header {
            region: self.id,
            generation: self.arena.generation(),
            uid,
            incarnation: self.incarnation,
            size: self.geometry.size,
            slots: self.geometry.slots,
            sequence: 0,
        }
    }

    /// Decodes the record in a slot.
    pub(super) fn record(&self, slot: u32) -> Slot {
        Record::decode(self.log.read(slot + 1), self.incarnation)
    }

    /// Writes a record: its bytes are committed from then on.
    pub(super) fn write_record(&self, slot: u32, record: &Record) {
        self.log.write(slot + 1, &record.encode(self.incarnation));
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Writes a record whose bytes are committed only with the last record of the same write.
    pub(super) fn write_part(&self, slot: u32, record: &Record) {
        self.log.write(slot + 1, &record.encode_part(self.incarnation));
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Turns a part into a full record once the last record of its write exists.
    pub(super) fn confirm_part(&self, slot: u32, record: &Record) {
        let [a, b, c, d, ..] = record.encode(self.incarnation);
        self.log.write_head(slot + 1, [a, b, c, d]);
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Erases a record whose bytes never arrived, so that no later recovery accepts it.
    pub(super) fn erase_record(&self, slot: u32) {
        self.log.write(slot + 1, &[0; forebay_shm::SLOT]);
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Opens published bytes. They exist as long as an index refers to them, unless the device cannot read them.
    pub(super) fn view(&self, ticket: Ticket) -> Result<View> {
        let view = self.arena.view(ticket).ok_or_else(|| {
            Error::new(
                ErrorKind::Io,
                format!("the index refers to bytes that region {} no longer holds", self.id),
            )
        })?;
        if self.device {
            view.probe().map_err(|error| {
                let (from, to) = (ticket.start(), ticket.start() + ticket.len());
                let text = format!("bytes {from} to {to} of {} cannot be read: {error}", data_name(self.id));
                Error::new(ErrorKind::Io, text)
            })?;
        }
        Ok(view)
    }

    /// The checksum of published bytes; `None` if the region was reused. On a device the bytes are read through the
    /// file: touching an unreadable mapped page would kill the process.
    pub(super) fn checksum(&self, ticket: Ticket) -> Option<io::Result<u32>> {
        let view = self.arena.view(ticket)?;
        Some(match self.device {
            true => checksum_at(&self.data_file, ticket.start().into(), ticket.len().into()),
            false => Ok(crc32c(view.as_ref())),
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

    /// Whether no grant or view is held and nothing in it is live. In a region that grants nothing more this stays
    /// true: a commit counts its bytes as live before it drops its grant.
    pub(super) fn is_dead(&self) -> bool {
        !self.arena.is_held() && self.live() == 0
    }

    /// Flushes payload, then journal, if anything was committed since the last flush.
    pub(super) fn flush(&self, disk: &dyn Disk) -> Result<()> {
        if disk.is_volatile() {
            return Ok(());
        }
        let mut flushed = self.flushed.lock();
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
        // After a failed flush the kernel may have dropped the pages: a later success would prove nothing.
        flush().inspect_err(|_| self.flush_failed.store(true, Ordering::Release))?;
        *flushed = written;
        Ok(())
    }

    fn flush_log(&self, disk: &dyn Disk) -> Result<()> {
        let sequence = self.headers.lock().sequence;
        disk.sync(&log_name(self.id), &self.log_file)?;
        let mut headers = self.headers.lock();
        headers.flushed |= headers.sequence == sequence;
        Ok(())
    }
}

/// The data file and its mapping, or why the bytes are lost. Only permanent loss counts as lost: a file that cannot be
/// opened at the moment is an error.
type Mapped = (File, Arc<Arena>);

fn map_data(
    disk: &dyn Disk,
    geometry: Geometry,
    generation: u32,
    id: RegionId,
) -> Result<Result<Mapped, String>> {
    let name = data_name(id);
    let Some(file) = disk.open(&name)? else { return Ok(Err(format!("{name} is missing"))) };
    let len = file.metadata().map_err(|error| unmapped(id, &error))?.len();
    if len < u64::from(geometry.size) {
        return Ok(Err(format!("{name} has {len} bytes instead of {}", geometry.size)));
    }
    let arena = Arena::new(&file, geometry.size, generation).map_err(|error| unmapped(id, &error))?;
    Ok(Ok((file, arena)))
}

/// Maps an unused memory file in place of lost bytes. Nothing ever reads it, so it takes no memory.
fn stand_in(geometry: Geometry, generation: u32, id: RegionId) -> Result<Mapped> {
    let make = || {
        let file = File::from(memfd_create("forebay-lost-region", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, u64::from(geometry.size))?;
        let arena = Arena::new(&file, geometry.size, generation)?;
        Ok((file, arena))
    };
    make().map_err(|error| unmapped(id, &error))
}

/// The checksum of a range of a file.
pub(crate) fn checksum_at(file: &File, start: u64, len: u64) -> io::Result<u32> {
    let mut piece = vec![0; PIECE.min(len) as usize];
    let (mut at, end, mut sum) = (start, start + len, 0);
    while at < end {
        let some = (end - at).min(PIECE) as usize;
        file.read_exact_at(&mut piece[..some], at)?;
        sum = crc32c_append(sum, &piece[..some]);
        at += some as u64;
    }
    Ok(sum)
}

/// Fails if a journal cannot be read: the content of the region would be unknown.
fn check_log(file: &File, geometry: Geometry, id: RegionId) -> Result<()> {
    let len = file.metadata().map_or(0, |facts| facts.len()).min(geometry.log_len());
    let read = checksum_at(file, 0, len).map(drop);
    read.map_err(|error| {
        unusable(format!(
            "cannot read {} ({error}), so the content of region {id} is unknown: copy the regions to a good disk, or run \
             \"forebay store replace\" to give up the bytes of all files",
            log_name(id)
        ))
    })
}

fn allocated_bytes(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}

fn map_log(disk: &dyn Disk, file: &File, geometry: Geometry, id: RegionId) -> Result<Slots> {
    let slots = match disk.is_volatile() {
        true => Slots::in_memory(file, geometry.slots + 2),
        false => Slots::new(file, geometry.slots + 2),
    };
    slots.map_err(|error| unusable(format!("cannot map the journal of region {id}: {error}")))
}

fn check_owner(header: &Header, geometry: Geometry, incarnation: Incarnation, id: RegionId) -> Result<()> {
    let expected = Header { region: id, incarnation, size: geometry.size, slots: geometry.slots, ..*header };
    if *header == expected {
        return Ok(());
    }
    Err(unusable(format!(
        "region {id} belongs to another store (incarnation {}, region {}): restore the store's own regions, or run \
         \"forebay store replace\" to give up the bytes of all files",
        header.incarnation, header.region
    )))
}

fn unmapped(id: RegionId, error: &io::Error) -> Error {
    unusable(format!("cannot map the bytes of region {id}: {error}"))
}

fn unusable(text: String) -> Error {
    Error::new(ErrorKind::BadStore, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::CrashDisk;
    use forebay_shm::SLOT;

    const GEOMETRY: Geometry = Geometry { regions: 1, size: 64 << 10, slots: 32 };
    const OURS: Incarnation = Incarnation(7);
    const ID: RegionId = RegionId(0);
    /// The last nonzero byte of a young journal's header: the lowest byte of its sequence number.
    const LAST: usize = 48;

    fn open(disk: &CrashDisk) -> Opened {
        Region::open(disk, GEOMETRY, OURS, ID).unwrap()
    }

    /// A region that was reused the given number of times, as on disk, with its next header.
    fn used(times: u32) -> (CrashDisk, [u8; SLOT], u32) {
        let disk = CrashDisk::default();
        let region = Region::create(&disk, GEOMETRY, OURS, ID, 1, Some(Uid(5))).unwrap();
        for _ in 0..times {
            assert!(region.arena.reset());
            region.renew_header(&disk, Some(Uid(5))).unwrap();
        }
        let next = Header { sequence: u64::from(times) + 2, generation: times + 2, ..region.header(None) };
        (disk, next.encode(), GEOMETRY.header_slot(next.sequence))
    }

    #[test]
    fn crash_while_writing_a_header_leaves_the_previous_one() {
        for times in 0..3 {
            for written in 0..=SLOT {
                let (disk, next, slot) = used(times);
                let log = disk.open(&log_name(ID)).unwrap().unwrap();
                let at = u64::from(slot) * SLOT as u64;
                log.write_all_at(&next[..written], at).unwrap();
                let opened = open(&disk);
                // The last bytes of a header are zero, as they were before it is written.
                let whole = written > LAST;
                let expected = if whole { (times + 2, None) } else { (times + 1, Some(Uid(5))) };
                assert_eq!(
                    (opened.generation, opened.uid),
                    (Some(expected.0), expected.1),
                    "{written} bytes"
                );
                assert_eq!(opened.fault, None);
                // The next header overwrites the torn one, and is found.
                opened.region.set_header(Some(Uid(9)));
                assert_eq!(open(&disk).uid, Some(Uid(9)), "{written} bytes");
            }
        }
    }

    #[test]
    fn crash_while_creating_a_region_loses_nothing() {
        for written in 0..=LAST {
            let (disk, _, _) = used(0);
            let first = GEOMETRY.header_slot(1) as usize * SLOT;
            let mut log = disk.read(&log_name(ID));
            log[first + written..first + SLOT].fill(0);
            let disk =
                CrashDisk::holding([(log_name(ID), log), (data_name(ID), vec![1; GEOMETRY.size as usize])]);
            let opened = open(&disk);
            assert_eq!(
                (opened.generation, opened.uid, opened.fault),
                (Some(1), None, None),
                "{written} bytes"
            );
            let zeros = disk.read(&data_name(ID)).iter().all(|&byte| byte == 0);
            assert!(zeros, "{written} bytes: a new region must hold no old bytes");
        }
    }
}
