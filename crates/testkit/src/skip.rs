//! Tests that cannot run everywhere.

use std::io::Write;

/// Whether the tests run as the superuser.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports that a test was skipped.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
pub fn skip(test: &str, why: &str) {
    let line = format!("skipped: {test}: {why}");
    eprintln!("{line}");
    if let Ok(path) = std::env::var("FOREBAY_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        let written = log.and_then(|mut log| writeln!(log, "{line}"));
        written.unwrap_or_else(|error| panic!("cannot write {path}: {error}"));
    }
}
