//! The entry point for fuzzers: from any superblock, metadata, journals and payload, recovery returns a store or an
//! error, and never exposes a byte that no complete record holds.
//!
//! The input is one file after the other: the superblock, a byte for how the last run ended, a byte for the number of
//! pairs in the metadata and the pairs (a byte for the length of each half), then journal and payload of every region.

use crate::data::{CrashDisk, Data, Filled, Geometry, Piece, Place, RecordView, Start, read_journal};
use crate::meta::{Batch, Kv, MemoryKv};
use crate::superblock::{HEAD, Superblock};
use crc32c::crc32c;
use forebay_model::{FileId, Incarnation, JobId, RegionId, Uid};
use std::path::Path;
use std::sync::Arc;

const STARTS: [Start; 3] = [Start::Clean, Start::ProcessDied, Start::MachineDied];

/// Recovers a store from `bytes`; false if they are not one. Checks every byte that the store returns, recovers it
/// again, writes to it, and recovers it once more.
pub fn fuzz(bytes: &[u8]) -> bool {
    let Some((found, start)) = Found::read(bytes) else { return false };
    let Some(data) = found.open(start) else { return false };
    let records = found.records();
    data.check_payloads(&|| false);
    let before = read_records(&data, &records);
    check_bytes(&before, &records);
    drop(data);
    let data = found.open(Start::ProcessDied).expect("what was recovered once can be recovered again");
    data.check_payloads(&|| false);
    let again = read_records(&data, &records);
    // The background check may find further damage. Bytes that can still be read must not change.
    for (before, again) in before.iter().zip(&again) {
        assert!(
            again.is_none() || before.is_none() || before == again,
            "a second recovery returns different bytes"
        );
    }
    write_and_read(&data);
    true
}

/// A store in memory.
struct Found {
    disk: Arc<CrashDisk>,
    kv: Arc<MemoryKv>,
    geometry: Geometry,
    incarnation: Incarnation,
}

/// A record and its bytes, if they match their checksum.
struct Whole {
    view: RecordView,
    bytes: Option<Vec<u8>>,
}

impl Found {
    fn read(bytes: &[u8]) -> Option<(Found, Start)> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let Superblock { geometry, incarnation, .. } = Superblock::decode(Path::new("store"), head).ok()?;
        let (&[start, pairs], mut rest) = rest.split_first_chunk()?;
        let kv = MemoryKv::new();
        let mut batch = Batch::default();
        for _ in 0..pairs {
            let (&[key, value], more) = rest.split_first_chunk()?;
            let (key, more) = more.split_at_checked(key.into())?;
            let (value, more) = more.split_at_checked(value.into())?;
            batch.put(key, value);
            rest = more;
        }
        kv.commit(batch).ok()?;
        let mut files = Vec::new();
        'regions: for number in 0..geometry.regions {
            for (end, len) in [("log", geometry.log_len()), ("data", geometry.size.into())] {
                if rest.is_empty() {
                    break 'regions;
                }
                let (file, more) = rest.split_at(rest.len().min(usize::try_from(len).ok()?));
                files.push((format!("r{number:05}.{end}"), file.to_vec()));
                rest = more;
            }
        }
        let disk = Arc::new(CrashDisk::holding(files));
        let found = Found { disk, kv: Arc::new(kv), geometry, incarnation };
        Some((found, STARTS[usize::from(start) % STARTS.len()]))
    }

    fn open(&self, start: Start) -> Option<Data> {
        let (disk, kv): (_, Arc<dyn Kv>) = (self.disk.clone(), self.kv.clone());
        let opened = Data::open(disk, kv, self.geometry, self.incarnation, start);
        opened.ok().map(|(data, _)| data)
    }

    /// The records of the journals, read without recovery.
    fn records(&self) -> Vec<Whole> {
        let names = self.disk.names();
        let read = |name: String| if names.contains(&name) { self.disk.read(&name) } else { Vec::new() };
        let mut records = Vec::new();
        for number in 0..self.geometry.regions {
            let log = read(format!("r{number:05}.log"));
            let payload = read(format!("r{number:05}.data"));
            for view in read_journal(RegionId(number), &log, self.incarnation).records {
                let (start, len) = (view.position as usize, view.len as usize);
                let bytes = start.checked_add(len).and_then(|end| payload.get(start..end));
                let bytes = bytes.filter(|bytes| crc32c(bytes) == view.crc).map(<[u8]>::to_vec);
                records.push(Whole { view, bytes });
            }
        }
        records
    }
}

/// The bytes that a read returns at the place of each record.
fn read_records(data: &Data, records: &[Whole]) -> Vec<Option<Vec<u8>>> {
    let read = |view: &RecordView| {
        let pieces = data.read(view.file, view.offset, view.len).ok()?;
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(view) => bytes.extend_from_slice(view.as_ref()),
                Piece::Zeros(count) => bytes.resize(bytes.len() + count as usize, 0),
                // Bytes in the back end; this store has none.
                Piece::Backing(_) | Piece::Copied(_) => return None,
            }
        }
        assert!(bytes.len() <= view.len as usize, "more than was requested");
        Some(bytes)
    };
    records.iter().map(|record| read(&record.view)).collect()
}

/// Checks that every byte is zero or comes from a record with a valid checksum.
fn check_bytes(shown: &[Option<Vec<u8>>], records: &[Whole]) {
    for (bytes, Whole { view, .. }) in shown.iter().zip(records) {
        for (index, &byte) in bytes.iter().flatten().enumerate() {
            let place = view.offset + index as u64;
            let held = |record: &Whole| {
                let index = place.checked_sub(record.view.offset)?;
                record
                    .bytes
                    .as_ref()
                    .filter(|_| record.view.file == view.file)?
                    .get(usize::try_from(index).ok()?)
                    .copied()
            };
            let right = byte == 0 || records.iter().any(|record| held(record) == Some(byte));
            assert!(right, "file {} returns {byte} at {place}, which no complete record holds", view.file);
        }
    }
}

/// Writes to the store, or gets an error, and reads back what it wrote.
fn write_and_read(data: &Data) {
    const FILE: FileId = FileId(u64::MAX - 7);
    let Ok(mut grant) = data.reserve(Uid(1), FILE, 100) else { return };
    let len = grant.len();
    grant.as_mut_slice().fill(0x5a);
    let crc = crc32c(grant.as_mut_slice());
    let done = data.commit(FILE, Place::At(5), vec![Filled { grant, len, crc }], JobId(1));
    if done.is_ok() {
        let read = data.read(FILE, 5, len).expect("acknowledged bytes can be read");
        let right = |piece: &Piece| matches!(piece, Piece::Bytes(view) if view.as_ref().iter().all(|&byte| byte == 0x5a));
        assert!(read.iter().all(right), "acknowledged bytes are returned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::boot_id;
    use forebay_model::{ServerId, Span};
    use forebay_testkit::{Corpus, Rng, alone};

    const GEOMETRY: Geometry = Geometry { regions: 3, size: 2048, slots: 10 };
    const OURS: Incarnation = Incarnation(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    /// Address space limit of the driver: the mappings of the test itself, and a few stores.
    const MEMORY: u64 = 2 << 30;

    /// The fuzzer input for a store after random operations.
    fn sample(start: u8, seed: u64) -> Vec<u8> {
        let (disk, kv) = (Arc::new(CrashDisk::default()), Arc::new(MemoryKv::new()));
        Data::format(&*disk, GEOMETRY, OURS).unwrap();
        let found = Found { disk, kv, geometry: GEOMETRY, incarnation: OURS };
        let data = found.open(Start::Fresh).unwrap();
        let mut rng = Rng::new(seed);
        for _ in 0..rng.below(30) {
            let file = FileId(2 + rng.below(3));
            match rng.below(8) {
                0 => data.truncate(file, rng.below(900), Batch::default()).unwrap(),
                1 => data.punch(file, Span::new(100, 100 + rng.below(300)), Batch::default()).unwrap(),
                2 => data.delete(file, Batch::default()).unwrap(),
                _ => drop(write(&data, file, rng.below(700), &mut rng)),
            }
        }
        drop(data);
        found.pack(start)
    }

    fn write(data: &Data, file: FileId, offset: u64, rng: &mut Rng) -> forebay_model::Result<()> {
        let bytes = rng.bytes(1 + rng.clone().index(500));
        let mut parts = Vec::new();
        let mut left = &bytes[..];
        while !left.is_empty() {
            let mut grant = data.reserve(Uid(1), file, left.len() as u32)?;
            let (some, rest) = left.split_at(left.len().min(grant.len() as usize));
            grant.as_mut_slice()[..some.len()].copy_from_slice(some);
            parts.push(Filled { grant, len: some.len() as u32, crc: crc32c(some) });
            left = rest;
        }
        data.commit(file, Place::At(offset), parts, JobId(3)).map(drop)
    }

    impl Found {
        fn pack(&self, start: u8) -> Vec<u8> {
            let head = Superblock {
                incarnation: self.incarnation,
                server: ServerId(0),
                geometry: self.geometry,
                boot: boot_id().unwrap(),
                clean: false,
                made: 1,
            };
            let mut pairs = Vec::new();
            self.kv
                .scan(b"", b"", &mut |key, value| {
                    pairs.push((key.to_vec(), value.to_vec()));
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
            let mut bytes = head.encode().to_vec();
            bytes.extend([start, pairs.len() as u8]);
            for (key, value) in pairs {
                bytes.extend([key.len() as u8, value.len() as u8]);
                bytes.extend(key.into_iter().chain(value));
            }
            for number in 0..self.geometry.regions {
                for end in ["log", "data"] {
                    bytes.extend(self.disk.read(&format!("r{number:05}.{end}")));
                }
            }
            bytes
        }
    }

    /// Fixes the checksums of mutated bytes: otherwise nothing passes the first check.
    fn repair(bytes: &mut [u8], rng: &mut Rng) {
        let Some((head, rest)) = bytes.split_at_mut_checked(HEAD) else { return };
        let crc = crc32c(&head[16..]);
        head[12..16].copy_from_slice(&crc.to_le_bytes());
        // Slots at a wrong position just get more damage.
        let log = (GEOMETRY.slots as usize + 2) * 64;
        let region = log + GEOMETRY.size as usize;
        let Some(first) = rest.len().checked_sub(region * GEOMETRY.regions as usize) else { return };
        for number in 0..GEOMETRY.regions as usize {
            let slots = rest[first + number * region..][..log].chunks_exact_mut(64);
            for slot in slots.filter(|slot| slot.iter().any(|&byte| byte != 0)) {
                let crc = match &slot[4..8] == b"FBRG" {
                    true => crc32c(&slot[4..]),
                    false => crc32c::crc32c_append(crc32c(&OURS.0.to_le_bytes()), &slot[4..]),
                };
                let crc = if rng.one_in(8) { !crc } else { crc };
                slot[..4].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }

    #[test]
    fn random_stores_are_recovered_or_refused() {
        alone("fuzz::tests::random_stores_are_recovered_or_refused", MEMORY, || {
            let samples: Vec<Vec<u8>> = (0..24).map(|number| sample(number as u8, number)).collect();
            assert!(samples.iter().all(|sample| fuzz(sample)), "every sample is a store");
            let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
            let (taken, refused) = Corpus::new(samples, &kept).run(6000, |bytes, rng| {
                let mut bytes = bytes.to_vec();
                if !rng.one_in(4) {
                    repair(&mut bytes, rng);
                }
                fuzz(&bytes)
            });
            assert!(taken > refused / 20 && refused > 0, "{taken} taken, {refused} refused");
        });
    }
}
