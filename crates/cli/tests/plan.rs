//! `forebay plan`: answers, exit codes, messages, files.

use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn test_dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plan-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn plan(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay")).arg("plan").args(args).current_dir(dir).output().unwrap()
}

fn answer(dir: &Path, args: &[&str]) -> Value {
    let out = plan(dir, args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn close(value: &Value, expected: f64) {
    let found = value.as_f64().unwrap();
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found} is not {expected}");
}

const THREE: &str = r#"
bandwidth = 100
capacity = 500
threshold = 0.2
buffer_bandwidth = 400

[[app]]
name = "climate"
p = 0.2
b = 180

[[app]]
name = "fusion"
p = 0.1
b = 250
content = "checkpoint"

[[app]]
name = "training"
p = 0.3
b = 60

[unit]
seconds = 30
mb = 1000

[cost]
price_per_tb = 90
endurance = 3000
"#;

#[test]
fn json_has_every_documented_field() {
    let dir = test_dir("fields");
    fs::write(dir.join("p.toml"), THREE).unwrap();
    let found =
        answer(&dir, &["p.toml", "--json", "--simulate", "--sensitivity", "--sweep", "capacity=0..500:50"]);
    for key in [
        "expected_load",
        "over_bandwidth",
        "idle",
        "quiet",
        "overflow",
        "mean_occupancy",
        "quantiles",
        "distribution",
        "occupancy",
        "recommended",
        "over_buffer_bandwidth",
        "simulation",
        "monte_carlo",
        "cost",
        "sensitivity",
        "sweep",
    ] {
        assert!(!found[key].is_null(), "{key}");
    }
    close(&found["expected_load"], 0.2 * 180.0 + 25.0 + 18.0);
    close(&found["over_bandwidth"], 1.0 - 0.8 * 0.9);
    close(&found["over_buffer_bandwidth"], 0.1 * 0.2);
    for key in ["distribution", "occupancy"] {
        let sum: f64 = found[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{key}: {sum}");
    }
    let above: f64 = found["occupancy"].as_array().unwrap()[501..].iter().map(|v| v.as_f64().unwrap()).sum();
    close(&found["idle"], above);
    let sweep = found["sweep"].as_array().unwrap();
    assert_eq!(sweep.len(), 11);
    close(&sweep[10]["idle"], found["idle"].as_f64().unwrap());
    assert!(found["recommended"]["capacity"].as_u64().unwrap() > 500);
    assert!(found["recommended"]["idle"].as_f64().unwrap() <= 0.01);
    close(&found["cost"]["price"], 0.5 * 90.0);
}

/// One application of 7 units, bandwidth 5 and no buffer: p / (1 + p) of the time is idle.
#[test]
fn answer_equals_the_closed_form() {
    let dir = test_dir("closed");
    fs::write(dir.join("p.toml"), "bandwidth = 5\ncapacity = 0\n[[app]]\np = 0.3\nb = 7\n").unwrap();
    let found = answer(&dir, &["p.toml", "--json"]);
    close(&found["idle"], 0.3 / 1.3);
    close(&found["overflow"], 0.3 / 1.3);
    let overruled =
        answer(&dir, &["p.toml", "--json", "--capacity", "1000", "--threshold", "50%", "--bandwidth", "7"]);
    assert_eq!(overruled["capacity"], 1000);
    assert_eq!(overruled["bandwidth"], 7);
    close(&overruled["threshold"], 0.5);
    close(&overruled["idle"], 0.0);
}

#[test]
fn units_give_the_same_model() {
    let dir = test_dir("human");
    let human = "bandwidth = \"40 GB/s\"\ncapacity = \"6 TB\"\n[unit]\nseconds = 30\nmb = 12000\n\
        [[app]]\nname = \"a\"\nrate = \"80 GB/s\"\nburst = \"30 s\"\nevery = \"10 min\"\n";
    let units = "bandwidth = 100\ncapacity = 500\n[[app]]\nname = \"a\"\np = 0.05\nb = 200\nperiod = 20\n";
    fs::write(dir.join("h.toml"), human).unwrap();
    fs::write(dir.join("u.toml"), units).unwrap();
    let (h, u) = (answer(&dir, &["h.toml", "--json"]), answer(&dir, &["u.toml", "--json"]));
    for key in ["idle", "quiet", "overflow", "mean_occupancy", "bandwidth", "capacity", "apps"] {
        assert_eq!(h[key], u[key], "{key}");
    }
    // Without a scale, the usual burst is the time unit and the bandwidth is 100 units.
    let free = human.replace("[unit]\nseconds = 30\nmb = 12000\n", "");
    fs::write(dir.join("f.toml"), free).unwrap();
    assert_eq!(answer(&dir, &["f.toml", "--json"])["apps"], u["apps"]);
    let bytes = answer(&dir, &["h.toml", "--json", "--capacity", "12 TB"]);
    assert_eq!(bytes["capacity"], 1000);
}

#[test]
fn plan_errors_name_file_line_and_key() {
    let dir = test_dir("bad");
    // The text that follows `bandwidth = 10`, `[[app]]`, `name = "x"`, from line 4 on.
    let in_app = [
        ("p = 1.0\nb = 3", "p.toml:4: app 1: p: p = 1"),
        ("p = -0.1\nb = 3", "p.toml:4: app 1: p:"),
        ("p = nan\nb = 3", "p.toml:4: app 1: p:"),
        ("p = \"often\"\nb = 3", "p.toml:4: app 1: p: a number is needed, not a text"),
        ("p = 0.5\nb = -3", "p.toml:5: app 1: b: -3 is negative"),
        ("p = 0.5\nb = \"lots\"", "p.toml:5: app 1: b:"),
        ("p = 0.5", "p.toml:2: app 1: b: missing"),
        (
            "rate = \"-2 GB/s\"\nburst = \"1 s\"\nevery = \"2 s\"",
            "p.toml:4: app 1: rate: \"-2 GB/s\" is negative",
        ),
        (
            "rate = \"fast\"\nburst = \"1 s\"\nevery = \"2 s\"",
            "p.toml:4: app 1: rate: \"fast\" is not a rate",
        ),
        ("rate = 5\nburst = \"1 s\"\nevery = \"2 s\"", "p.toml:4: app 1: rate: a text is needed"),
        ("rate = \"1 GB/s\"\nburst = \"3 s\"\nevery = \"2 s\"", "p.toml:5: app 1: burst:"),
        (
            "rate = \"1 GB/s\"\nburst = \"1 s\"\nevery = \"2 s\"",
            "p.toml:2: app 1: a rate in bytes needs a scale",
        ),
        ("p = 0.5\nb = 3\nroute = \"left\"", "p.toml:6: app 1: route:"),
        ("p = 0.5\nb = 3\ncontent = \"noise\"", "p.toml:6: app 1: content:"),
        ("p = 0.5\nb = 3\nprefetch = true", "p.toml:6: app 1: prefetch:"),
        ("p = 0.5\nb = 3\nbandwith = 3", "p.toml:6: app 1: bandwith: not a known key"),
    ];
    let whole = [
        ("bandwidth = 10", "p.toml:1: app: there is no application"),
        ("capacity = 10", "p.toml:1: bandwidth: missing"),
        ("bandwidth = 0\n[[app]]\np = 0.5\nb = 3", "p.toml:1: bandwidth:"),
        ("bandwidth = 5\nthreshold = 2", "p.toml:2: threshold: 2 is not between 0 and 1"),
        ("bandwidth = 5\n\ncapacity = -1", "p.toml:3: capacity: -1 is negative"),
        ("bandwidth = 5\nbuffers = 0", "p.toml:2: buffers:"),
        ("bandwidth = 5\n[unit]\nmb = 0", "p.toml:3: unit.mb:"),
        ("bandwidth = 5\napp = 3", "p.toml:2: app:"),
        ("bandwidth = ", "p.toml:1: the file is not TOML"),
        ("bandwidth = 5\n[[app]]\np = 0.5\nb = 3000000", "choose a larger unit"),
    ];
    let in_app = in_app.map(|(text, why)| (format!("bandwidth = 10\n[[app]]\nname = \"x\"\n{text}\n"), why));
    let whole = whole.map(|(text, why)| (format!("{text}\n"), why));
    for (text, expected) in in_app.into_iter().chain(whole) {
        fs::write(dir.join("p.toml"), &text).unwrap();
        let out = plan(&dir, &["p.toml"]);
        let message = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{text}: {message}");
        assert!(message.contains(expected), "{text:?} gives {message:?}, not {expected:?}");
        assert!(out.stdout.is_empty());
    }
    let gone = plan(&dir, &["nowhere.toml"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("nowhere.toml: cannot read it"));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let dir = test_dir("usage");
    fs::write(dir.join("p.toml"), THREE).unwrap();
    for (args, expected) in [
        (&["p.toml", "--sweep", "capacity=500..0:50"][..], "empty"),
        (&["p.toml", "--sweep", "capacity=0..500:0"], "empty"),
        (&["p.toml", "--threshold", "120%"], "--threshold"),
        (&["p.toml", "--target-idle", "much"], "--target-idle"),
        (&["p.toml", "--moon"], "--moon"),
        (&["figures"], "--out"),
    ] {
        let out = plan(&dir, args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(expected), "{args:?}");
    }
}

#[test]
fn applications_are_fitted_from_csv() {
    let dir = test_dir("csv");
    let mut lines = String::from("time,job,bytes\n# a comment\n");
    for second in (0..6000).step_by(600).flat_map(|start| start..start + 30) {
        writeln!(lines, "{second},climate,8000000000").unwrap();
    }
    for second in (0..6000).step_by(100).flat_map(|start| start..start + 10) {
        writeln!(lines, "{second},training,3 GB").unwrap();
    }
    fs::write(dir.join("s.csv"), lines).unwrap();
    let found =
        answer(&dir, &["--from-csv", "s.csv", "--bandwidth", "2 GB/s", "--capacity", "1 TB", "--json"]);
    let apps = found["apps"].as_array().unwrap();
    assert_eq!(apps.len(), 2);
    let unit = found["unit"]["mb"].as_f64().unwrap() * 1e6 / found["unit"]["seconds"].as_f64().unwrap();
    for (app, name, p, rate) in [(&apps[0], "climate", 0.05, 8e9), (&apps[1], "training", 0.1, 3e9)] {
        assert_eq!(app["name"], name);
        close(&app["p"], p);
        let b = app["b"].as_f64().unwrap() * unit;
        assert!((b / rate - 1.0).abs() < 0.01, "{name}: {b}");
    }
    let capacity = found["capacity"].as_f64().unwrap() * found["unit"]["mb"].as_f64().unwrap() / 1e6;
    assert!((capacity - 1.0).abs() < 0.01, "{capacity} TB");
    for (text, expected) in [
        ("1,a\n", "s.csv:1: line:"),
        ("time,job,bytes\n1,a,3\nx,a,3\n", "s.csv:3: time: \"x\" is not a number"),
        ("1,a,-3\n", "s.csv:1: bytes:"),
        ("1,a,3 XB\n", "s.csv:1: bytes:"),
        ("1,,3\n", "s.csv:1: job:"),
        ("", "s.csv:1: line: there is no record"),
    ] {
        fs::write(dir.join("s.csv"), text).unwrap();
        let out = plan(&dir, &["--from-csv", "s.csv", "--bandwidth", "2 GB/s"]);
        let message = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && message.contains(expected), "{text:?}: {message}");
    }
    let out = plan(&dir, &["--from-csv", "s.csv"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("--bandwidth: missing"));
}

/// The output of `darshan-parser`: comments, then module, rank, record, counter, value, file, mount, type. Two
/// bursts of ten seconds, forty seconds apart, 2 GB/s.
fn parser_text() -> String {
    let mut text =
        String::from("# darshan log version: 3.41\n# exe: ./app\n# nprocs: 4\n# run time: 100.0\n");
    for (record, start) in [(11, 10.0), (12, 50.0)] {
        for (counter, value) in [
            ("POSIX_BYTES_WRITTEN", 20e9),
            ("POSIX_BYTES_READ", 0.0),
            ("POSIX_F_WRITE_START_TIMESTAMP", start),
            ("POSIX_F_WRITE_END_TIMESTAMP", start + 10.0),
        ] {
            writeln!(text, "POSIX\t-1\t{record}\t{counter}\t{value}\t/scratch/f{record}\t/scratch\tlustre")
                .unwrap();
        }
    }
    text
}

#[test]
fn applications_are_fitted_from_darshan() {
    let dir = test_dir("darshan");
    fs::write(dir.join("app.txt"), parser_text()).unwrap();
    let found = answer(&dir, &["--from-darshan", "app.txt", "--bandwidth", "1 GB/s", "--json"]);
    let app = &found["apps"][0];
    assert_eq!(app["name"], "app");
    close(&app["p"], 0.25);
    close(&app["b"], 200.0);
    for (bytes, expected) in [
        (&b"just some text\n"[..], "log.darshan:1: log: this is not a Darshan log"),
        (b"", "log.darshan:1: log: this is not a Darshan log"),
        (b"# darshan log version: 3.41\n", "no POSIX or STDIO record"),
        (
            b"# darshan log version: 3.41\nPOSIX\t0\t1\tPOSIX_BYTES_WRITTEN\tmany\t/f\t/\text4\n",
            "log.darshan:2: POSIX_BYTES_WRITTEN:",
        ),
    ] {
        fs::write(dir.join("log.darshan"), bytes).unwrap();
        let out = plan(&dir, &["--from-darshan", "log.darshan", "--bandwidth", "1 GB/s"]);
        let message = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && message.contains(expected), "{message}");
    }
}

/// The Python package has real logs; without it, the message names the packages to install.
#[test]
fn binary_darshan_logs_are_read_if_a_reader_is_installed() {
    let dir = test_dir("darshan-binary");
    let python = std::env::var("FOREBAY_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = "import darshan, os\n\
        print(os.path.join(os.path.dirname(darshan.__file__), 'examples', 'example_logs', 'example.darshan'))";
    let found = Command::new(&python).args(["-c", script]).output().ok().filter(|out| out.status.success());
    let log = found.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    match log.filter(|path| Path::new(path).exists()) {
        Some(path) => {
            let answer = answer(&dir, &["--from-darshan", &path, "--bandwidth", "1 GB/s", "--json"]);
            assert_eq!(answer["apps"][0]["name"], "example");
            assert!(answer["expected_load"].as_f64().unwrap() > 0.0);
            let mut broken = fs::read(path).unwrap();
            broken.truncate(64);
            fs::write(dir.join("cut.darshan"), broken).unwrap();
            let out = plan(&dir, &["--from-darshan", "cut.darshan", "--bandwidth", "1 GB/s"]);
            assert!(String::from_utf8_lossy(&out.stderr).contains("cut.darshan:1: log:"), "{out:?}");
        }
        None => {
            skip("the Python package darshan is missing: only the message is checked");
            fs::write(dir.join("log.darshan"), b"3.41\0\0\0\0").unwrap();
            let out = plan(&dir, &["--from-darshan", "log.darshan", "--bandwidth", "1 GB/s"]);
            let message = String::from_utf8_lossy(&out.stderr);
            assert!(message.contains("pip install darshan") || message.contains("refused"), "{message}");
        }
    }
}

fn skip(why: &str) {
    forebay_testkit::skip("plan", why);
}

#[test]
fn generated_plans_are_reproducible() {
    let dir = test_dir("generate");
    let mut args = vec!["--generate", "--apps", "10", "--p-max", "0.3", "--alpha", "0.9", "--seed", "5"];
    args.extend(["--capacity", "300", "--json"]);
    let found = answer(&dir, &args);
    assert_eq!(found, answer(&dir, &args));
    assert_eq!(found["apps"].as_array().unwrap().len(), 10);
    assert!((found["expected_load"].as_f64().unwrap() - 90.0).abs() < 0.5);
}

#[test]
fn charts_and_reports_are_written() {
    let dir = test_dir("pictures");
    fs::write(dir.join("p.toml"), THREE).unwrap();
    answer(&dir, &["p.toml", "--json", "--out", "r.html", "--plots", "svg"]);
    let page = fs::read_to_string(dir.join("r.html")).unwrap();
    for id in ["load", "idle-capacity", "threshold", "simulation", "occupancy"] {
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
        let svg = fs::read_to_string(dir.join("svg").join(format!("{id}.svg"))).unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    }
    // No external references: the only URL is the SVG namespace.
    let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://") && !page.contains("<script"));
}

/// Markup in names is escaped.
#[test]
fn markup_in_names_is_escaped() {
    let dir = test_dir("markup");
    let text = "bandwidth = 9\ncapacity = 9\n[[app]]\nname = \"<script>alert(1)</script>\"\np = 0.1\nb = 3\n";
    fs::write(dir.join("p.toml"), text).unwrap();
    answer(&dir, &["p.toml", "--json", "--out", "r.html"]);
    let page = fs::read_to_string(dir.join("r.html")).unwrap();
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "the name is in the report");
    assert!(!page.contains("<script>"));
}

#[test]
fn figures_are_drawn_and_their_claims_hold() {
    let dir = test_dir("figures");
    let claims = answer(&dir, &["figures", "--out", "figs", "--json"]);
    let claims = claims.as_array().unwrap();
    for figure in 2..=6 {
        assert!(claims.iter().any(|c| c["figure"] == figure), "figure {figure}");
        let svg = fs::read_to_string(dir.join(format!("figs/fig{figure}.svg"))).unwrap();
        assert!(svg.starts_with("<svg ") && svg.matches("<path").count() > 20, "figure {figure}");
    }
    assert!(claims.iter().all(|c| c["holds"] == true), "{claims:?}");
}
