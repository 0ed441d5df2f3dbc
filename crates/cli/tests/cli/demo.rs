//! `forebay demo` with little data.

use crate::support::{World, run};
use forebay_testkit::{Seeded, until};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;
use std::time::Duration;

fn leftovers(world: &World) -> Vec<String> {
    let list = std::fs::read_dir(world.path("tmp")).unwrap();
    list.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn demo_keeps_every_byte_and_removes_its_files() {
    let world = World::empty();
    std::fs::create_dir(world.path("tmp")).unwrap();
    let mut command = world.command(&["demo", "--json", "--size", "384MiB"]);
    command.env("TMPDIR", world.path("tmp"));
    let report: serde_json::Value = serde_json::from_str(&run(command).well().out).unwrap();
    let jobs = report["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 4);
    for job in jobs {
        assert_eq!((&job["verified"], &job["wrong"]), (&(96 << 20).into(), &0.into()), "{job}");
    }
    let (large, small) = (&report["sharing"][0], &report["sharing"][1]);
    assert!(large["share"].as_f64() > small["share"].as_f64(), "{large} {small}");
    let (ordered, random) = (&report["routing"][0], &report["routing"][1]);
    assert_eq!((&ordered["direct"], &ordered["buffered"]), (&(32 << 20).into(), &0.into()), "{ordered}");
    assert!(random["buffered"].as_u64() >= Some(16 << 20), "{random}");
    let (arrival, trio) = (&report["draining"][0], &report["draining"][1]);
    assert_eq!(
        (&arrival["order"], &trio["order"]),
        (&"arrival".into(), &"trio quantum=8MiB".into()),
        "{report}"
    );
    assert!(trio["jobs"][0].as_f64() < trio["jobs"][2].as_f64(), "the smallest job is out first: {report}");
    for job in 0..3 {
        assert!(
            arrival["jobs"][job].as_f64() > Some(0.0) && trio["jobs"][job].as_f64() > Some(0.0),
            "{report}"
        );
    }
    let crash = &report["crash"];
    assert!(crash["recovery"]["records"].as_u64().unwrap() > 0, "{crash}");
    assert_eq!(crash["recovery"]["clean"], false);
    assert_eq!(leftovers(&world), Vec::<String>::new());
}

#[test]
fn interrupted_demo_cleans_up() {
    let world = World::empty();
    std::fs::create_dir(world.path("tmp")).unwrap();
    let mut command = world.command(&["demo", "--size", "384MiB"]);
    command.env("TMPDIR", world.path("tmp")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // At a random time after the start, between the first and the last step.
    until("the demo starts", || !leftovers(&world).is_empty() || child.try_wait().unwrap().is_some());
    std::thread::sleep(Duration::from_millis(Seeded::new().rng(0).below(600)));
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let (code, err) = (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(code == Some(130) && err == "forebay: interrupted\n" || code == Some(0), "{code:?} {err}");
    assert_eq!(leftovers(&world), Vec::<String>::new());
}

#[test]
fn demo_shows_sharing_live() {
    let world = World::empty();
    let shown = world.run(&["demo", "--size", "48MiB"]).out;
    let at = |what: &str| shown.find(what).unwrap_or_else(|| panic!("expected {what:?} in {shown}"));
    let (alone, joins) = (at("job large of 4 nodes takes part"), at("job small of 1 node takes part"));
    let (leaves, summary) = (at("job small of 1 node has gone"), at("sharing    large (4 nodes)"));
    assert!(alone < joins && joins < leaves && leaves < summary, "{shown}");
    assert_eq!(shown.matches("takes part").count(), 2, "{shown}");
    let between = &shown[joins..leaves];
    let both = between.lines().find(|line| line.contains("shares: large") && line.contains("; small"));
    assert!(both.is_some_and(|line| line.contains("(due: 80 %)") && line.contains("(due: 20 %)")), "{shown}");
}
