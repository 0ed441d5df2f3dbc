//! `forebay sim` and `forebay reproduce`: the same seed gives the same bytes, and invalid scenarios are refused
//! with file, line and key.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn forebay(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay")).args(args).current_dir(dir).output().unwrap()
}

fn place(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn shipped(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/sim").join(name)).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let dir = place("sim-same");
    for name in ["checkpoint.toml", "failures.toml"] {
        fs::write(dir.join("s.toml"), shipped(name)).unwrap();
        let play = |seed: &str, out: &str| {
            let output = forebay(&dir, &["sim", "s.toml", "--seed", seed, "--json", "--out", out]);
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            let files = ["report.json", "series.csv", "throughput.svg"];
            (output.stdout, files.map(|file| fs::read(dir.join(out).join(file)).unwrap()))
        };
        let (one, again, other) = (play("7", "a"), play("7", "b"), play("8", "c"));
        assert!(one == again, "{name}: the same seed, other bytes");
        assert_ne!(one.0, other.0, "{name}: another seed is another story");
        let report: serde_json::Value = serde_json::from_slice(&one.0).unwrap();
        let ledger = |key: &str| report["ledger"][key].as_u64().unwrap();
        assert!(ledger("taken") > 0, "{name}");
        assert_eq!(ledger("taken"), ledger("drained") + ledger("direct") + ledger("held"), "{name}");
        assert_eq!(ledger("held"), 0, "{name}: everything is drained in the end");
    }
}

const GOOD: &str = "[servers]\nrate = '1 GB/s'\ncapacity = '1 GiB'\npolicy = 'fifo'\n\n\
    [[target]]\nid = 'ost'\ndevice = 'ost'\n\n[[job]]\nid = 'a'\n\n[[job.phase]]\nwrite = '1 MiB'\n\n";

#[test]
fn invalid_scenarios_are_refused_with_file_line_and_key() {
    let dir = place("sim-wrong");
    let link = |id: &str, to: &str| format!("[[link]]\nid = '{id}'\nrate = '1 GB/s'\nto = '{to}'\n");
    let cases = [
        (GOOD.replace("'fifo'", "'fair-ish'"), "s.toml:4: servers: policy: "),
        (
            GOOD.replace("device = 'ost'", "device = 'tape'"),
            "s.toml:8: target 1: device: \"tape\" is no device",
        ),
        (
            format!("{GOOD}[[failure]]\ntarget = 'mdt'\nat = '1 s'\nlasts = '1 s'"),
            "s.toml:17: failure 1: target: \"mdt\"",
        ),
        (
            format!("{GOOD}[[failure]]\nserver = 3\nat = '1 s'\nlasts = '1 s'"),
            "s.toml:17: failure 1: server: there is no server 3",
        ),
        (GOOD.replace("id = 'a'", "id = 'a'\nafter = 'b'"), "s.toml:12: job 1: after: \"b\" is no job"),
        (
            GOOD.replace("id = 'a'", "id = 'a'\nafter = 'a'"),
            "s.toml:12: job 1: after: the jobs wait for each other",
        ),
        (GOOD.replace("'1 GiB'", "'-1 GiB'"), "s.toml:3: servers: capacity: \"-1 GiB\" is negative"),
        (GOOD.replace("'1 MiB'", "'-4 kB'"), "s.toml:14: job 1: phase 1: write: \"-4 kB\" is negative"),
        (GOOD.replace("'1 MiB'", "'0 kB'"), "s.toml:14: job 1: phase 1: write: must be above 0"),
        (
            GOOD.replace("id = 'a'", "id = 'a'\nprocesses = -3"),
            "s.toml:12: job 1: processes: -3 is not a whole number",
        ),
        (
            GOOD.replace("id = 'a'", "id = 'a'\ncopies = 3\nstripes = 9"),
            "s.toml:13: job 1: stripes: 9 targets for a file are more",
        ),
        (
            format!("{GOOD}[[job]]\nid = 'b'\nway = 'buffer'\nstart = '9 s'\nstop = '8 s'"),
            "s.toml:16: job 2: phase: missing",
        ),
        (
            format!("{GOOD}[[job]]\nid = 'b'\nstart = '9 s'\nstop = '8 s'\nphase = [{{ write = '1 MiB' }}]"),
            "s.toml:19: job 2: stop: before it starts",
        ),
        (GOOD.replace("id = 'a'", "id = 'a'\nvia = 'x'"), "s.toml:12: job 1: via: \"x\" is no link"),
        (
            format!("{GOOD}{}{}", link("x", "y"), link("y", "x")),
            "s.toml:19: link 1: to: the path from this group is a loop",
        ),
        (format!("{GOOD}{}", link("x", "x")), "s.toml:19: link 1: to: the path from this group is a loop"),
        (GOOD.replace("rate = '1 GB/s'", "rate = '0 GB/s'"), "s.toml:2: servers: rate: must be above 0"),
        (GOOD.replace("id = 'a'", "id = 'a'\nspeed = 9"), "s.toml:12: job 1: speed: not a known key"),
        ("title = 3 4".to_owned(), "s.toml:1: the file is not TOML"),
        (String::new(), "s.toml:1: job: missing"),
    ];
    fs::write(dir.join("s.toml"), GOOD).unwrap();
    assert!(forebay(&dir, &["sim", "s.toml"]).status.success(), "the base scenario is valid");
    for (text, expected) in cases {
        fs::write(dir.join("s.toml"), &text).unwrap();
        let output = forebay(&dir, &["sim", "s.toml"]);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}\n{printed}");
        assert!(printed.contains(expected), "wanted {expected}\ngot    {printed}");
    }
}

/// Every figure and table that can be made; `t1` is Table 1.
const PROMISED: [(&str, &str); 5] = [
    ("sizing", "2 3 4 5 6"),
    ("themis", "1 7 8 9 10 11 12 13 14"),
    ("trio", "1 t1 3 6 7 8 9 10 11 12"),
    ("ssdup", "2 3 5 8 t1 9 10 11 12 t2"),
    ("tapp", "4 5 6 7 8 9"),
];

#[test]
fn figures_are_listed_made_and_selected_by_name() {
    let dir = place("reproduce");
    let made = forebay(&dir, &["reproduce", "trio-1", "themis-14", "--quick", "--out", "out", "--json"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let verdicts: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let named: Vec<&str> =
        verdicts.as_array().unwrap().iter().map(|one| one["figure"].as_str().unwrap()).collect();
    assert_eq!(named, ["themis-14", "trio-1"]);
    for verdict in verdicts.as_array().unwrap() {
        let claims = verdict["claims"].as_array().unwrap();
        assert!(!claims.is_empty() && claims.iter().all(|claim| claim["holds"] == true), "{verdict}");
    }
    let page = fs::read_to_string(dir.join("out/index.html")).unwrap();
    for word in ["trio-1", "themis-14", "356 MB/s", "class=\"holds\"", "<svg"] {
        assert!(page.contains(word), "{word}");
    }
    assert!(fs::read_to_string(dir.join("out/trio-1.svg")).unwrap().starts_with("<svg"));
    let again = forebay(&dir, &["reproduce", "trio-1", "themis-14", "--quick", "--out", "again", "--json"]);
    assert!(again.stdout == made.stdout && fs::read_to_string(dir.join("again/index.html")).unwrap() == page);
    let list = String::from_utf8(forebay(&dir, &["reproduce", "--list"]).stdout).unwrap();
    let listed: Vec<&str> =
        list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let wanted = PROMISED
        .iter()
        .flat_map(|(paper, numbers)| numbers.split(' ').map(move |number| format!("{paper}-{number}")));
    assert_eq!(listed, wanted.collect::<Vec<_>>());
    let wrong = forebay(&dir, &["reproduce", "trio-99"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("trio-99: no such paper or figure"));
}
