//! The commands of README and of the quick start, run from the first to the last as a reader would.

use crate::support::{World, run, skip, text};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is smaller or elsewhere in a test than on the pages.
const SMALLER: &[(&str, &str)] = &[("4GiB", "96MiB"), ("64GiB", "96MiB")];

/// Programs of the reader, by name. `git` and `cargo` bring the binary under test; `cargo xtask verify book` checks
/// the chores that pages name, and `demo.rs` runs the demo.
const PROGRAMS: &[(&str, &str)] = &[
    ("git", "[ \"$1 $3\" = \"clone forebay\" ] && mkdir forebay && cp app forebay/"),
    (
        "cargo",
        "case \"$1 $2\" in\n\
         'build --release') mkdir -p target/release && ln -s \"$BINARY\" target/release/forebay ;;\n\
         'run --release') shift 3; exec \"$BINARY\" \"$@\" --help ;;\n\
         *) echo \"no command of a reader: cargo $*\" >&2; exit 1 ;;\n\
         esac",
    ),
    ("mpiexec", "shift 2\nfor rank in 0 1 2 3; do RANK=$rank \"$@\" & done\nwait"),
];

/// The reader's own program: writes one file for each rank into the directory that it is given.
const APP: &str = "mkdir -p \"$1\" && echo data > \"$1/rank.${RANK:-0}\"";

/// The blocks of shell of a page, each line at its own place, so that the shell's line numbers are the page's.
fn script(page: &str) -> String {
    let mut script = String::new();
    let mut is_shell = false;
    for line in page.lines() {
        let is_fence = line.starts_with("```");
        if is_shell && !is_fence {
            script.push_str(line);
        }
        is_shell = is_fence && line == "```sh" || is_shell && !is_fence;
        script.push('\n');
    }
    script
}

fn executable(path: &Path, body: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{body}\n")).expect("a program");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("it is ours");
}

/// Runs the commands of a page in a directory of their own. Returns what they printed, or the line that failed.
fn play(world: &World, page: &str) -> Result<String, String> {
    let programs = world.path("programs");
    std::fs::create_dir_all(&programs).expect("a directory");
    for (name, body) in PROGRAMS {
        executable(&programs.join(name), body);
    }
    executable(&world.path("app"), APP);
    // The service of this test, where the page's reader would have the machine's.
    let (store, socket) = (world.path("store"), world.path("sock"));
    world.write(
        ".config/forebay/forebay.toml",
        format!(
            "[server]\nstore = \"{}\"\nsocket = \"{}\"\n[client]\nservice = \"{}\"\n",
            store.display(),
            socket.display(),
            world.service()
        ),
    );
    std::fs::create_dir_all(world.path("scratch")).expect("a directory");
    let mut commands = script(page).replace("/scratch", text(&world.path("scratch")));
    for (large, small) in SMALLER {
        commands = commands.replace(large, small);
    }
    // The first line of a page is its title.
    let file = world.write(
        "commands.sh",
        format!("set -eEuo pipefail; trap 'echo \"line $LINENO failed\" >&2' ERR{commands}"),
    );
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_forebay"));
    let home = binary.parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command.arg(file).current_dir(world.dir()).env_clear().env("HOME", world.dir()).env("BINARY", &binary);
    command.env("PATH", format!("{}:{}:{path}", programs.display(), home.display()));
    let ran = run(command);
    // After a failure the page's own "forebay down" was not reached.
    if ran.code != 0 && socket.exists() {
        world.run(&["down"]);
    }
    // A service in memory keeps its regions, which may be a mount of its own.
    if store.exists() {
        world.well(&["store", "remove", "--yes", text(&store)]);
    }
    if ran.code == 0 { Ok(ran.out) } else { Err(format!("{}{}", ran.out, ran.err)) }
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `forebay run` keeps its buffer there.
fn can_run() -> bool {
    let can = Path::new("/dev/shm").is_dir();
    if !can {
        skip("there is no /dev/shm, so the commands of README and of the quick start were not run");
    }
    can
}

#[test]
fn readme_goes_from_a_clone_to_data_in_five_commands() {
    if !can_run() {
        return;
    }
    let page = page("README.md");
    let first = page.split("```").nth(3).expect("the picture is the first block, the second has commands");
    let commands = first.trim_start_matches("sh\n").trim().lines().count();
    assert!(first.starts_with("sh\ngit clone ") && commands <= 5, "{first}");
    let world = World::empty();
    let out = play(&world, &format!("# Title\n```{first}```\n")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(out.lines().last(), Some("hello"), "{out}");
    let data = std::fs::read_to_string(world.path("forebay/results/greeting")).expect("the program's data");
    assert_eq!(data, "hello\n");
}

#[test]
fn commands_of_readme_run_from_the_first_to_the_last() {
    if !can_run() {
        return;
    }
    let world = World::empty();
    // The demo has tests of its own: here it only has to be a command.
    let page = page("README.md").replace("\nforebay demo\n", "\nforebay demo --help\n");
    let out = play(&world, &page).unwrap_or_else(|error| panic!("{error}"));
    for rank in 0..4 {
        let file = world.path(&format!("forebay/results/out/rank.{rank}"));
        assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), Some("data\n"), "{}", file.display());
    }
    assert_eq!(std::fs::read(world.path("scratch/run1/rank.0")).ok().as_deref(), Some(&b"data\n"[..]));
    assert!(out.contains("size-fair"), "{out}");
    assert!(!world.path("sock").exists(), "the last command stops the service");
}

#[test]
fn commands_of_the_quick_start_run_from_the_first_to_the_last() {
    if !can_run() {
        return;
    }
    let world = World::empty();
    let out = play(&world, &page("docs/quick-start.md")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        out.lines().filter(|line| *line == "hello").count(),
        2,
        "from the directory and from /fb: {out}"
    );
    assert!(!world.path("sock").exists(), "the last command stops the service");
}

#[test]
fn command_of_a_page_that_fails_is_reported_with_its_line() {
    let world = World::empty();
    for (bad, line) in
        [("forebay no-such-command", 5), ("false | cat", 5), ("forebay ls /gone", 5), ("cargo rnu", 5)]
    {
        let page = format!("# Title\n\n```sh\ntrue\n{bad}\ntrue\n```\n");
        let failed = play(&world, &page).expect_err(bad);
        assert!(failed.contains(&format!("line {line} failed")), "{bad}: {failed}");
    }
    // Other blocks are no commands.
    assert_eq!(play(&world, "# Title\n```text\nfalse\n```\n```\nfalse\n```\n").as_deref(), Ok(""));
}
