//! Path walks.

use crate::common::{ROOT, fresh, outcome, user};
use forebay_model::{Error, Identity};
use forebay_store::Walked;

#[test]
fn walks_resolve_paths_and_links() {
    let world = fresh();
    world.build(&["d a 755", "d a/b 755", "f a/b/f 644", "s a/l b/f", "s a/dir b", "f f 644"]);
    let long = "x".repeat(256);
    let (deep, deeper) = ("./".repeat(2048), "./".repeat(2049));
    for (path, follow, expected) in [
        ("", true, "=".to_owned()),
        ("/", true, "=".to_owned()),
        ("///", true, "=".to_owned()),
        (".", true, "=".to_owned()),
        ("..", true, "=".to_owned()),
        ("../../a", true, "=a".to_owned()),
        ("/a", true, "=a".to_owned()),
        ("a/", true, "=a".to_owned()),
        ("a//b///", true, "=a/b".to_owned()),
        ("a/./b/../b/.", true, "=a/b".to_owned()),
        ("a/b/..", true, "=a".to_owned()),
        ("a/b/f", true, "=a/b/f".to_owned()),
        ("a/b/f/", true, "NotDirectory".to_owned()),
        ("a/b/f/.", true, "NotDirectory".to_owned()),
        ("a/b/f/..", true, "NotDirectory".to_owned()),
        ("f/x", true, "NotDirectory".to_owned()),
        ("a/none", true, "NotFound".to_owned()),
        ("a/none/x", true, "NotFound".to_owned()),
        ("a/none/", true, "NotFound".to_owned()),
        ("a/l", false, "=a/l".to_owned()),
        ("a/l", true, "a > b/f > ".to_owned()),
        ("a/l/", false, "a > b/f > /".to_owned()),
        ("a/dir", false, "=a/dir".to_owned()),
        ("a/dir/", false, "a > b > /".to_owned()),
        ("a/dir//f", false, "a > b > f".to_owned()),
        ("a/dir/f/", false, "a > b > f/".to_owned()),
        ("a/dir/../f", true, "a > b > ../f".to_owned()),
        (&long, true, "NameTooLong".to_owned()),
        ("a\0b", true, "Invalid".to_owned()),
        (&deep, true, "=".to_owned()),
        (&deeper, true, "NameTooLong".to_owned()),
    ] {
        let got = match world.names.walk(&Identity::root(), ROOT, path.as_bytes(), follow) {
            Ok(Walked::Found(id, inode)) => {
                assert_eq!(world.names.inode(id).as_ref(), Ok(&*inode));
                let places = ["", "a", "a/b", "a/b/f", "a/l", "a/dir"];
                let place = places.iter().find(|&&place| world.id(place) == id).expect("a known place");
                format!("={place}")
            }
            Ok(Walked::Link { dir, target, rest }) => {
                assert_eq!(dir, world.id("a"));
                format!("a > {} > {}", target.escape_ascii(), rest.escape_ascii())
            }
            Ok(away) => panic!("single server expected: {away:?}"),
            Err(error) => format!("{:?}", Error::from(error).kind()),
        };
        assert_eq!(got, expected, "{path:.40} follow: {follow}");
    }
}

#[test]
fn a_walk_can_start_anywhere() {
    let world = fresh();
    world.build(&["d a 755", "f f 644", "s s a"]);
    let walk = |from: &str, path: &str| {
        outcome(&world.names.walk(&Identity::root(), world.id(from), path.as_bytes(), true))
    };
    assert_eq!(walk("f", ""), "ok");
    assert_eq!(walk("f", "/"), "NotDirectory");
    assert_eq!(walk("f", "."), "NotDirectory");
    assert_eq!(walk("s", "x"), "NotDirectory");
    assert_eq!(walk("a", "../f"), "ok");
    assert_eq!(
        outcome(&world.names.walk(&Identity::root(), forebay_model::FileId(999), b"", true)),
        "NotFound"
    );
}

#[test]
fn every_directory_on_the_path_must_be_searchable() {
    let world = fresh();
    world.build(&["d a 711", "d a/b 700 10:100", "d a/b/c 777", "f a/f 600"]);
    let (owner, other) = (user(10, 100, &[]), user(11, 101, &[]));
    for (path, owners, others) in [
        ("a/f", "ok", "ok"),
        ("a/none", "NotFound", "NotFound"),
        ("a/b", "ok", "ok"),
        ("a/b/", "ok", "ok"),
        ("a/b/.", "ok", "AccessDenied"),
        ("a/b/..", "ok", "AccessDenied"),
        ("a/b/c", "ok", "AccessDenied"),
        ("a/b/none", "NotFound", "AccessDenied"),
    ] {
        for (who, expected) in [(&owner, owners), (&other, others), (&Identity::root(), owners)] {
            let walked = world.names.walk(who, ROOT, path.as_bytes(), true);
            assert_eq!(outcome(&walked), expected, "{path} user {}", who.uid);
        }
    }
}

#[test]
fn cached_path_is_checked_only_while_it_is_still_correct() {
    let world = fresh();
    world.build(&["d a 755", "d a/b 700 10:100", "d a/b/c 777", "d e 755"]);
    let (dir, other) = (world.id("a/b/c"), user(11, 101, &[]));
    let leads = |path: &str| {
        let path: Vec<_> = path.split('/').map(crate::common::name).collect();
        match world.names.leads_to(&other, &path, dir) {
            Ok(leads) => leads.to_string(),
            refused => outcome(&refused),
        }
    };
    for (path, expected) in [
        ("a/b/c", "AccessDenied"),
        ("e/b/c", "false"),
        ("b/c", "false"),
        ("x/a/b/c", "false"),
        ("a/b/d", "false"),
    ] {
        assert_eq!(leads(path), expected, "{path}");
    }
}
