//! `cargo xtask test`: the whole suite, the same on every machine.

use crate::args::Test;
use crate::embedded;
use crate::machine::{self, Machine};
use crate::runner::{Pick, Runner};
use crate::{seed, shell, skips};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// What the suite may take on two cores, building included.
const BUDGET: Duration = Duration::from_secs(30 * 60);

/// A test that skips appends a line to this file, since runners hide what a passing test prints.
const SKIP_LOG: &str = "FOREBAY_SKIP_LOG";

pub(crate) fn run(options: &Test) -> Result<(), String> {
    let seed = seed::for_suite(options.seed, std::env::var(seed::SEED).ok().as_ref())?;
    let mut book = Book::default();
    let machine = book.time("machine", || machine::prepare(!options.no_install));
    let runner = Runner::find();
    let skip_log = shell::target_dir().join("skipped-tests");
    if skip_log.exists() {
        std::fs::remove_file(&skip_log)
            .map_err(|why| format!("cannot remove {}: {why}", skip_log.display()))?;
    }
    let whole = options.names.is_empty() && options.runner_args.is_empty();

    println!(
        "running {} with {}={seed}",
        if whole { "the whole suite" } else { "a part of the suite" },
        seed::SEED
    );
    let mut failures = Vec::new();
    let built = book.time("build", || build(runner, whole, options));
    match built {
        Err(why) => failures.push(why),
        Ok(()) => {
            let mut tests = runner.run(Pick::All, &options.names, &options.runner_args);
            let tests = with_environment(&mut tests, seed, &machine, &skip_log);
            failures.extend(book.time("tests", || shell::run(tests)).err());
            if whole {
                let mut docs = Runner::docs();
                let docs = with_environment(&mut docs, seed, &machine, &skip_log);
                failures.extend(book.time("doc tests", || shell::run(docs)).err());
            }
        }
    }

    println!();
    for line in &machine.missing {
        println!("missing: {line}");
    }
    let log = std::fs::read_to_string(&skip_log).unwrap_or_default();
    let skipped = skips::lines(&log);
    for line in &skipped {
        println!("{}", skips::shown(line));
    }
    let ci = skips::is_ci(std::env::var("CI").ok().as_deref());
    failures.extend(skips::judge(&skipped, ci).err());
    println!("{}", book.summary());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n       ")) }
}

/// Builds the embedded libraries and, for a run of the whole suite, everything else. A run of a few packages leaves the
/// libraries to the build script, if one of those packages needs them.
fn build(runner: Runner, whole: bool, options: &Test) -> Result<(), String> {
    if !crate::runner::names_package(&options.runner_args) {
        embedded::build()?;
    }
    if whole { shell::run(&mut runner.build()) } else { Ok(()) }
}

fn with_environment<'a>(
    command: &'a mut Command,
    seed: u64,
    machine: &Machine,
    skips: &Path,
) -> &'a mut Command {
    command.env(seed::SEED, seed.to_string()).env(seed::PROPTEST_SEED, seed.to_string());
    command.env_remove(seed::SOAK_SECONDS).env(SKIP_LOG, skips);
    if let Some(python) = &machine.python {
        command.env(machine::PYTHON, python);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::iter::once(machine.tools.clone()).chain(std::env::split_paths(&path));
    if let Ok(path) = std::env::join_paths(places) {
        command.env("PATH", path);
    }
    command
}

/// Where the time went.
#[derive(Default)]
struct Book {
    steps: Vec<(&'static str, Duration)>,
}

impl Book {
    fn time<T>(&mut self, step: &'static str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.steps.push((step, start.elapsed()));
        result
    }

    fn summary(&self) -> String {
        let steps: Vec<String> =
            self.steps.iter().map(|(step, took)| format!("{step} {}", shell::clock(*took))).collect();
        let total: Duration = self.steps.iter().map(|(_, took)| *took).sum();
        let verdict = if total > BUDGET { ": OVER BUDGET, make the slowest tests quicker" } else { "" };
        let (total, budget) = (shell::clock(total), shell::clock(BUDGET));
        format!("time: {} = {total} of a budget of {budget}{verdict}", steps.join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_says_where_the_time_went_and_when_it_was_too_much() {
        let mut book = Book::default();
        assert_eq!(book.time("machine", || 7), 7);
        book.steps = vec![("build", Duration::from_secs(61)), ("tests", Duration::from_secs(120))];
        assert_eq!(book.summary(), "time: build 1:01 + tests 2:00 = 3:01 of a budget of 30:00");
        book.steps.push(("doc tests", BUDGET));
        assert!(book.summary().contains("= 33:01 of a budget of 30:00: OVER BUDGET"), "{}", book.summary());
    }

    #[test]
    fn tests_see_the_seed_and_no_soak() {
        let machine =
            Machine { python: Some("/venv/bin/python".into()), tools: "/tools".into(), missing: vec![] };
        let mut command = shell::command("sh");
        command.args([
            "-c",
            "echo $FOREBAY_SEED $PROPTEST_RNG_SEED ${FOREBAY_SOAK_SECONDS-none} $FOREBAY_PYTHON ${PATH%%:*}",
        ]);
        command.env(seed::SOAK_SECONDS, "9");
        let printed = shell::output(with_environment(&mut command, 5, &machine, Path::new("/log"))).unwrap();
        assert_eq!(printed.trim(), "5 5 none /venv/bin/python /tools");
    }
}
