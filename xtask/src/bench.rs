//! `cargo xtask bench`: figures, not verdicts. Standard output belongs to the benchmark, so that `--json` is JSON.

use crate::shell;

pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let build = ["run", "--release", "--quiet", "--package", "forebay", "--", "bench"];
    match shell::cargo().args(build).args(words).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the benchmark ended with {status}")),
        Err(why) => Err(format!("cannot start cargo: {why}")),
    }
}
