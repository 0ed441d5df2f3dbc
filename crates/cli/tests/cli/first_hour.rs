//! What a new user sees first: printed commands can be copied, and errors are one line.

use crate::support::{Ran, World, run};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

#[test]
fn exec_without_a_service_fails_in_one_line() {
    let world = World::empty();
    let reported = ["no service at unix:", "sock", "forebay up --detach", "--service"];
    world.run(&["exec", "--", "true"]).failed(1, &reported);
    // A socket file without a server.
    drop(UnixListener::bind(world.path("sock")).expect("a socket"));
    world.run(&["exec", "--", "true"]).failed(1, &reported);
    let nowhere = format!("tcp:{}", forebay_testkit::address());
    world.run(&["exec", "--service", &nowhere, "--", "true"]).failed(1, &["no service at", &nowhere]);
}

#[test]
fn unknown_options_are_refused_as_options() {
    let world = World::up();
    for args in [
        &["run", "--servers", "4", "--", "true"][..],
        &["run", "--servers=4", "true"],
        &["exec", "--servers", "4", "--", "true"],
        &["place", "exec", "--servers", "4", "--", "true"],
    ] {
        world.run(args).failed(2, &["unexpected argument '--servers", "--help"]);
    }
    // Options after the program belong to the program.
    let output = world.run(&["exec", "echo", "--servers", "-n", "--", "x"]);
    assert_eq!((output.code, output.out.as_str()), (0, "--servers -n -- x\n"), "{}", output.err);
}

#[test]
fn retired_words_are_refused_with_the_new_ones() {
    let world = World::up();
    world.run(&["up", "--servers", "3"]).failed(2, &["--shards 3"]);
    world.run(&["layout", "set", "/", "--servers", "3"]).failed(2, &["--shards 3"]);
    world.run(&["server", "replace", "1"]).failed(2, &["forebay shard replace 1"]);
}

#[test]
fn programs_that_cannot_run_give_shell_exit_codes() {
    let world = World::up();
    let plain = world.write("plain", "#!/bin/sh\n");
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o644)).expect("it is ours");
    for (program, code) in [("no-such-program", 127), ("./nowhere/x", 127), ("./plain", 126), (".", 126)] {
        world.run(&["exec", "--", program]).failed(code, &["cannot run", program]);
        if Path::new("/dev/shm").is_dir() {
            let ran = world.run(&["run", "--capacity", "64MiB", "--", program]);
            assert_eq!(ran.code, code, "{}", ran.err);
            assert!(ran.err.contains(&format!("forebay: cannot run {program}")), "{}", ran.err);
        }
    }
}

#[test]
fn help_explains_the_intercept_option() {
    let world = World::up();
    for command in ["run", "exec"] {
        let help = world.well(&[command, "--help"]);
        for word in [
            "--intercept <HOW>",
            "auto",
            "library",
            "dispatch",
            "raw system calls",
            "mount",
            "no interception",
        ] {
            assert!(help.to_lowercase().contains(&word.to_lowercase()), "expected {word:?} in {help}");
        }
        world
            .run(&[command, "--intercept", "magic", "true"])
            .failed(2, &["'magic'", "auto, library, dispatch"]);
    }
    let reported = |args: &[&str], variable: Option<&str>| {
        let mut command = world.command(&["exec"]);
        command.args(args).args(["--", "sh", "-c", "echo $FOREBAY_INTERCEPT"]);
        command.envs(variable.map(|how| ("FOREBAY_INTERCEPT", how)));
        run(command).well().out
    };
    assert_eq!(reported(&[], None), "auto\n");
    assert_eq!(reported(&["--intercept", "library"], Some("dispatch")), "library\n");
    assert_eq!(reported(&[], Some("library")), "library\n");
    if cfg!(target_arch = "x86_64") {
        assert_eq!(reported(&["--intercept", "dispatch"], None), "dispatch\n");
    }
}

/// The shell commands in an output: those after these labels, and those below them without a label.
fn shell_lines(output: &str, labels: &[&str]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut copies = false;
    for line in output.lines() {
        let (label, rest) = line.split_at(line.len().min(12));
        copies = match label.trim() {
            "" => copies,
            label => labels.contains(&label),
        };
        if copies {
            lines.push(rest.to_owned());
        }
    }
    lines
}

/// Runs lines in a shell that has the binary in PATH.
fn shell(world: &World, lines: &[String]) -> Ran {
    let binary = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command.args(["-e", "-c", &lines.join("\n")]).current_dir(world.dir()).env_clear();
    command.env("HOME", world.dir()).env("PATH", format!("{}:{path}", binary.display()));
    run(command)
}

#[test]
fn commands_printed_by_up_work() {
    let mut world = World::empty();
    let dir = world.path("a place, with 'quotes'");
    std::fs::create_dir(&dir).expect("a directory");
    let (store, socket) = (dir.join("store"), dir.join("sock"));
    let mut command = world.command(&["up", "--detach", "--disk", "--capacity", "64MiB", "--store"]);
    command.arg(&store).arg("--socket").arg(&socket);
    let output = run(command).well().out;
    let pid = output.split("as process ").nth(1).and_then(|rest| rest.lines().next()).expect("its process");
    world.watch(pid.parse().expect("a number"));
    let lines = shell_lines(&output, &["use it", "stop it"]);
    assert!(lines.len() >= 4 && lines.last().is_some_and(|line| line == "forebay down"), "{lines:?}");
    let ran = shell(&world, &lines);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{lines:?}: {}", ran.out);
    assert!(ran.out.contains(&format!("{}", store.display())), "the status is this server's: {}", ran.out);
    assert!(!socket.exists(), "it was stopped");
}

#[test]
fn down_reports_kept_memory_and_how_to_free_it() {
    let mut world = World::empty();
    let mut command = world.command(&["up", "--detach", "--json", "--memory", "--capacity", "32MiB"]);
    command.arg("--store").arg(world.path("store")).arg("--socket").arg(world.path("sock"));
    let started: Value = serde_json::from_str(&run(command).well().out).expect("JSON");
    world.watch(started["pid"].as_u64().expect("a process"));
    let output = world.well(&["down"]);
    assert!(output.contains("of memory stay with") && output.contains("forebay up"), "{output}");
    let line =
        output.lines().find(|line| line.contains("store remove")).expect("the command that frees the memory");
    assert!(world.path("store").exists());
    let ran = shell(&world, &[line.to_owned()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{line}");
    assert!(!world.path("store").join("store").exists(), "{}", ran.out);
}

#[test]
fn status_of_three_servers_fits_a_screen_and_has_totals() {
    let mut world = World::empty();
    std::fs::create_dir(world.path("backing")).expect("a directory");
    let backing = format!("dir:{}", world.path("backing").display());
    world.start(&["--shards", "3", "--backend", &backing]);
    world.write("file", vec![7; 3 << 20]);
    world.well(&["put", "file", "/f"]);
    let status = world.json(&["status", "--json"]);
    let sum = |key: &str| -> u64 {
        let servers = status["servers"].as_array().expect("a list").iter();
        servers.map(|server| server["status"]["usage"][key].as_u64().expect("a number")).sum()
    };
    for key in ["capacity", "used", "live"] {
        assert_eq!(status["totals"][key], sum(key), "{key}: {status}");
    }
    assert_eq!(status["totals"]["undrained"], 3 << 20, "{status}");
    assert_eq!(status["totals"]["away"], 0);
    let shown = world.well(&["status"]);
    assert!(shown.lines().count() <= 24, "{shown}");
    let widest = shown.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{widest:?} columns: {shown}");
    let all = shown.lines().find(|line| line.trim_start().starts_with("all ")).expect("a line of totals");
    assert!(all.contains("3 MiB"), "{shown}");
    assert!(shown.lines().next().is_some_and(|line| line.starts_with("3 servers, ")), "{shown}");
    assert!(world.well(&["status", "--long"]).contains("server 2 (forebay "));
}

#[test]
fn undrained_bytes_are_counted_when_nothing_is_queued() {
    let mut world = World::empty();
    std::fs::create_dir(world.path("backing")).expect("a directory");
    world.start(&["--backend", &format!("dir:{}", world.path("backing").display())]);
    world.write("file", vec![7; 1 << 20]);
    world.well(&["put", "file", "/f"]);
    let shown = world.well(&["status"]);
    assert!(shown.contains("1 MiB undrained, 0 B of "), "{shown}");
    world.well(&["drain", "--wait"]);
    let shown = world.well(&["status"]);
    assert!(shown.contains(": 0 B undrained, 0 B of "), "{shown}");
}

#[test]
fn run_summary_counts_bytes_of_the_program() {
    if !Path::new("/dev/shm").is_dir() {
        return crate::support::skip(
            "there is no /dev/shm, so the summary of \"forebay run\" was not tested",
        );
    }
    let world = World::empty();
    std::fs::create_dir(world.path("pfs")).expect("a directory");
    world.write("pfs/old", vec![1; 1 << 20]);
    let script = "head -c 3000000 /dev/zero > /fb/new; cat /fb/old /fb/new | wc -c";
    let mut command = world.command(&["run", "--json", "--capacity", "64MiB", "--pfs", "pfs"]);
    command.args(["--", "bash", "-c", script]);
    let ran = run(command);
    assert_eq!((ran.code, ran.out.trim()), (0, "4048576"), "{}", ran.err);
    let line = ran.err.lines().find(|line| line.starts_with('{')).expect("a line of JSON");
    let summary: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(summary["served"]["written"], 3_000_000, "{summary}");
    assert_eq!(summary["served"]["read"], 4_048_576, "{summary}");
    assert_eq!(summary["drained"]["bytes"], 3_000_000, "{summary}");
    let mut shown = world.command(&["run", "--capacity", "64MiB", "--pfs", "pfs", "--", "bash", "-c"]);
    shown.arg(script);
    let ran = run(shown);
    assert!(ran.err.contains(": in buffer  2.9 MiB written, 3.9 MiB read by "), "{}", ran.err);
    let idle = world.command(&["run", "--json", "--capacity", "64MiB", "--pfs", "pfs", "--", "true"]);
    let ran = run(idle);
    let line = ran.err.lines().find(|line| line.starts_with('{')).expect("a line of JSON");
    let summary: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(
        (&summary["served"]["written"], &summary["served"]["read"]),
        (&0.into(), &0.into()),
        "{summary}"
    );
}
