//! Dry runs.

use crate::world::{forebay, well};
use serde_json::Value;
use std::process::Output;
use tempfile::TempDir;

const TOPOLOGY: &str = "
[[router]]
name = 'r0'
leads_to = ['oss0']
[[router]]
name = 'r1'
leads_to = ['oss1']
[[server]]
name = 'oss0'
[[server]]
name = 'oss1'
[[target]]
name = 'ost0'
server = 'oss0'
[[target]]
name = 'ost1'
server = 'oss0'
[[target]]
name = 'ost2'
server = 'oss1'
[[target]]
name = 'ost3'
server = 'oss1'
state = 'inactive'
[[client]]
name = 'c0'
router = 'r0'
[[client]]
name = 'c1'
routers = { r1 = 1 }
";

fn run(dir: &TempDir, spec: &str, more: &[&str]) -> Output {
    std::fs::write(dir.path().join("topology.toml"), TOPOLOGY).expect("a file");
    std::fs::write(dir.path().join("spec.toml"), spec).expect("a file");
    forebay(dir.path()).args(["place", "spec.toml"]).args(more).output().expect("the binary runs")
}

fn json(spec: &str) -> Value {
    let dir = tempfile::tempdir().expect("a directory");
    serde_json::from_str(&well(&run(&dir, spec, &["--json"]))).expect("JSON")
}

#[test]
fn dry_run_reports_files_load_and_imbalance() {
    let spec = "topology = 'topology.toml'\n[job]\nid = '7'\npattern = 'N:N'\nsize = '4GiB'\n\
                [[writer]]\nclient = 'c0'\ncount = 5\n[[writer]]\nclient = 'c1'\n";
    let found = json(spec);
    let files = found["files"].as_array().expect("files");
    assert_eq!(files.len(), 6);
    for (number, file) in files.iter().enumerate() {
        assert_eq!(file["writer"], number);
        assert_eq!((&file["stripe_size"], &file["stripe_count"]), (&(1 << 20).into(), &1.into()));
        assert_eq!(file["targets"].as_array().map(Vec::len), Some(1));
    }
    assert_eq!(files[5]["targets"][0], "ost2", "it reaches no other that is active");
    let load = &found["load"]["target"];
    assert_eq!(
        (load["ost0"].as_u64(), load["ost1"].as_u64(), load["ost2"].as_u64()),
        (Some(2), Some(2), Some(2))
    );
    assert_eq!(load["ost3"], 0);
    assert_eq!(found["load"]["server"]["oss0"], 4);
    assert_eq!(found["load"]["router"]["r0"], 4);
    assert_eq!(found["imbalance"]["target"], 0.0);
    assert_eq!(found, json(spec), "the same again");
}

#[test]
fn shared_files_have_a_stripe_for_each_writer() {
    let shared = "topology = 'topology.toml'\n[job]\npattern = 'N:1'\nfile_size = 3_000_000\n\
                  [[writer]]\nclient = 'c0'\ncount = 2\n[[writer]]\nclient = 'c1'\n";
    let found = json(shared);
    let file = &found["files"][0];
    assert_eq!((&file["stripe_count"], &file["stripe_size"]), (&3.into(), &(1 << 20).into()));
    assert_eq!(file["targets"][2], "ost2");
    let groups = "[topology]\nflat = { targets = 6, servers = 3 }\n[job]\npattern = 'N:M'\nwriters_per_file = 3\n\
                  writers = 6\nfile_size = '3MiB'\n";
    let found = json(groups);
    assert_eq!(found["files"].as_array().map(Vec::len), Some(2));
    assert!(found["load"]["target"].as_object().expect("targets").values().all(|load| load == 1), "{found}");
    let grows = "[topology]\nflat = { targets = 64 }\n[job]\npattern = 'N:1'\nwriters = 32\n";
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(&dir, grows, &["--json"]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("the file size is unknown"), "{printed}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let widths: Vec<u64> = found["files"][0]["components"]
        .as_array()
        .expect("parts")
        .iter()
        .filter_map(|part| part["stripe_count"].as_u64())
        .collect();
    assert_eq!(widths, [1, 4, 32]);
}

#[test]
fn dry_run_prints_a_table_and_bars() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = "[topology]\nflat = { targets = 4, servers = 2 }\n[job]\npattern = 'N:N'\nwriters = 6\n";
    let shown = well(&run(&dir, spec, &[]));
    assert!(shown.contains("writer  stripes") && shown.contains("1 × 1 MiB on target"), "{shown}");
    assert!(shown.contains("targets: 1 to 2 stripes, the busiest 33.3 % above even"), "{shown}");
    assert!(shown.contains('█'), "{shown}");
}

#[test]
fn spec_errors_name_file_line_and_key() {
    let job = "[job]\npattern = 'N:N'\nwriters = 2\n";
    let flat = "[topology]\nflat = { targets = 4 }\n";
    let with = |topology: &str, rest: &str| format!("{topology}{job}{rest}");
    let circle = "[[topology.router]]\nname = 'a'\nleads_to = ['b']\n[[topology.router]]\nname = 'b'\n\
                  leads_to = ['a']\n[[topology.server]]\nname = 's'\n[[topology.target]]\nname = 't'\nserver = 's'\n";
    for (spec, expected) in [
        (with(circle, ""), "spec.toml:1: router 1: leads_to: the routers lead in a circle: a → b → a"),
        (
            with("topology = 'topology.toml'\n", "").replace("writers = 2", "")
                + "[[writer]]\nclient = 'c9'\n",
            "spec.toml:6: writer 1: client: there is no client \"c9\" in the topology",
        ),
        (
            with(flat, "[weights]\nrouter = 0.5\ntarget = 0.7\n"),
            "spec.toml:6: weights: the weights sum to 1.2: together they must be 1",
        ),
        (
            with(flat, "stripe_count = 4000\n"),
            "spec.toml:6: job: stripe_count: 4000 targets for one file are more than the back end allows: at most 2000",
        ),
        (with(flat, "[[target]]\n"), "spec.toml:6: target: not a known key"),
        (with("topology = 'none.toml'\n", ""), "cannot read none.toml: no such file"),
        (flat.to_owned(), "job: missing"),
        (with("[topology]\n[[topology.target]]\nname = 't'\nserver = 's'\n", ""), "there is no server \"s\""),
        (
            with("exclude = ['t9']\n[topology]\nflat = { targets = 4 }\n", ""),
            "exclude: there is no target \"t9\"",
        ),
        (with(flat, "").replace("N:N", "N:Z"), "pattern: \"N:Z\" is no pattern"),
        (with(flat, "size = '4QB'\n"), "size: \"4QB\" is not a size"),
        ("topology = [".to_owned(), "the file is not TOML"),
        (with(flat, "").replace("targets = 4", "targets = 0"), "0 is not a whole number from 1"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let output = run(&dir, &spec, &["--json"]);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains(expected), "{spec}\n{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
}
