//! Extended attributes.

use crate::common::{fresh, name, outcome, user};
use forebay_model::Identity;
use forebay_store::{MAX_XATTR, XattrMode};

#[test]
fn xattr_permissions_depend_on_the_namespace() {
    let world = fresh();
    world.build(&["f f 640 10:100", "d d 1777 10:100", "s s f 10:100"]);
    let (owner, member, other) = (user(10, 100, &[]), user(12, 100, &[]), user(11, 101, &[]));
    for (file, attribute, who, set, get) in [
        ("f", "user.a", &owner, "ok", "ok"),
        ("f", "user.a", &member, "AccessDenied", "ok"),
        ("f", "user.a", &other, "AccessDenied", "AccessDenied"),
        ("f", "user.a", &Identity::root(), "ok", "ok"),
        ("d", "user.a", &owner, "ok", "ok"),
        ("d", "user.a", &other, "NotPermitted", "ok"),
        ("s", "user.a", &Identity::root(), "NotPermitted", "NoAttribute"),
        ("s", "trusted.a", &Identity::root(), "ok", "ok"),
        ("f", "trusted.a", &Identity::root(), "ok", "ok"),
        ("f", "trusted.a", &owner, "NotPermitted", "NoAttribute"),
        ("f", "security.a", &Identity::root(), "ok", "ok"),
        ("f", "security.a", &owner, "NotPermitted", "ok"),
        ("f", "system.posix_acl_access", &owner, "Unsupported", "Unsupported"),
        ("f", "other", &Identity::root(), "Unsupported", "Unsupported"),
        ("f", "user.", &owner, "Invalid", "Invalid"),
    ] {
        let (id, attribute) = (world.id(file), name(attribute));
        let done = world.names.set_xattr(who, id, &attribute, b"v", XattrMode::Any, world.now());
        assert_eq!(outcome(&done), set, "set {attribute} of {file} as {}", who.uid);
        assert_eq!(outcome(&world.names.get_xattr(who, id, &attribute)), get, "get {attribute} of {file}");
        if set != "ok" {
            let removed = world.names.remove_xattr(who, id, &attribute, world.now());
            assert_eq!(outcome(&removed), set, "remove {attribute} of {file}");
        }
    }
    let list = |who| world.names.list_xattrs(who, world.id("f")).expect("readable");
    assert_eq!(list(&other), [name("security.a"), name("user.a")]);
    assert_eq!(list(&Identity::root()), [name("security.a"), name("trusted.a"), name("user.a")]);
    world.check();
}

#[test]
fn xattrs_are_created_replaced_and_removed() {
    let world = fresh();
    let who = user(10, 100, &[]);
    let (file, made) = world.create(&who, "f", 0o600).expect("new");
    let (names, attribute) = (&world.names, name("user.key"));
    let set =
        |value: &[u8], mode| outcome(&names.set_xattr(&who, file, &attribute, value, mode, world.now()));
    assert_eq!(set(b"x", XattrMode::Replace), "NoAttribute");
    assert_eq!(set(b"", XattrMode::Create), "ok");
    assert_eq!(names.get_xattr(&who, file, &attribute), Ok(Vec::new()));
    assert_eq!(set(b"x", XattrMode::Create), "Exists");
    assert_eq!(set(b"new", XattrMode::Replace), "ok");
    assert_eq!(names.get_xattr(&who, file, &attribute), Ok(b"new".to_vec()));
    assert!(names.inode(file).expect("it exists").ctime > made.ctime);
    assert_eq!(outcome(&names.remove_xattr(&who, file, &attribute, world.now())), "ok");
    assert_eq!(outcome(&names.remove_xattr(&who, file, &attribute, world.now())), "NoAttribute");
    assert_eq!(names.list_xattrs(&who, file), Ok(Vec::new()));
}

#[test]
fn xattrs_are_bounded_and_removed_with_their_file() {
    let world = fresh();
    let who = user(10, 100, &[]);
    let (file, _) = world.create(&who, "f", 0o600).expect("new");
    let (dir, _) = world.make_dir(&who, "d", 0o700).expect("new");
    let set = |file, text: &str, size: usize| {
        outcome(&world.names.set_xattr(&who, file, &name(text), &vec![7; size], XattrMode::Any, world.now()))
    };
    assert_eq!(set(file, "user.big", MAX_XATTR), "ok");
    assert_eq!(set(file, "user.bigger", MAX_XATTR + 1), "TooLarge");
    assert_eq!(set(file, "user.big2", MAX_XATTR), "ok");
    assert_eq!(set(file, "user.big3", MAX_XATTR), "ok");
    assert_eq!(set(file, "user.big4", MAX_XATTR), "NoSpace", "with the names it is too much");
    assert_eq!(set(file, "user.big3", MAX_XATTR), "ok", "replacing counts once");
    let many = (0..1000).find(|count| set(dir, &format!("user.{count:0>250}"), 0) != "ok");
    assert_eq!(many, Some(256), "256 bytes each in a list of 64 KiB");
    world.names.remove_dir(&who, crate::common::ROOT, &name("d"), world.now()).expect("empty");
    world.check();
    world.names.unlink(&who, crate::common::ROOT, &name("f"), world.now()).expect("there");
    assert_eq!(set(file, "user.late", 1), "ok", "an open file without a name still takes attributes");
    world.names.reap(file, |batch| forebay_store::Kv::commit(&*world.kv, batch)).expect("an orphan");
    world.check();
    assert_eq!(outcome(&world.names.list_xattrs(&who, file)), "NotFound");
}
