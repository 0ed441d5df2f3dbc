//! A server with a directory as back end.

use crate::support::{World, pattern};

#[test]
fn files_of_the_back_end_appear_and_are_changed() {
    for more in [&[][..], &["--shards", "3"]] {
        appears_and_is_changed(&[&["--backend", "dir:backing"], more].concat());
    }
}

fn appears_and_is_changed(how: &[&str]) {
    let mut world = World::empty();
    world.write("backing/run1/ckpt", "checkpoint");
    world.write("backing/old", "old");
    world.start(how);
    assert_eq!(world.well(&["cat", "/run1/ckpt"]), "checkpoint");
    assert_eq!(world.well(&["ls", "/"]).split_whitespace().collect::<Vec<_>>(), ["old", "run1"]);
    world.well(&["mv", "/run1/ckpt", "/kept"]);
    world.well(&["rm", "/old"]);
    world.write("new", "new");
    world.well(&["put", "new", "/run1/new"]);
    world.kill();
    world.start(how);
    assert_eq!(world.well(&["cat", "/kept", "/run1/new"]), "checkpointnew");
    assert_eq!(std::fs::read(world.path("backing/kept")).unwrap(), b"checkpoint");
    assert!(!world.path("backing/old").exists() && !world.path("backing/run1/ckpt").exists());
    world.write("backing/run1/later", "later");
    assert_eq!(world.well(&["cat", "/run1/later"]), "later");
}

#[test]
fn stripe_set_can_be_the_back_end() {
    let mut world = World::empty();
    std::fs::create_dir(world.path("one")).unwrap();
    std::fs::create_dir(world.path("two")).unwrap();
    world.start(&["--backend", "stripes:one,two"]);
    world.write("new", "new");
    world.well(&["put", "new", "/new"]);
    assert_eq!(world.well(&["ls", "/"]).trim(), "new");
    world.well(&["down"]);
    world.start(&["--backend", "stripes:one,two"]);
    assert_eq!(world.well(&["cat", "/new"]), "new");
}

#[test]
fn invalid_back_ends_are_refused() {
    let world = World::empty();
    let up = |backend| {
        world.run(&["up", "--detach", "--disk", "--store", "s", "--socket", "f", "--backend", backend])
    };
    up("tape:7").failed(1, &["tape:7", "dir:PATH"]);
    up("dir:no/such").failed(1, &["no/such", "No such file"]);
}

#[test]
fn written_files_are_drained_and_reported() {
    let mut world = World::empty();
    std::fs::create_dir(world.path("backing")).unwrap();
    world.start(&["--backend", "dir:backing"]);
    world.write("new", "new".repeat(100_000));
    world.well(&["mkdir", "/run"]);
    world.well(&["put", "new", "/run/a", "--json"]);
    world.well(&["put", "new", "/b"]);
    let status: serde_json::Value = serde_json::from_str(&world.well(&["status", "--json"])).unwrap();
    assert_eq!(
        (&status["drain"]["order"], &status["drain"]["written"]),
        (&"trio".into(), &0.into()),
        "{status}"
    );
    assert!(world.well(&["drain", "/run", "--wait"]).contains("293.0 KiB of 2 entries are drained"));
    assert_eq!(std::fs::read(world.path("backing/run/a")).unwrap().len(), 300_000);
    assert!(!world.path("backing/b").exists(), "only the requested directory is drained");
    let all = world.well(&["drain", "--wait", "--json", "--order", "offset"]);
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!(
        (&all["done"], &all["failed"], &all["drain"]["order"]),
        (&true.into(), &0.into(), &"offset".into()),
        "{all}"
    );
    assert_eq!(std::fs::read(world.path("backing/b")).unwrap().len(), 300_000);
    assert!(world.well(&["status"]).contains("offset, above 20 %"));
    world.well(&["stage", "out", "/run", "/b"]);
    world.run(&["drain", "/none"]).failed(1, &["/none", "forebay ls"]);
    world.run(&["drain", "--order", "chaos"]).failed(1, &["chaos", "trio"]);
    // Another process has created the name in the back end meanwhile.
    world.write("backing/c", "theirs");
    world.well(&["put", "new", "/d"]);
    std::fs::write(world.path("backing/d"), "theirs").unwrap();
    let refused = world.run(&["drain", "--wait"]);
    assert_eq!(refused.code, 1, "{}", refused.out);
    assert!(refused.out.contains("/d") && refused.out.contains("another"), "{}", refused.out);
    assert_eq!(std::fs::read(world.path("backing/d")).unwrap(), b"theirs");
    assert!(world.well(&["status"]).contains("FAILED"));
}

/// Staged data is read from the read cache: a change of the back end that keeps size and times does not change
/// what is read, except for files that were not staged.
#[test]
fn staged_files_are_read_from_the_read_cache() {
    for more in [&[][..], &["--shards", "3"]] {
        let mut world = World::empty();
        let (old, new) = (pattern(700_001, 1), pattern(700_001, 2));
        let files = ["in/a", "in/deep/b", "other"].map(|name| world.write(&format!("backing/{name}"), &old));
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
        let date = |path: &std::path::Path| {
            let file = std::fs::File::options().write(true).open(path).expect("a file");
            file.set_modified(then).expect("its time is set");
        };
        files.iter().for_each(|path| date(path));
        world.start(&[&["--backend", "dir:backing"], more].concat());
        let staged = world.json(&["stage", "in", "/in", "--json"]);
        assert_eq!(
            (&staged["files"], &staged["bytes"], &staged["near"], &staged["full"]),
            (&2.into(), &1_400_002.into(), &1_400_002.into(), &false.into()),
            "{staged}"
        );
        for path in &files {
            let file = std::fs::File::options().write(true).open(path).expect("a file");
            std::os::unix::fs::FileExt::write_all_at(&file, &new, 0).expect("written in its place");
            drop(file);
            date(path);
        }
        for (name, bytes) in [("/in/a", &old), ("/in/deep/b", &old), ("/other", &new)] {
            assert!(world.run(&["cat", name]).well().bytes == *bytes, "{name} {more:?}");
        }
        assert!(
            world
                .well(&["stage", "in", "/in/a"])
                .contains("1 file of 683.6 KiB: 683.6 KiB in the read cache")
        );
        // A regular change in the back end is noticed.
        std::fs::write(&files[0], &new).expect("written");
        assert!(world.run(&["cat", "/in/a"]).well().bytes == new);
        world.run(&["stage", "in", "/none"]).failed(1, &["/none"]);
    }
}
