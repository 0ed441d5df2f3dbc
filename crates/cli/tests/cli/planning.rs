//! `forebay plan --from-service`: profiles fitted to the service's write history.

use crate::support::{World, pattern, run};
use std::time::Duration;

#[test]
fn plan_is_made_from_the_history_of_the_service() {
    let mut world = World::up();
    let nothing = world.run(&["plan", "--from-service", "--bandwidth", "1 MB/s"]);
    assert_eq!(nothing.code, 1);
    assert!(nothing.err.contains("no writes yet"), "{}", nothing.err);

    world.write("burst", pattern(3_000_000, 1));
    for burst in 0..4 {
        for job in ["climate", "fusion"] {
            let mut put = world.command(&["put", "burst", &format!("/{job}.{burst}")]);
            put.env("FOREBAY_JOB_ID", job);
            run(put).well();
        }
        // Bursts in different seconds: the history has a resolution of one second.
        std::thread::sleep(Duration::from_millis(2100));
    }
    let plan = ["plan", "--from-service", "--bandwidth", "5 MB/s", "--json"];
    let seen = world.json(&plan);
    assert!(seen["expected_load"].as_f64().unwrap() > 0.0, "{seen}");
    assert!(seen["recommended"]["capacity"].is_number(), "{seen}");
    let names: Vec<_> =
        seen["apps"].as_array().unwrap().iter().map(|app| app["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["climate", "fusion"]);
    let text = world.well(&plan[..4]);
    // One record for each second in which a job wrote: a burst may span two.
    let records = text.split_once("2 applications fitted from ").and_then(|(_, rest)| rest.split_once(' '));
    let records = records.and_then(|(count, _)| count.parse().ok());
    assert!(records.is_some_and(|count: u32| (8..=64).contains(&count)), "{text}");

    // The history survives a restart of the server.
    world.kill();
    world.start(&[]);
    assert_eq!(world.json(&plan)["expected_load"], seen["expected_load"]);
}
