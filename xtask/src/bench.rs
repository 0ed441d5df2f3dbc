//! `cargo xtask bench`: figures, not verdicts. Standard output belongs to the benchmark, so that `--json` is JSON.

use crate::shell;

pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let mut cargo = shell::cargo();
    cargo.args(["run", "--release", "--quiet", "--package", "forebay-bench", "--"]).args(words);
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the benchmark ended with {status}")),
        Err(why) => Err(format!("cannot start cargo: {why}")),
    }
}
