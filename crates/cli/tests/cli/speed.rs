//! bench io.

use crate::support::World;
use serde_json::Value;

#[test]
fn figures_are_kept_shown_and_compared_with_the_run_before() {
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
    // A hundred times slower than it was: that is seen.
    for figure in slow["figures"].as_array_mut().unwrap() {
        for (_, ratio) in figure["ratios"].as_object_mut().unwrap() {
            *ratio = Value::from(ratio.as_f64().unwrap() / 100.0);
        }
    }
    world.write("kept/latest.json", slow.to_string());
    let said = world.run(&["bench", "io", "names", "--quick", "--out", "kept"]).out;
    assert!(said.contains("moved by more than a tenth since the last run:\n"), "{said}");
    let page = kept("index.html");
    for part in ["Since the last run", "forebay unix, blocking", "create <small>op/s</small>"] {
        assert!(page.contains(part), "{part} is not in the page");
    }
}

#[test]
fn a_section_that_is_not_there_is_a_wrong_call() {
    World::empty().run(&["bench", "io", "speed"]).failed(2, &["no section \"speed\"", "programs"]);
}
