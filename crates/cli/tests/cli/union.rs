//! A server before a directory.

use crate::support::World;

#[test]
fn a_directory_behind_appears_and_is_changed() {
    for more in [&[][..], &["--servers", "3"]] {
        appears_and_is_changed(&[&["--backend", "dir:behind"], more].concat());
    }
}

fn appears_and_is_changed(how: &[&str]) {
    let mut world = World::empty();
    world.write("behind/run1/ckpt", "checkpoint");
    world.write("behind/old", "old");
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
    assert_eq!(std::fs::read(world.path("behind/kept")).unwrap(), b"checkpoint");
    assert!(!world.path("behind/old").exists() && !world.path("behind/run1/ckpt").exists());
    world.write("behind/run1/later", "later");
    assert_eq!(world.well(&["cat", "/run1/later"]), "later");
}

#[test]
fn a_stripe_set_can_stand_behind_too() {
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
fn a_back_end_that_cannot_be_is_refused() {
    let world = World::empty();
    let up = |backend| {
        world.run(&["up", "--detach", "--disk", "--store", "s", "--socket", "f", "--backend", backend])
    };
    up("tape:7").failed(1, &["tape:7", "dir:PATH"]);
    up("dir:no/such").failed(1, &["no/such", "No such file"]);
}

#[test]
fn what_is_written_is_drained_and_told() {
    let mut world = World::empty();
    std::fs::create_dir(world.path("behind")).unwrap();
    world.start(&["--backend", "dir:behind"]);
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
    assert!(world.well(&["drain", "/run", "--wait"]).contains("293.0 KiB of 2 entries are out"));
    assert_eq!(std::fs::read(world.path("behind/run/a")).unwrap().len(), 300_000);
    assert!(!world.path("behind/b").exists(), "only what was asked for");
    let all = world.well(&["drain", "--wait", "--json", "--order", "offset"]);
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!(
        (&all["done"], &all["failed"], &all["drain"]["order"]),
        (&true.into(), &0.into(), &"offset".into()),
        "{all}"
    );
    assert_eq!(std::fs::read(world.path("behind/b")).unwrap().len(), 300_000);
    assert!(world.well(&["status"]).contains("offset, above 20 %"));
    world.well(&["stage", "out", "/run", "/b"]);
    world.run(&["drain", "/none"]).failed(1, &["/none", "forebay ls"]);
    world.run(&["drain", "--order", "chaos"]).failed(1, &["chaos", "trio"]);
    // Somebody else has the name by now.
    world.write("behind/c", "theirs");
    world.well(&["put", "new", "/d"]);
    std::fs::write(world.path("behind/d"), "theirs").unwrap();
    let refused = world.run(&["drain", "--wait"]);
    assert_eq!(refused.code, 1, "{}", refused.out);
    assert!(refused.out.contains("/d") && refused.out.contains("another"), "{}", refused.out);
    assert_eq!(std::fs::read(world.path("behind/d")).unwrap(), b"theirs");
    assert!(world.well(&["status"]).contains("NOT OUT"));
}
