//! Checks that other programs do for us. Their own output says where; the finding says that.

use super::Finding;
use crate::shell;
use crate::tree::Tree;
use std::process::Command;

pub(super) fn fmt(_: &Tree) -> Vec<Finding> {
    ask(shell::cargo().args(["fmt", "--all", "--check"]), "run \"cargo fmt --all\"")
}

pub(super) fn clippy(_: &Tree) -> Vec<Finding> {
    let mut clippy = shell::cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"]);
    ask(&mut clippy, "see the lints above")
}

pub(super) fn docs(_: &Tree) -> Vec<Finding> {
    let mut docs = shell::cargo();
    docs.args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings");
    ask(&mut docs, "see the warnings above")
}

fn ask(command: &mut Command, advice: &str) -> Vec<Finding> {
    match shell::run(command) {
        Ok(()) => vec![],
        Err(why) => vec![Finding::wrong("workspace", format!("{why}: {advice}"))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_or_is_missing_is_a_finding() {
        assert_eq!(ask(&mut shell::command("true"), ""), []);
        let failed = ask(&mut shell::command("false"), "do better");
        assert!(matches!(&failed[..], [finding] if finding.what.contains("do better")), "{failed:?}");
        assert_eq!(ask(&mut shell::command("no-such-program"), "").len(), 1);
    }
}
