//! Several servers in one process.

use crate::support::{World, pattern, text};

#[test]
fn several_servers_are_one_service() {
    let mut world = World::empty();
    let started = world.start(&["--shards", "3"]);
    assert_eq!(started["servers"], 3);
    world.well(&["mkdir", "/d"]);
    world.well(&["layout", "set", "/d", "--stripe", "1MiB"]);
    assert!(world.well(&["layout", "show", "/d"]).contains("all servers, stripes of 1 MiB"));
    let bytes = pattern(5 << 20, 3);
    world.write("big", &bytes);
    world.well(&["put", "big", "/d"]);
    assert!(world.run(&["cat", "/d/big"]).well().bytes == bytes);
    let layout = world.json(&["layout", "show", "/d/big", "--json"]);
    assert_eq!(layout["layout"]["servers"].as_array().map(Vec::len), Some(3));
    let status = world.json(&["status", "--json"]);
    let servers = status["servers"].as_array().expect("a list");
    assert_eq!(servers.len(), 3);
    assert!(servers.iter().all(|server| server["status"]["standing"] == "Joined"), "{status}");
    assert!(world.well(&["status", "--long"]).contains("server 2 (forebay "));
    world.run(&["shard", "replace", "7"]).failed(2, &["shard 7 is not one of several shards"]);
    assert_eq!(world.well(&["down"]), "");
    let stores = ["store", "store.1", "store.2"].map(|name| text(&world.path(name)).to_owned());
    let check = ["check", &stores[0], &stores[1], &stores[2]];
    assert_eq!(world.well(&check), "nothing is wrong\n");
    world
        .run(&["up", "--detach", "--store", "store", "--disk"])
        .failed(1, &["belongs to a service of servers 0, 1, 2"]);
}

#[test]
fn capacity_is_divided_between_the_servers_of_a_machine() {
    let mut world = World::empty();
    world.start(&["--shards", "3"]);
    // Each of three servers has a third of 128 MiB, in whole regions of 1 MiB.
    let capacities = || {
        ["store", "store.1", "store.2"]
            .map(|name| forebay_store::capacity_of(&world.path(name)).unwrap().expect("a store").0 >> 20)
    };
    assert_eq!(capacities(), [43; 3]);
    world.well(&["down"]);
    let again =
        ["up", "--detach", "--json", "--disk", "--store", "store", "--socket", "sock", "--shards", "3"];
    let started: serde_json::Value = serde_json::from_str(&world.run(&again).well().out).unwrap();
    world.watch(started["pid"].as_u64().expect("a process"));
    let log = std::fs::read_to_string(world.path("store.log")).unwrap();
    assert!(!log.contains("and keeps it"), "{log}");
}

#[test]
fn capacity_above_free_memory_is_refused_before_allocation() {
    let world = World::empty();
    for how in ["--memory", "--disk"] {
        let args = ["up", "--store", "huge", "--socket", "s", "--shards", "4", "--capacity", "4096GiB", how];
        world.run(&args).failed(1, &["takes 4.", " are free ", "ask for less with --capacity"]);
        assert!(!world.path("huge").join("regions").exists() && !world.path("huge.1").exists(), "{how}");
    }
}

#[test]
fn server_lowers_its_oom_score() {
    let lowered = std::process::Command::new("sh")
        .args(["-c", "echo -500 > /proc/self/oom_score_adj"])
        .stderr(std::process::Stdio::null())
        .status();
    if !lowered.is_ok_and(|status| status.success()) {
        let test = "server_lowers_its_oom_score";
        return forebay_testkit::skip(test, "oom_score_adj may not be lowered here");
    }
    let mut world = World::empty();
    let started = world.start(&[]);
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", started["pid"])).unwrap();
    assert_eq!(score.trim(), "-500");
}
