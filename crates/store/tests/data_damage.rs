//! Corruption: flipped bytes, bad journals, foreign stores. The store reports a clear error, never panics, never
//! returns wrong bytes.

#[path = "data/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use forebay_model::{ErrorKind, FileId, Incarnation, Span, Uid};
use forebay_store::{Batch, CrashDisk, Data, Disk, Geometry, Kv, Piece, Place, Start};
use forebay_testkit::{Rng, rounds, seed};
use std::sync::Arc;
use world::{SMALL, World};

const ALICE: Uid = Uid(1000);

fn filled() -> World {
    let world = World::new(SMALL);
    for number in 0..8 {
        world.write(FileId(10 + number), Place::At(0), &[number as u8 + 1; 5000], ALICE).unwrap();
    }
    world
}

#[test]
fn flipped_byte_is_found_in_the_background_and_reported() {
    let world = filled();
    let checked = world.data.check_payloads(&|| false);
    assert!(checked >= 8 && world.data.damage().is_empty());
    let name = world.disk.names().into_iter().find(|name| name.ends_with(".data")).unwrap();
    world.disk.flip(&name, 100);
    world.data.check_payloads(&|| false);
    assert_eq!(world.data.damage().len(), 1, "{:?}", world.data.damage());
    let broken: Vec<_> = (0..8).filter(|number| world.read_all(FileId(10 + number)).is_err()).collect();
    assert_eq!(broken.len(), 1);
    assert_eq!(world.read_all(FileId(10 + broken[0])).unwrap_err().kind(), ErrorKind::Io);
    // The corrupted region is never reused.
    for round in 0..200 {
        world.write(FileId(99), Place::At(0), &[round as u8; 5000], ALICE).unwrap();
    }
    assert!(world.read_all(FileId(10 + broken[0])).is_err());
    // Overwritten bytes are valid again.
    world.write(FileId(10 + broken[0]), Place::At(0), &[9; 5000], ALICE).unwrap();
    assert_eq!(world.read_all(FileId(10 + broken[0])).unwrap(), [9; 5000]);
}

#[test]
fn bytes_with_a_wrong_checksum_are_never_drained() {
    let world = filled();
    let picks = || -> Vec<bool> {
        (0..8).map(|number| world.data.pick(FileId(10 + number), Span::new(0, 5000)).is_ok()).collect()
    };
    assert_eq!(picks(), [true; 8]);
    let name = world.disk.names().into_iter().find(|name| name.ends_with(".data")).unwrap();
    world.disk.flip(&name, 100);
    assert_eq!(picks().iter().filter(|picked| !**picked).count(), 1, "no client held a lease");
}

#[test]
fn only_bytes_on_bad_sectors_give_an_error() {
    const GOOD: u32 = 8192;
    const ALL: u32 = 12_288;
    let (world, file) = (World::new(SMALL), FileId(50));
    let bytes: Vec<u8> = (0..ALL).map(|at| (at % 251) as u8).collect();
    world.write(file, Place::At(0), &bytes, ALICE).unwrap();
    let holds = |name: &String| name.ends_with(".data") && world.disk.read(name).starts_with(&bytes);
    let name = world.disk.names().into_iter().find(holds).unwrap();
    world.disk.cut(&name, GOOD.into());
    // The background check continues and reports what it found.
    world.data.check_payloads(&|| false);
    let damage = world.data.damage();
    assert!(damage.len() == 1 && damage[0].contains("cannot be read"), "{damage:?}");
    for (from, to, there) in
        [(0, GOOD, true), (100, 5000, true), (GOOD - 1, GOOD + 1, false), (GOOD, ALL, false)]
    {
        match world.data.read(file, from.into(), to - from) {
            Ok(pieces) if there => {
                let seen: Vec<u8> = pieces
                    .iter()
                    .flat_map(|piece| match piece {
                        Piece::Bytes(view) => view.as_ref().to_vec(),
                        _ => panic!("the file has neither holes nor backing bytes"),
                    })
                    .collect();
                assert!(seen == bytes[from as usize..to as usize], "{from} to {to}");
            }
            Err(error) if !there => assert_eq!(error.kind(), ErrorKind::Io, "{from} to {to}: {error}"),
            other => panic!("{from} to {to}: {:?}", other.err()),
        }
    }
    assert_eq!(
        world.data.pick(file, Span::new(0, ALL.into())).err().map(|error| error.kind()),
        Some(ErrorKind::Io)
    );
    // New writes use other regions, and overwritten bytes are valid again.
    for round in 0..20 {
        world.write(FileId(99), Place::At(0), &[round as u8; 5000], ALICE).unwrap();
    }
    world.write(file, Place::At(0), &bytes, ALICE).unwrap();
    assert_eq!(world.read_all(file).unwrap(), bytes);
}

#[test]
fn flipped_byte_is_dropped_before_use_after_a_machine_crash() {
    let World { disk, kv, data, .. } = filled();
    drop(data);
    let name = disk.names().into_iter().find(|name| name.ends_with(".data")).unwrap();
    disk.flip(&name, 100);
    let (world, recovery) = World::open(disk, kv, SMALL, Start::MachineDied).unwrap();
    assert_eq!(recovery.torn, 1);
    let wrong =
        (0..8).filter(|number| world.read_all(FileId(10 + number)).unwrap() != [*number as u8 + 1; 5000]);
    assert_eq!(wrong.count(), 1);
}

#[test]
fn foreign_and_broken_regions_are_refused_with_a_reason() {
    let open = |world: World, geometry: Geometry, incarnation: Incarnation| {
        let World { disk, kv, data, .. } = world;
        drop(data);
        let kv: Arc<dyn Kv> = kv;
        let error = Data::open(disk, kv, geometry, incarnation, Start::Clean).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadStore);
        error.to_string()
    };
    assert!(open(filled(), SMALL, Incarnation(8)).contains("another store"));
    assert!(
        open(filled(), Geometry { slots: SMALL.slots - 1, ..SMALL }, world::INCARNATION)
            .contains("another store")
    );
    assert!(open(filled(), Geometry { regions: 99, ..SMALL }, world::INCARNATION).contains("missing"));
    let world = filled();
    world.disk.remove("r00000.log");
    assert!(open(world, SMALL, world::INCARNATION).contains("the content of region 0 is unknown"));
}

type Damage<'a> = &'a dyn Fn(&CrashDisk);

/// The journal records what a region held: those bytes are lost, all others stay, and no older bytes reappear.
#[test]
fn lost_region_loses_only_its_own_bytes() {
    let headers = [0, u64::from(SMALL.slots + 1) * 64];
    let damages: [(&str, Damage); 3] = [
        ("is missing", &|disk| disk.remove("r00001.data")),
        ("has 100 bytes", &|disk| {
            disk.remove("r00001.data");
            disk.create("r00001.data", 100).map(drop).unwrap();
        }),
        ("headers", &|disk| headers.iter().for_each(|&header| disk.flip("r00001.log", header + 9))),
    ];
    for (why, damage) in damages {
        for start in [Start::Clean, Start::ProcessDied, Start::MachineDied] {
            let world = World::new(SMALL);
            // Two versions of each file: when the newer one is lost, the older one must not return.
            for version in 1..3 {
                for number in 0..8 {
                    world.write(FileId(10 + number), Place::At(0), &[version; 2500], ALICE).unwrap();
                }
            }
            let World { disk, kv, data, .. } = world;
            drop(data);
            damage(&disk);
            let (world, _) = World::open(disk, kv, SMALL, start).unwrap();
            let damage = world.data.damage();
            assert!(
                damage.len() == 1 && damage[0].contains("region 1") && damage[0].contains(why),
                "{damage:?}"
            );
            world.data.check_payloads(&|| false);
            let mut lost = Vec::new();
            for number in 0..8 {
                match world.read_all(FileId(10 + number)) {
                    Ok(bytes) => assert_eq!(bytes, [2; 2500], "{why}, {start:?}, file {number}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                        lost.push(FileId(10 + number));
                    }
                }
            }
            assert!((1..8).contains(&lost.len()), "{why}, {start:?}: {lost:?}");
            // New writes are valid, also after a restart, and never use the lost region.
            for round in 0..50 {
                for &file in &lost {
                    world.write(file, Place::At(0), &[round; 2500], ALICE).unwrap();
                }
            }
            let world = world.restart();
            lost.iter()
                .for_each(|&file| assert_eq!(world.read_all(file).unwrap(), [49; 2500], "{why}, {start:?}"));
        }
    }
}

#[test]
fn region_without_records_is_recreated_whatever_it_contains() {
    for name in ["r00005.data", "r00005.log"] {
        let World { disk, kv, data, .. } = filled();
        drop(data);
        match name.ends_with(".data") {
            true => disk.remove(name),
            false => [9, u64::from(SMALL.slots + 1) * 64 + 9].iter().for_each(|&at| disk.flip(name, at)),
        }
        let (world, _) = World::open(disk, kv, SMALL, Start::ProcessDied).unwrap();
        assert_eq!(world.data.damage(), Vec::<String>::new());
        (0..8).for_each(|number| {
            assert_eq!(world.read_all(FileId(10 + number)).unwrap(), [number as u8 + 1; 5000]);
        });
    }
}

/// Fuzzes recovery: for any file content it returns a store or an error.
#[test]
fn random_damage_to_any_file_never_panics_or_returns_wrong_bytes() {
    let seed = seed();
    for round in rounds(150) {
        let mut random = Rng::new(seed.wrapping_mul(31).wrapping_add(round));
        let World { disk, kv, data, .. } = filled();
        drop(data);
        let names = disk.names();
        for _ in 0..1 + random.below(20) {
            let name = &names[random.below(names.len() as u64) as usize];
            let limit =
                if name.ends_with(".log") { u64::from(SMALL.slots + 2) * 64 } else { u64::from(SMALL.size) };
            disk.flip(name, random.below(limit));
        }
        let start = [Start::MachineDied, Start::ProcessDied][random.below(2) as usize];
        let Ok((world, _)) = World::open(disk, kv, SMALL, start) else { continue };
        world.data.check_payloads(&|| false);
        for number in 0..8 {
            let Ok(bytes) = world.read_all(FileId(10 + number)) else { continue };
            let right = |&byte: &u8| byte == number as u8 + 1 || byte == 0;
            assert!(bytes.iter().all(right), "seed {seed}, round {round}: wrong bytes in file {number}");
        }
        let _ = world.write(FileId(50), Place::At(0), &[1; 3000], ALICE);
    }
}

#[test]
fn damaged_metadata_is_refused_with_a_reason() {
    for (key, value) in [
        (b"zbad".to_vec(), b"short".to_vec()),
        ([b"s".as_slice(), &10_u64.to_be_bytes()].concat(), vec![0xff; 3]),
    ] {
        let World { disk, kv, data, .. } = filled();
        drop(data);
        let mut batch = Batch::default();
        batch.put(key, value);
        kv.commit(batch).unwrap();
        let error = World::open(disk, kv, SMALL, Start::Clean).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadStore, "{error}");
    }
}

#[test]
fn stamps_never_go_back_across_a_restart() {
    let world = World::new(SMALL);
    let before = world.data.now();
    let world = world.restart();
    assert!(world.data.now() > before);
    let World { disk, kv, data, .. } = world;
    drop(data);
    // Simulates an earlier run whose clock was an hour ahead.
    let ahead = forebay_model::Stamp(before.0 + 3_600_000_000_000);
    let mut batch = Batch::default();
    batch.put(b"c".to_vec(), ahead.0.to_be_bytes());
    kv.commit(batch).unwrap();
    let (world, _) = World::open(disk, kv, SMALL, Start::Clean).unwrap();
    assert!(world.data.now() > ahead);
}
