//! Other programs: how they are started, found and timed.

use crate::embedded;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The workspace's directory. Cargo says at run time where we are; what it said at build time may be about another
/// clone that shares our build output.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&here).parent().expect("xtask lies inside the workspace").to_path_buf()
}

/// Where builds go, and everything else that may be thrown away.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A program started in the workspace's directory, without standard input: no chore ever asks.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// The cargo that runs us, freed from what `cargo run` told us about our own package: build scripts look at such
/// variables and would run again on every change between chores and ordinary builds.
pub(crate) fn cargo() -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = command(&program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_about_our_package) {
            command.env_remove(name);
        }
    }
    embedded::announce(&mut command);
    command
}

fn is_about_our_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_")
        || name.starts_with("CARGO_MANIFEST_")
        || matches!(name, "CARGO_BIN_NAME" | "CARGO_CRATE_NAME" | "CARGO_PRIMARY_PACKAGE")
}

/// Shows the command, runs it with our output, and says how it failed.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    println!("$ {}", shown(command));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{} ended with {status}", shown(command))),
        Err(why) => Err(format!("cannot start {}: {why}", shown(command))),
    }
}

/// Whether the command can be started and succeeds; what it prints is thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// What the command prints.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = shown(command);
    let output = command.output().map_err(|why| format!("cannot start {name}: {why}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} ended with {}: {}", output.status, words.trim()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{name} did not print UTF-8"))
}

/// What the command prints when it reads this input. Its standard error is ours.
pub(crate) fn filter(command: &mut Command, input: &str) -> Result<String, String> {
    let name = shown(command);
    let cannot = |why: std::io::Error| format!("cannot run {name}: {why}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().map_err(cannot)?;
    let (mut pipe, input) = (child.stdin.take().expect("it is piped"), input.to_owned());
    // In a thread, so that neither side waits for the other to read. A program that does not read its input says why
    // by its exit status.
    let writer = std::thread::spawn(move || drop(pipe.write_all(input.as_bytes())));
    let output = child.wait_with_output().map_err(cannot)?;
    writer.join().expect("writing does not panic");
    match output.status.success() {
        true => String::from_utf8(output.stdout).map_err(|_| format!("{name} did not print UTF-8")),
        false => Err(format!("{name} ended with {}", output.status)),
    }
}

/// A command as a person would type it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    let mut line = program;
    for argument in command.get_args() {
        let argument = argument.to_string_lossy();
        let quote = argument.is_empty() || argument.contains(|c: char| " '()|*&;<>$\"\\".contains(c));
        line.push(' ');
        if quote {
            line.push_str(&format!("'{argument}'"));
        } else {
            line.push_str(&argument);
        }
    }
    line
}

/// Whether a program of that name is in the search path, or where Debian keeps programs for administrators.
pub(crate) fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(administrators).any(|dir| dir.join(program).is_file())
}

/// Minutes and seconds, as on a clock.
pub(crate) fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_typed() {
        let mut command = command("/usr/bin/cargo");
        command.args(["test", "-E", "test(/random_/)"]);
        assert_eq!(shown(&command), "cargo test -E 'test(/random_/)'");
    }

    #[test]
    fn failures_are_seen_and_named() {
        assert_eq!(run(&mut command("true")), Ok(()));
        let failed = run(command("false").arg("really")).unwrap_err();
        assert!(failed.contains("false really") && failed.contains("exit status: 1"), "{failed}");
        let missing = run(&mut command("no-such-program")).unwrap_err();
        assert!(missing.contains("cannot start no-such-program"), "{missing}");
        assert!(succeeds(&mut command("true")) && !succeeds(&mut command("false")));
        assert!(!succeeds(&mut command("no-such-program")));
        assert!(output(&mut command("false")).is_err());
        assert_eq!(filter(&mut command("cat"), "text").as_deref(), Ok("text"));
        assert!(filter(&mut command("false"), "text").unwrap_err().contains("false ended with"));
    }

    #[test]
    fn programs_are_found() {
        assert!(in_path("sh"));
        assert!(!in_path("no-such-program"));
    }

    #[test]
    fn our_own_package_is_no_news_for_cargo() {
        assert!(is_about_our_package("CARGO_PKG_NAME") && is_about_our_package("CARGO_MANIFEST_DIR"));
        assert!(!is_about_our_package("CARGO_HOME") && !is_about_our_package("CARGO_TARGET_DIR"));
    }

    #[test]
    fn time_is_shown_as_on_a_clock() {
        assert_eq!(clock(Duration::from_secs(0)), "0:00");
        assert_eq!(clock(Duration::from_secs(905)), "15:05");
    }
}
