//! Permissions.

use crate::common::{ROOT, World, fresh, name, outcome, user};
use forebay_model::{Access, Change, Error, FileKind, Gid, Identity, SetTime, Stamp, Time, Uid};
use forebay_store::RenameMode;

fn alice() -> Identity {
    user(10, 100, &[200])
}

fn bob() -> Identity {
    user(11, 101, &[])
}

#[test]
fn entries_need_write_and_search() {
    for (mode, may_look, may_change) in [
        (0o700, true, true),
        (0o600, false, false),
        (0o300, true, true),
        (0o500, true, false),
        (0o200, false, false),
    ] {
        let world = fresh();
        world.build(&[
            &format!("d d {mode:o} 10:100"),
            "f d/f 644 10:100",
            "d d/e 777 10:100",
            "f f 666 10:100",
        ]);
        let dir = world.id("d");
        let (names, who, now) = (&world.names, alice(), || world.now());
        let look = if may_look { "ok" } else { "AccessDenied" };
        let change = if may_change { "ok" } else { "AccessDenied" };
        assert_eq!(outcome(&names.lookup(&who, dir, &name("f"))), look, "{mode:o}");
        assert_eq!(outcome(&world.create(&who, "d/new", 0o600)), change, "{mode:o}");
        assert_eq!(outcome(&world.make_dir(&who, "d/newdir", 0o700)), change);
        assert_eq!(outcome(&world.symlink(&who, "d/newlink", "x")), change);
        assert_eq!(outcome(&names.link(&who, world.id("f"), dir, &name("hard"), now())), change);
        let out = names.rename(&who, dir, &name("f"), ROOT, &name("out"), RenameMode::Replace, now());
        assert_eq!(outcome(&out), change);
        let into = names.rename(&who, ROOT, &name("f"), dir, &name("in"), RenameMode::Replace, now());
        assert_eq!(outcome(&into), change);
        assert_eq!(outcome(&names.remove_dir(&who, dir, &name("e"), now())), change);
        let exists = if may_look { "Exists" } else { "AccessDenied" };
        world.build(&["f d/there 600"]);
        assert_eq!(
            outcome(&world.create(&who, "d/there", 0o600)),
            exists,
            "an existing name is reported before the missing permission"
        );
        let absent = if may_look { "NotFound" } else { "AccessDenied" };
        assert_eq!(outcome(&names.unlink(&who, dir, &name("absent"), now())), absent);
        assert_eq!(outcome(&names.unlink(&who, dir, &name("there"), now())), change);
        world.check();
    }
}

#[test]
fn listing_needs_read() {
    for (mode, expected) in [(0o400, "ok"), (0o300, "AccessDenied"), (0o077, "AccessDenied")] {
        let world = fresh();
        world.build(&[&format!("d d {mode:o} 10:100")]);
        let listed = world.names.read_dir(&alice(), world.id("d"), 0, 10);
        assert_eq!(outcome(&listed), expected, "{mode:o}");
    }
}

#[test]
fn a_sticky_directory_protects_names() {
    let world = fresh();
    world.build(&["d tmp 1777 5:5", "f tmp/alices 666 10:100", "f tmp/bobs 666 11:101", "f bobs 666 11:101"]);
    let (dir, names) = (world.id("tmp"), &world.names);
    let now = || world.now();
    let swap = |who: &Identity, from: &str, to: &str, mode| {
        outcome(&names.rename(who, dir, &name(from), dir, &name(to), mode, world.now()))
    };
    assert_eq!(outcome(&names.unlink(&bob(), dir, &name("alices"), now())), "NotPermitted");
    assert_eq!(swap(&bob(), "alices", "x", RenameMode::Replace), "NotPermitted");
    assert_eq!(swap(&bob(), "bobs", "alices", RenameMode::Replace), "NotPermitted");
    assert_eq!(swap(&bob(), "bobs", "alices", RenameMode::Exchange), "NotPermitted");
    assert_eq!(swap(&bob(), "bobs", "mine", RenameMode::Replace), "ok");
    assert_eq!(outcome(&names.unlink(&user(5, 9, &[]), dir, &name("alices"), now())), "ok", "its owner may");
    assert_eq!(outcome(&names.unlink(&bob(), dir, &name("mine"), now())), "ok");
    world.check();
}

#[test]
fn set_group_id_directory_passes_on_its_group() {
    let world = fresh();
    world.build(&["d plain 777 5:500", "d shared 2777 5:500"]);
    for (dir, gid, dir_mode, file_mode) in [("plain", 100, 0o755, 0o2755), ("shared", 500, 0o2755, 0o755)] {
        let (_, made) = world.make_dir(&alice(), &format!("{dir}/d"), 0o6755).expect("allowed");
        assert_eq!((made.gid, made.mode), (Gid(gid), dir_mode), "{dir}");
        let (_, made) = world.create(&alice(), &format!("{dir}/f"), 0o2755).expect("allowed");
        assert_eq!(
            (made.gid, made.mode),
            (Gid(gid), file_mode),
            "{dir}: no set-group-id for a group one is not in"
        );
        let (_, made) = world.symlink(&alice(), &format!("{dir}/s"), "x").expect("allowed");
        assert_eq!((made.gid, made.mode), (Gid(gid), 0o777), "{dir}");
    }
    let (_, made) = world.create(&user(10, 100, &[500]), "shared/g", 0o2755).expect("allowed");
    assert_eq!(made.mode, 0o2755, "a member may");
    let (_, made) = world.create(&Identity::root(), "shared/r", 0o2755).expect("allowed");
    assert_eq!(made.mode, 0o2755, "root may");
}

fn change(text: &str) -> Change {
    let mut change = Change::default();
    for word in text.split(' ') {
        let (key, value) = word.split_once('=').expect("key=value");
        let time = || match value {
            "now" => SetTime::Now,
            secs => SetTime::To(Time { secs: secs.parse().expect("seconds"), nanos: 5 }),
        };
        match key {
            "mode" => change.mode = Some(u16::from_str_radix(value, 8).expect("octal")),
            "uid" => change.uid = Some(Uid(value.parse().expect("a number"))),
            "gid" => change.gid = Some(Gid(value.parse().expect("a number"))),
            "atime" => change.atime = Some(time()),
            "mtime" => change.mtime = Some(time()),
            _ => panic!("no such attribute: {key}"),
        }
    }
    change
}

#[test]
fn attribute_changes_follow_posix_permissions() {
    let (root, member) = (Identity::root(), user(12, 100, &[]));
    for (what, mode, who, order, expected) in [
        ("f", 0o644, &root, "mode=7777", "ok 7777 10:100"),
        ("f", 0o644, &alice(), "mode=7755", "ok 7755 10:100"),
        ("f", 0o644, &bob(), "mode=777", "NotPermitted"),
        ("f", 0o666, &member, "mode=777", "NotPermitted"),
        ("f", 0o644, &user(10, 7, &[]), "mode=2755", "ok 0755 10:100"),
        ("f", 0o644, &alice(), "mode=17777", "Invalid"),
        ("f", 0o6755, &root, "uid=11", "ok 0755 11:100"),
        ("f", 0o6745, &root, "uid=11", "ok 2745 11:100"),
        ("d", 0o6755, &root, "uid=11", "ok 6755 11:100"),
        ("f", 0o644, &alice(), "uid=11", "NotPermitted"),
        ("f", 0o644, &alice(), "uid=10", "ok 0644 10:100"),
        ("f", 0o644, &bob(), "uid=11", "NotPermitted"),
        ("f", 0o6755, &alice(), "gid=200", "ok 0755 10:200"),
        ("f", 0o6755, &alice(), "gid=100", "ok 0755 10:100"),
        ("f", 0o644, &alice(), "gid=300", "NotPermitted"),
        ("f", 0o644, &user(10, 7, &[]), "gid=100", "ok 0644 10:100"),
        ("f", 0o666, &member, "gid=100", "NotPermitted"),
        ("f", 0o644, &alice(), "gid=200 mode=2755", "ok 2755 10:200"),
        ("f", 0o644, &alice(), "uid=11 mode=600", "NotPermitted"),
        ("f", 0o644, &alice(), "atime=1 mtime=2", "ok 0644 10:100"),
        ("f", 0o666, &bob(), "atime=1 mtime=2", "NotPermitted"),
        ("f", 0o666, &bob(), "atime=now mtime=now", "ok 0666 10:100"),
        ("f", 0o666, &bob(), "mtime=now", "NotPermitted"),
        ("f", 0o644, &bob(), "atime=now mtime=now", "AccessDenied"),
        ("f", 0o444, &alice(), "atime=now mtime=now", "ok 0444 10:100"),
        ("s", 0o777, &root, "mode=700", "Unsupported"),
        ("s", 0o777, &root, "uid=11", "ok 0777 11:100"),
    ] {
        let world = fresh();
        match what {
            "s" => world.build(&["s x target 10:100"]),
            _ => world.build(&[&format!("{what} x {mode:o} 10:100")]),
        }
        let (file, before) = world.at("x").expect("just made");
        let result = world.names.set_attr(who, file, &change(order), world.now());
        let after = world.names.inode(file).expect("it exists");
        let got = match result {
            Ok(inode) => {
                assert_eq!(inode, after);
                assert!(after.ctime > before.ctime, "{order}");
                format!("ok {:04o} {}:{}", after.mode, after.uid, after.gid)
            }
            Err(error) => {
                assert_eq!(after, before, "{order}: all or nothing");
                format!("{:?}", Error::from(error).kind())
            }
        };
        assert_eq!(got, expected, "user {} on {what} {mode:o}: {order}", who.uid);
    }
}

#[test]
fn times_are_set() {
    let world = fresh();
    let (file, before) = world.create(&alice(), "f", 0o600).expect("new");
    let set =
        |order: &str, now| world.names.set_attr(&alice(), file, &change(order), Stamp(now)).expect(order);
    let time = |secs, nanos| Time { secs, nanos };
    let after = set("atime=-3", 90_000_000_001);
    assert_eq!((after.atime, after.mtime, after.ctime), (time(-3, 5), before.mtime, time(90, 1)));
    let after = set("mtime=4", 91_000_000_001);
    assert_eq!((after.atime, after.mtime, after.mtime_set), (time(-3, 5), time(4, 5), Stamp(91_000_000_001)));
    let after = set("atime=now mtime=now", 92_000_000_001);
    assert_eq!((after.atime, after.mtime), (time(92, 1), time(92, 1)));
    let absurd = Change { mtime: Some(SetTime::To(time(0, 1_000_000_000))), ..Change::default() };
    assert_eq!(outcome(&world.names.set_attr(&alice(), file, &absurd, world.now())), "Invalid");
    let nothing = world.names.set_attr(&bob(), file, &Change::default(), world.now());
    assert_eq!(nothing.as_ref(), Ok(&after), "no change needs no permission");
}

#[test]
fn opening_checks_type_and_permissions() {
    let world = fresh();
    world.build(&["f f 640 10:100", "d d 750 10:100", "s s f 10:100", "f prog 710 10:100"]);
    for (path, who, access, expected) in [
        ("f", alice(), Access::BOTH, "ok"),
        ("f", user(12, 100, &[]), Access::READ, "ok"),
        ("f", user(12, 100, &[]), Access::BOTH, "AccessDenied"),
        ("f", bob(), Access::READ, "AccessDenied"),
        ("f", bob(), Access::default(), "ok"),
        ("f", Identity::root(), Access::BOTH, "ok"),
        ("f", Identity::root(), Access::EXECUTE, "AccessDenied"),
        ("prog", user(12, 100, &[]), Access::EXECUTE, "ok"),
        ("d", alice(), Access::READ, "ok"),
        ("d", alice(), Access::WRITE, "IsDirectory"),
        ("d", bob(), Access::READ, "AccessDenied"),
        ("s", alice(), Access::READ, "TooManyLinks"),
    ] {
        let opened = world.names.check_open(&who, world.id(path), access);
        assert_eq!(outcome(&opened), expected, "{path} user {} {access:?}", who.uid);
    }
}

#[test]
fn moving_a_directory_elsewhere_needs_write_on_it() {
    let world = fresh();
    world.build(&["d home 777 0:0", "d home/d 555 10:100", "d other 777 0:0"]);
    let (home, other) = (world.id("home"), world.id("other"));
    let go = |who: &Identity, to| {
        outcome(&world.names.rename(who, home, &name("d"), to, &name("e"), RenameMode::Replace, world.now()))
    };
    assert_eq!(go(&alice(), other), "AccessDenied", "its \"..\" would change");
    assert_eq!(go(&alice(), home), "ok");
}

#[test]
fn file_id_does_not_bypass_search_permissions() {
    let world = fresh();
    world.build(&[
        "d open 755 10:100",
        "d closed 700 10:100",
        "f closed/f 666 10:100",
        "d closed/d 777 10:100",
    ]);
    world.build(&["f closed/d/deep 666 10:100"]);
    let reach = |world: &World, who: &Identity, path: &str| outcome(&world.names.reach(who, world.id(path)));
    for (path, bobs) in [
        ("", "ok"),
        ("open", "ok"),
        ("closed", "ok"),
        ("closed/f", "AccessDenied"),
        ("closed/d/deep", "AccessDenied"),
    ] {
        assert_eq!(reach(&world, &bob(), path), bobs, "{path}");
        assert_eq!(reach(&world, &alice(), path), "ok", "{path}");
        assert_eq!(reach(&world, &Identity::root(), path), "ok", "{path}");
    }
    let file = world.id("closed/f");
    world.names.link(&alice(), file, world.id("open"), &name("f"), world.now()).expect("hers to give");
    assert_eq!(reach(&world, &bob(), "closed/f"), "ok", "by its other name");
    for (dir, text) in [("open", "f"), ("closed", "f")] {
        world.names.unlink(&alice(), world.id(dir), &name(text), world.now()).expect("hers to remove");
    }
    assert_eq!(
        outcome(&world.names.reach(&Identity::root(), file)),
        "NotFound",
        "no name leads to an orphan"
    );
    assert_eq!(world.names.inode(file).expect("an orphan").kind(), FileKind::File);
}
