//! Space: endless overwriting, a full buffer, many writers, separation of users.

#[path = "data/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use forebay_model::{ErrorKind, FileId, Uid};
use forebay_store::{Batch, Faults, Geometry, Place};
use forebay_testkit::{Rng, seed};
use std::time::Duration;
use world::{SMALL, World, read, write};

const ALICE: Uid = Uid(1000);
const BOB: Uid = Uid(1001);

fn capacity(geometry: Geometry) -> u64 {
    u64::from(geometry.regions - 1) * u64::from(geometry.size)
}

/// Overwrites pieces of a file that occupies `share` of the capacity, twenty capacities in all.
fn overwrite(share: f64, piece: usize, random_places: bool) {
    let world = World::new(SMALL);
    let mut random = Rng::new(seed());
    let size = (capacity(SMALL) as f64 * share) as usize / piece * piece;
    let mut model = vec![0; size];
    let pieces = size / piece;
    for count in 0..(20 * capacity(SMALL) as usize / piece) {
        let which = if random_places { random.below(pieces as u64) as usize } else { count % pieces };
        let bytes = random.bytes(piece);
        world.write(FileId(5), Place::At((which * piece) as u64), &bytes, ALICE).unwrap();
        model[which * piece..(which + 1) * piece].copy_from_slice(&bytes);
    }
    let world = world.restart();
    assert!(world.read_all(FileId(5)).unwrap() == model);
}

#[test]
fn overwriting_twenty_capacities_in_order_works() {
    overwrite(0.5, 4096, false);
    overwrite(0.25, 100, false);
}

#[test]
fn overwriting_twenty_capacities_at_random_works_with_the_cleaner() {
    overwrite(0.5, 1024, true);
    overwrite(0.75, 4096, true);
}

#[test]
fn reservation_waits_for_space_held_by_an_active_writer() {
    let geometry = Geometry { regions: 4, size: 64 << 10, slots: 32 };
    let world = World::new(geometry);
    let bytes = vec![7; 64 << 10];
    world.write(FileId(10), Place::At(0), &bytes, ALICE).unwrap();
    world.write(FileId(11), Place::At(0), &bytes[..48 << 10], ALICE).unwrap();
    let slow = world.data.reserve(ALICE, FileId(12), 16 << 10).unwrap();
    world.write(FileId(13), Place::At(0), &bytes, ALICE).unwrap();
    let full = world.data.reserve(ALICE, FileId(14), 1).map(drop);
    assert_eq!(full.unwrap_err().kind(), ErrorKind::NoSpace, "everything is live or being written");
    // Now only the slow writer's bytes in its region are live.
    world.data.delete(FileId(11), Batch::default()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.data.reserve(ALICE, FileId(14), 16 << 10).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        drop(slow);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn full_buffer_fails_at_once_and_recovers_after_deletes() {
    let world = World::new(SMALL);
    let bytes = vec![7; 4096];
    let mut written = 0;
    let error = (0..)
        .find_map(|number| match world.write(FileId(100 + number), Place::At(0), &bytes, ALICE) {
            Ok(_) => {
                written += 1;
                None
            }
            Err(error) => Some(error),
        })
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("full"), "{error}");
    assert!(written * 4096 >= capacity(SMALL) - 2 * u64::from(SMALL.size), "only {written} files fitted");
    // All acknowledged data exists, and nothing more fits until a file is deleted.
    assert!(world.write(FileId(99), Place::At(0), &bytes, ALICE).is_err());
    for number in 0..written {
        assert_eq!(world.read_all(FileId(100 + number)).unwrap(), bytes);
    }
    for number in (0..written).step_by(2) {
        world.data.delete(FileId(100 + number), Batch::default()).unwrap();
    }
    for number in 0..written / 3 {
        world.write(FileId(10_000 + number), Place::At(0), &bytes, BOB).unwrap();
    }
    let world = world.restart();
    for number in (1..written).step_by(2) {
        assert_eq!(world.read_all(FileId(100 + number)).unwrap(), bytes);
    }
}

#[test]
fn tiny_writes_fill_journals_but_are_merged_by_the_cleaner() {
    let world = World::new(SMALL);
    // Far more records than all journals have slots.
    for count in 0..5 * u64::from(SMALL.slots) * u64::from(SMALL.regions) {
        world.write(FileId(5), Place::End, &[count as u8 | 1], ALICE).unwrap();
    }
    let bytes = world.read_all(FileId(5)).unwrap();
    assert_eq!(bytes.len() as u64, 5 * u64::from(SMALL.slots) * u64::from(SMALL.regions));
    assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == at as u8 | 1));
}

#[test]
fn reader_keeps_its_bytes_while_everything_is_overwritten() {
    let world = World::new(SMALL);
    world.write(FileId(5), Place::At(0), &[1; 8000], ALICE).unwrap();
    let pieces = world.data.read(FileId(5), 0, 8000).unwrap();
    let mut random = Rng::new(seed());
    for _ in 0..200 {
        let bytes = random.bytes(8000);
        world.write(FileId(5), Place::At(0), &bytes, ALICE).unwrap();
    }
    for piece in pieces {
        let forebay_store::Piece::Bytes(view) = piece else { panic!("data, not zeros") };
        assert!(view.as_ref().iter().all(|&byte| byte == 1));
    }
}

#[test]
fn no_region_file_ever_holds_two_users() {
    let world = World::new(SMALL);
    let secret = vec![0x5e; 4096];
    let count = capacity(SMALL) / 4096;
    for number in 0..count {
        world.write(FileId(100 + number), Place::At(0), &secret, ALICE).unwrap();
    }
    for number in 0..count {
        world.data.delete(FileId(100 + number), Batch::default()).unwrap();
    }
    // Bob gets all the space; a byte of Alice's in a region granted to Bob would be visible to Bob.
    let mut grants = Vec::new();
    while let Ok(mut grant) = world.data.reserve(BOB, FileId(1), SMALL.size) {
        assert!(grant.as_mut_slice().iter().all(|&byte| byte == 0), "bytes of another user");
        grants.push(grant);
    }
    assert!(grants.len() as u64 >= capacity(SMALL) / u64::from(SMALL.size) - 1);
}

#[test]
fn voided_reservation_returns_its_space() {
    let world = World::new(SMALL);
    for _ in 0..1000 {
        drop(world.data.reserve(ALICE, FileId(1), 10_000).unwrap());
    }
    world.write(FileId(5), Place::At(0), &[1; 8000], ALICE).unwrap();
}

#[test]
fn failed_flush_is_reported_by_every_later_sync() {
    let world = World::new(SMALL);
    world.write(FileId(5), Place::At(0), &[1; 100], ALICE).unwrap();
    world.disk.set_faults(Faults { flush: true, ..Faults::default() });
    assert_eq!(world.data.sync(FileId(5)).unwrap_err().kind(), ErrorKind::Io);
    world.disk.set_faults(Faults::default());
    assert_eq!(
        world.data.sync(FileId(5)).unwrap_err().kind(),
        ErrorKind::Io,
        "a later success would prove nothing"
    );
}

#[test]
fn full_disk_fails_only_the_reservation() {
    let world = World::new(Geometry { regions: 3, ..SMALL });
    world.write(FileId(5), Place::At(0), &[1; 100], ALICE).unwrap();
    world.data.delete(FileId(5), Batch::default()).unwrap();
    for number in 0..10 {
        world.write(FileId(10 + number), Place::At(0), &[1; 8000], ALICE).unwrap();
        world.data.delete(FileId(10 + number), Batch::default()).unwrap();
    }
    world.disk.set_faults(Faults { full: true, ..Faults::default() });
    let refused = world.write(FileId(30), Place::At(0), &[1; 100], BOB);
    world.disk.set_faults(Faults::default());
    if let Err(error) = refused {
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }
    world.write(FileId(31), Place::At(0), &[2; 100], BOB).unwrap();
    world.write(FileId(32), Place::At(0), &[3; 100], ALICE).unwrap();
}

#[test]
fn many_threads_write_one_file_and_many_files_while_the_cleaner_works() {
    let world = World::new(Geometry { regions: 24, ..SMALL });
    let data = &world.data;
    const PIECE: usize = 700;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                let mut random = Rng::new(seed() + thread);
                for step in 0..600_u64 {
                    let own = FileId(50 + thread);
                    let bytes = vec![(step % 250) as u8 + 1; PIECE];
                    let slot = random.below(20);
                    write(data, own, Place::At(slot * PIECE as u64), &bytes, Uid(thread as u32 % 2)).unwrap();
                    let shared = (thread * 10 + slot % 10) * PIECE as u64;
                    write(data, FileId(49), Place::At(shared), &bytes, ALICE).unwrap();
                    assert_eq!(
                        read(data, FileId(49), shared, PIECE as u32).unwrap(),
                        bytes,
                        "own part of the shared file"
                    );
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..500 {
                data.tidy();
                std::thread::yield_now();
            }
        });
    });
    let shared = world.read_all(FileId(49)).unwrap();
    let whole = |bytes: &[u8]| bytes.iter().all(|&byte| byte == bytes[0]);
    assert!(shared.chunks(PIECE).all(whole), "a torn piece");
    let before = shared;
    let world = world.restart();
    assert!(world.read_all(FileId(49)).unwrap() == before);
}

#[test]
fn small_files_of_one_user_share_one_region() {
    let world = World::new(Geometry { regions: 65, ..SMALL });
    world.data.bound_users(100, Uid(1));
    let byte = |uid: u32, file: u64| world.write(FileId(file), Place::At(0), b"x", Uid(uid));
    for file in 0..8 {
        byte(1000, 10 + file).unwrap();
    }
    assert_eq!(world.data.regions().filling, 1);
    for uid in 1001..1060 {
        for file in 0..4 {
            byte(uid, u64::from(uid) * 8 + file).unwrap();
        }
    }
    assert_eq!(world.data.regions().filling, 60, "a region for each user");
    // A user with much data fills several regions at once.
    for file in 0..16 {
        world.write(FileId(100 + file), Place::At(0), &[7; 4096], Uid(1000)).unwrap();
    }
    let held = |world: &World| world.data.regions().filling + world.data.regions().sealed;
    assert!(held(&world) > 60 && world.data.regions().filling > 60, "{:?}", world.data.regions().filling);
}

#[test]
fn user_limit_bounds_one_users_part_of_the_buffer() {
    for (percent, bounded) in [(100, false), (50, true)] {
        let world = World::new(SMALL);
        world.data.bound_users(percent, BOB);
        let fill = |uid: Uid, first: u64| {
            let piece = |file| world.write(FileId(file), Place::At(0), &[7; 4096], uid);
            (first..first + 999).map(piece).find_map(Result::err).expect("the user's part is full")
        };
        let full = fill(ALICE, 1000);
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert_eq!(full.to_string().contains("limits.user_space"), bounded, "{full}");
        let other = world.write(FileId(10), Place::At(0), b"mine", Uid(1002));
        assert_eq!(other.is_ok(), bounded, "{other:?}");
        if bounded {
            let full = fill(BOB, 5000);
            assert!(
                !full.to_string().contains("limits.user_space"),
                "an exempt user fills everything: {full}"
            );
        }
    }
}
