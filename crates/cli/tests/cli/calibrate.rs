//! `forebay calibrate`: the best number of writers for each target of a back end.

use crate::support::World;
use serde_json::json;

#[test]
fn calibrate_finds_targets_that_prefer_two_writers() {
    let world = World::empty();
    for dir in ["one", "two"] {
        std::fs::create_dir(world.path(dir)).unwrap();
    }
    let backend = "model:ost,slower=20:stripes:one,two";
    // Other load on this machine only slows writers down: the best of a few runs counts.
    let mut looks = (0..8).map(|_| {
        let found = world.json(&["calibrate", backend, "--writers", "2", "--size", "8MiB", "--json"]);
        found["targets"].as_array().unwrap().clone()
    });
    let targets =
        looks.find(|targets| targets.iter().all(|target| target["alpha"] == 2)).expect("they like two");
    assert_eq!(targets.len(), 2, "{targets:?}");
    for target in targets {
        let rates = target["rates"].as_array().unwrap();
        let writers: Vec<_> = rates.iter().map(|rate| rate["writers"].clone()).collect();
        assert_eq!(writers, [json!(1), json!(2)]);
    }
    for dir in ["one", "two"] {
        let left: Vec<_> =
            std::fs::read_dir(world.path(dir)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".objects"], "no files are left");
    }
    let text = world.well(&["calibrate", "dir:one", "--writers", "1", "--size", "1MiB"]);
    assert!(text.contains('α'), "{text}");
}

#[test]
fn calibrate_reports_unusable_back_ends() {
    let world = World::empty();
    for (args, code, parts) in [
        (&["tape:7"][..], 2, &["tape:7"][..]),
        (&["dir:nowhere"], 1, &["nowhere"]),
        (&["dir:.", "--writers", "0"], 2, &["--writers"]),
        (&["dir:.", "--writers", "8", "--size", "3"], 2, &["--size"]),
        (&["model:ost,faults=1:dir:."], 1, &["injected fault of a modelled target"]),
    ] {
        world.run(&[&["calibrate"], args].concat()).failed(code, parts);
    }
    let left = std::fs::read_dir(world.dir())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("calibrate"));
    assert_eq!(left.count(), 0, "no files are left");
}
