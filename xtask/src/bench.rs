//! `cargo xtask bench`: figures, not verdicts. Standard output belongs to the benchmark, so that `--json` is JSON.

use crate::shell;

pub(crate) fn run(words: &[String]) -> Result<(), String> {
    if measures_programs(words) {
        // They are measured with the binary itself, which brings its library along.
        cargo(&["build", "--release", "--quiet", "--package", "forebay"], &[])?;
    }
    cargo(&["run", "--release", "--quiet", "--package", "forebay-bench", "--"], words)
}

/// Whether unmodified programs are among what is measured: they are unless other sections are named.
fn measures_programs(words: &[String]) -> bool {
    let mut sections = words.iter().skip(1).filter(|word| !word.starts_with("--")).peekable();
    sections.peek().is_none() || sections.any(|section| section == "programs")
}

fn cargo(args: &[&str], words: &[String]) -> Result<(), String> {
    match shell::cargo().args(args).args(words).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the benchmark ended with {status}")),
        Err(why) => Err(format!("cannot start cargo: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_built_where_programs_are_measured() {
        for (words, expected) in [
            ("io", true),
            ("io --quick", true),
            ("io data", false),
            ("io --json names programs", true),
            ("io writers names", false),
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            assert_eq!(measures_programs(&words), expected, "{words:?}");
        }
    }
}
