//! Clients that write and read by rings, beside those that ask, on a store whose process dies at any moment: the later
//! write always wins, nothing that was written is lost, and nobody reads what was before it.

mod client;
mod leases;

use client::{Client, GEOMETRY, OWNER, SPACE, World, now, open};
use forebay_dice::{Dice, Seeded, rounds};
use forebay_model::{FileId, JobId, Span, Uid};
use forebay_shm::{Commit, Window};
use forebay_store::{Batch, Filled, Place, Start, Traffic};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

fn put(model: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    model.resize(model.len().max(end), 0);
    model[offset as usize..end].copy_from_slice(bytes);
}

fn one_step(
    dice: &mut Dice,
    world: &mut World,
    clients: &mut Vec<Client>,
    model: &mut BTreeMap<FileId, Vec<u8>>,
) {
    let files: Vec<FileId> = model.keys().copied().collect();
    let file = *dice.pick(&files);
    let (offset, len) = (dice.below(SPACE), 1 + dice.below(4000) as usize);
    match dice.below(40) {
        0..18 => {
            let client = dice.index(clients.len());
            // Sequential writes become one record.
            let mut at = offset;
            for _ in 0..1 + dice.below(4) {
                let bytes = dice.bytes(len);
                assert!(clients[client].write(world, at, &bytes));
                put(model.get_mut(&clients[client].file).unwrap(), at, &bytes);
                at += len as u64;
            }
        }
        18..22 => {
            // Whatever it is, it is what a read of the server would find.
            let client = dice.index(clients.len());
            if let Some(found) = clients[client].look(world, offset, len) {
                let whole = &model[&clients[client].file];
                let from = whole.len().min(offset as usize);
                let to = whole.len().min(offset as usize + len);
                assert!(found == whole[from..to], "what was leased of {}", clients[client].file);
            }
        }
        22..25 => {
            let bytes = dice.bytes(len);
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
            let client = dice.index(clients.len());
            clients[client].rebind(world, file);
        }
        29 => {
            world.data().tend_rings(Duration::ZERO).unwrap();
        }
        30..32 => assert!(world.data().attend(1).is_ok()),
        32 => {
            world.data().sync(file).unwrap();
            world.data().settle(file).unwrap();
        }
        33 => drop(world.data().tidy()),
        34 => {
            let client = dice.index(clients.len());
            clients.swap_remove(client);
            clients.push(Client::new(world, file));
        }
        35 => die(dice, world, clients, model),
        _ => assert!(world.read(file) == model[&file], "file {file}"),
    }
}

#[test]
fn a_ring_that_is_bound_twice_at_once_is_bound_once() {
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

/// The store's process dies. Clients go on as far as they can; some die too.
fn die(dice: &mut Dice, world: &mut World, clients: &mut Vec<Client>, model: &mut BTreeMap<FileId, Vec<u8>>) {
    world.stop();
    for client in clients.iter_mut() {
        let len = 1 + dice.index(500);
        let bytes = dice.bytes(len);
        let at = dice.below(SPACE);
        if client.write(world, at, &bytes) {
            put(model.get_mut(&client.file).unwrap(), at, &bytes);
        }
    }
    let lost = dice.one_in(2).then(|| clients.swap_remove(dice.index(clients.len())).file);
    world.start(Start::ProcessDied);
    if let Some(file) = lost {
        clients.push(Client::new(world, file));
    }
}

#[test]
fn random_rings_and_requests_on_a_store_that_dies_equal_a_model() {
    let seeded = Seeded::new();
    for round in rounds(6) {
        let mut dice = seeded.dice(round);
        let mut world = World::new();
        let mut model: BTreeMap<FileId, Vec<u8>> = (100..103).map(|id| (FileId(id), Vec::new())).collect();
        let files: Vec<FileId> = model.keys().copied().collect();
        let mut clients: Vec<Client> =
            [files[0], files[0], files[1]].into_iter().map(|file| Client::new(&world, file)).collect();
        for _ in 0..250 {
            one_step(&mut dice, &mut world, &mut clients, &mut model);
        }
        for (file, bytes) in &model {
            assert!(world.read(*file) == *bytes, "round {round}, file {file}");
        }
        assert_eq!(
            world.data().tend_rings(Duration::MAX).unwrap().1,
            0,
            "round {round}: records were not believed"
        );
        drop(clients);
        world.data().tend_rings(Duration::MAX).unwrap();
        assert_eq!(world.ring_files(), 0, "round {round}: rings of nobody");
        assert!(world.data().damage().is_empty() && world.data().check_payloads(&|| false) > 0);
        for file in files {
            world.data().delete(file, Batch::default()).unwrap();
        }
        world.data().attend(1).unwrap();
        assert_eq!(world.data().usage().live, 0, "round {round}");
    }
}

#[test]
fn what_a_client_may_not_say_is_passed_over_and_the_next_is_heard() {
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
        ("from before what was said last", Commit { stamp: 1, ..good }),
        ("another binding", Commit { binding: binding + 1, ..good }),
        ("another slab", Commit { slab: slab + 1, ..good }),
        ("half a write", Commit { more: true, ..good }),
    ];
    for (what, lie) in lies {
        let sequence = client.writer.head();
        assert!(client.writer.push(&[Commit { sequence, ..lie }]), "{what}");
        assert_eq!(world.read(file), [7; 100], "{what}");
        assert_eq!(world.data().tend_rings(Duration::MAX).unwrap(), (0, 1), "{what}");
    }
    // A record that is torn, and one that belongs to another place of the ring.
    let sequence = client.writer.head();
    assert!(client.writer.push(&[Commit { sequence, ..good }]));
    let path = world.dir.path().join(format!("m{:05}.ring", client.ring.0));
    let at = 8192 + (sequence % forebay_shm::RING_RECORDS) * 64 + 20;
    std::os::unix::fs::FileExt::write_all_at(&open(&path), &[1], at).unwrap();
    assert_eq!(world.read(file), [7; 100]);
    assert_eq!(world.data().tend_rings(Duration::MAX).unwrap(), (0, 1));
    // The half write took its bytes with it; behind them the ring goes on.
    client.slabs[0].used = start + 110;
    assert!(client.write(&world, 50, &[8; 100]));
    assert_eq!(world.read(file), [[7; 50].as_slice(), &[8; 100]].concat());
    // A head that cannot be: nothing is heard, and nothing else suffers.
    std::os::unix::fs::FileExt::write_all_at(&open(&path), &u64::MAX.to_le_bytes(), 4096).unwrap();
    world.write(file, 0, &[9; 10]);
    assert_eq!(world.read(file)[..11], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7]);
    drop(client);
    assert_eq!(world.data().tend_rings(Duration::MAX).unwrap().0, 1);
    assert_eq!(world.ring_files(), 0);
}

#[test]
fn writers_that_need_all_processors_are_heard_when_they_pause_or_have_said_much() {
    let files = [FileId(100), FileId(101)];
    let world = World::new();
    let mut clients = files.map(|file| Client::new(&world, file));
    let said = |clients: &[Client; 2]| {
        clients.each_ref().map(|client| forebay_shm::RING_RECORDS - client.writer.room())
    };
    let write = |clients: &mut [Client; 2], byte: u8| {
        clients.iter_mut().for_each(|client| assert!(client.write(&world, 0, &[byte; 10])));
    };
    write(&mut clients, 1);
    assert_eq!(world.data().attend(1).unwrap(), Traffic::Light, "something waits");
    assert_eq!(said(&clients), [1, 1], "two write, and there is one processor beside this");
    write(&mut clients, 2);
    assert_eq!(world.data().attend(2).unwrap(), Traffic::Light);
    assert_eq!(said(&clients), [0, 0], "there is one for each");
    write(&mut clients, 3);
    assert_ne!(world.data().attend(1).unwrap(), Traffic::None);
    std::thread::sleep(Duration::from_millis(15));
    assert_ne!(world.data().attend(1).unwrap(), Traffic::None);
    assert_eq!(said(&clients), [0, 0], "they have paused");
    for _ in 0..160 {
        assert!(clients[0].write(&world, 0, &[4; 1]));
    }
    write(&mut clients, 5);
    assert_ne!(world.data().attend(1).unwrap(), Traffic::None);
    assert_eq!(said(&clients), [0, 0], "one has filled many slabs, and the other is alone with a processor");
    write(&mut clients, 6);
    assert_ne!(world.data().attend(0).unwrap(), Traffic::None);
    for file in files {
        assert_eq!(world.read(file), [6; 10], "whoever asks hears all of it");
    }
}

#[test]
fn bytes_that_change_after_their_record_are_an_error_of_that_file_alone() {
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
fn sequential_small_writes_become_one_record_and_idle_slabs_are_there_for_others() {
    let file = FileId(100);
    let world = World::new();
    let mut client = Client::new(&world, file);
    for at in 0..4 {
        assert!(client.write(&world, at * 100, &[at as u8 + 1; 100]));
    }
    assert_eq!(world.data().read(file, 0, 400).unwrap().len(), 1, "one piece");
    // Many clients with a slab each, and still all of the capacity can be written.
    let mut crowd: Vec<Client> = (0..20).map(|_| Client::new(&world, file)).collect();
    crowd.iter_mut().for_each(|client| assert!(client.write(&world, 0, &[1; 10])));
    let most = u64::from(GEOMETRY.regions - 4) * u64::from(GEOMETRY.size);
    let chunk = vec![5; 64 << 10];
    for at in (0..most).step_by(chunk.len()) {
        world.write(FileId(101), at, &chunk);
    }
    assert!(client.write(&world, 0, &[9; 10]), "it asks again for what was taken back");
    assert_eq!(world.read(file)[..10], [9; 10]);
}

/// Fuzzes who takes: whatever is in a ring, nothing breaks, and only the file it is bound to can suffer.
#[test]
fn random_garbage_in_a_ring_harms_nobody_else() {
    let seeded = Seeded::new();
    let (spoilt, whole) = (FileId(100), FileId(101));
    for round in rounds(20) {
        let mut dice = seeded.dice(round);
        let mut world = World::new();
        let (hostile, mut honest) = (Client::new(&world, spoilt), Client::new(&world, whole));
        let ring = open(&world.dir.path().join(format!("m{:05}.ring", hostile.ring.0)));
        let mut model = Vec::new();
        for _ in 0..30 {
            let (at, len) = (dice.below(SPACE), 1 + dice.index(3000));
            let bytes = dice.bytes(len);
            assert!(honest.write(&world, at, &bytes));
            put(&mut model, at, &bytes);
            if hostile.writer.room() > 8 && !hostile.slabs.is_empty() {
                let sequence = hostile.writer.head();
                let slab = &hostile.slabs[0].offer;
                let commit = Commit {
                    sequence,
                    binding: hostile.binding,
                    slab: slab.slab,
                    position: slab.start.wrapping_add(dice.next() as u32 >> dice.below(32)),
                    len: dice.next() as u32 >> dice.below(32),
                    offset: dice.next() >> dice.below(64),
                    stamp: if dice.one_in(3) { dice.next() } else { now() },
                    more: dice.one_in(3),
                };
                assert!(hostile.writer.push(&[commit]));
            }
            for _ in 0..dice.below(4) {
                let record = 8192 + 64 * dice.below(40);
                let place = *dice.pick(&[64, 4096, 4160, record]) + 4 * dice.below(16);
                let word = dice.next() >> dice.below(64);
                std::os::unix::fs::FileExt::write_all_at(&ring, &word.to_le_bytes(), place).unwrap();
            }
            match dice.below(8) {
                // Whatever its answer is.
                0 => drop(world.data().grant_slab(OWNER, hostile.ring, dice.next() as u32, 5000)),
                1 => drop(world.data().bind_ring(OWNER, JobId(2), spoilt, Some(hostile.ring), true)),
                2 => assert!(world.data().attend(1).is_ok()),
                3 => drop(world.data().tend_rings(Duration::ZERO).unwrap()),
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
        world.data().tend_rings(Duration::MAX).unwrap();
        world.data().delete(spoilt, Batch::default()).unwrap();
        assert!(world.read(whole) == model, "round {round}");
    }
}

#[test]
fn a_region_made_anew_for_another_user_gives_its_memory_back_although_a_client_maps_it() {
    const OTHER: Uid = Uid(8);
    let (file, others) = (FileId(100), FileId(101));
    let world = World::new();
    let mut client = Client::new(&world, file);
    assert!(client.write(&world, 0, &[7; 5000]));
    let slab = client.slabs[0].offer.clone();
    // What a client keeps: a mapping, and here a descriptor to look at it.
    let (held, _mapped) = (open(&slab.path), Window::new(&open(&slab.path), slab.size).unwrap());
    // All regions have held bytes of the first user.
    let most = u64::from(GEOMETRY.regions - 2) * u64::from(GEOMETRY.size);
    let chunk = vec![5; 64 << 10];
    for at in (0..most).step_by(chunk.len()) {
        world.write(file, at, &chunk);
    }
    world.data().delete(file, Batch::default()).unwrap();
    drop(client);
    world.data().tend_rings(Duration::MAX).unwrap();
    for at in (0..most).step_by(chunk.len()) {
        let mut grant = world.data().reserve(OTHER, others, chunk.len() as u32).unwrap();
        assert_eq!(grant.len() as usize, chunk.len());
        grant.as_mut_slice().copy_from_slice(&chunk);
        let filled = Filled { grant, len: chunk.len() as u32, crc: crc32c::crc32c(&chunk) };
        world.data().commit(others, Place::At(at), vec![filled], JobId(1)).unwrap();
    }
    let (old, new) = (held.metadata().unwrap(), open(&slab.path).metadata().unwrap());
    assert_ne!(old.ino(), new.ino(), "the other user has a file of its own");
    assert_eq!((old.len(), old.blocks()), (0, 0), "nothing of the old one is left");
}
