//! Concurrent threads.

use crate::common::{Jittery, ROOT, SERVER, World, fresh, layout, name, open, open_root, outcome, user};
use forebay_model::{Bytes, Error, ErrorKind, FileId, Identity, Incarnation, Stamp};
use forebay_store::{Extent, Fate, FjallKv, Kv, Names, RenameMode, check};
use forebay_testkit::{Rng, seed};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread::scope;
use std::time::Duration;

const THREADS: u64 = 4;

/// A namespace in a store with random delays.
fn jittery(script: &[&str]) -> (World, Names) {
    let world = fresh();
    world.build(script);
    let kv = Jittery::new(world.kv.crash(usize::MAX));
    (world, open(Arc::new(kv)))
}

#[test]
fn concurrent_renames_never_create_a_loop() {
    for round in 0..200 {
        // The two renames have no lock in common except the tree lock.
        let (world, names) =
            jittery(&["d p 777", "d q 777", "d p/a 777", "d q/b 777", "d p/a/x 777", "d q/b/x 777"]);
        let barrier = Barrier::new(2);
        let go = |from: &str, entry: &str, to: &str| {
            let (from, entry, to) = (world.id(from), name(entry), world.id(to));
            barrier.wait();
            names.rename(
                &Identity::root(),
                from,
                &entry,
                to,
                &name("moved"),
                RenameMode::Replace,
                world.now(),
            )
        };
        let (to_first, to_second) = (["q/b/x", "q/b"][round % 2], ["p/a/x", "p/a"][round / 2 % 2]);
        let (first, second) = scope(|threads| {
            let first = threads.spawn(|| go("p", "a", to_first));
            let second = threads.spawn(|| go("q", "b", to_second));
            (first.join().expect("no panic"), second.join().expect("no panic"))
        });
        assert!(first.is_ok() != second.is_ok(), "exactly one can win: {first:?} {second:?}");
        assert!(names.reach(&user(5, 5, &[]), world.id("p/a/x")).is_ok(), "it still leads to the root");
        assert!(names.reach(&user(5, 5, &[]), world.id("q/b/x")).is_ok(), "it still leads to the root");
    }
}

#[test]
fn concurrent_renames_and_removals_lose_no_file() {
    for _ in 0..300 {
        let (world, names) = jittery(&["f a 644", "f b 644", "f c 644"]);
        let barrier = Barrier::new(3);
        let root = Identity::root();
        let swap = |from: &str, to: &str, mode| {
            barrier.wait();
            names.rename(&root, ROOT, &name(from), ROOT, &name(to), mode, world.now()).map(|_| ())
        };
        let gone = scope(|threads| {
            threads.spawn(|| swap("a", "b", RenameMode::Exchange));
            threads.spawn(|| swap("b", "c", RenameMode::Exchange));
            let gone = threads.spawn(|| {
                barrier.wait();
                names.unlink(&root, ROOT, &name("b"), world.now())
            });
            gone.join().expect("no panic")
        });
        let gone = gone.expect("the name was there all the time").file;
        let (left, _) = names.read_dir(&root, ROOT, 0, 10).expect("readable");
        let mut files: Vec<_> = left.iter().map(|entry| entry.file).chain([gone]).collect();
        files.sort();
        assert_eq!(files, ["a", "b", "c"].map(|path| world.id(path)), "every file once");
        assert_eq!(names.orphans(), Ok(vec![gone]));
    }
}

#[test]
fn exactly_one_concurrent_create_succeeds() {
    for _ in 0..50 {
        let world = fresh();
        let barrier = Barrier::new(THREADS as usize);
        let wins = AtomicU64::new(0);
        scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    barrier.wait();
                    let made = world.create(&Identity::root(), "f", 0o600);
                    assert!(["ok", "Exists"].contains(&outcome(&made).as_str()));
                    wins.fetch_add(u64::from(made.is_ok()), Ordering::SeqCst);
                });
            }
        });
        assert_eq!(wins.load(Ordering::SeqCst), 1);
        world.check();
    }
}

#[test]
fn directory_with_a_concurrent_new_entry_is_not_removed() {
    for _ in 0..200 {
        let world = fresh();
        world.build(&["d d 777"]);
        let dir = world.id("d");
        let barrier = Barrier::new(2);
        let (made, removed) = scope(|threads| {
            let made = threads.spawn(|| {
                barrier.wait();
                world.names.make_dir(&Identity::root(), dir, &name("x"), 0o700, world.now())
            });
            let removed = threads.spawn(|| {
                barrier.wait();
                world.names.remove_dir(&Identity::root(), ROOT, &name("d"), world.now())
            });
            (made.join().expect("no panic"), removed.join().expect("no panic"))
        });
        assert!(made.is_ok() != removed.is_ok(), "{made:?} {removed:?}");
        world.check();
    }
}

/// Random operations of one thread in a few shared directories, with reads in between.
fn work(names: &Names, dirs: &[FileId], seed: u64, clock: &AtomicU64, steps: u32) {
    let mut random = Rng::new(seed);
    let who = Identity::root();
    for _ in 0..steps {
        let now = Stamp(clock.fetch_add(1, Ordering::Relaxed));
        let (dir, to_dir) = (*random.pick(dirs), *random.pick(dirs));
        let pick = |random: &mut Rng| name(["a", "b", "c", "d"][random.index(4)]);
        let (from, to) = (pick(&mut random), pick(&mut random));
        let result = match random.below(9) {
            0 => {
                let (incarnations, before) = (vec![Incarnation(1)], |_| Ok(()));
                names.create_file(&who, dir, &from, 0o600, layout(), incarnations, now, before).map(|_| ())
            }
            1 => names.make_dir(&who, dir, &from, 0o700, now).map(|_| ()),
            2 => names.unlink(&who, dir, &from, now).map(|_| ()),
            3 => names.remove_dir(&who, dir, &from, now).map(|_| ()),
            4 => names.rename(&who, dir, &from, to_dir, &to, RenameMode::Exchange, now).map(|_| ()),
            5 => names
                .lookup(&who, dir, &from)
                .and_then(|found| names.link(&who, found.file(), to_dir, &to, now))
                .map(|_| ()),
            6 => names.walk(&who, ROOT, format!("{to}/{from}/../{to}").as_bytes(), true).map(|_| ()),
            7 => names.read_dir(&who, dir, 0, 100).map(|_| ()),
            _ => names.rename(&who, dir, &from, to_dir, &to, RenameMode::Replace, now).map(|_| ()),
        };
        if let Err(error) = result {
            use ErrorKind::{Exists, Invalid, IsDirectory, NotDirectory, NotEmpty, NotFound, NotPermitted};
            let fair = [Exists, Invalid, IsDirectory, NotDirectory, NotEmpty, NotFound, NotPermitted];
            let error = Error::from(error);
            assert!(fair.contains(&error.kind()), "{error}");
        }
    }
}

fn turmoil(kv: &Arc<dyn Kv>, steps: u32) {
    let names = open(kv.clone());
    let clock = AtomicU64::new(1000);
    let base = seed();
    let mut dirs = vec![ROOT];
    for text in ["a", "b", "c"] {
        let parent = *dirs.last().expect("not empty");
        dirs.push(names.make_dir(&Identity::root(), parent, &name(text), 0o700, Stamp(2)).expect("new").0);
    }
    scope(|threads| {
        for thread in 0..THREADS {
            let (names, dirs, clock) = (&names, &dirs, &clock);
            threads.spawn(move || work(names, dirs, base.wrapping_add(thread), clock, steps));
        }
    });
    assert_eq!(check(&**kv), Vec::<String>::new(), "FOREBAY_SEED={base}");
    let mut inodes = 0;
    kv.scan(b"i", &[], &mut |_, _| {
        inodes += 1;
        std::ops::ControlFlow::Continue(())
    })
    .expect("readable");
    assert_eq!(names.count(), inodes, "FOREBAY_SEED={base}");
}

#[test]
fn random_turmoil_in_memory() {
    let kv: Arc<dyn Kv> = fresh().kv;
    turmoil(&kv, 5000);
}

#[test]
fn random_turmoil_in_a_jittery_store() {
    let kv: Arc<dyn Kv> = Arc::new(Jittery::new(fresh().kv.crash(0)));
    turmoil(&kv, 1000);
}

#[test]
fn random_turmoil_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kv: Arc<dyn Kv> = Arc::new(FjallKv::create(dir.path(), Bytes::mib(8)).expect("a new store"));
    Names::format(&*kv, SERVER, Some(open_root()), Stamp(1)).expect("an empty store");
    turmoil(&kv, 3000);
}

/// An update of an inode while its file is reaped happens before, or fails: it never restores the inode.
#[test]
fn inode_update_never_restores_a_reaped_file() {
    let (world, root) = (fresh(), Identity::root());
    let (file, _) = world.create(&root, "f", 0o644).expect("new");
    world.names.unlink(&root, ROOT, &name("f"), world.now()).expect("there");
    let (names, kv) = (&world.names, &world.kv);
    let (done, reaped) = mpsc::channel();
    scope(|scope| {
        let noted = names.note_extent_via(file, Extent { least: 7, ..Extent::default() }, |batch| {
            scope.spawn(move || done.send(names.reap(file, |batch| kv.commit(batch))));
            // Reaping must wait for this update; otherwise it would be done long before.
            let early = reaped.recv_timeout(Duration::from_millis(300));
            assert!(early.is_err(), "the file was reaped during an update of its inode");
            kv.commit(batch)
        });
        noted.expect("the file is there");
    });
    reaped.recv().expect("it ends").expect("an orphan");
    assert_eq!(outcome(&names.inode(file)), "NotFound");
    let late = names.note_extent(file, Extent::default());
    assert_eq!(outcome(&late), "NotFound");
    world.check();
}

#[test]
fn threads_create_and_remove_many_files() {
    let world = fresh();
    let ids = scope(|threads| {
        let makers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let world: &World = &world;
                threads.spawn(move || {
                    let root = Identity::root();
                    let text = format!("dir-{thread}");
                    let (dir, _) = world.make_dir(&root, &text, 0o700).expect("new");
                    let mut ids = vec![dir];
                    for count in 0..500 {
                        let file = name(&format!("f{count}"));
                        let made = world.names.create_file(
                            &root,
                            dir,
                            &file,
                            0o600,
                            layout(),
                            vec![Incarnation(1)],
                            world.now(),
                            |_| Ok(()),
                        );
                        ids.push(made.expect("new").0);
                        if count % 2 == 0 {
                            let gone = world.names.unlink(&root, dir, &file, world.now()).expect("there");
                            assert_eq!(gone.fate, Fate::Orphaned);
                            world.names.reap(gone.file, |batch| world.kv.commit(batch)).expect("an orphan");
                        }
                    }
                    ids
                })
            })
            .collect();
        makers.into_iter().flat_map(|maker| maker.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "every id once");
    assert_eq!(world.names.count(), 1 + THREADS * 251);
    world.check();
}
