//! `bench place`: the gain of placement in the model.

use crate::world::{forebay, well};
use serde_json::Value;

const SYSTEM: &str = "\n[system]\nnodes = 512\nrouters = 32\ngroups = 4\nservers = 16\ntargets = 64\n\
                      node_rate = '3GB/s'\nrouter_rate = '2.8GB/s'\nserver_rate = '1.2GB/s'\n";
const REAL: &str = "\n[real]\ntargets = 4\nwriters = 4\nsize = '512KiB'\ndevice = 'ost'\nrepetitions = 2\n";

fn run(scenario: &str) -> Value {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("s.toml"), scenario).expect("a file");
    let output = forebay(dir.path()).args(["bench", "place", "s.toml", "--json", "--out", "."]).output();
    let found = serde_json::from_str(&well(&output.expect("it runs"))).expect("JSON");
    let picture = std::fs::read_to_string(dir.path().join("s.svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("balanced"), "{picture}");
    found
}

fn measured(run: &Value, placement: &str) -> (f64, f64) {
    let variants = run["variants"].as_array().expect("variants");
    let one = variants.iter().find(|one| one["placement"] == placement).expect("this one");
    (one["bandwidth"].as_f64().expect("a number"), one["deviation"].as_f64().expect("a number"))
}

#[test]
fn balanced_placement_is_faster_and_varies_less_than_random() {
    let scenario = format!(
        "pattern = 'N:N'\nnodes = [64, 256]\nsize = '1GiB'\nruns = 4\nrepetitions = 5\nnoise = 0.1\n{SYSTEM}{REAL}"
    );
    let found = run(&scenario);
    for run in found["runs"].as_array().expect("runs") {
        let (default, balanced) = (measured(run, "default"), measured(run, "balanced"));
        assert!(balanced.0 > 1.2 * default.0, "{run}");
        assert!(balanced.1 / balanced.0 < default.1 / default.0, "{run}");
        assert_eq!(run["variants"][0]["repetitions"][3].as_array().map(Vec::len), Some(5));
    }
    let real = found["real"].as_array().expect("real bytes");
    assert!(real.len() == 2 && real.iter().all(|one| one["bandwidth"].as_f64() > Some(0.0)), "{found}");
    let without = |mut found: Value| {
        found.as_object_mut().expect("a table").remove("real");
        found
    };
    assert_eq!(without(found), without(run(&scenario)), "the same again");
}

#[test]
fn balanced_shared_file_is_not_slower_than_an_optimised_one() {
    let found = run(&format!(
        "pattern = 'N:1'\nnodes = [32, 48]\nsize = '1GiB'\nruns = 4\nrepetitions = 5\n{SYSTEM}"
    ));
    for run in found["runs"].as_array().expect("runs") {
        let [default, optimised, balanced] =
            ["default", "optimised", "balanced"].map(|one| measured(run, one));
        assert!(default.0 < optimised.0 && optimised.0 < balanced.0, "{run}");
        assert!(balanced.1 <= optimised.1, "{run}");
    }
}

#[test]
fn scenario_errors_name_the_line() {
    let dir = tempfile::tempdir().expect("a directory");
    for (scenario, expected) in [
        (format!("pattern = 'N:N'\nnodes = [64]\n{SYSTEM}"), "size: missing"),
        (
            format!("pattern = 'N:M'\nnodes = [64]\nsize = '1MiB'\n{SYSTEM}"),
            "s.toml:1: pattern: \"N:M\" is no pattern",
        ),
        (
            format!("pattern = 'N:N'\nnodes = [513]\nsize = '1MiB'\n{SYSTEM}"),
            "s.toml:2: nodes: 513 is not a number of nodes",
        ),
    ] {
        std::fs::write(dir.path().join("s.toml"), scenario).expect("a file");
        let output =
            forebay(dir.path()).args(["bench", "place", "s.toml", "--json"]).output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains(expected), "{printed}");
    }
}
