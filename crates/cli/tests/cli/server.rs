//! up, down, status, store.

use crate::support::{World, pattern, run, text};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

#[test]
fn background_server_answers_and_stops() {
    let mut world = World::empty();
    let started = world.start(&[]);
    assert_eq!(started["capacity"], 128_u64 << 20);
    assert_eq!(started["store"], text(&world.path("store")));
    assert_eq!(started["log"], text(&world.path("store.log")));
    let status = world.json(&["status", "--json"]);
    assert_eq!(status["pid"], started["pid"]);
    assert_eq!((&status["medium"], &status["recovery"]["clean"]), (&"disk".into(), &true.into()));
    let shown = world.well(&["status"]);
    for part in ["server 0 (forebay ", "store     ", "buffer    ", "regions   ", "interactive-"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let again = world.command(&["up", "--detach", "--store", "store", "--socket", "sock2"]);
    run(again).failed(1, &["is in use by process", "forebay down"]);
    assert_eq!(world.well(&["down"]), "");
    world.run(&["down"]).failed(1, &["cannot reach the service at unix:", "start one with \"forebay up\""]);
    let inspected = world.json(&["store", "inspect", "store", "--json"]);
    assert_eq!(inspected["clean"], true);
    let log = std::fs::read_to_string(world.path("store.log")).unwrap();
    assert!(log.contains("serving") && log.contains("stopped"), "{log}");
}

#[test]
fn killed_server_keeps_acknowledged_data() {
    let mut world = World::up();
    let (first, second) = (pattern(9 << 20, 1), pattern(70_000, 2));
    world.write("first", &first);
    world.write("second", &second);
    world.well(&["mkdir", "/d"]);
    world.well(&["put", "first", "/d"]);
    world.kill();
    world.run(&["ls"]).failed(1, &["cannot reach the service", "connection refused"]);
    let started = world.start(&[]);
    assert_eq!(started["recovery"]["clean"], false);
    assert_eq!(started["recovery"]["live_bytes"], first.len());
    world.well(&["put", "second", "/d"]);
    world.kill();
    world.start(&[]);
    assert!(world.run(&["cat", "/d/first"]).well().bytes == first);
    assert!(world.run(&["cat", "/d/second"]).well().bytes == second);
    assert!(world.well(&["status"]).contains("after the server died: "));
}

#[test]
fn foreground_server_prints_its_address_and_stops_gracefully() {
    let world = World::empty();
    for signal in [Signal::TERM, Signal::INT] {
        let mut command =
            world.command(&["up", "--disk", "--with-parent", "--store", "store", "--socket", "sock"]);
        command.args(["--capacity", "64MiB", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut server = command.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
        let printed: Vec<String> = lines.take_while(|line| !line.contains("stop it")).collect();
        let printed = printed.join("\n");
        for part in
            ["forebay ", "capacity  64 MiB, disk", "/sock", "tcp       127.0.0.1:", "FOREBAY_SERVICE="]
        {
            assert!(printed.contains(part), "{part} is not in {printed}");
        }
        world.well(&["ls"]);
        kill_process(Pid::from_child(&server), signal).unwrap();
        assert!(server.wait().unwrap().success());
        assert!(!world.path("sock").exists());
        assert_eq!(world.json(&["store", "inspect", "store", "--json"])["clean"], true);
    }
}

#[test]
fn tcp_needs_the_key() {
    let mut world = World::empty();
    let started = world.start(&["--listen", "127.0.0.1:0"]);
    let address = format!("tcp:{}", started["tcp"].as_str().unwrap());
    let key = started["key"].as_str().unwrap().to_owned();
    assert_eq!(std::fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
    let bare = world.run(&["ls", "--service", &address]);
    bare.failed(1, &["cannot reach the service at tcp:", "--key"]);
    world.write("f", pattern(100_000, 1));
    world.well(&["put", "f", "/", "--service", &address, "--key", &key]);
    let mut command = world.command(&["cat", "/f"]);
    command.env("FOREBAY_SERVICE", &address).env("FOREBAY_KEY", &key);
    assert!(run(command).well().bytes == pattern(100_000, 1));
    world.write("wrong.key", "0".repeat(64));
    world
        .run(&["ls", "--service", &address, "--key", "wrong.key"])
        .failed(1, &["cannot reach the service at tcp:"]);
    world.run(&["ls", "--service", &address, "--key", "none"]).failed(1, &["cannot read the key file none"]);
}

#[test]
fn stores_are_inspected_replaced_and_removed() {
    let mut world = World::up();
    world.write("f", pattern(100_000, 1));
    world.well(&["put", "f", "/"]);
    let live = world.well(&["store", "inspect", "store"]);
    assert!(live.contains("in use, or its server died") && live.contains("97.7 KiB"), "{live}");
    let records = world.json(&["store", "inspect", "store", "--records", "--json"]);
    assert_eq!(records["regions"][0]["journal"][0]["len"], 100_000);
    assert!(world.well(&["store", "inspect", "store", "--records"]).contains("journal of region 0"));
    world.run(&["store", "remove", "store", "--yes"]).failed(1, &["is in use by process"]);
    world.well(&["down"]);
    world.run(&["store", "replace", "store"]).failed(2, &["still there", "--yes"]);
    assert!(world.well(&["store", "replace", "store", "--disk", "--yes"]).contains("goes on as incarnation"));
    let replaced = world.json(&["store", "replace", "store", "--disk", "--yes", "--json"]);
    let inspected = world.json(&["store", "inspect", "store", "--json"]);
    assert_eq!((&replaced["store"], &replaced["incarnation"]), (&"store".into(), &inspected["incarnation"]));
    world.start(&[]);
    world.run(&["cat", "/f"]).failed(1, &["/f"]);
    assert_eq!(world.well(&["ls"]), "f\n");
    world.well(&["down"]);
    world.run(&["store", "remove", "store"]).failed(2, &["--yes"]);
    world.well(&["store", "remove", "store", "--yes"]);
    assert!(!world.path("store").exists());
    world.start(&[]);
    world.well(&["down"]);
    assert_eq!(world.json(&["store", "remove", "store", "--yes", "--json"])["removed"], "store");
    assert!(!world.path("store").exists());
    world.run(&["store", "inspect", "store"]).failed(1, &["cannot read", "check the path"]);
}

#[test]
fn existing_store_keeps_its_capacity() {
    let mut world = World::up();
    world.well(&["down"]);
    let mut command =
        world.command(&["up", "--detach", "--json", "--disk", "--store", "store", "--socket", "sock"]);
    command.stdin(Stdio::null());
    let started: serde_json::Value = serde_json::from_str(&run(command).well().out).unwrap();
    assert_eq!(started["capacity"], 128_u64 << 20);
    let log = std::fs::read_to_string(world.path("store.log")).unwrap();
    assert!(!log.contains("WARN"), "{log}");
    world.well(&["down"]);
    world.start(&[]);
}
