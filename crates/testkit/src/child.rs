//! Tests that start themselves again, as the process that they kill or watch.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

const TEST: &str = "FOREBAY_TEST_CHILD";
const ARGUMENT: &str = "FOREBAY_TEST_ARGUMENT";

/// Runs the test of this name (with its modules) in a process of its own, where [`child_of`] returns the argument.
///
/// # Panics
///
/// If the path of the test program is unknown.
pub fn child(test: &str, argument: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("path of the test program"));
    command.args(["--exact", test, "--nocapture"]).env(TEST, test).env(ARGUMENT, argument);
    command
}

/// The argument, if this process was started by [`child`] for the test of this name.
#[must_use]
pub fn child_of(test: &str) -> Option<PathBuf> {
    let is_child = std::env::var(TEST).is_ok_and(|name| name == test);
    is_child.then(|| std::env::var_os(ARGUMENT).unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_starts_itself_with_an_argument() {
        const TEST: &str = "child::tests::test_starts_itself_with_an_argument";
        if let Some(argument) = child_of(TEST) {
            std::process::exit(if argument == *"seven" { 7 } else { 1 });
        }
        assert_eq!(child(TEST, "seven").output().unwrap().status.code(), Some(7));
        assert_eq!(child_of("another test"), None);
    }
}
