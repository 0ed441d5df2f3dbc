//! Bytes in the back end: found there, covered by newer ones, released to it, and never mixed up by a crash.

#[path = "data/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use forebay_model::{ErrorKind, FileId, Incarnation, Span, Uid};
use forebay_store::{Batch, Data, Kv, Piece, Place, Start};
use std::sync::Arc;
use world::{INCARNATION, SMALL, World};

const FILE: FileId = FileId(9);
const ALICE: Uid = Uid(1000);

/// The extents of a file: `d` data, `z` zeros, `b` backing store, with the length of each extent.
fn plan(world: &World) -> String {
    let size = world.data.facts(FILE).unwrap().size;
    let pieces = world.data.read(FILE, 0, size as u32).unwrap();
    let word = |piece: &Piece| match piece {
        Piece::Bytes(view) => format!("d{}", view.as_ref().len()),
        Piece::Zeros(count) => format!("z{count}"),
        Piece::Backing(span) => format!("b{}", span.len()),
        Piece::Copied(bytes) => format!("c{}", bytes.len()),
    };
    pieces.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// One step: `found 100`, `write 10+20`, `direct 10+20`, `cut 30`, `grow 50`, `punch 5+10`, `release 0+100`, `persist`,
/// `tidy`, `restart`.
fn step(world: World, step: &str) -> World {
    let (verb, rest) = step.split_once(' ').unwrap_or((step, "0"));
    let (start, len) = rest.split_once('+').unwrap_or((rest, "0"));
    let (start, len): (u64, u64) = (start.parse().unwrap(), len.parse().unwrap());
    let span = Span::new(start, start + len);
    match verb {
        "found" => world.find(FILE, &vec![7; start as usize]),
        "write" => drop(world.write(FILE, Place::At(start), &vec![8; len as usize], ALICE).unwrap()),
        "direct" => drop(world.data.record_direct(FILE, span).unwrap()),
        "cut" => world.data.truncate(FILE, start, Batch::default()).unwrap(),
        "grow" => world.data.extend(FILE, start).unwrap(),
        "punch" => world.data.punch(FILE, span, Batch::default()).unwrap(),
        "release" => drop(world.release(FILE, span).unwrap()),
        "persist" => world.data.persist_size(FILE).unwrap(),
        "tidy" => while world.data.tidy() {},
        "restart" => return world.restart(),
        other => panic!("unknown step {other}"),
    }
    world
}

fn check(steps: &str, expected: &str) {
    let world = steps.split("; ").fold(World::new(SMALL), step);
    assert_eq!(plan(&world), expected, "{steps}");
    let world = step(world, "restart");
    assert_eq!(plan(&world), expected, "{steps}; restart");
    let world = step(step(world, "persist"), "restart");
    assert_eq!(plan(&world), expected, "{steps}; restart; persist; restart");
}

#[test]
fn every_byte_is_data_zero_or_in_the_backing_store() {
    check("found 100", "b100");
    check("found 0; write 0+10", "d10");
    check("found 0; write 0+10; release 0+10; persist; cut 0", "");
    check("found 0; write 0+10; release 0+10; persist; cut 4", "b4");
    check("found 100; write 10+20", "b10 d20 b70");
    check("found 100; write 90+20", "b90 d20");
    check("found 100; write 120+10", "b100 z20 d10");
    check("found 100; punch 10+20", "b10 z20 b70");
    check("found 100; cut 40", "b40");
    check("found 100; cut 40; grow 100", "b40 z60");
    check("found 100; write 50+10; cut 40; grow 100", "b40 z60");
    check("found 100; write 50+10; punch 45+10; persist", "b45 z10 d5 b40");
    check("found 100; cut 0; write 20+10; cut 100", "z20 d10 z70");
    check("found 100; grow 130; persist; write 110+5", "b100 z10 d5 z15");
}

#[test]
fn released_bytes_are_in_the_backing_store_and_newer_ones_stay() {
    check("write 0+100; release 0+100", "b100");
    check("write 0+100; release 20+30", "d20 b30 d50");
    check("write 0+100; release 0+100; write 10+10", "b10 d10 b80");
    check("write 0+100; release 0+100; write 10+10; release 0+100", "b100");
    check("write 0+100; release 0+100; cut 10; grow 100", "b10 z90");
    check("write 0+100; punch 20+10; release 0+100", "b20 z10 b70");
    check("found 100; write 10+10; release 0+15; punch 12+2", "b12 z2 b1 d5 b80");
}

#[test]
fn direct_writes_are_in_the_backing_store_unless_newer_bytes_exist() {
    check("direct 0+10", "b10");
    check("direct 0+10; direct 10+10; direct 20+10", "b30");
    check("direct 20+10; direct 0+10; direct 10+10; persist", "b30");
    check("direct 50+10", "z50 b10");
    check("direct 0+10; write 10+5; direct 20+5", "b10 d5 z5 b5");
    check("write 10+10; direct 0+30", "z10 d10");
    check("direct 0+10; direct 5+10", "b10");
    check("write 10+10; cut 0; direct 0+15; persist", "b15");
    check("direct 0+20; cut 10; direct 15+5", "b10 z5 b5");
    check("direct 0+20; punch 5+5; direct 5+3; direct 20+4", "b8 z2 b14");
    check("found 20; write 5+5; direct 20+10", "b5 d5 b20");
    check("direct 0+20; write 5+5; direct 20+10; cut 7; grow 10", "b5 d2 z3");
}

#[test]
fn only_unwritten_ranges_are_blank() {
    let world = "found 10; write 20+10; direct 40+10; write 60+10; punch 62+2"
        .split("; ")
        .fold(World::new(SMALL), step);
    for (from, to, blank) in [
        (0, 1, false),
        (10, 20, true),
        (10, 21, false),
        (30, 40, true),
        (30, 41, false),
        (62, 64, true),
        (61, 64, false),
        (70, 1000, true),
        (0, u64::MAX, false),
    ] {
        assert_eq!(world.data.can_pass(FILE, Span::new(from, to)), Ok(blank), "{from}..{to}");
    }
    assert_eq!(
        world.data.record_direct(FILE, Span::new(1 << 62, u64::MAX)).unwrap_err().kind(),
        ErrorKind::TooLarge
    );
    world.data.delete(FILE, Batch::default()).unwrap();
    assert_eq!(plan(&world), "", "the file was removed");
}

#[test]
fn direct_write_ranges_of_a_file_are_bounded() {
    let world = World::new(SMALL);
    let span = |number: u64| Span::new(number * 20, number * 20 + 10);
    for number in 0..1024 {
        assert_eq!(world.data.can_pass(FILE, span(number)), Ok(true), "{number}");
        assert_eq!(world.data.record_direct(FILE, span(number)), Ok(true), "{number}");
    }
    assert_eq!(world.data.can_pass(FILE, span(5000)), Ok(false));
    assert_eq!(world.data.can_pass(FILE, Span::new(10, 20)), Ok(true), "between two ranges");
    assert_eq!(world.data.record_direct(FILE, Span::new(10, 20)), Ok(true));
    assert_eq!(world.data.can_pass(FILE, span(5000)), Ok(true), "the two ranges were merged");
}

#[test]
fn only_bytes_as_old_as_the_stamp_are_released() {
    let world = World::new(SMALL);
    world.write(FILE, Place::At(0), &[1; 100], ALICE).unwrap();
    let then = world.data.now();
    world.write(FILE, Place::At(40), &[2; 20], ALICE).unwrap();
    world.backing.lock().unwrap().insert(FILE, vec![1; 100]);
    assert_eq!(world.data.backing(FILE, Span::new(0, 100), then).unwrap(), 80);
    assert_eq!(plan(&world), "b40 d20 b40");
    assert_eq!(world.data.backing(FILE, Span::new(0, 100), then).unwrap(), 0);
    let world = world.restart();
    assert_eq!(plan(&world), "b40 d20 b40");
    let bytes = world.read_all(FILE).unwrap();
    assert!(bytes[40..60] == [2; 20] && bytes[..40] == [1; 40]);
}

/// A buffer passes many times its capacity to the back end.
#[test]
fn released_bytes_free_space() {
    let mut world = World::new(SMALL);
    let piece = vec![5; 4 << 10];
    let count = 10 * world.data.usage().capacity / piece.len() as u64;
    for number in 0..count {
        let at = number * piece.len() as u64;
        world.write(FILE, Place::At(at), &piece, ALICE).unwrap();
        assert_eq!(world.release(FILE, Span::new(at, at + piece.len() as u64)).unwrap(), piece.len() as u64);
        if number % 100 == 99 {
            world = world.restart();
        }
    }
    assert_eq!(world.data.facts(FILE).unwrap().buffered, 0);
    assert_eq!(world.data.facts(FILE).unwrap().size, count * piece.len() as u64);
    assert_eq!(world.read(FILE, 7 << 10, 10).unwrap(), [5; 10]);
}

/// A lost region loses its bytes; the older bytes under them in the back end are no substitute.
#[test]
fn lost_region_never_exposes_older_backing_bytes() {
    for (persisted, expected) in [(true, "b40 lost b50"), (false, "lost lost lost")] {
        let world = World::new(SMALL);
        world.find(FILE, &[7; 100]);
        world.write(FILE, Place::At(40), &[8; 10], ALICE).unwrap();
        if persisted {
            world.data.persist_size(FILE).unwrap();
        }
        let World { kv, data, .. } = world;
        drop(data);
        let disk = Arc::new(forebay_store::CrashDisk::default());
        let fresh = Incarnation(INCARNATION.0 + 1);
        Data::format(&*disk, SMALL, fresh).unwrap();
        let (data, _) = Data::open(disk, kv, SMALL, fresh, Start::Clean).unwrap();
        let words = [(0, 40), (40, 10), (50, 50)].map(|(offset, len)| match data.read(FILE, offset, len) {
            Ok(pieces) => match pieces.as_slice() {
                [Piece::Backing(span)] => format!("b{}", span.len()),
                _ => "something else".to_owned(),
            },
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io);
                "lost".to_owned()
            }
        });
        assert_eq!(words.join(" "), expected, "persisted: {persisted}");
    }
}

#[test]
fn external_change_replaces_only_bytes_unchanged_in_the_buffer() {
    let world = World::new(SMALL);
    world.find(FILE, &[7; 100]);
    assert!(world.data.matches_backing(FILE).unwrap());
    world.data.found_anew(FILE, 30, Batch::default()).unwrap();
    assert_eq!(plan(&world), "b30");
    world.data.found_anew(FILE, 60, Batch::default()).unwrap();
    let world = world.restart();
    assert_eq!(plan(&world), "b60");
    for change in ["write 10+1", "punch 10+1", "grow 61"] {
        let world = ["found 60", change].into_iter().fold(World::new(SMALL), step);
        assert!(!world.data.matches_backing(FILE).unwrap(), "{change}");
        let before = plan(&world);
        let refused = world.data.found_anew(FILE, 50, Batch::default()).unwrap_err();
        assert_eq!((refused.kind(), plan(&world)), (ErrorKind::Stale, before), "{change}");
    }
    let world = ["found 60", "cut 20"].into_iter().fold(world, step);
    assert!(world.data.matches_backing(FILE).unwrap());
    for cut in [
        "write 0+100; release 0+100",
        "write 0+100; cut 60; release 0+60",
        "write 0+100; cut 60; restart; release 0+60; restart",
    ] {
        for size in [30, 60, 200] {
            let world = cut.split("; ").fold(World::new(SMALL), step);
            assert!(world.data.matches_backing(FILE).unwrap(), "{cut}: the truncation mark is not a change");
            world.data.found_anew(FILE, size, Batch::default()).unwrap();
            assert_eq!(plan(&world), format!("b{size}"), "{cut}");
            assert_eq!(plan(&world.restart()), format!("b{size}"), "{cut}; restart");
        }
    }
}

/// The release is recorded before the data is freed: whichever batches survive, the bytes are found.
#[test]
fn release_that_was_not_durable_keeps_the_data() {
    let world = World::new(SMALL);
    world.write(FILE, Place::At(0), &[3; 100], ALICE).unwrap();
    world.data.sync(FILE).unwrap();
    world.release(FILE, Span::new(0, 100)).unwrap();
    for (kept, expected) in [(0, "d100"), (1, "b100")] {
        let kv: Arc<dyn Kv> = Arc::new(world.kv.crash(kept));
        let disk = Arc::new(world.disk.after_power_cut(512, &mut || false));
        let start = Start::MachineDied;
        let (data, _) = Data::open(disk, kv, SMALL, INCARNATION, start).unwrap();
        let words: Vec<_> = data.read(FILE, 0, 100).unwrap();
        let word = match words.as_slice() {
            [Piece::Bytes(view)] if view.as_ref() == [3; 100] => "d100",
            [Piece::Backing(span)] if span.len() == 100 => "b100",
            _ => "something else",
        };
        assert_eq!(word, expected, "{kept} batches kept");
    }
}

#[test]
fn index_uses_at_most_its_reported_memory() {
    let world = World::new(SMALL);
    assert_eq!(world.data.index_size(), (0, 0));
    for number in 0..50 {
        world.write(FILE, Place::At(number * 20), &[1; 10], ALICE).unwrap();
    }
    let (pieces, bytes) = world.data.index_size();
    assert_eq!(pieces, 50);
    assert!(bytes > 0 && bytes <= 240 * pieces, "{bytes} B for {pieces} pieces");
    // Split one extent and replace others.
    world.write(FILE, Place::At(3), &[2; 3], ALICE).unwrap();
    assert_eq!(world.data.index_size().0, 52);
    world.write(FILE, Place::At(0), &[3; 1000], ALICE).unwrap();
    assert_eq!(world.data.index_size().0, 1);
    world.data.truncate(FILE, 0, Batch::default()).unwrap();
    assert_eq!(world.data.index_size(), (0, 0));
}
