//! Crashes and failing disks: for every surviving prefix of the commits, the namespace is consistent.

use crate::common::{ROOT, SERVER, fresh, name, open, open_root, outcome, user};
use crate::model::Model;
use crate::random::{Author, compare, step};
use forebay_model::{Error, ErrorKind, Identity, Stamp};
use forebay_store::{Fault, Kv, MemoryKv, Names, RenameMode, check};
use forebay_testkit::{rounds, seed};
use std::sync::Arc;

#[test]
fn random_histories_cut_anywhere_are_consistent() {
    let base = seed();
    for round in rounds(6) {
        let kv = Arc::new(MemoryKv::new());
        Names::format(&*kv, SERVER, Some(open_root()), Stamp(1)).expect("an empty store");
        let (names, mut model) = (open(kv.clone()), Model::new(0o777, Stamp(1)));
        let mut author = Author::new(base.wrapping_add(round));
        for number in 1..=400 {
            step(&names, &*kv, &mut model, &mut author, Stamp(number * 1_000_000_007))
                .map(drop)
                .unwrap_or_else(|problem| panic!("FOREBAY_SEED={base}, round {round}: {problem}"));
        }
        assert!(kv.unsynced() > 50, "FOREBAY_SEED={base}: there is something to lose");
        for keep in 0..=kv.unsynced() {
            let left = kv.crash(keep);
            assert_eq!(
                check(&left),
                Vec::<String>::new(),
                "FOREBAY_SEED={base}, round {round}, cut at {keep}"
            );
        }
        let all = Arc::new(kv.crash(kv.unsynced()));
        compare(&open(all), &model).unwrap_or_else(|problem| panic!("FOREBAY_SEED={base}: {problem}"));
    }
}

#[test]
fn synced_changes_survive_a_crash() {
    let world = fresh();
    world.build(&["d d 755", "f d/f 644"]);
    world.kv.sync().expect("memory");
    world.build(&["f d/late 644"]);
    let left = open(Arc::new(world.kv.crash(0)));
    assert_eq!(outcome(&left.lookup(&Identity::root(), world.id("d"), &name("f"))), "ok");
    assert_eq!(outcome(&left.lookup(&Identity::root(), world.id("d"), &name("late"))), "NotFound");
}

fn disk_full() -> Error {
    Error::new(ErrorKind::NoSpace, "No space left on device")
}

#[test]
fn random_failures_of_the_disk_change_nothing() {
    let base = seed();
    let kv = Arc::new(MemoryKv::new());
    Names::format(&*kv, SERVER, Some(open_root()), Stamp(1)).expect("an empty store");
    let (names, mut model) = (open(kv.clone()), Model::new(0o777, Stamp(1)));
    let mut author = Author::new(base);
    let mut failed = 0;
    for number in 1..=500 {
        let now = Stamp(number * 1_000_000_007);
        if !author.random.one_in(3) {
            let got = step(&names, &*kv, &mut model, &mut author, now).map(drop);
            got.unwrap_or_else(|problem| panic!("FOREBAY_SEED={base}, step {number}: {problem}"));
            continue;
        }
        kv.fail(Fault::Commit, 1, disk_full());
        let (made, moved) = (name("made"), name("moved"));
        let root = Identity::root();
        let results = [
            names.make_dir(&root, ROOT, &made, 0o700, now).map(|_| ()),
            names.rename(&root, ROOT, &name("a"), ROOT, &moved, RenameMode::NoReplace, now).map(|_| ()),
        ];
        failed += u32::from(outcome(&results[0]) == "NoSpace");
        // The second attempt had a working disk: undo it if it succeeded.
        if results[1].is_ok() {
            names
                .rename(&root, ROOT, &moved, ROOT, &name("a"), RenameMode::NoReplace, now)
                .expect("and back");
            let moved = model.nodes.get_mut(&ROOT).expect("a root");
            (moved.mtime, moved.ctime) = (now.into(), now.into());
            let file = names.lookup(&root, ROOT, &name("a")).expect("there").file();
            model.nodes.get_mut(&file).expect("in the model too").ctime = now.into();
        }
        compare(&names, &model)
            .unwrap_or_else(|problem| panic!("FOREBAY_SEED={base}, step {number}: {problem}"));
    }
    assert!(failed > 50, "the disk failed often enough");
    assert_eq!(check(&*kv), Vec::<String>::new(), "FOREBAY_SEED={base}");
}

#[test]
fn no_id_is_allocated_before_its_mark_is_durable() {
    let world = fresh();
    let who = user(10, 100, &[]);
    world.kv.fail(Fault::Sync, 1, Error::new(ErrorKind::Io, "Input/output error"));
    assert_eq!(outcome(&world.create(&who, "f", 0o600)), "Io");
    world.kv.fail(Fault::Commit, 1, disk_full());
    assert_eq!(outcome(&world.create(&who, "f", 0o600)), "NoSpace");
    assert_eq!(outcome(&world.create(&who, "f", 0o600)), "ok");
    world.check();
}
