//! bench io.

use crate::support::World;
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

#[test]
fn results_are_saved_and_compared_with_the_previous_run() {
    let world = World::empty();
    let kept = |name| std::fs::read_to_string(world.path("kept").join(name)).expect("it was written");
    let first = world.json(&["bench", "io", "names", "--quick", "--json", "--out", "kept"]);
    for party in ["tmpfs", "forebay unix, blocking", "forebay tcp, async, depth 4"] {
        let create = |figure: &&Value| figure["party"] == party && figure["work"] == "create";
        let figure = first["figures"].as_array().unwrap().iter().find(create).expect(party);
        let rate = |key: &str| figure[key].as_f64().unwrap();
        assert!(0.0 < rate("lowest") && rate("lowest") <= rate("median"), "{figure}");
        assert!(rate("median") <= rate("highest"), "{figure}");
    }
    assert!(first["set_up_seconds"].as_f64().unwrap() > 0.0);
    let mut slow: Value = serde_json::from_str(&kept("latest.json")).expect("a report");
    assert_eq!(slow, first);
    // The previous report is a hundred times faster: the change must be reported.
    for figure in slow["figures"].as_array_mut().unwrap() {
        for (_, ratio) in figure["ratios"].as_object_mut().unwrap() {
            *ratio = Value::from(ratio.as_f64().unwrap() / 100.0);
        }
    }
    world.write("kept/latest.json", slow.to_string());
    let printed = world.run(&["bench", "io", "names", "--quick", "--out", "kept"]).out;
    assert!(printed.contains("moved by more than a tenth since the last run:\n"), "{printed}");
    let page = kept("index.html");
    for part in ["Since the last run", "forebay unix, blocking", "create <small>op/s</small>"] {
        assert!(page.contains(part), "{part} is not in the page");
    }
}

#[test]
fn crowd_of_two_processes_reports_every_part_and_leaves_nothing() {
    let world = World::empty();
    let dir = world.path("crowd");
    let mut command = world.command(&["bench-step", "crowd"]);
    command.arg(&dir).args(["2", "1", "4", "3", "2"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut crowd = command.spawn().expect("the binary runs");
    crowd.stdin.take().expect("it is piped").write_all(b"go\n").expect("it reads");
    let output = crowd.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("text");
    let (ready, times) = text.split_once('\n').expect("two lines");
    let times: Vec<u64> = times.split_whitespace().map(|word| word.parse().expect("nanoseconds")).collect();
    assert!(output.status.success() && ready == "ready" && times.len() == 7, "{text}");
    assert!(times.iter().all(|&time| time > 0) && !dir.exists(), "{times:?}");
}

#[test]
fn unknown_section_is_a_usage_error() {
    World::empty().run(&["bench", "io", "speed"]).failed(2, &["unknown section \"speed\"", "programs"]);
}
