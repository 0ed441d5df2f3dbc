//! A server with a new store after `forebay shard replace`: which names may be lost, and how the service continues
//! without them.

use crate::cluster::{Fleet, standing};
use crate::raw::{name, refused};
use forebay_model::{ErrorKind, FileId, RenameMode, Result, ServerId};
use forebay_testkit::until;
use forebay_wire::{Lost, RepairStep, Reply, Request, Standing};
use tempfile::TempDir;

const ROOT: FileId = FileId::ROOT;

/// Three running servers, with a back-end directory or without.
fn fleet(backing: Option<&TempDir>) -> Fleet {
    let mut fleet = Fleet::plan(3, |config| {
        config.backend = backing.map(|backing| format!("dir:{}", backing.path().display()));
    });
    (0..3).for_each(|index| fleet.start(index));
    fleet.joined();
    fleet
}

/// A server loses its store and joins with an empty one.
fn lose(fleet: &mut Fleet, lost: usize) {
    fleet.stop(lost);
    std::fs::remove_dir_all(&fleet.configs[lost].store).expect("the store is wiped");
    fleet.start(lost);
    let server = fleet.configs[lost].server;
    for index in (0..3).filter(|index| *index != lost) {
        fleet.control(index).call(Request::ReplaceServer { server }).expect("replacement accepted");
    }
    until("the server joins", || standing(fleet, lost) == Standing::Joined);
    let damage = fleet.status(lost).damage;
    assert!(damage.len() == 1 && damage[0].contains("was lost with all names"), "{damage:?}");
}

/// The reports of all servers for one step of a repair.
fn repair(fleet: &Fleet, step: RepairStep) -> Vec<String> {
    let report = |index| match fleet.control(index).call(Request::Repair { step }) {
        Ok(Reply::Repaired(done)) => done,
        other => panic!("unexpected reply of server {index} to a repair: {other:?}"),
    };
    (0..3).flat_map(report).collect()
}

fn losses(fleet: &Fleet) -> Vec<Lost> {
    let report = |index| match fleet.control(index).call(Request::Losses) {
        Ok(Reply::Losses(losses)) => losses.list.into_iter().map(|loss| loss.what).collect::<Vec<_>>(),
        other => panic!("no losses: {other:?}"),
    };
    (0..3).flat_map(report).collect()
}

fn is_missing<T: std::fmt::Debug>(result: Result<T>) {
    refused(result, ErrorKind::NotFound);
}

#[test]
fn directories_created_after_losing_the_first_store_are_complete() {
    let backing = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(backing.path().join("kept")).expect("directory in the back end");
    let mut fleet = fleet(Some(&backing));
    fleet.control(0).make_dir(ROOT, "old", 0o755);
    lose(&mut fleet, 0);
    let walk = |fleet: &Fleet, path: &str| fleet.control(0).walk(path);
    for path in ["old", "new", "kept/x"] {
        let error = walk(&fleet, path).expect_err("a name that may be lost");
        assert_eq!(error.kind(), ErrorKind::Io, "{path}: {error}");
        assert!(error.to_string().contains("forebay check --repair"), "{error}");
    }
    let made = fleet.control(0).make_dir(ROOT, "new", 0o755);
    let within = fleet.control(0).make_dir(made, "sub", 0o755);
    let kept = walk(&fleet, "kept").expect("directory in the back end").id;
    fleet.control(0).make_dir(kept, "made", 0o755);
    fleet.control(0).create(within, "file", 0o644);
    for boot in 0..2 {
        for path in ["new/x", "new/sub/x", "new/sub/x/y", "new/./sub/../x", "kept/made/x"] {
            is_missing(walk(&fleet, path));
        }
        assert!(walk(&fleet, "new/sub/file").is_ok());
        for path in ["old", "kept/x", "none/x"] {
            refused(walk(&fleet, path), ErrorKind::Io);
        }
        if boot == 0 {
            fleet.stop(0);
            fleet.start(0);
        }
    }
    let done = repair(&fleet, RepairStep::Rescue { drop_dangling: false });
    assert_eq!(done, Vec::<String>::new(), "nothing to rescue");
    refused(walk(&fleet, "old"), ErrorKind::Io);
    assert_eq!(repair(&fleet, RepairStep::Forgive), ["server 0 goes on without what it had lost"]);
    for path in ["old", "kept/x", "none/x"] {
        is_missing(walk(&fleet, path));
    }
    assert_eq!(fleet.status(0).damage, Vec::<String>::new());
    fleet.stop(0);
    fleet.start(0);
    is_missing(walk(&fleet, "kept/x"));
}

#[test]
fn directories_created_after_a_loss_are_complete() {
    let mut fleet = fleet(None);
    let old = fleet.make_dir(ROOT, &fleet.name_on(ROOT, ServerId(0), "old"));
    lose(&mut fleet, 2);
    let lost = fleet.name_on(old, ServerId(2), "x");
    refused(
        fleet.control(2).call(Request::Walk { dir: old, path: lost.into(), follow: false }),
        ErrorKind::Io,
    );
    for maker in 0..3 {
        // A directory that a server creates before the new store has contacted it may count as older than the loss;
        // that takes a moment.
        let mut attempt = 0;
        until("the loss is known", || {
            attempt += 1;
            let text = fleet.name_on(ROOT, ServerId(maker), &format!("new{attempt}-"));
            let dir = fleet.make_dir(ROOT, &text);
            let inside = fleet.name_on(dir, ServerId(2), "x");
            let missed = fleet.walk(&format!("{text}/{inside}")).expect_err("missing name");
            missed.kind() == ErrorKind::NotFound
        });
    }
}

#[test]
fn running_service_rescues_remaining_files_after_a_loss() {
    let mut fleet = fleet(None);
    let old_text = fleet.name_on(ROOT, ServerId(0), "old");
    let old = fleet.make_dir(ROOT, &old_text);
    // A file and a directory of server 0 whose names are on server 2, and a directory of server 2 with a name on server
    // 1.
    let rename = |dir, from: &str, to: &str| {
        let (from, to) = (name(from), name(to));
        let request =
            Request::Rename { dir, name: from.clone(), to_dir: dir, to_name: to, mode: RenameMode::Replace };
        let home = fleet.members().home(dir, &from);
        fleet.control(fleet.index(home)).call(request).expect("renamed");
    };
    let (made, moved) = (fleet.name_on(old, ServerId(0), "f"), fleet.name_on(old, ServerId(2), "g"));
    let file = fleet.control(0).create(old, &made, 0o644).file;
    rename(old, &made, &moved);
    let (made, moved) = (fleet.name_on(old, ServerId(0), "d"), fleet.name_on(old, ServerId(2), "e"));
    let dir = fleet.control(0).make_dir(old, &made, 0o711);
    rename(old, &made, &moved);
    let inside = fleet.name_on(dir, ServerId(1), "inside");
    fleet.control(1).create(dir, &inside, 0o600);
    let (made, moved) = (fleet.name_on(ROOT, ServerId(2), "h"), fleet.name_on(ROOT, ServerId(1), "i"));
    let gone = fleet.control(2).make_dir(ROOT, &made, 0o755);
    rename(ROOT, &made, &moved);
    let stranded = fleet.name_on(gone, ServerId(0), "stranded");
    fleet.control(0).create(gone, &stranded, 0o600);
    fleet.walk(&moved).expect("name on server 1");
    lose(&mut fleet, 2);
    // The other servers must have contacted the new store.
    until("three losses", || losses(&fleet).len() >= 3);
    let done = repair(&fleet, RepairStep::Rescue { drop_dangling: false });
    assert_eq!(done.len(), 3, "{done:?}");
    assert_eq!(fleet.walk(&format!("lost-{file}")).expect("rescued name").id, file);
    let found = fleet.walk(&format!("lost-{dir}")).expect("rescued name");
    assert_eq!((found.id, found.mode), (dir, 0o711));
    assert!(fleet.walk(&format!("lost-{dir}/{inside}")).is_ok());
    let again = fleet.walk(&moved).expect("recreated directory");
    assert_eq!((again.id, again.mode), (gone, 0o700));
    assert!(fleet.walk(&format!("{moved}/{stranded}")).is_ok());
    assert_eq!(losses(&fleet), Vec::<Lost>::new());
    assert_eq!(repair(&fleet, RepairStep::Forgive), ["server 2 goes on without what it had lost"]);
    is_missing(fleet.walk(&format!("{old_text}/{}", fleet.name_on(old, ServerId(2), "none"))));
    assert_eq!(repair(&fleet, RepairStep::Rescue { drop_dangling: true }), Vec::<String>::new());
}

#[test]
fn dangling_names_of_lost_files_are_dropped_only_on_request() {
    let mut fleet = fleet(None);
    let (made, moved) = (fleet.name_on(ROOT, ServerId(2), "f"), fleet.name_on(ROOT, ServerId(0), "g"));
    fleet.control(2).create(ROOT, &made, 0o644);
    let request = Request::Rename {
        dir: ROOT,
        name: name(&made),
        to_dir: ROOT,
        to_name: name(&moved),
        mode: RenameMode::Replace,
    };
    fleet.control(2).call(request).expect("renamed");
    // Server 0 caches the attributes.
    fleet.walk(&moved).expect("renamed file");
    lose(&mut fleet, 2);
    until("one loss is left", || losses(&fleet).len() == 1);
    assert_eq!(repair(&fleet, RepairStep::Rescue { drop_dangling: false }), Vec::<String>::new());
    assert_eq!(losses(&fleet).len(), 1);
    let done = repair(&fleet, RepairStep::Rescue { drop_dangling: true });
    assert!(done.len() == 1 && done[0].contains("is taken away"), "{done:?}");
    assert_eq!(losses(&fleet), Vec::<Lost>::new());
    is_missing(fleet.walk(&moved));
}

#[test]
fn only_the_owner_may_repair_the_service() {
    let fleet = fleet(None);
    let mut stranger = fleet.control(0).acting(4001);
    refused(stranger.call(Request::Repair { step: RepairStep::Forgive }), ErrorKind::NotPermitted);
}
