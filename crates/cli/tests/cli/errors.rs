//! Exit codes and error messages.

use crate::support::{World, pattern, ran};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::process::Stdio;

#[test]
fn usage_errors_are_one_line_and_exit_with_2() {
    let world = World::empty();
    for (args, parts) in [
        (&[][..], &["a command is missing", "forebay --help"][..]),
        (&["pot"], &["unrecognized subcommand 'pot'", "'put'", "forebay --help"]),
        (&["put"], &["required arguments were not provided", "<REMOTE>", "forebay put --help"]),
        (&["put", "x"], &["required", "<LOCAL>"]),
        (&["ls", "--colour"], &["unexpected argument '--colour'", "forebay ls --help"]),
        (&["up", "--capacity", "4QB"], &["\"4QB\" is not a size", "512MiB or 4GiB", "forebay up --help"]),
        (&["up", "--capacity", "-1"], &["forebay up --help"]),
        (&["up", "--memory", "--disk"], &["cannot be used with"]),
        (&["up", "--listen", "here"], &["invalid value 'here'", "--listen"]),
        (&["ls", "--service", "nowhere"], &["\"nowhere\" is not the address of a service", "tcp:host:port"]),
        (&["completions", "csh"], &["invalid value 'csh'", "bash"]),
        (&["store"], &["a command is missing"]),
    ] {
        world.run(args).failed(2, parts);
    }
}

#[test]
fn failures_are_one_line_and_exit_with_1() {
    let world = World::up();
    world.write("f", "x");
    world.well(&["put", "f", "/f"]);
    let name = "n".repeat(256);
    for (args, parts) in [
        (&["cat", "/none/x"][..], &["cannot open /none/x: no \"none\": look for it with \"forebay ls\""][..]),
        (&["cat", "/f/x"], &["cannot open /f/x: ", "not a directory"]),
        (&["cat", "/"], &["cannot read /: it is a directory"]),
        (&["ls", "/none"], &["cannot stat /none: no \"none\""]),
        (&["get", "/none", "x"], &["cannot stat /none"]),
        (
            &["get", "/f", "/none/at/all"],
            &["cannot write /none/at/all: no such file or directory: check the path"],
        ),
        (&["put", "f", "/none/f"], &["cannot open /none/f: no \"none\""]),
        (&["mkdir", "/none/d"], &["cannot make directory /none/d"]),
        (&["mkdir", &name], &["at most 255 bytes"]),
        (&["ln", "/none", "/l"], &["cannot link /none to /l"]),
        (&["mv", "/none", "/l"], &["cannot move /none to /l"]),
        (&["du", "/none"], &["cannot stat /none"]),
        (&["store", "inspect", "/none"], &["cannot read /none/store", "check the path"]),
        (&["up", "--store", "/proc/x", "--socket", "s", "--capacity", "1MiB"], &["/proc/x"]),
        (&["up", "--detach", "--store", "/proc/x", "--socket", "s"], &["/proc/x"]),
        (&["up", "--store", "small", "--socket", "s", "--capacity", "1B"], &["a capacity of 1 B"]),
        (
            &["up", "--detach", "--store", "other", "--disk", "--capacity", "1MiB", "--socket", "f"],
            &["f is in the way of the socket", "(its log is "],
        ),
    ] {
        world.run(args).failed(1, parts);
    }
}

#[test]
fn missing_service_is_reported() {
    let world = World::empty();
    world.run(&["status"]).failed(
        1,
        &[
            "cannot reach the service at unix:",
            "/sock: no such file or directory: start one with \"forebay up\", or name another with --service",
        ],
    );
    let mut command = world.command(&["status"]);
    command.env("FOREBAY_SERVICE", "tcp:127.0.0.1:1");
    crate::support::run(command).failed(1, &["tcp:127.0.0.1:1: connection refused: start one"]);
}

/// Whether all threads of a process are stopped.
fn is_frozen(pid: u64) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}

/// What a program with open connections reports when the server answers no more.
#[test]
fn program_reports_a_frozen_server_after_the_time_of_a_request() {
    let mut world = World::empty();
    let server = world.start(&[])["pid"].as_u64().expect("a process");
    world.write("forebay.toml", "[client.times]\nrequest = \"1s\"\n");
    world.write("file", "x");
    world.well(&["put", "file", "/file"]);
    let mut cat = world.command(&["exec", "--", "cat", "/fb/file", "-", "/fb/file"]);
    cat.env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut cat = cat.spawn().expect("it runs");
    let mut read = [0];
    cat.stdout.as_mut().expect("a pipe").read_exact(&mut read).expect("the file is read");
    let server = Pid::from_raw(server as i32).expect("a process");
    kill_process(server, Signal::STOP).expect("it runs");
    while !is_frozen(server.as_raw_nonzero().get() as u64) {
        std::thread::yield_now();
    }
    drop(cat.stdin.take());
    let ended = ran(cat.wait_with_output().expect("it ends"));
    kill_process(server, Signal::CONT).expect("it runs");
    assert_eq!((ended.code, ended.err.as_str()), (1, "cat: /fb/file: Connection timed out\n"));
}

#[test]
fn closed_output_pipe_is_no_error() {
    let world = World::up();
    world.write("f", pattern(20 << 20, 1));
    world.well(&["put", "f", "/f"]);
    for args in [&["cat", "/f"][..], &["get", "/f", "-"]] {
        let mut command = world.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 10]).unwrap();
        drop(out);
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
    }
}

#[test]
fn help_version_and_completions() {
    let world = World::empty();
    let help = world.well(&["--help"]);
    for command in ["up", "down", "put", "get", "ls", "store", "demo", "completions"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in {help}");
    }
    assert!(!help.contains("demo-job"), "{help}");
    assert!(world.well(&["put", "--help"]).contains("FOREBAY_SERVICE"));
    assert!(world.well(&["--version"]).starts_with("forebay "));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = world.well(&["completions", shell]);
        assert!(script.contains("forebay") && script.contains("inspect"), "{shell}");
    }
}
