//! Each operation as root: its effects and its errors.

use crate::common::{ROOT, SERVER, World, fresh, layout, name, open, outcome};
use forebay_model::{
    Change, ErrorKind, FileId, FileKind, Gid, Identity, Incarnation, ServerId, Stamp, Time, Uid,
};
use forebay_store::{
    Body, Extent, Facts, Fate, Kv, MAX_LINKS, MemoryKv, Names, RenameMode, Root, Timeline, Unlinked,
};
use std::collections::BTreeSet;
use std::sync::Arc;

fn tree() -> World {
    let world = fresh();
    world.build(&[
        "d a 755",
        "d a/b 755",
        "d a/b/c 755",
        "d empty 755",
        "f file 644",
        "f a/file 644",
        "s link file",
    ]);
    world
}

fn rename(world: &World, from: &str, to: &str, mode: RenameMode) -> forebay_model::Result<Option<Unlinked>> {
    let ((dir, name), (to_dir, to_name)) = (world.split(from), world.split(to));
    Ok(world.names.rename(&Identity::root(), dir, &name, to_dir, &to_name, mode, world.now())?)
}

#[test]
fn new_file_has_the_given_attributes() {
    let world = fresh();
    let who = crate::common::user(10, 100, &[]);
    let (id, inode) = world.create(&who, "f", 0o640).expect("the root is writable");
    assert_eq!(inode, world.names.inode(id).expect("it exists"));
    let attr = inode.attr(id, &Facts { size: 5, buffered: 3, ..Facts::default() }, &Timeline::default());
    assert_eq!((attr.kind, attr.mode, attr.links), (FileKind::File, 0o640, 1));
    assert_eq!((attr.uid, attr.gid, attr.size, attr.buffered), (Uid(10), Gid(100), 5, 3));
    assert_eq!((attr.atime, attr.mtime), (attr.ctime, attr.ctime));
    assert_eq!(
        inode.body,
        Body::File { layout: layout(), incarnations: vec![Incarnation(7)], extent: Extent::default() }
    );
    assert_eq!(world.names.count(), 2);
    world.check();
}

#[test]
fn times_follow_the_data_unless_set_later() {
    let world = fresh();
    let (id, mut inode) = world.create(&Identity::root(), "f", 0o600).expect("root may");
    let made = inode.ctime;
    let time = |secs| Time { secs, nanos: 0 };
    let later = Facts { touched: Some(Stamp(50_000_000_000)), ..Facts::default() };
    assert_eq!(inode.attr(id, &later, &Timeline::default()).mtime, time(50));
    assert_eq!(inode.attr(id, &later, &Timeline::default()).ctime, time(50));
    assert_eq!(
        inode.attr(id, &Facts { touched: Some(Stamp(3)), ..later }, &Timeline::default()).mtime,
        made,
        "older than the file"
    );
    (inode.mtime, inode.mtime_set, inode.ctime) = (time(7), Stamp(60_000_000_000), time(60));
    assert_eq!(inode.attr(id, &later, &Timeline::default()).mtime, time(7), "set after the last write");
    assert_eq!(inode.attr(id, &later, &Timeline::default()).ctime, time(60));
    let again = Facts { touched: Some(Stamp(61_000_000_000)), ..later };
    assert_eq!(inode.attr(id, &again, &Timeline::default()).mtime, time(61), "written after it was set");
}

#[test]
fn links_are_counted() {
    let world = tree();
    for (path, links) in [("", 4), ("a", 3), ("a/b", 3), ("a/b/c", 2), ("file", 1), ("link", 1)] {
        assert_eq!(world.links(path), links, "{path}");
    }
    let file = world.id("file");
    world
        .names
        .link(&Identity::root(), file, world.id("a"), &name("again"), world.now())
        .expect("one more name");
    assert_eq!(world.links("file"), 2);
    assert_eq!(world.id("a/again"), file);
    world.check();
}

#[test]
fn creation_fails_with_the_right_error() {
    let world = tree();
    let root = Identity::root();
    for (dir, entry, error) in [
        (ROOT, "file", "Exists"),
        (ROOT, "a", "Exists"),
        (ROOT, "link", "Exists"),
        (world.id("file"), "x", "NotDirectory"),
        (world.id("link"), "x", "NotDirectory"),
        (FileId(999_999), "x", "NotFound"),
    ] {
        let (entry, now) = (name(entry), world.now());
        let (incarnations, before) = (vec![Incarnation(1)], |_| Ok(()));
        let made = world.names.create_file(&root, dir, &entry, 0o600, layout(), incarnations, now, before);
        assert_eq!(outcome(&made), error, "file {entry} in {dir}");
        assert_eq!(outcome(&world.names.make_dir(&root, dir, &entry, 0o700, now)), error);
        assert_eq!(outcome(&world.names.symlink(&root, dir, &entry, b"t", now)), error);
        assert_eq!(outcome(&world.names.link(&root, world.id("a/file"), dir, &entry, now)), error);
    }
    for (target, error) in
        [("", "NotFound"), ("a\0b", "Invalid"), (&"x".repeat(4095), "ok"), (&"x".repeat(4096), "NameTooLong")]
    {
        let made = world.names.symlink(&root, ROOT, &name("new"), target.as_bytes(), world.now());
        assert_eq!(outcome(&made), error, "{} bytes", target.len());
    }
    world.check();
}

#[test]
fn links_have_limits() {
    let world = tree();
    let (root, file) = (Identity::root(), world.id("file"));
    let link = |file, text: &str| world.names.link(&root, file, ROOT, &name(text), world.now());
    assert_eq!(outcome(&link(world.id("a"), "x")), "NotPermitted", "a directory has one name");
    assert_eq!(outcome(&link(FileId(77_777), "x")), "NotFound");
    for count in 1..MAX_LINKS {
        link(file, &format!("n{count}")).expect("below the limit");
    }
    assert_eq!(outcome(&link(file, "one-more")), "LinkLimit");
    assert_eq!(world.names.inode(file).expect("it exists").parents.len(), MAX_LINKS);
    world.check();
}

#[test]
fn unlink_and_remove_dir() {
    let world = tree();
    let root = Identity::root();
    for (path, unlink, remove_dir) in [
        ("nothing", "NotFound", "NotFound"),
        ("a", "IsDirectory", "NotEmpty"),
        ("file/x", "NotDirectory", "NotDirectory"),
        ("empty", "IsDirectory", "ok"),
        ("file", "ok", "NotFound"),
        ("link", "ok", "NotFound"),
        ("a/file", "ok", "NotFound"),
    ] {
        let (dir, last) = match path {
            "file/x" => (world.id("file"), name("x")),
            _ => world.split(path),
        };
        assert_eq!(outcome(&world.names.unlink(&root, dir, &last, world.now())), unlink, "unlink {path}");
        assert_eq!(
            outcome(&world.names.remove_dir(&root, dir, &last, world.now())),
            remove_dir,
            "rmdir {path}"
        );
        world.check();
    }
    world.build(&["f other 600"]);
    let removed = world.names.remove_dir(&root, ROOT, &name("other"), world.now());
    assert_eq!(outcome(&removed), "NotDirectory");
}

#[test]
fn unlinked_file_exists_until_it_is_reaped() {
    let world = tree();
    let (root, file) = (Identity::root(), world.id("file"));
    world.names.link(&root, file, ROOT, &name("second"), world.now()).expect("a second name");
    let before = world.names.count();
    let first = world.names.unlink(&root, ROOT, &name("file"), world.now()).expect("a name to remove");
    assert_eq!((first.file, first.fate, first.inode.parents.len()), (file, Fate::Named, 1));
    assert_eq!(
        outcome(&world.names.reap(file, |batch| world.kv.commit(batch))),
        "Invalid",
        "it still has a name"
    );
    let last = world.names.unlink(&root, ROOT, &name("second"), world.now()).expect("the last name");
    assert_eq!((last.fate, last.inode.parents.len()), (Fate::Orphaned, 0));
    assert_eq!(world.names.inode(file).expect("an orphan has an inode"), last.inode);
    assert_eq!(world.names.orphans().expect("readable"), [file]);
    let revived = world.names.link(&root, file, ROOT, &name("revived"), world.now());
    assert_eq!(outcome(&revived), "NotFound", "a removed file stays removed");
    let stranger = Identity { uid: Uid(7), gid: Gid(7), groups: Vec::new() };
    world
        .names
        .set_attr(&root, world.id("a"), &Change { mode: Some(0o777), ..Change::default() }, world.now())
        .expect("root may");
    let named = world.names.link_orphan(&stranger, file, world.id("a"), &name("named"), world.now());
    assert_eq!(outcome(&named), "NotFound", "it is another user's");
    let named = world.names.link_orphan(&root, file, ROOT, &name("a"), world.now());
    assert_eq!(outcome(&named), "Exists");
    assert_eq!(world.names.orphans().expect("readable"), [file]);
    let named = world.names.link_orphan(&root, file, ROOT, &name("named"), world.now());
    assert_eq!(named.expect("its owner may name it").parents, [ROOT]);
    assert_eq!((world.id("named"), world.names.orphans().expect("readable")), (file, Vec::new()));
    world.check();
    world.names.unlink(&root, ROOT, &name("named"), world.now()).expect("the last name again");
    assert_eq!(world.names.count(), before);
    world.check();
    world.names.reap(file, |batch| world.kv.commit(batch)).expect("an orphan can be reaped");
    assert_eq!(world.names.orphans().expect("readable"), []);
    assert_eq!(outcome(&world.names.inode(file)), "NotFound");
    assert_eq!(world.names.count(), before - 1);
    world.check();
}

#[test]
fn nothing_can_be_created_in_a_removed_directory() {
    let world = tree();
    let (root, dir) = (Identity::root(), world.id("empty"));
    let gone = world.names.remove_dir(&root, ROOT, &name("empty"), world.now()).expect("it is empty");
    assert_eq!((gone.file, gone.fate), (dir, Fate::Gone));
    assert_eq!(outcome(&world.names.make_dir(&root, dir, &name("x"), 0o700, world.now())), "NotFound");
    assert_eq!(outcome(&world.names.read_dir(&root, dir, 0, 10)), "NotFound");
    world.check();
}

#[test]
fn renames_that_fail() {
    use RenameMode::{Exchange, NoReplace, Replace};
    let world = tree();
    for (from, to, mode, error) in [
        ("nothing", "x", Replace, "NotFound"),
        ("nothing", "file", Exchange, "NotFound"),
        ("file", "nothing", Exchange, "NotFound"),
        ("file", "a/file", NoReplace, "Exists"),
        ("file", "file", NoReplace, "Exists"),
        ("file", "empty", Replace, "IsDirectory"),
        ("link", "empty", Replace, "IsDirectory"),
        ("empty", "file", Replace, "NotDirectory"),
        ("empty", "a", Replace, "NotEmpty"),
        ("a", "a/x", Replace, "Invalid"),
        ("a", "a/b/x", Replace, "Invalid"),
        ("a", "a/b/c/x", NoReplace, "Invalid"),
        ("a", "a/b/c", Replace, "Invalid"),
        ("a", "a/b/c", Exchange, "Invalid"),
        ("a/b/c", "a", Exchange, "Invalid"),
        ("a/b/c", "a", Replace, "NotEmpty"),
        ("a/file", "a", Replace, "NotEmpty"),
    ] {
        assert_eq!(outcome(&rename(&world, from, to, mode)), error, "{from} → {to} {mode:?}");
    }
    let gone = FileId(88_888);
    let lost =
        world.names.rename(&Identity::root(), ROOT, &name("file"), gone, &name("x"), Replace, world.now());
    assert_eq!(outcome(&lost), "NotFound");
    let file = world.id("file");
    let odd = world.names.rename(&Identity::root(), ROOT, &name("a"), file, &name("x"), Replace, world.now());
    assert_eq!(outcome(&odd), "NotDirectory");
    world.check();
}

#[test]
fn renames_that_move() {
    use RenameMode::{Exchange, NoReplace, Replace};
    for (from, to, mode, fate) in [
        ("file", "new", Replace, None),
        ("file", "a/new", NoReplace, None),
        ("file", "a/file", Replace, Some(Fate::Orphaned)),
        ("file", "link", Replace, Some(Fate::Gone)),
        ("link", "a/file", Replace, Some(Fate::Orphaned)),
        ("a", "new", Replace, None),
        ("a", "empty/a", Replace, None),
        ("a", "empty", Replace, Some(Fate::Gone)),
        ("a/b/c", "empty", Replace, Some(Fate::Gone)),
        ("a/b", "b", NoReplace, None),
        ("file", "a/file", Exchange, None),
        ("file", "a/b", Exchange, None),
        ("a/b", "empty", Exchange, None),
        ("a", "empty", Exchange, None),
        ("link", "a", Exchange, None),
    ] {
        let world = tree();
        let (moved, target) = (world.id(from), world.at(to).ok().map(|(id, _)| id));
        let replaced =
            rename(&world, from, to, mode).unwrap_or_else(|error| panic!("{from} → {to}: {error}"));
        assert_eq!(replaced.as_ref().map(|unlinked| unlinked.fate), fate, "{from} → {to}");
        assert_eq!(replaced.map(|unlinked| unlinked.file), fate.and(target), "{from} → {to}");
        assert_eq!(world.id(to), moved, "{from} → {to}");
        match mode {
            Exchange => assert_eq!(Some(world.id(from)), target, "{from} → {to}"),
            _ => assert_eq!(outcome(&world.at(from)), "NotFound", "{from} → {to}"),
        }
        world.check();
    }
}

#[test]
fn renaming_a_file_to_another_of_its_names_does_nothing() {
    let world = tree();
    let (root, file) = (Identity::root(), world.id("file"));
    world.names.link(&root, file, world.id("a"), &name("same"), world.now()).expect("a second name");
    let before = world.names.inode(file).expect("it exists");
    assert_eq!(rename(&world, "file", "a/same", RenameMode::Replace), Ok(None));
    assert_eq!(rename(&world, "file", "file", RenameMode::Replace), Ok(None));
    assert_eq!((world.id("file"), world.id("a/same")), (file, file));
    assert_eq!(world.names.inode(file).expect("it exists"), before);
    world.check();
}

#[test]
fn moving_a_directory_keeps_counts_and_starts_an_epoch() {
    let world = tree();
    let epoch = |path: &str| match world.at(path).expect(path).1.body {
        Body::Directory { epoch, .. } => epoch,
        _ => panic!("{path} is a directory"),
    };
    assert_eq!(epoch("a/b"), 1, "its owner was set once");
    rename(&world, "a/b", "a/bb", RenameMode::Replace).expect("within its directory");
    assert_eq!(epoch("a/bb"), 2, "copies know its name too");
    rename(&world, "a/bb", "empty/b", RenameMode::Replace).expect("to another");
    assert_eq!(epoch("empty/b"), 3);
    for (path, links) in [("", 4), ("a", 2), ("empty", 3), ("empty/b", 3)] {
        assert_eq!(world.links(path), links, "{path}");
    }
    assert_eq!(world.at("empty/b").expect("moved").1.parent(), Some(world.id("empty")));
    world.check();
}

#[test]
fn directories_show_when_their_entries_changed() {
    let world = tree();
    let root = Identity::root();
    let mtime = |path: &str| world.attr(path).mtime;
    let mut last = mtime("a");
    let mut newer = |what: &str| {
        let now = mtime("a");
        assert!(now > last, "{what}");
        last = now;
    };
    world.create(&root, "a/new", 0o600).expect("new");
    newer("create");
    world.names.link(&root, world.id("file"), world.id("a"), &name("hard"), world.now()).expect("link");
    newer("link");
    world.names.unlink(&root, world.id("a"), &name("hard"), world.now()).expect("unlink");
    newer("unlink");
    rename(&world, "a/new", "new", RenameMode::Replace).expect("rename out");
    newer("rename out");
    rename(&world, "new", "a/new", RenameMode::Replace).expect("rename in");
    newer("rename in");
    world.make_dir(&root, "a/d", 0o700).expect("mkdir");
    newer("mkdir");
    world.names.remove_dir(&root, world.id("a"), &name("d"), world.now()).expect("rmdir");
    newer("rmdir");
}

#[test]
fn listing_continues_where_it_stopped() {
    let world = fresh();
    let root = Identity::root();
    let mut all = BTreeSet::new();
    for count in 0..500 {
        let text = format!("file-{count}");
        world.create(&root, &text, 0o600).expect("new");
        all.insert(name(&text));
    }
    for limit in [0, 1, 7, 499, 500, 501, 100_000] {
        let (mut seen, mut cookie, mut calls) = (BTreeSet::new(), 0, 0);
        loop {
            let (entries, next) = world.names.read_dir(&root, ROOT, cookie, limit).expect("readable");
            assert!(entries.len() <= limit.max(1) && entries.is_sorted_by_key(|entry| entry.cookie));
            for entry in entries {
                assert!(entry.cookie > cookie && entry.cookie <= i64::MAX as u64);
                assert!(seen.insert(entry.name), "listed twice");
            }
            // Entries that are created and removed meanwhile do not disturb the listing.
            world.create(&root, &format!("extra-{limit}-{calls}"), 0o600).expect("new");
            calls += 1;
            match next {
                Some(next) => cookie = next,
                None => break,
            }
        }
        assert!(seen.is_superset(&all), "limit {limit}");
        for count in 0..calls {
            world
                .names
                .unlink(&root, ROOT, &name(&format!("extra-{limit}-{count}")), world.now())
                .expect("there");
        }
    }
    assert_eq!(world.names.read_dir(&root, ROOT, u64::MAX, 10), Ok((Vec::new(), None)));
    assert_eq!(outcome(&world.names.read_dir(&root, world.id("file-1"), 0, 10)), "NotDirectory");
}

#[test]
fn names_of_255_bytes_work() {
    let world = fresh();
    let long = "n".repeat(255);
    world.create(&Identity::root(), &long, 0o600).expect("the longest name");
    assert!(world.at(&long).is_ok());
    world.check();
}

#[test]
fn ids_are_never_reused() {
    let mut world = fresh();
    let root = Identity::root();
    let mut last = FileId(0);
    for round in 0..5 {
        let (id, _) = world.create(&root, &format!("f{round}"), 0o600).expect("new");
        assert!(id > last, "{id} after {last}");
        last = id;
        // All unsynced data is lost, and still the id is not allocated again.
        world.kv = Arc::new(world.kv.crash(0));
        world.names = open(world.kv.clone());
        world.check();
    }
}

#[test]
fn store_of_another_server_is_refused() {
    let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new());
    let opened = |server| Names::open(kv.clone(), ServerId(server)).map(|_| ()).map_err(|error| error.kind());
    assert_eq!(opened(0), Err(ErrorKind::BadStore), "nothing there");
    let format = || {
        let root = Root { owner: (Uid(1), Gid(2)), mode: 0o750 };
        Names::format(&*kv, ServerId(3), Some(root), Stamp(9))
    };
    format().expect("an empty store");
    assert_eq!(format().expect_err("not twice").kind(), ErrorKind::BadStore);
    assert_eq!(opened(0), Err(ErrorKind::BadStore), "another server's");
    assert_eq!(opened(3), Ok(()));
    let names = Names::open(kv.clone(), ServerId(3)).expect("sound");
    let top = names.inode(ROOT).expect("a root");
    assert_eq!((top.mode, top.uid, top.gid), (0o750, Uid(1), Gid(2)));
    let (id, _) = names.make_dir(&Identity::root(), ROOT, &name("d"), 0o700, Stamp(10)).expect("new");
    assert_eq!(id.maker(), ServerId(3));
    assert_ne!(SERVER, ServerId(3));
}
