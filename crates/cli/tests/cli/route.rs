//! `forebay route`: which writes of a trace would be buffered; routing of a running service.

use crate::support::World;
use serde_json::{Value, json};

/// A trace of four streams of four writes of 10 bytes and a fifth of one write: sequential, random, random,
/// sequential, one.
fn trace(heading: &str) -> String {
    let offsets =
        [[0, 10, 20, 30], [500, 100, 300, 700], [1000, 5000, 3000, 4000], [20, 0, 10, 30], [0, 10, 50, 60]];
    let lines = offsets.iter().flatten().map(|offset| format!("run/ckpt, no. 7,{offset},10\n"));
    heading.to_owned() + &lines.take(18).collect::<String>()
}

fn stream(index: u64, requests: u64, random: u64, percent: f64, decision: &str) -> Value {
    json!({"index": index, "requests": requests, "random": random, "percent": percent, "decision": decision})
}

#[test]
fn trace_is_routed_stream_by_stream() {
    let world = World::empty();
    world.write("trace.csv", trace(""));
    let routed = world.json(&["route", "trace.csv", "--stream", "4", "--json"]);
    let last = json!({"index": 4, "requests": 2, "random": 0, "percent": 0.0});
    let streams = [
        stream(0, 4, 0, 0.0, "direct"),
        stream(1, 4, 3, 1.0, "buffer"),
        stream(2, 4, 3, 1.0, "buffer"),
        stream(3, 4, 0, 0.0, "direct"),
        last,
    ];
    assert_eq!(routed, json!({"streams": streams, "buffered_bytes": 80, "direct_bytes": 100}));

    world.write("headed.csv", trace("file,offset,size\r\n\n"));
    assert_eq!(world.json(&["route", "headed.csv", "--stream", "4", "--json"]), routed);
    let text = world.well(&["route", "trace.csv", "--stream", "4"]);
    assert!(text.contains("buffered 80 B (44.4 %)"), "{text}");
    // Thresholds that are never crossed.
    let calm = world.json(&["route", "trace.csv", "--stream", "4", "--high", "1", "--low", "0", "--json"]);
    assert_eq!((&calm["buffered_bytes"], &calm["direct_bytes"]), (&json!(0), &json!(180)));
    // One incomplete stream; and an empty trace.
    let one = world.json(&["route", "trace.csv", "--json"]);
    assert_eq!(one["streams"][0]["requests"], 18);
    assert_eq!(one["streams"][0].get("decision"), None);
    world.write("empty.csv", "");
    let none = world.json(&["route", "empty.csv", "--json"]);
    assert_eq!(none, json!({"streams": [], "buffered_bytes": 0, "direct_bytes": 0}));
}

#[test]
fn extreme_numbers_are_routed() {
    let world = World::empty();
    world.write(
        "edges.csv",
        "a,9223372036854775800,8\na,9223372036854775808,0\na,9223372036854775808,18446744073709551615\n\
         a,18446744073709551615,18446744073709551615\nb,0,0\nb,0,0\n",
    );
    let routed = world.json(&["route", "edges.csv", "--stream", "6", "--json"]);
    assert_eq!(routed["streams"], json!([stream(0, 6, 2, 0.4, "direct")]));
    let out = world.well(&["route", "edges.csv", "--json"]);
    assert!(out.contains("\"direct_bytes\": 36893488147419103238"), "{out}");
}

#[test]
fn trace_errors_name_the_line() {
    let world = World::empty();
    for (bytes, parts) in [
        (&b"a,0,1\na,1\n"[..], &["bad.csv:2", "three columns"][..]),
        (b"file,offset,size\na,0,1\n\na,one,1\n", &["bad.csv:4", "\"one\"", "offset"]),
        (b"a,0,-1\n", &["bad.csv:1", "\"-1\"", "size"]),
        (b"a,0,18446744073709551616\n", &["bad.csv:1", "18446744073709551616"]),
        (b"a,0,1\n,0,1\n", &["bad.csv:2", "no name"]),
        (b"a,0,1\n\xff,0,1\n", &["bad.csv:2", "not UTF-8"]),
        (&[b'a'; 20_000], &["bad.csv:1", "too long"]),
        (b"a,0,1\nfile,offset,size\n", &["bad.csv:2", "\"offset\""]),
    ] {
        world.write("bad.csv", bytes);
        world.run(&["route", "bad.csv", "--json"]).failed(2, parts);
    }
    world.write("good.csv", "a,0,1\n");
    for (args, parts) in [
        (&["--high", "0.3", "--low", "0.45"][..], &["0.3", "0.45", "low ≤ high"][..]),
        (&["--high", "1.5"], &["1.5"]),
        (&["--low=-0.1"], &["-0.1"]),
        (&["--high", "NaN"], &["NaN"]),
        (&["--stream", "1"], &["1 is not a stream length", "2 to"]),
        (&["--stream", "many"], &["many"]),
    ] {
        world.run(&[&["route", "good.csv"], args].concat()).failed(2, parts);
    }
    world.run(&["route", "none.csv"]).failed(1, &["none.csv"]);
    world.run(&["route", "."]).failed(1, &["read"]);
}

#[test]
fn route_mode_is_changed_while_servers_run() {
    for how in [&[][..], &["--shards", "3"]] {
        let mut world = World::empty();
        std::fs::create_dir(world.path("backing")).unwrap();
        world.start(&[&["--backend", "dir:backing"], how].concat());
        let each = |key: &str| -> Vec<Value> {
            let status = world.json(&["status", "--json"]);
            match status["servers"].as_array() {
                Some(all) => all.iter().map(|server| server["status"]["route"][key].clone()).collect(),
                None => vec![status["route"][key].clone()],
            }
        };
        let is_all = |key: &str, value: Value| each(key).into_iter().all(|found| found == value);
        assert!(is_all("mode", json!("buffer")));
        world.write("new", vec![7; 300_000]);
        world.well(&["put", "new", "/buffered"]);
        world.well(&["policy", "route", "direct"]);
        assert!(is_all("mode", json!("direct")));
        world.well(&["put", "new", "/direct"]);
        assert!(!is_all("direct", json!(0)), "{:?}", each("direct"));
        assert!(is_all("waits", json!(0)) && is_all("waited", json!(0)), "counters are shown");
        assert_eq!(world.well(&["cat", "/buffered", "/direct"]).len(), 600_000);
        world.run(&["policy", "route", "sometimes"]).failed(2, &["sometimes", "overflow"]);
    }
    World::up().run(&["policy", "route", "direct"]).failed(1, &["--backend"]);
}

#[test]
fn full_buffer_counts_waiters_and_warns_once() {
    let mut world = World::empty();
    std::fs::create_dir(world.path("backing")).unwrap();
    let disk = format!("model:hdd,slower=32:dir:{}", world.path("backing").display());
    world.start(&["--backend", &disk]);
    world.write("burst", vec![7; 32 << 20]);
    let (mut waits, mut puts) = (0, 0);
    // Far more arrives than is drained: the buffer becomes full, and full again.
    for time in ["first", "second"] {
        let before = waits;
        while waits == before {
            assert!(puts < 40, "no writer waited for the {time} time");
            world.well(&["put", "burst", &format!("/{puts}")]);
            waits = world.json(&["status", "--json"])["route"]["waits"].as_u64().expect("a count");
            puts += 1;
        }
    }
    let log = std::fs::read_to_string(world.path("store.log")).unwrap();
    assert_eq!(log.matches("the buffer is full: writers wait for the drain").count(), 1, "{log}");
}

#[test]
fn bench_route_runs_a_small_scenario() {
    let world = World::empty();
    let text = "title = 'small'\nlink = '1GB/s'\nrequest = '16KiB'\nslower = 0.01\nwriters = [2]\ncapacity = [200]\n\
                ways = ['direct', 'buffer', 'traffic', 'traffic-no-pipeline', 'overflow', 'buffer-pipeline', 'plain']\n\
                queue = [8]\ngrain = 2\n\
                [[burst]]\npattern = 'segmented-contiguous'\nbytes = '2MiB'\n\
                [[burst]]\npattern = 'segmented-random'\nbytes = '2MiB'\n";
    world.write("small.toml", text);
    let report = world.json(&["bench", "route", "small.toml", "--json", "--out", "pictures"]);
    assert!(world.path("pictures/small.svg").exists());
    let runs = report["runs"].as_array().expect("runs");
    let found: Vec<(&str, f64)> =
        runs.iter().map(|run| (run["way"].as_str().unwrap(), run["buffered"].as_f64().unwrap())).collect();
    assert_eq!(found.len(), 7, "{report}");
    for (way, least, most) in [
        ("plain", 0.0, 0.0),
        ("direct", 0.0, 0.2),
        ("buffer", 1.0, 1.0),
        ("buffer-pipeline", 1.0, 1.0),
        ("traffic", 0.3, 0.5),
        ("traffic-no-pipeline", 0.3, 0.5),
    ] {
        let (_, buffered) = found.iter().find(|(name, _)| *name == way).expect(way);
        assert!((least..=most).contains(buffered), "{way}: {buffered} in {report}");
    }
    for run in runs {
        assert!(run["throughput"].as_f64() > Some(0.0), "{run}");
    }
    let cluster = text.replace("grain = 2", "grain = 2\nservers = 2\ndisks = 2");
    world.write("several.toml", cluster.replace("'traffic-no-pipeline', 'overflow', ", ""));
    let report = world.json(&["bench", "route", "several.toml", "--json"]);
    for run in report["runs"].as_array().expect("runs") {
        let (way, buffered) = (run["way"].as_str().expect("a way"), run["buffered"].as_f64());
        assert!(!way.starts_with("buffer") || buffered == Some(1.0), "{run}");
        assert!(run["throughput"].as_f64() > Some(0.0), "{run}");
    }
    let complaint = world.run(&["bench", "route", "nothing.toml"]);
    assert_ne!(complaint.code, 0);
    assert!(complaint.err.contains("nothing.toml"), "{}", complaint.err);
}
