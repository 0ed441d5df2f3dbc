//! The programs that run tests: cargo-nextest, or cargo's own where that is missing.

use crate::shell;
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Runner {
    Nextest,
    CargoTest,
}

/// Which tests of the workspace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pick {
    All,
    /// Those whose function's name starts with `random_`.
    Random,
}

impl Runner {
    pub(crate) fn find() -> Runner {
        if shell::succeeds(shell::cargo().args(["nextest", "--version"])) {
            return Runner::Nextest;
        }
        println!(
            "cargo-nextest is not installed: using cargo test (slower, and a test that hangs is not ended)"
        );
        Runner::CargoTest
    }

    /// Builds every test and runs none.
    pub(crate) fn build(self) -> Command {
        let mut command = shell::cargo();
        match self {
            Runner::Nextest => command.args(["nextest", "run"]),
            Runner::CargoTest => command.args(["test", "--tests"]),
        };
        command.args(["--workspace", "--locked", "--no-run"]);
        command
    }

    /// Runs the tests of `pick` whose names contain one of `names` (any, when there is none). `extra` goes to the
    /// runner as it is.
    pub(crate) fn run(self, pick: Pick, names: &[String], extra: &[String]) -> Command {
        let mut command = shell::cargo();
        match self {
            Runner::Nextest => {
                let limits = format!("xtask:{}", shell::root().join("xtask/nextest.toml").display());
                command.args(["nextest", "run"]).args(scope(extra)).args(["--locked", "--no-fail-fast"]);
                command.args(["--tool-config-file", &limits]);
                if pick == Pick::Random {
                    command.args(["-E", "test(/(^|::)random_/)"]);
                }
                command.args(names).args(extra);
            }
            Runner::CargoTest => {
                let split = extra.iter().position(|word| word == "--").unwrap_or(extra.len());
                let (to_cargo, to_tests) = extra.split_at(split);
                command.args(["test", "--tests"]).args(scope(to_cargo)).args(["--locked", "--no-fail-fast"]);
                command.args(to_cargo).arg("--");
                // Its filters are alternatives, not conditions: a name given by hand replaces the pick.
                if pick == Pick::Random && names.is_empty() {
                    command.arg("random_");
                }
                command.args(names);
                command.args(to_tests.iter().skip(1));
            }
        }
        command
    }

    /// Runs the examples in the documentation, which cargo-nextest cannot.
    pub(crate) fn docs() -> Command {
        let mut command = shell::cargo();
        command.args(["test", "--doc", "--workspace", "--locked", "--no-fail-fast", "--quiet"]);
        command
    }
}

/// The whole workspace, unless the runner is told which packages: cargo would take the union.
fn scope(extra: &[String]) -> Option<&'static str> {
    (!names_package(extra)).then_some("--workspace")
}

/// Whether words for the runner name packages.
pub(crate) fn names_package(extra: &[String]) -> bool {
    extra.iter().any(|word| word.starts_with("-p") || word.starts_with("--package"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &Command, expected: &str) {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let line = words.join(" ").replace(&shell::root().display().to_string(), "ROOT");
        assert_eq!(line, expected);
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn command_lines() {
        let flags = "--locked --no-fail-fast";
        let limits = "--tool-config-file xtask:ROOT/xtask/nextest.toml";
        check(
            &Runner::Nextest.run(Pick::All, &[], &words("--retries 0")),
            &format!("nextest run --workspace {flags} {limits} --retries 0"),
        );
        check(
            &Runner::Nextest.run(Pick::Random, &words("crash"), &words("-p forebay-store")),
            &format!("nextest run {flags} {limits} -E test(/(^|::)random_/) crash -p forebay-store"),
        );
        let common = format!("test --tests --workspace {flags}");
        check(&Runner::CargoTest.run(Pick::All, &[], &[]), &format!("{common} --"));
        check(&Runner::CargoTest.run(Pick::Random, &[], &[]), &format!("{common} -- random_"));
        check(
            &Runner::CargoTest.run(Pick::Random, &words("crash"), &words("-p forebay-store -- --nocapture")),
            &format!("test --tests {flags} -p forebay-store -- crash --nocapture"),
        );
        check(&Runner::Nextest.build(), "nextest run --workspace --locked --no-run");
        check(&Runner::CargoTest.build(), "test --tests --workspace --locked --no-run");
    }
}
