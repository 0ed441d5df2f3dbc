//! `bench drain`: draining to modelled targets.

use crate::support::World;

const SMALL: &str = "title = 'Small'\ncompare = ['direct', 'arrival', 'offset', 'target', 'trio', 'trio fcfs quantum=1MiB']\n\
                     patterns = ['N:1', 'N:N']\ntargets = 2\nprocesses = 3\nsize = '6MiB'\ngrain = 64\nslower = 0.1\n\
                     [[job]]\n[[job]]\nsize = '2MiB'\nprocesses = 2\n";

#[test]
fn bench_drain_compares_variants() {
    let world = World::empty();
    world.write("small.toml", SMALL);
    let report = world.json(&["bench", "drain", "small.toml", "--json", "--out", "pictures"]);
    let runs = report["runs"].as_array().expect("a list of runs");
    assert_eq!(runs.len(), 12);
    for run in runs {
        let bandwidth = run["bandwidth"].as_f64().expect("a bandwidth");
        let part = run["of_best"].as_f64().expect("a part");
        assert!(bandwidth > 0.0 && part > 0.0 && part < 1.2, "{run}");
        let jobs = run["response_seconds"][0].as_array().expect("times of jobs");
        assert!(jobs.len() == 2 && jobs.iter().all(|job| job.as_f64() > Some(0.0)), "{run}");
    }
    let ways: Vec<&str> = runs.iter().take(6).filter_map(|run| run["way"].as_str()).collect();
    assert_eq!(ways, ["direct", "arrival", "offset", "target", "trio", "trio fcfs quantum=1MiB"]);
    assert!(report["bars"].as_array().is_some_and(|bars| bars.len() > 8), "{report}");
    let picture = std::fs::read_to_string(world.path("pictures/small.svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("bandwidth") && picture.contains("drained jobs"));
}

#[test]
fn several_servers_drain_a_scenario() {
    let world = World::empty();
    let text = "compare = ['trio', 'offset']\npatterns = ['N:1', 'N:N']\ntargets = 2\nservers = 2\nprocesses = 4\nsize = '4MiB'\n\
                grain = 64\nslower = 0.1\n";
    world.write("several.toml", text);
    let report = world.json(&["bench", "drain", "several.toml", "--json"]);
    let runs = report["runs"].as_array().expect("a list of runs");
    assert!(runs.len() == 4 && runs.iter().all(|run| run["bandwidth"].as_f64() > Some(0.0)), "{report}");
}

#[test]
fn scenario_errors_are_reported_before_the_run() {
    let world = World::empty();
    world.write("bad.toml", "compare = ['trio slowly']\nsize = '4MiB'\n");
    world.run(&["bench", "drain", "bad.toml"]).failed(2, &["bad.toml:1", "trio slowly", "alpha=learnt"]);
    world.run(&["bench", "drain", "none.toml"]).failed(1, &["none.toml"]);
}
