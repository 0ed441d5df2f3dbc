//! What becomes of records that are stamped around the beginning of a pass.

use super::*;
use crate::data::{DirDisk, Geometry, NoRings, Piece, Start};
use crate::meta::MemoryKv;
use forebay_model::Incarnation;
use forebay_shm::{Commit, Window, Writer};
use std::fs::OpenOptions;

const GEOMETRY: Geometry = Geometry { regions: 8, size: 64 << 10, slots: 64 };
const FILE: FileId = FileId(100);
const UID: Uid = Uid(7);

fn open(path: &std::path::Path) -> std::fs::File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// A client with one slab.
struct Client {
    writer: Writer,
    ring: RingOffer,
    slab: SlabOffer,
    window: Window,
    used: u32,
}

impl Client {
    fn new(data: &Data) -> Client {
        let ring = data.bind_ring(UID, JobId(1), FILE, None, true).unwrap();
        let writer = Writer::open(&open(&ring.path), ring.nonce).unwrap();
        let slab = data.grant_slab(UID, ring.ring, 0, 32 << 10).unwrap();
        let window = Window::new(&open(&slab.path), slab.size).unwrap();
        let used = slab.start;
        Client { writer, ring, slab, window, used }
    }

    fn write(&mut self, offset: u64, bytes: &[u8], stamp: u64) {
        self.write_part(offset, bytes, stamp, false);
    }

    /// Part of a write, whose last part has no `more`.
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
    Data::open(disk, kv, GEOMETRY, Incarnation(3), start, Box::new(NoRings)).unwrap().0
}

/// A pass over the rings of the file that began at a moment.
fn pass(data: &Data, begin: u64) {
    let state = data.files.get(FILE, || data.load(FILE)).unwrap();
    data.hear_from(&data.rings.of(FILE), Pass::all(begin), FILE, &mut lock(&state)).unwrap();
}

fn bytes(data: &Data) -> Vec<u8> {
    let pieces = data.read(FILE, 0, 100).unwrap();
    let bytes = pieces.iter().flat_map(|piece| match piece {
        Piece::Bytes(view) => view.as_ref().to_vec(),
        Piece::Zeros(_) | Piece::Behind(_) => panic!("there are no holes"),
    });
    bytes.collect()
}

#[test]
fn only_what_was_stamped_before_a_pass_began_becomes_one_record() {
    // One client writes twice, one behind the other; another writes to the second place at a time between, and is
    // heard in the next pass only. (when the pass began, records, what the file holds)
    let first = monotonic();
    let (between, second) = (first + 1000, first + 2000);
    let table: [(u64, usize, &[u8]); 3] = [
        // The other's record was published after the beginning, so it had not returned when the second was stamped:
        // the two are concurrent, and one order is as good as the other.
        (second + 1, 1, b"aaaacccc"),
        // It may have returned before the second was stamped: the second has to win.
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
fn what_is_granted_while_a_ring_is_recalled_is_not_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let data = store(&dir);
    let mut client = Client::new(&data);
    client.write(0, b"aaaa", monotonic());
    let channel = data.rings.of(FILE)[0].clone();
    let recall = slabs::Recall::begin(&channel).unwrap();
    // It has seen that it has to ask, and asks.
    let slab = data.grant_slab(UID, client.ring.ring, u32::MAX, 4096).unwrap();
    data.end_recall(&channel, &recall).unwrap();
    let window = Window::new(&open(&slab.path), slab.size).unwrap();
    (client.used, client.window, client.slab) = (slab.start, window, slab);
    assert!(client.writer.enter(client.slab.epoch).is_some(), "it may fill it");
    client.write(4, b"bbbb", monotonic());
    assert_eq!(bytes(&data), b"aaaabbbb");
}

#[test]
fn what_is_written_while_checksums_are_made_waits_for_the_next_pass() {
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
    // As many whole writes as have so many bytes: (bytes, records)
    for (most, records) in [(1, 1), (4, 1), (5, 3), (8, 3), (10, 3), (11, 4), (u64::MAX, 4)] {
        assert_eq!(channel.sum_up(most), records, "{most} bytes");
    }
    let until = channel.sum_up(5);
    client.write(14, b"ee", monotonic());
    data.listen_until(FILE, channel.id, until).unwrap();
    assert_eq!(taken(), 3);
    data.listen_until(FILE, channel.id, until).unwrap();
    assert_eq!(taken(), 3, "that was heard");
    let until = channel.sum_up(1);
    data.listen_until(FILE, RingId(channel.id.0 + 1), until).unwrap();
    assert_eq!(taken(), 5, "another ring's records say nothing about this one's");
    client.write(16, b"f", monotonic());
    let until = channel.sum_up(1);
    let mut other = Client::new(&data);
    assert_eq!(taken(), 6, "who binds another ring to the file hears all of the first");
    client.write(17, b"g", monotonic());
    other.write(18, b"h", monotonic());
    data.listen_until(FILE, channel.id, until).unwrap();
    assert_eq!(taken(), 7, "of two rings all is heard");
    assert_eq!(bytes(&data), b"aaaabbbbccddddeefgh");
}

#[test]
fn a_file_that_is_closed_with_much_to_hear_is_settled_when_it_was_heard() {
    let dir = tempfile::tempdir().unwrap();
    let data = store(&dir);
    let mut client = Client::new(&data);
    let waits = || lock(&data.rings.closed).contains(&FILE);
    let settled = || !lock(&data.files.get(FILE, || data.load(FILE)).unwrap()).unsettled;
    for (records, at_once) in [(4, true), (5, false)] {
        (0..records).for_each(|at| client.write(at, b"a", monotonic()));
        data.settle_soon(FILE).unwrap();
        data.settle_heard().unwrap();
        assert_eq!((waits(), data.rings.of(FILE)[0].glance().records() == 0), (!at_once, at_once));
        // There is a processor for it, so nobody waits for a pause.
        data.attend(1).unwrap();
        data.settle_heard().unwrap();
        assert!(!waits() && settled(), "{records} records");
    }
    assert_eq!(bytes(&data), b"aaaaa");
    (0..5).for_each(|at| client.write(at, b"b", monotonic()));
    data.settle_soon(FILE).unwrap();
    data.settle_all().unwrap();
    assert!(!waits() && settled(), "at the end of the process all are");
}
