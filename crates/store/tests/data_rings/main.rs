//! Clients that write and read through rings, and clients that send requests, on a store that crashes at any moment:
//! the later write always wins, no write is lost, and no client reads older data.

mod client;
mod leases;

use client::{Client, GEOMETRY, OWNER, SPACE, World, now, open, open_granted};
use forebay_model::{FileId, JobId, Span, Uid};
use forebay_shm::{Commit, RwMap};
use forebay_store::{Batch, Filled, Place, Start, Traffic};
use forebay_testkit::{Rng, Seeded, rounds};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

fn put(model: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    model.resize(model.len().max(end), 0);
    model[offset as usize..end].copy_from_slice(bytes);
}

fn one_step(
    rng: &mut Rng,
    world: &mut World,
    clients: &mut Vec<Client>,
    model: &mut BTreeMap<FileId, Vec<u8>>,
) {
    let files: Vec<FileId> = model.keys().copied().collect();
    let file = *rng.pick(&files);
    let (offset, len) = (rng.below(SPACE), 1 + rng.below(4000) as usize);
    match rng.below(40) {
        0..18 => {
            let client = rng.index(clients.len());
            // Sequential writes are merged into one record.
            let mut at = offset;
            for _ in 0..1 + rng.below(4) {
                let bytes = rng.bytes(len);
                assert!(clients[client].write(world, at, &bytes));
                put(model.get_mut(&clients[client].file).unwrap(), at, &bytes);
                at += len as u64;
            }
        }
        18..22 => {
            // A leased read returns what a read from the server would return.
            let client = rng.index(clients.len());
            if let Some(found) = clients[client].read_leased(world, offset, len) {
                let whole = &model[&clients[client].file];
                let from = whole.len().min(offset as usize);
                let to = whole.len().min(offset as usize + len);
                assert!(found == whole[from..to], "the leased bytes of {}", clients[client].file);
            }
        }
        22..25 => {
            let bytes = rng.bytes(len);
            world.write(file, offset, &bytes);
            put(model.get_mut(&file).unwrap(), offset, &bytes);
        }
        25..27 => {
            world.data().truncate(file, offset, Batch::default()).unwrap();
            model.get_mut(&file).unwrap().resize(offset as usize, 0);
        }
        27 => {
            let bytes = model.get_mut(&file).unwrap();
            world.data().punch(file, Span::new(offset, offset + len as u64), Batch::default()).unwrap();
            let end = bytes.len().min(offset as usize + len);
            bytes[(offset as usize).min(end)..end].fill(0);
        }
        28 => {
            let client = rng.index(clients.len());
            clients[client].rebind(world, file);
        }
        29 => {
            world.tend_rings(Duration::ZERO);
        }
        30..32 => {
            assert!(world.data().poll_rings(1).is_ok());
            world.data().persist_consumed_sizes().unwrap();
        }
        32 => {
            world.data().sync(file).unwrap();
            world.data().persist_size(file).unwrap();
        }
        33 => {
            let _ = world.data().tidy();
            world.data().persist_size_soon(file).unwrap();
        }
        34 => {
            let client = rng.index(clients.len());
            clients.swap_remove(client);
            clients.push(Client::new(world, file));
        }
        35 => crash(rng, world, clients, model),
        _ => assert!(world.read(file) == model[&file], "file {file}"),
    }
}

#[test]
fn concurrent_binds_of_a_ring_bind_it_once() {
    let world = World::new();
    let (one, other) = (FileId(100), FileId(101));
    let mut client = Client::new(&world, one);
    for round in 0..100_u8 {
        client.rebind(&world, one);
        let bind =
            || world.data().bind_ring(OWNER, JobId(2), other, Some(client.ring), true).unwrap().binding;
        let bindings = std::thread::scope(|scope| {
            let both = [scope.spawn(bind), scope.spawn(bind)];
            both.map(|thread| thread.join().unwrap())
        });
        (client.binding, client.file) = (bindings[0].max(bindings[1]), other);
        assert!(client.write(&world, 0, &[round; 10]));
        assert_eq!(world.read(other), [round; 10]);
    }
}

/// The store crashes. Clients continue as far as possible; some crash too.
fn crash(rng: &mut Rng, world: &mut World, clients: &mut Vec<Client>, model: &mut BTreeMap<FileId, Vec<u8>>) {
    world.stop();
    for client in clients.iter_mut() {
        let len = 1 + rng.index(500);
        let bytes = rng.bytes(len);
        let at = rng.below(SPACE);
        if client.write(world, at, &bytes) {
            put(model.get_mut(&client.file).unwrap(), at, &bytes);
        }
    }
    let lost = rng.one_in(2).then(|| clients.swap_remove(rng.index(clients.len())).file);
    world.start(Start::ProcessDied);
    if let Some(file) = lost {
        clients.push(Client::new(world, file));
    }
}

#[test]
fn random_rings_and_requests_with_crashes_match_the_model() {
    let seeded = Seeded::new();
    for round in rounds(6) {
        let mut rng = seeded.rng(round);
        let mut world = World::new();
        let mut model: BTreeMap<FileId, Vec<u8>> = (100..103).map(|id| (FileId(id), Vec::new())).collect();
        let files: Vec<FileId> = model.keys().copied().collect();
        let mut clients: Vec<Client> =
            [files[0], files[0], files[1]].into_iter().map(|file| Client::new(&world, file)).collect();
        for _ in 0..250 {
            one_step(&mut rng, &mut world, &mut clients, &mut model);
        }
        for (file, bytes) in &model {
            assert!(world.read(*file) == *bytes, "round {round}, file {file}");
        }
        assert_eq!(world.tend_rings(Duration::MAX).1, 0, "round {round}: records were rejected");
        drop(clients);
        world.tend_rings(Duration::MAX);
        assert_eq!(world.ring_files(), 0, "round {round}: rings without an owner");
        assert!(world.data().damage().is_empty() && world.data().check_payloads(&|| false) > 0);
        for file in files {
            world.data().delete(file, Batch::default()).unwrap();
        }
        world.data().poll_rings(1).unwrap();
        assert_eq!(world.data().usage().live, 0, "round {round}");
    }
}

#[test]
fn invalid_records_are_skipped_and_the_next_is_consumed() {
    let file = FileId(100);
    let world = World::new();
    let mut client = Client::new(&world, file);
    assert!(client.write(&world, 0, &[7; 100]));
    let (slab, start) = (client.slabs[0].offer.slab, client.slabs[0].offer.start);
    let (end, binding) = (start + client.slabs[0].offer.len, client.binding);
    let good = Commit {
        sequence: 0,
        binding,
        slab,
        position: start + 100,
        len: 10,
        offset: 0,
        stamp: now(),
        more: false,
    };
    let lies = [
        ("past the slab", Commit { position: end - 5, ..good }),
        ("past the region", Commit { position: u32::MAX - 3, ..good }),
        ("bytes that were published already", Commit { position: start, ..good }),
        ("before the slab", Commit { position: start.wrapping_sub(1), ..good }),
        ("nothing", Commit { len: 0, ..good }),
        ("past every file", Commit { offset: u64::MAX - 5, ..good }),
        ("from the future", Commit { stamp: now() + 60_000_000_000, ..good }),
        ("from before the last record", Commit { stamp: 1, ..good }),
        ("another binding", Commit { binding: binding + 1, ..good }),
        ("another slab", Commit { slab: slab + 1, ..good }),
        ("half a write", Commit { more: true, ..good }),
    ];
    for (what, lie) in lies {
        let sequence = client.writer.head();
        assert!(client.writer.push(&[Commit { sequence, ..lie }]), "{what}");
        assert_eq!(world.read(file), [7; 100], "{what}");
        assert_eq!(world.tend_rings(Duration::MAX), (0, 1), "{what}");
    }
    // A torn record, and a record of another position in the ring.
    let sequence = client.writer.head();
    assert!(client.writer.push(&[Commit { sequence, ..good }]));
    let path = world.dir.path().join(format!("m{:05}.ring", client.ring.0));
    let at = 8192 + (sequence % forebay_shm::RING_RECORDS) * 64 + 20;
    std::os::unix::fs::FileExt::write_all_at(&open(&path), &[1], at).unwrap();
    assert_eq!(world.read(file), [7; 100]);
    assert_eq!(world.tend_rings(Duration::MAX), (0, 1));
    // The incomplete write lost its bytes; the ring continues after them.
    client.slabs[0].used = start + 110;
    assert!(client.write(&world, 50, &[8; 100]));
    assert_eq!(world.read(file), [[7; 50].as_slice(), &[8; 100]].concat());
    // An impossible head: no record is consumed, and no other ring is affected.
    std::os::unix::fs::FileExt::write_all_at(&open(&path), &u64::MAX.to_le_bytes(), 4096).unwrap();
    world.write(file, 0, &[9; 10]);
    assert_eq!(world.read(file)[..11], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7]);
    drop(client);
    assert_eq!(world.tend_rings(Duration::MAX).0, 1);
    assert_eq!(world.ring_files(), 0);
}

#[test]
fn busy_writers_are_consumed_when_they_pause_or_fill_many_slabs() {
    let files = [FileId(100), FileId(101)];
    let world = World::new();
    let mut clients = files.map(|file| Client::new(&world, file));
    let pending = |clients: &[Client; 2]| {
        clients.each_ref().map(|client| forebay_shm::RING_RECORDS - client.writer.room())
    };
    let write = |clients: &mut [Client; 2], byte: u8| {
        clients.iter_mut().for_each(|client| assert!(client.write(&world, 0, &[byte; 10])));
    };
    write(&mut clients, 1);
    assert_eq!(world.data().poll_rings(1).unwrap(), Traffic::Light, "something waits");
    assert_eq!(pending(&clients), [1, 1], "two write, and there is one processor beside this");
    write(&mut clients, 2);
    assert_eq!(world.data().poll_rings(2).unwrap(), Traffic::Light);
    assert_eq!(pending(&clients), [0, 0], "there is one for each");
    write(&mut clients, 3);
    assert_ne!(world.data().poll_rings(1).unwrap(), Traffic::None);
    std::thread::sleep(Duration::from_millis(15));
    assert_ne!(world.data().poll_rings(1).unwrap(), Traffic::None);
    assert_eq!(pending(&clients), [0, 0], "they have paused");
    for _ in 0..160 {
        assert!(clients[0].write(&world, 0, &[4; 1]));
    }
    write(&mut clients, 5);
    assert_ne!(world.data().poll_rings(1).unwrap(), Traffic::None);
    assert_eq!(
        pending(&clients),
        [0, 0],
        "one has filled many slabs, and the other has a processor of its own"
    );
    write(&mut clients, 6);
    assert_ne!(world.data().poll_rings(0).unwrap(), Traffic::None);
    for file in files {
        assert_eq!(world.read(file), [6; 10], "a request consumes all records");
    }
}

#[test]
fn bytes_changed_after_their_record_are_an_error_of_that_file_only() {
    let (file, other) = (FileId(100), FileId(101));
    let world = World::new();
    let (mut client, mut honest) = (Client::new(&world, file), Client::new(&world, other));
    assert!(client.write(&world, 0, &[7; 5000]) && honest.write(&world, 0, &[1; 5000]));
    assert_eq!(world.read(file), [7; 5000]);
    client.slabs[0].window.put(client.slabs[0].offer.start + 10, &[6]);
    world.data().check_payloads(&|| false);
    assert!(world.data().read(file, 0, 5000).is_err());
    assert_eq!(world.data().damage().len(), 1);
    assert_eq!(world.read(other), [1; 5000]);
    assert!(client.nonce != honest.nonce);
}

#[test]
fn small_writes_merge_into_one_record_and_idle_slabs_are_reclaimed() {
    let file = FileId(100);
    let world = World::new();
    let mut client = Client::new(&world, file);
    for at in 0..4 {
        assert!(client.write(&world, at * 100, &[at as u8 + 1; 100]));
    }
    assert_eq!(world.data().read(file, 0, 400).unwrap().len(), 1, "one piece");
    // Many clients with a slab each can still write the full capacity.
    let mut crowd: Vec<Client> = (0..20).map(|_| Client::new(&world, file)).collect();
    crowd.iter_mut().for_each(|client| assert!(client.write(&world, 0, &[1; 10])));
    let most = u64::from(GEOMETRY.regions - 4) * u64::from(GEOMETRY.size);
    let chunk = vec![5; 64 << 10];
    for at in (0..most).step_by(chunk.len()) {
        world.write(FileId(101), at, &chunk);
    }
    assert!(client.write(&world, 0, &[9; 10]), "the client requests a new slab after the recall");
    assert_eq!(world.read(file)[..10], [9; 10]);
}

/// Fuzzes the consumer: for any ring content nothing breaks, and only the bound file can be affected.
#[test]
fn random_garbage_in_a_ring_affects_only_its_own_file() {
    let seeded = Seeded::new();
    let (spoilt, whole) = (FileId(100), FileId(101));
    for round in rounds(20) {
        let mut rng = seeded.rng(round);
        let mut world = World::new();
        let (hostile, mut honest) = (Client::new(&world, spoilt), Client::new(&world, whole));
        let ring = open(&world.dir.path().join(format!("m{:05}.ring", hostile.ring.0)));
        let mut model = Vec::new();
        for _ in 0..30 {
            let (at, len) = (rng.below(SPACE), 1 + rng.index(3000));
            let bytes = rng.bytes(len);
            assert!(honest.write(&world, at, &bytes));
            put(&mut model, at, &bytes);
            if hostile.writer.room() > 8 && !hostile.slabs.is_empty() {
                let sequence = hostile.writer.head();
                let slab = &hostile.slabs[0].offer;
                let commit = Commit {
                    sequence,
                    binding: hostile.binding,
                    slab: slab.slab,
                    position: slab.start.wrapping_add(rng.next() as u32 >> rng.below(32)),
                    len: rng.next() as u32 >> rng.below(32),
                    offset: rng.next() >> rng.below(64),
                    stamp: if rng.one_in(3) { rng.next() } else { now() },
                    more: rng.one_in(3),
                };
                assert!(hostile.writer.push(&[commit]));
            }
            for _ in 0..rng.below(4) {
                let record = 8192 + 64 * rng.below(40);
                let place = *rng.pick(&[64, 4096, 4160, record]) + 4 * rng.below(16);
                let word = rng.next() >> rng.below(64);
                std::os::unix::fs::FileExt::write_all_at(&ring, &word.to_le_bytes(), place).unwrap();
            }
            match rng.below(8) {
                // Any reply is allowed.
                0 => drop(world.data().grant_slab(OWNER, hostile.ring, rng.next() as u32, 5000)),
                1 => drop(world.data().bind_ring(OWNER, JobId(2), spoilt, Some(hostile.ring), true)),
                2 => assert!(world.data().poll_rings(1).is_ok()),
                3 => drop(world.tend_rings(Duration::ZERO)),
                4 => {
                    world.stop();
                    world.start(Start::ProcessDied);
                }
                5 => world.data().truncate(spoilt, at, Batch::default()).unwrap(),
                _ => drop(world.data().facts(spoilt).unwrap()),
            }
            assert!(world.read(whole) == model, "round {round}");
        }
        drop(hostile);
        world.tend_rings(Duration::MAX);
        world.data().delete(spoilt, Batch::default()).unwrap();
        assert!(world.read(whole) == model, "round {round}");
    }
}

#[test]
fn region_recreated_for_another_user_frees_memory_despite_mappings() {
    const OTHER: Uid = Uid(8);
    let (file, others) = (FileId(100), FileId(101));
    let world = World::new();
    let mut client = Client::new(&world, file);
    assert!(client.write(&world, 0, &[7; 5000]));
    let slab = client.slabs[0].offer.clone();
    // A client keeps a mapping; this test also keeps a descriptor to inspect it.
    let held = open_granted(&slab.path);
    let _mapped = RwMap::new(&held, slab.size).unwrap();
    // All regions have held bytes of the first user.
    let most = u64::from(GEOMETRY.regions - 2) * u64::from(GEOMETRY.size);
    let chunk = vec![5; 64 << 10];
    for at in (0..most).step_by(chunk.len()) {
        world.write(file, at, &chunk);
    }
    world.data().delete(file, Batch::default()).unwrap();
    drop(client);
    world.tend_rings(Duration::MAX);
    for at in (0..most).step_by(chunk.len()) {
        let mut grant = world.data().reserve(OTHER, others, chunk.len() as u32).unwrap();
        assert_eq!(grant.len() as usize, chunk.len());
        grant.as_mut_slice().copy_from_slice(&chunk);
        let filled = Filled { grant, len: chunk.len() as u32, crc: crc32c::crc32c(&chunk) };
        world.data().commit(others, Place::At(at), vec![filled], JobId(1)).unwrap();
    }
    let (old, new) = (held.metadata().unwrap(), open_granted(&slab.path).metadata().unwrap());
    assert_ne!(old.ino(), new.ino(), "the other user has its own region file");
    assert_eq!((old.len(), old.blocks()), (0, 0), "the old file is empty");
}
