//! put, get, cat.

use crate::support::{World, pattern, text};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

#[test]
fn files_of_all_sizes_are_copied_in_and_out_unchanged() {
    const PIECE: usize = 8 << 20;
    let world = World::up();
    let sizes = [0, 1, 4095, 65_537, PIECE - 1, PIECE, PIECE + 1, 4 * PIECE + 12_345];
    for (seed, size) in sizes.into_iter().enumerate() {
        let bytes = pattern(size, seed as u8);
        let from = world.write("from", &bytes);
        let printed = world.well(&["put", text(&from), "/f"]);
        assert!(printed.starts_with("put 1 file, "), "{printed}");
        let printed = world.well(&["get", "/f", "to"]);
        assert!(printed.starts_with("got 1 file, "), "{printed}");
        assert!(std::fs::read(world.path("to")).unwrap() == bytes, "{size} bytes differ after get");
        assert!(world.run(&["cat", "/f"]).well().bytes == bytes, "{size} bytes differ after cat");
        assert_eq!(world.json(&["stat", "/f", "--json"])[0]["size"], size);
        world.well(&["rm", "/f"]);
    }
}

#[test]
fn a_shorter_file_replaces_a_longer_one() {
    let world = World::up();
    world.write("long", pattern(100_000, 1));
    world.write("short", "short");
    world.well(&["put", "long", "/f"]);
    world.well(&["put", "short", "/f"]);
    assert_eq!(world.well(&["cat", "/f"]), "short");
    world.well(&["get", "/f", "long"]);
    assert_eq!(std::fs::read(world.path("long")).unwrap(), b"short");
}

#[test]
fn standard_input_and_output() {
    let world = World::up();
    for input in [pattern(10 << 20, 7), Vec::new()] {
        let printed = world.fed(&["put", "-", "/stream"], &input).well().out;
        assert!(printed.starts_with("put 1 file"), "{printed}");
        assert!(world.run(&["get", "/stream", "-"]).well().bytes == input);
    }
    world.write("a", "one ");
    world.write("b", "two");
    world.well(&["put", "a", "b", "/"]);
    assert_eq!(world.well(&["cat", "/a", "/b"]), "one two");
    world.fed(&["put", "-", "/"], b"x").failed(1, &["/ is a directory", "name a file"]);
    world.run(&["put", "-", "a", "/"]).failed(2, &["standard input"]);
}

fn make_tree(world: &World) {
    for (name, size) in [("a", 10), ("sub/b", 100_000), ("sub/deeper/c", 0), (".hidden", 3)] {
        world.write(&format!("tree/{name}"), pattern(size, 3));
    }
    std::fs::create_dir(world.path("tree/empty")).unwrap();
    symlink("sub/b", world.path("tree/link")).unwrap();
    symlink("nowhere", world.path("tree/dangling")).unwrap();
    let exe = world.path("tree/a");
    std::fs::set_permissions(exe, PermissionsExt::from_mode(0o750)).unwrap();
}

fn same_trees(a: &Path, b: &Path) {
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(a), names(b));
    for name in names(a) {
        let (a, b) = (a.join(&name), b.join(&name));
        let (kind, mode) = (a.symlink_metadata().unwrap(), b.symlink_metadata().unwrap());
        assert_eq!(kind.file_type(), mode.file_type(), "{name:?}");
        assert_eq!(kind.permissions().mode(), mode.permissions().mode(), "{name:?}");
        if kind.is_symlink() {
            assert_eq!(std::fs::read_link(a).unwrap(), std::fs::read_link(b).unwrap());
        } else if kind.is_dir() {
            same_trees(&a, &b);
        } else {
            assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{name:?} differs");
        }
    }
}

#[test]
fn directories_are_copied_in_and_out_unchanged() {
    let world = World::up();
    make_tree(&world);
    world.run(&["put", "tree", "/"]).failed(1, &["cannot put tree", "directory", "put -r"]);
    let summary = world.json(&["put", "-r", "tree", "/", "--json"]);
    assert_eq!((&summary["files"], &summary["directories"]), (&6.into(), &4.into()));
    assert_eq!((&summary["bytes"], &summary["failed"]), (&100_013.into(), &0.into()));
    world.run(&["get", "/tree", "back"]).failed(1, &["cannot get /tree", "directory", "get -r"]);
    let summary = world.json(&["get", "-r", "/tree", "back", "--json"]);
    assert_eq!((&summary["files"], &summary["directories"]), (&6.into(), &4.into()));
    same_trees(&world.path("tree"), &world.path("back"));
    // Copy again over existing files: into a directory of that name.
    world.well(&["put", "-r", "tree", "/"]);
    std::fs::create_dir(world.path("into")).unwrap();
    world.well(&["get", "-r", "/tree", "into"]);
    world.well(&["get", "-r", "/tree", "into"]);
    same_trees(&world.path("tree"), &world.path("into/tree"));
}

#[test]
fn failed_copies_are_reported_and_the_rest_continues() {
    let world = World::up();
    world.write("good", "good");
    world.well(&["mkdir", "/d"]);
    let ran = world.run(&["put", "good", "missing", "/d", "--json"]);
    ran.failed(1, &["cannot read missing: no such file or directory"]);
    let summary: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&summary["files"], &summary["failed"]), (&1.into(), &1.into()));
    assert_eq!(world.well(&["cat", "/d/good"]), "good");
    let ran = world.run(&["get", "/d/good", "/d/missing", "."]);
    ran.failed(1, &["missing"]);
    assert_eq!(std::fs::read(world.path("good")).unwrap(), b"good");
    world.run(&["put", "good", "good", "/new"]).failed(1, &["/new is not a directory"]);
}
