//! Clients that read leased bytes.

use crate::client::{Client, GEOMETRY, OWNER, World, open_granted};
use forebay_model::{ErrorKind, FileId, JobId, MapAt, MapGrant, Span, Uid};
use forebay_shm::{Reader, RoMap};
use forebay_store::{Batch, Geometry, RingId, Start, Traffic};
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// A lease from the client's point of view.
pub(crate) struct Leased {
    offer: MapGrant,
    ro_maps: Vec<RoMap>,
    reader: Reader,
}

/// The files of the leased regions.
fn region_files(offer: &MapGrant) -> impl Iterator<Item = File> {
    offer.names.iter().map(|name| open_granted(&[offer.dir.as_slice(), b"/", name].concat()))
}

impl Leased {
    /// The bytes at an offset; `None` if a request to the server is needed.
    fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        self.reader.read(self.offer.lease, || self.copy(offset, len)).flatten()
    }

    fn copy(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let (mut at, mut bytes) = (self.offer.start, Vec::new());
        let wanted = Span::new(offset, (offset + len as u64).min(self.offer.size).max(offset));
        for piece in &self.offer.pieces {
            let span = Span::new(at, at + piece.len);
            at = span.end;
            let Some(part) = span.intersect(wanted) else { continue };
            let mut some = vec![0; part.len() as usize];
            match piece.at {
                MapAt::Zeros => {}
                MapAt::Region { file, position } => {
                    let from = position + (part.start - span.start) as u32;
                    self.ro_maps[file as usize].get(from, &mut some).unwrap();
                }
                MapAt::Ask => return None,
            }
            bytes.extend_from_slice(&some);
        }
        (bytes.len() as u64 == wanted.len()).then_some(bytes)
    }
}

impl Client {
    /// What the preload library does for `pread`: uses the lease while it is valid, else requests a new one, if
    /// available.
    pub(crate) fn read_leased(&mut self, world: &World, offset: u64, len: usize) -> Option<Vec<u8>> {
        if let Some(bytes) = self.leased.as_ref().and_then(|leased| leased.read(offset, len)) {
            return Some(bytes);
        }
        self.leased = Some(self.lease(world)?);
        self.leased.as_ref()?.read(offset, len)
    }

    fn lease(&self, world: &World) -> Option<Leased> {
        let offer = match world.data().lease(OWNER, self.file, self.ring, 0) {
            Ok(offer) => offer,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                return None;
            }
        };
        let ro_maps = region_files(&offer).map(|file| RoMap::new(&file, offer.region).unwrap()).collect();
        Some(Leased { offer, ro_maps, reader: self.writer.reader() })
    }

    fn is_leased(&self) -> bool {
        self.leased.as_ref().is_some_and(|leased| leased.read(0, 1).is_some())
    }
}

const FILE: FileId = FileId(100);

/// A file with some bytes, and a client with a lease on them.
fn leased() -> (World, Client) {
    let world = World::new();
    world.write(FILE, 0, &[7; 5000]);
    let mut client = Client::new(&world, FILE);
    assert_eq!(client.read_leased(&world, 4990, 100), Some(vec![7; 10]));
    assert!(client.is_leased());
    (world, client)
}

#[test]
fn lease_ends_before_its_file_changes_and_not_otherwise() {
    type Event = fn(&mut World, &mut Vec<Client>);
    let table: [(&str, bool, Event); 15] = [
        ("a read", true, |world, _| assert_eq!(world.read(FILE), [7; 5000])),
        ("a flush", true, |world, _| world.data().sync(FILE).unwrap()),
        ("its size is persisted", true, |world, _| world.data().persist_size(FILE).unwrap()),
        ("another file is written", true, |world, _| world.write(FileId(101), 0, &[1; 10])),
        ("rings are serviced", true, |world, _| {
            assert_eq!(world.data().poll_rings(1).unwrap(), Traffic::None);
        }),
        ("a write", false, |world, _| world.write(FILE, 9000, &[1; 10])),
        ("it is truncated", false, |world, _| world.data().truncate(FILE, 10, Batch::default()).unwrap()),
        ("it grows", false, |world, _| world.data().extend(FILE, 10_000).unwrap()),
        ("a hole", false, |world, _| {
            world.data().punch(FILE, Span::new(0, 10), Batch::default()).unwrap();
        }),
        ("it is removed", false, |world, _| world.data().delete(FILE, Batch::default()).unwrap()),
        ("another client may write", false, |world, clients| clients.push(Client::new(world, FILE))),
        ("a writer of another file binds this one", false, |world, clients| {
            let mut other = Client::new(world, FileId(101));
            other.rebind(world, FILE);
            clients.push(other);
        }),
        ("its own ring is consumed", false, |world, clients| {
            assert!(clients[0].write(world, 0, &[1; 10]));
            assert_eq!(world.read(FILE)[..11], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7]);
        }),
        ("bytes are found corrupted", false, |world, clients| {
            let slab = clients[0].slabs[0].offer.clone();
            assert!(clients[0].write(world, 0, &[1; 10]));
            assert_eq!(clients[0].read_leased(world, 0, 5), Some(vec![1; 5]));
            clients[0].slabs[0].window.put(slab.start, &[9]);
            world.data().check_payloads(&|| false);
        }),
        ("the store crashes", false, |world, _| {
            world.stop();
            world.start(Start::ProcessDied);
        }),
    ];
    for (what, stands, event) in table {
        let (mut world, client) = leased();
        let mut clients = vec![client];
        // A client tracks its own writes. This test discards that knowledge, so that the server must end the lease.
        let before = clients[0].leased.take();
        let kept = before.expect("the client has a lease");
        event(&mut world, &mut clients);
        let last = clients[0].leased.take().unwrap_or(kept);
        assert_eq!(last.read(0, 1).is_some(), stands, "{what}");
    }
}

#[test]
fn lease_is_refused_during_a_write_and_the_writer_must_reenter() {
    let (world, mut reader) = leased();
    let mut writer = Client::new(&world, FILE);
    assert!(!reader.is_leased());
    {
        let epoch = writer.slabs[0].offer.epoch;
        let _filling = writer.writer.enter(epoch).expect("the writer has space");
        assert_eq!(reader.read_leased(&world, 0, 10), None, "a write is in progress");
    }
    // The writer's epoch was revoked; until it requests a new one, others may read.
    assert!(writer.writer.enter(writer.slabs[0].offer.epoch).is_none());
    writer.slabs.clear();
    writer.request_slab(&world);
    writer.slabs.clear();
    assert_eq!(reader.read_leased(&world, 0, 10), Some(vec![7; 10]));
    assert!(writer.write(&world, 0, &[8; 10]), "it requests a slab");
    assert!(!reader.is_leased());
    assert_eq!(reader.read_leased(&world, 0, 11), Some([[8; 10].as_slice(), &[7]].concat()));
}

/// A file of many extents is leased as a whole from any offset, as long as the reply can hold them; beyond that, from
/// the offset on.
#[test]
fn extents_are_leased_up_to_the_limit_of_a_reply() {
    let world = World::of(Geometry { regions: 12, size: 128 << 10, slots: 4096 });
    let client = Client::new(&world, FILE);
    let lease = |from: u64| {
        let offer = world.data().lease(OWNER, FILE, client.ring, from).unwrap();
        (offer.start, offer.end(), offer.pieces.len())
    };
    // Written from the end, so that no two extents merge.
    (0..20_000_u64).rev().for_each(|at| world.write(FILE, at, &[at as u8]));
    assert_eq!(lease(15_000), (0, 20_000, 20_000));
    // Every second byte of the next part is a hole.
    (10_000..20_000_u64).rev().for_each(|at| world.write(FILE, 2 * at, &[at as u8]));
    let (start, end, pieces) = lease(0);
    assert_eq!((start, pieces), (0, 32_767));
    let size = world.data().facts(FILE).unwrap().size;
    assert_eq!(size, 39_999);
    assert_eq!(lease(30_000), (30_000, size, (size - 30_000) as usize));
    assert!((20_000..size).contains(&end));
}

#[test]
fn lease_covers_only_regions_of_the_own_user() {
    let (world, client) = leased();
    for (what, uid, file, ring) in [
        ("another user", Uid(OWNER.0 + 1), FILE, client.ring),
        ("another file", OWNER, FileId(101), client.ring),
        ("another ring", OWNER, FILE, RingId(client.ring.0 + 1)),
    ] {
        let refused = world.data().lease(uid, file, ring, 0).err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Stale), "{what}");
    }
    // Bytes of another user in the same file are read through the server.
    let other = Uid(OWNER.0 + 1);
    let ring = RingId(world.data().bind_ring(other, JobId(2), FILE, None, false).unwrap().ring);
    let offer = world.data().lease(other, FILE, ring, 0).unwrap();
    assert!(offer.names.is_empty() && offer.pieces.iter().all(|piece| piece.at == MapAt::Ask));
    // A reader is not granted space to write.
    let refused = world.data().grant_slab(other, ring, 0, 4096).err().map(|error| error.kind());
    assert_eq!(refused, Some(ErrorKind::Stale));
}

#[test]
fn region_file_is_not_removed_while_a_client_reads_it() {
    let (world, client) = leased();
    let leased = client.leased.as_ref().unwrap();
    let (all, other) = (FileId(102), Uid(OWNER.0 + 1));
    // All regions except the reserved one have held bytes of the first user.
    for at in 0..u64::from(GEOMETRY.regions - 2) * 2 {
        world.write(all, at << 16, &[1; 64 << 10]);
    }
    world.data().delete(all, Batch::default()).unwrap();
    let held = std::cell::RefCell::new(Vec::new());
    let fill = || {
        let before = held.borrow().len();
        while let Ok(grant) = world.data().reserve(other, FileId(101), 64 << 10) {
            held.borrow_mut().push(grant);
        }
        held.borrow().len() - before
    };
    let files = || region_files(&leased.offer).map(|file| file.metadata().unwrap().ino());
    let before: Vec<u64> = files().collect();
    let copied = leased.reader.read(leased.offer.lease, || {
        // The client is in the middle of a copy and has not yet seen that its lease ended.
        world.data().delete(FILE, Batch::default()).unwrap();
        fill();
        assert!(files().eq(before.iter().copied()));
        leased.copy(0, 10)
    });
    assert_eq!(copied, None, "the lease has ended");
    assert!(fill() > 0);
    assert!(!files().eq(before.iter().copied()));
}
