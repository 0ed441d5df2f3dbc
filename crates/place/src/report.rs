//! The log and the counters; errors are always reported, at least once on standard error.

use crate::setting;
use std::fmt::Arguments;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static REPORTED: AtomicBool = AtomicBool::new(false);

/// Counters of this process.
pub(crate) struct Counts {
    pub(crate) placed: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) left: AtomicU64,
}

pub(crate) static COUNTS: Counts =
    Counts { placed: AtomicU64::new(0), refused: AtomicU64::new(0), left: AtomicU64::new(0) };

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Reports an error before the settings are available.
pub(crate) fn early(text: &str) {
    complain(format_args!("{text}"));
}

fn complain(text: Arguments<'_>) {
    if !REPORTED.swap(true, Ordering::Relaxed) {
        // A failure to write to standard error cannot be reported.
        let _ = writeln!(std::io::stderr(), "forebay place: {text}");
    }
}

/// Logs an action.
pub(crate) fn note(text: Arguments<'_>) {
    if let Some(log) = setting::ready().and_then(|ready| ready.setting.log.as_deref()) {
        append(log, text);
    }
}

/// Reports an error, in the log or on standard error.
pub(crate) fn trouble(text: Arguments<'_>) {
    match setting::ready().and_then(|ready| ready.setting.log.as_deref()) {
        Some(log) => append(log, text),
        None => complain(text),
    }
}

/// Appends a line in one write, so that lines of several processes do not mix.
fn append(path: &[u8], text: Arguments<'_>) {
    let line = format!("{text}\n");
    let opened = OpenOptions::new().append(true).create(true).open(setting::path(path));
    if let Err(error) = opened.and_then(|mut file| file.write_all(line.as_bytes())) {
        complain(format_args!("cannot write the log {}: {error}", String::from_utf8_lossy(path)));
    }
}

/// Appends the counters of this process to the configured file.
extern "C" fn finish() {
    let Some(counts) = setting::ready().and_then(|ready| ready.setting.counts.as_deref()) else { return };
    let [placed, refused, left] =
        [&COUNTS.placed, &COUNTS.refused, &COUNTS.left].map(|counter| counter.load(Ordering::Relaxed));
    if placed + refused + left > 0 {
        let pid = std::process::id();
        let text = format_args!(
            "{{\"pid\": {pid}, \"placed\": {placed}, \"refused\": {refused}, \"left\": {left}}}"
        );
        append(counts, text);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
