//! Passes over rings: records stamped around the start of a pass, recalls, partial passes.

use super::*;
use crate::data::file::SizeRecord;
use crate::data::{DirDisk, Geometry, Piece, Place, Start};
use crate::meta::{Batch, MemoryKv};
use forebay_model::{Incarnation, SlabGrant};
use forebay_shm::{Commit, RwMap, Writer};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;

const GEOMETRY: Geometry = Geometry { regions: 8, size: 64 << 10, slots: 64 };
const FILE: FileId = FileId(100);
const UID: Uid = Uid(7);

fn open(path: &[u8]) -> std::fs::File {
    OpenOptions::new().read(true).write(true).open(OsStr::from_bytes(path)).unwrap()
}

/// A client with one slab.
struct Client {
    writer: Writer,
    ring: RingGrant,
    slab: SlabGrant,
    window: RwMap,
    used: u32,
}

impl Client {
    fn new(data: &Data) -> Client {
        let ring = data.bind_ring(UID, JobId(1), FILE, None, true).unwrap();
        let writer = Writer::open(&open(&ring.path), ring.nonce).unwrap();
        let slab = data.grant_slab(UID, RingId(ring.ring), 0, 32 << 10).unwrap();
        let window = RwMap::new(&open(&slab.path), slab.size).unwrap();
        let used = slab.start;
        Client { writer, ring, slab, window, used }
    }

    fn write(&mut self, offset: u64, bytes: &[u8], stamp: u64) {
        self.write_part(offset, bytes, stamp, false);
    }

    /// Writes a part of a write; the last part has no `more`.
    fn write_part(&mut self, offset: u64, bytes: &[u8], stamp: u64, more: bool) {
        let (position, len) = (self.used, bytes.len() as u32);
        self.window.put(position, bytes);
        self.used += len;
        let (sequence, binding, slab) = (self.writer.head(), self.ring.binding, self.slab.slab);
        let commit = Commit { sequence, binding, slab, position, len, offset, stamp, more };
        assert!(self.writer.push(&[commit]));
    }
}

fn store(dir: &tempfile::TempDir) -> Data {
    let disk = || DirDisk::new(dir.path().to_owned(), true);
    Data::format(&disk(), GEOMETRY, Incarnation(3)).unwrap();
    let kv = Arc::new(MemoryKv::new());
    let (disk, start) = (Arc::new(disk()), Start::Fresh);
    Data::open(disk, kv, GEOMETRY, Incarnation(3), start).unwrap().0
}

#[test]
fn every_operation_on_a_file_consumes_its_rings_first() {
    type Operation = fn(&Data) -> Result<()>;
    let operations: [(&str, Operation); 7] = [
        ("a write", |data| data.commit(FILE, Place::At(0), Vec::new(), JobId(1)).map(|_| ())),
        ("an append", |data| data.commit(FILE, Place::End, Vec::new(), JobId(1)).map(|_| ())),
        ("a read", |data| data.read(FILE, 0, 3).map(|_| ())),
        ("a size", |data| data.facts(FILE).map(|_| ())),
        ("a truncation", |data| data.truncate(FILE, 2, Batch::default())),
        ("a hole", |data| data.punch(FILE, Span::new(0, 1), Batch::default())),
        ("a sync", |data| data.sync(FILE).map(|_| ())),
    ];
    let dir = tempfile::tempdir().unwrap();
    let data = store(&dir);
    let mut client = Client::new(&data);
    let channel = data.rings.of(FILE)[0].clone();
    for (what, operate) in operations {
        client.write(0, b"a", monotonic());
        assert_eq!(channel.ring_status().records(), 1, "{what}");
        operate(&data).unwrap();
        assert_eq!(channel.ring_status().records(), 0, "{what} did not consume the ring");
    }
}

/// Runs a pass over the rings of the file that began at the given time.
fn pass(data: &Data, begin: u64) {
    let state = data.files.get(FILE, || data.load(FILE)).unwrap();
    data.consume_from(&data.rings.of(FILE), Pass::all(begin), FILE, &mut state.lock()).unwrap();
}

fn bytes(data: &Data) -> Vec<u8> {
    let pieces = data.read(FILE, 0, 100).unwrap();
    let bytes = pieces.iter().flat_map(|piece| match piece {
        Piece::Bytes(view) => view.as_ref().to_vec(),
        Piece::Zeros(_) | Piece::Backing(_) | Piece::Copied(_) => panic!("there are no holes"),
    });
    bytes.collect()
}

#[test]
fn only_writes_stamped_before_a_pass_are_merged() {
    // One client writes twice, adjacently. Another client writes to the second range at a time in between, and is
    // consumed only in the next pass. (start of the pass, records, content of the file)
    let first = monotonic();
    let (between, second) = (first + 1000, first + 2000);
    let table: [(u64, usize, &[u8]); 3] = [
        // The other record was published after the start, so its write had not returned when the second was stamped:
        // the two are concurrent, and either order is correct.
        (second + 1, 1, b"aaaacccc"),
        // It may have returned before the second was stamped: the second must win.
        (second, 2, b"aaaabbbb"),
        (between, 2, b"aaaabbbb"),
    ];
    for (begin, records, expected) in table {
        let dir = tempfile::tempdir().unwrap();
        let data = store(&dir);
        let (mut one, mut other) = (Client::new(&data), Client::new(&data));
        while monotonic() < second {
            std::hint::spin_loop();
        }
        one.write(0, b"aaaa", first);
        one.write(4, b"bbbb", second);
        pass(&data, begin);
        assert_eq!(data.read(FILE, 0, 8).unwrap().len(), records, "{begin}");
        other.write(4, b"cccc", between);
        pass(&data, begin);
        assert_eq!(bytes(&data), expected, "{begin} of {first}, {second}");
    }
}

#[test]
fn slab_granted_during_a_recall_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let data = store(&dir);
    let mut client = Client::new(&data);
    client.write(0, b"aaaa", monotonic());
    let channel = data.rings.of(FILE)[0].clone();
    let recall = slabs::Recall::begin(&channel).unwrap();
    // The client has seen that it must send a request, and sends it.
    let slab = data.grant_slab(UID, RingId(client.ring.ring), u32::MAX, 4096).unwrap();
    data.end_recall(&channel, &recall).unwrap();
    let window = RwMap::new(&open(&slab.path), slab.size).unwrap();
    (client.used, client.window, client.slab) = (slab.start, window, slab);
    assert!(client.writer.enter(client.slab.epoch).is_some(), "it may fill it");
    client.write(4, b"bbbb", monotonic());
    assert_eq!(bytes(&data), b"aaaabbbb");
}

#[test]
fn records_published_during_checksums_wait_for_the_next_pass() {
    let dir = tempfile::tempdir().unwrap();
    let data = store(&dir);
    let mut client = Client::new(&data);
    let channel = data.rings.of(FILE)[0].clone();
    let taken = || channel.lock().note.taken();
    let now = monotonic();
    client.write(0, b"aaaa", now);
    client.write_part(4, b"bbbb", now + 1, true);
    client.write_part(8, b"cc", now + 1, false);
    client.write(10, b"dddd", now + 2);
    // As many complete writes as have the given number of bytes: (bytes, records)
    for (most, records) in [(1, 1), (4, 1), (5, 3), (8, 3), (10, 3), (11, 4), (u64::MAX, 4)] {
        assert_eq!(channel.sum_up(most), records, "{most} bytes");
    }
    let until = channel.sum_up(5);
    client.write(14, b"ee", monotonic());
    data.poll_file_until(FILE, channel.id, until).unwrap();
    assert_eq!(taken(), 3);
    data.poll_file_until(FILE, channel.id, until).unwrap();
    assert_eq!(taken(), 3, "these are consumed already");
    let until = channel.sum_up(1);
    data.poll_file_until(FILE, RingId(channel.id.0 + 1), until).unwrap();
    assert_eq!(taken(), 5, "a record number of another ring does not limit this one");
    client.write(16, b"f", monotonic());
    let until = channel.sum_up(1);
    let mut other = Client::new(&data);
    assert_eq!(taken(), 6, "binding another ring to the file consumes the first completely");
    client.write(17, b"g", monotonic());
    other.write(18, b"h", monotonic());
    data.poll_file_until(FILE, channel.id, until).unwrap();
    assert_eq!(taken(), 7, "two rings are consumed completely");
    assert_eq!(bytes(&data), b"aaaabbbbccddddeefgh");
}

#[test]
fn size_of_a_closed_file_is_persisted_after_its_rings_are_consumed() {
    let dir = tempfile::tempdir().unwrap();
    let data = store(&dir);
    let mut client = Client::new(&data);
    let waits = || data.rings.closed.lock().contains(&FILE);
    let persisted = || !data.files.get(FILE, || data.load(FILE)).unwrap().lock().size_pending;
    for (records, at_once) in [(4, true), (5, false)] {
        (0..records).for_each(|at| client.write(at, b"a", monotonic()));
        data.persist_size_soon(FILE).unwrap();
        data.persist_consumed_sizes().unwrap();
        assert_eq!((waits(), data.rings.of(FILE)[0].ring_status().records() == 0), (!at_once, at_once));
        // There is a free processor, so the ring is consumed without a pause of its client.
        data.poll_rings(1).unwrap();
        data.persist_consumed_sizes().unwrap();
        assert!(!waits() && persisted(), "{records} records");
    }
    assert_eq!(bytes(&data), b"aaaaa");
    (0..5).for_each(|at| client.write(at, b"b", monotonic()));
    data.persist_size_soon(FILE).unwrap();
    data.persist_all_sizes().unwrap();
    assert!(!waits() && persisted(), "all sizes are persisted at the end of the process");
}

#[test]
fn size_of_a_closed_file_stays_pending_if_a_ring_is_bound_to_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = store(&dir);
    let mut client = Client::new(&data);
    let is_pending = || {
        let record = data.kv.get(&SizeRecord::key(FILE)).unwrap().expect("a record");
        SizeRecord::decode(FILE, &record).unwrap().size_pending
    };
    client.write(0, b"a", monotonic());
    data.persist_size_soon(FILE).unwrap();
    assert!(is_pending(), "it is persisted together with others");
    let own = Some(RingId(client.ring.ring));
    client.ring = data.bind_ring(UID, JobId(1), FILE, own, true).unwrap();
    data.persist_consumed_sizes().unwrap();
    assert!(is_pending());
    data.persist_size_soon(FILE).unwrap();
    data.persist_consumed_sizes().unwrap();
    assert!(!is_pending());
}

#[test]
fn new_file_that_is_to_be_filled_needs_no_commit_when_its_ring_is_bound() {
    let dir = tempfile::tempdir().unwrap();
    let data = store(&dir);
    let (file, key) = (FileId(101), SizeRecord::key(FileId(101)));
    let mut batch = Batch::default();
    data.will_be_filled(file, &mut batch).unwrap();
    data.kv.commit(batch).unwrap();
    data.await_bytes(file).unwrap();
    let before = data.kv.get(&key).unwrap();
    data.bind_ring(UID, JobId(1), file, None, true).unwrap();
    assert!(before.is_some() && data.kv.get(&key).unwrap() == before);
    // It remains empty.
    data.persist_size_soon(file).unwrap();
    data.persist_consumed_sizes().unwrap();
    let record = data.kv.get(&key).unwrap().expect("a record");
    assert!(!SizeRecord::decode(file, &record).unwrap().size_pending);
}
