//! Reports in a real browser: the plots are visible, nothing overflows at a phone's width, light and dark
//! differ. Skipped with a note when Chromium is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PLAN: &str = r#"
title = "Three codes on one back end"
bandwidth = "40 GB/s"
capacity = "6 TB"
threshold = "20%"

[[app]]
name = "climate"
rate = "90 GB/s"
burst = "30 s"
every = "2 min"
jitter = 0.5

[[app]]
name = "fusion"
rate = "120 GB/s"
burst = "45 s"
every = "10 min"
content = "checkpoint"
jitter = 0.5

[[app]]
name = "training"
rate = "15 GB/s"
burst = "20 s"
every = "1 min"
jitter = 0.5

[cost]
price_per_tb = 90
endurance = 3000
"#;

/// Measures the page and writes the numbers into its body.
const PROBE: &str = "<script>addEventListener('load',()=>{const d=document,e=d.documentElement,\
box=s=>s.getBoundingClientRect(),plots=[...d.querySelectorAll('figure svg')].filter(s=>box(s).width>200&&box(s).height>100),\
marks=plots.every(s=>s.querySelectorAll('path').length>3&&s.querySelectorAll('text').length>5),\
small=Math.min(...plots.map(s=>12*box(s).width/480)),p=d.createElement('pre');p.id='probe';\
p.textContent='plots='+plots.length+' marks='+marks+' overflow='+(e.scrollWidth-innerWidth)+' small='+small.toFixed(1)+\
' page='+getComputedStyle(d.body).backgroundColor.replaceAll(' ','');d.body.append(p)})</script></body>";

fn chromium(dir: &Path, name: &str, size: &str, page: &str, extra: &[String]) -> Output {
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.arg(format!("--user-data-dir={}", dir.join(format!("profile-{name}")).display()));
    // Virtual time waits for the page, however slow the machine is.
    command.arg("--virtual-time-budget=10000");
    command.args(["--hide-scrollbars", &format!("--window-size={size}")]).args(extra);
    command.arg(format!("file://{}", dir.join(page).display())).output().unwrap()
}

fn is_missing(test: &str) -> bool {
    let missing = Command::new("chromium").arg("--version").output().is_err();
    if missing {
        forebay_testkit::skip(test, "chromium is missing, the page was not looked at");
    }
    missing
}

fn place(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn forebay(dir: &Path, args: &[&str]) {
    let made = Command::new(env!("CARGO_BIN_EXE_forebay")).args(args).current_dir(dir).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn report_is_readable_on_every_screen() {
    if is_missing("report_is_readable_on_every_screen") {
        return;
    }
    let dir = place("plan-browser");
    fs::write(dir.join("p.toml"), PLAN).unwrap();
    forebay(&dir, &["plan", "p.toml", "--out", "report.html"]);
    check_page(&dir, "report.html", "5");
}

#[test]
fn page_of_figures_is_readable_on_every_screen() {
    if is_missing("page_of_figures_is_readable_on_every_screen") {
        return;
    }
    let dir = place("figures-browser");
    forebay(&dir, &["reproduce", "trio-1", "trio-7", "themis-14", "--quick", "--out", "."]);
    check_page(&dir, "index.html", "6");
}

/// Checks a page with a number of plots on a wide screen, a dark one and a phone.
fn check_page(dir: &Path, page: &str, plots: &str) {
    let text = fs::read_to_string(dir.join(page)).unwrap();
    fs::write(dir.join("probe.html"), text.replace("</body>", PROBE)).unwrap();

    let dark = vec!["--blink-settings=preferredColorScheme=0".to_owned()];
    let mut pages = Vec::new();
    for (name, size, mut extra) in
        [("wide", "1200,2000", vec![]), ("dark", "1200,2000", dark), ("phone", "390,3400", vec![])]
    {
        let picture = dir.join(format!("{name}.png"));
        extra.push(format!("--screenshot={}", picture.display()));
        chromium(dir, name, size, page, &extra);
        let bytes = fs::metadata(&picture).unwrap().len();
        assert!(bytes > 40_000, "{name}: the screenshot of {bytes} bytes is nearly empty");

        *extra.last_mut().unwrap() = "--dump-dom".into();
        let dom =
            String::from_utf8_lossy(&chromium(dir, name, size, "probe.html", &extra).stdout).into_owned();
        let probe = dom.split("<pre id=\"probe\">").nth(1).and_then(|rest| rest.split('<').next());
        let probe = probe.unwrap_or_else(|| panic!("{name}: the page did not load"));
        let value = |key: &str| {
            let field = probe.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
            field.unwrap_or_else(|| panic!("{name}: {probe}"))
        };
        assert_eq!((value("plots"), value("marks")), (plots, "true"), "{name}: {probe}");
        assert!(value("overflow").parse::<f64>().unwrap() <= 0.0, "{name}: {probe}");
        assert!(
            value("small").parse::<f64>().unwrap() >= 8.0,
            "{name}: the smallest text is too small: {probe}"
        );
        pages.push(value("page").to_owned());
    }
    assert_ne!(pages[0], pages[1], "light and dark look the same");
}
