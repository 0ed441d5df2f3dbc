//! Bytes that the back end holds: found there, hidden by newer ones, released to it, and never mixed up by a crash.

#[path = "data/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use forebay_model::{ErrorKind, FileId, Incarnation, Span, Uid};
use forebay_store::{Batch, Data, Kv, NoRings, Piece, Place, Start};
use std::sync::Arc;
use world::{INCARNATION, SMALL, World};

const FILE: FileId = FileId(9);
const ALICE: Uid = Uid(1000);

/// What a file is made of: `d` data, `z` zeros, `b` behind, with the length of each piece.
fn plan(world: &World) -> String {
    let size = world.data.facts(FILE).unwrap().size;
    let pieces = world.data.read(FILE, 0, size as u32).unwrap();
    let word = |piece: &Piece| match piece {
        Piece::Bytes(view) => format!("d{}", view.as_ref().len()),
        Piece::Zeros(count) => format!("z{count}"),
        Piece::Behind(span) => format!("b{}", span.len()),
    };
    pieces.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// One step: `found 100`, `write 10+20`, `past 10+20`, `cut 30`, `grow 50`, `punch 5+10`, `release 0+100`, `settle`,
/// `restart`.
fn step(world: World, step: &str) -> World {
    let (verb, rest) = step.split_once(' ').unwrap_or((step, "0"));
    let (start, len) = rest.split_once('+').unwrap_or((rest, "0"));
    let (start, len): (u64, u64) = (start.parse().unwrap(), len.parse().unwrap());
    let span = Span::new(start, start + len);
    match verb {
        "found" => world.find(FILE, &vec![7; start as usize]),
        "write" => drop(world.write(FILE, Place::At(start), &vec![8; len as usize], ALICE).unwrap()),
        "past" => drop(world.data.past(FILE, span).unwrap()),
        "cut" => world.data.truncate(FILE, start, Batch::default()).unwrap(),
        "grow" => world.data.extend(FILE, start).unwrap(),
        "punch" => world.data.punch(FILE, span, Batch::default()).unwrap(),
        "release" => drop(world.release(FILE, span).unwrap()),
        "settle" => world.data.settle(FILE).unwrap(),
        "tidy" => while world.data.tidy() {},
        "restart" => return world.restart(),
        other => panic!("what is {other}?"),
    }
    world
}

fn check(steps: &str, expected: &str) {
    let world = steps.split("; ").fold(World::new(SMALL), step);
    assert_eq!(plan(&world), expected, "{steps}");
    let world = step(world, "restart");
    assert_eq!(plan(&world), expected, "{steps}; restart");
    let world = step(step(world, "settle"), "restart");
    assert_eq!(plan(&world), expected, "{steps}; restart; settle; restart");
}

#[test]
fn every_byte_is_data_zero_or_behind() {
    check("found 100", "b100");
    check("found 0; write 0+10", "d10");
    check("found 0; write 0+10; release 0+10; settle; cut 0", "");
    check("found 0; write 0+10; release 0+10; settle; cut 4", "b4");
    check("found 100; write 10+20", "b10 d20 b70");
    check("found 100; write 90+20", "b90 d20");
    check("found 100; write 120+10", "b100 z20 d10");
    check("found 100; punch 10+20", "b10 z20 b70");
    check("found 100; cut 40", "b40");
    check("found 100; cut 40; grow 100", "b40 z60");
    check("found 100; write 50+10; cut 40; grow 100", "b40 z60");
    check("found 100; write 50+10; punch 45+10; settle", "b45 z10 d5 b40");
    check("found 100; cut 0; write 20+10; cut 100", "z20 d10 z70");
    check("found 100; grow 130; settle; write 110+5", "b100 z10 d5 z15");
}

#[test]
fn released_bytes_are_behind_and_newer_ones_stay() {
    check("write 0+100; release 0+100", "b100");
    check("write 0+100; release 20+30", "d20 b30 d50");
    check("write 0+100; release 0+100; write 10+10", "b10 d10 b80");
    check("write 0+100; release 0+100; write 10+10; release 0+100", "b100");
    check("write 0+100; release 0+100; cut 10; grow 100", "b10 z90");
    check("write 0+100; punch 20+10; release 0+100", "b20 z10 b70");
    check("found 100; write 10+10; release 0+15; punch 12+2", "b12 z2 b1 d5 b80");
}

#[test]
fn bytes_that_went_past_the_buffer_are_behind_unless_others_came_meanwhile() {
    check("past 0+10", "b10");
    check("past 0+10; past 10+10; past 20+10", "b30");
    check("past 20+10; past 0+10; past 10+10; settle", "b30");
    check("past 50+10", "z50 b10");
    check("past 0+10; write 10+5; past 20+5", "b10 d5 z5 b5");
    check("write 10+10; past 0+30", "z10 d10");
    check("past 0+10; past 5+10", "b10");
    check("write 10+10; cut 0; past 0+15; settle", "b15");
    check("past 0+20; cut 10; past 15+5", "b10 z5 b5");
    check("past 0+20; punch 5+5; past 5+3; past 20+4", "b8 z2 b14");
    check("found 20; write 5+5; past 20+10", "b5 d5 b20");
    check("past 0+20; write 5+5; past 20+10; cut 7; grow 10", "b5 d2 z3");
}

#[test]
fn only_what_nobody_wrote_is_blank() {
    let world = "found 10; write 20+10; past 40+10; write 60+10; punch 62+2"
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
    assert_eq!(world.data.past(FILE, Span::new(1 << 62, u64::MAX)).unwrap_err().kind(), ErrorKind::TooLarge);
    world.data.delete(FILE, Batch::default()).unwrap();
    assert_eq!(plan(&world), "", "a file that was removed");
}

#[test]
fn no_more_ranges_go_past_the_buffer_than_can_be_noted_with_every_write() {
    let world = World::new(SMALL);
    let span = |number: u64| Span::new(number * 20, number * 20 + 10);
    for number in 0..1024 {
        assert_eq!(world.data.can_pass(FILE, span(number)), Ok(true), "{number}");
        assert_eq!(world.data.past(FILE, span(number)), Ok(true), "{number}");
    }
    assert_eq!(world.data.can_pass(FILE, span(5000)), Ok(false));
    assert_eq!(world.data.can_pass(FILE, Span::new(10, 20)), Ok(true), "between two of them");
    assert_eq!(world.data.past(FILE, Span::new(10, 20)), Ok(true));
    assert_eq!(world.data.can_pass(FILE, span(5000)), Ok(true), "now there is one less");
}

#[test]
fn only_bytes_as_old_as_the_stamp_are_released() {
    let world = World::new(SMALL);
    world.write(FILE, Place::At(0), &[1; 100], ALICE).unwrap();
    let then = world.data.now();
    world.write(FILE, Place::At(40), &[2; 20], ALICE).unwrap();
    world.beyond.lock().unwrap().insert(FILE, vec![1; 100]);
    assert_eq!(world.data.behind(FILE, Span::new(0, 100), then).unwrap(), 80);
    assert_eq!(plan(&world), "b40 d20 b40");
    assert_eq!(world.data.behind(FILE, Span::new(0, 100), then).unwrap(), 0);
    let world = world.restart();
    assert_eq!(plan(&world), "b40 d20 b40");
    let bytes = world.read_all(FILE).unwrap();
    assert!(bytes[40..60] == [2; 20] && bytes[..40] == [1; 40]);
}

/// A buffer passes on many times what it can hold.
#[test]
fn what_is_released_makes_room() {
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

/// Regions that are lost take their bytes with them; what they lay over behind is older, and no substitute.
#[test]
fn a_lost_region_never_shows_what_was_behind_it() {
    for (settled, expected) in [(true, "b40 lost b50"), (false, "lost lost lost")] {
        let world = World::new(SMALL);
        world.find(FILE, &[7; 100]);
        world.write(FILE, Place::At(40), &[8; 10], ALICE).unwrap();
        if settled {
            world.data.settle(FILE).unwrap();
        }
        let World { kv, data, .. } = world;
        drop(data);
        let disk = Arc::new(forebay_store::CrashDisk::default());
        let fresh = Incarnation(INCARNATION.0 + 1);
        Data::format(&*disk, SMALL, fresh).unwrap();
        let (data, _) = Data::open(disk, kv, SMALL, fresh, Start::Clean, Box::new(NoRings)).unwrap();
        let words = [(0, 40), (40, 10), (50, 50)].map(|(offset, len)| match data.read(FILE, offset, len) {
            Ok(pieces) => match pieces.as_slice() {
                [Piece::Behind(span)] => format!("b{}", span.len()),
                _ => "something else".to_owned(),
            },
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io);
                "lost".to_owned()
            }
        });
        assert_eq!(words.join(" "), expected, "settled: {settled}");
    }
}

#[test]
fn what_changed_behind_replaces_only_what_was_not_changed_here() {
    let world = World::new(SMALL);
    world.find(FILE, &[7; 100]);
    assert!(world.data.is_as_behind(FILE).unwrap());
    world.data.found_anew(FILE, 30, Batch::default()).unwrap();
    assert_eq!(plan(&world), "b30");
    world.data.found_anew(FILE, 60, Batch::default()).unwrap();
    let world = world.restart();
    assert_eq!(plan(&world), "b60");
    for change in ["write 10+1", "punch 10+1", "grow 61"] {
        let world = ["found 60", change].into_iter().fold(World::new(SMALL), step);
        assert!(!world.data.is_as_behind(FILE).unwrap(), "{change}");
        let before = plan(&world);
        let refused = world.data.found_anew(FILE, 50, Batch::default()).unwrap_err();
        assert_eq!((refused.kind(), plan(&world)), (ErrorKind::Stale, before), "{change}");
    }
    let world = ["found 60", "cut 20"].into_iter().fold(world, step);
    assert!(world.data.is_as_behind(FILE).unwrap());
    for cut in [
        "write 0+100; release 0+100",
        "write 0+100; cut 60; release 0+60",
        "write 0+100; cut 60; restart; release 0+60; restart",
    ] {
        for size in [30, 60, 200] {
            let world = cut.split("; ").fold(World::new(SMALL), step);
            assert!(world.data.is_as_behind(FILE).unwrap(), "{cut}: what hides the rest is no change");
            world.data.found_anew(FILE, size, Batch::default()).unwrap();
            assert_eq!(plan(&world), format!("b{size}"), "{cut}");
            assert_eq!(plan(&world.restart()), format!("b{size}"), "{cut}; restart");
        }
    }
}

/// The release is written down before anything is let go: whichever batches survive, the bytes are found.
#[test]
fn a_release_that_was_not_durable_leaves_the_data() {
    let world = World::new(SMALL);
    world.write(FILE, Place::At(0), &[3; 100], ALICE).unwrap();
    world.data.sync(FILE).unwrap();
    world.release(FILE, Span::new(0, 100)).unwrap();
    for (kept, expected) in [(0, "d100"), (1, "b100")] {
        let kv: Arc<dyn Kv> = Arc::new(world.kv.crash(kept));
        let disk = Arc::new(world.disk.after_power_cut(512, &mut || false));
        let start = Start::MachineDied;
        let (data, _) = Data::open(disk, kv, SMALL, INCARNATION, start, Box::new(NoRings)).unwrap();
        let words: Vec<_> = data.read(FILE, 0, 100).unwrap();
        let word = match words.as_slice() {
            [Piece::Bytes(view)] if view.as_ref() == [3; 100] => "d100",
            [Piece::Behind(span)] if span.len() == 100 => "b100",
            _ => "something else",
        };
        assert_eq!(word, expected, "{kept} batches kept");
    }
}

#[test]
fn the_index_takes_no_more_memory_than_it_says() {
    let world = World::new(SMALL);
    assert_eq!(world.data.index_size(), (0, 0));
    for number in 0..50 {
        world.write(FILE, Place::At(number * 20), &[1; 10], ALICE).unwrap();
    }
    let (pieces, bytes) = world.data.index_size();
    assert_eq!(pieces, 50);
    assert!(bytes > 0 && bytes <= 240 * pieces, "{bytes} B for {pieces} pieces");
    // One is cut in two, and others are replaced.
    world.write(FILE, Place::At(3), &[2; 3], ALICE).unwrap();
    assert_eq!(world.data.index_size().0, 52);
    world.write(FILE, Place::At(0), &[3; 1000], ALICE).unwrap();
    assert_eq!(world.data.index_size().0, 1);
    world.data.truncate(FILE, 0, Batch::default()).unwrap();
    assert_eq!(world.data.index_size(), (0, 0));
}
