//! What was done, for those who ask; what went wrong, once, for everybody.

use crate::setting;
use std::fmt::Arguments;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static TOLD: AtomicBool = AtomicBool::new(false);

/// What this process has done.
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

/// Before there is a setting to say where to.
pub(crate) fn early(text: &str) {
    complain(format_args!("{text}"));
}

fn complain(text: Arguments<'_>) {
    if !TOLD.swap(true, Ordering::Relaxed) {
        // If even that fails there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "forebay place: {text}");
    }
}

/// Something was done.
pub(crate) fn note(text: Arguments<'_>) {
    if let Some(log) = setting::ready().and_then(|ready| ready.setting.log.as_deref()) {
        append(log, text);
    }
}

/// Something went wrong: never silently.
pub(crate) fn trouble(text: Arguments<'_>) {
    match setting::ready().and_then(|ready| ready.setting.log.as_deref()) {
        Some(log) => append(log, text),
        None => complain(text),
    }
}

/// Adds a line in one write, so that those of several processes do not mix.
fn append(path: &[u8], text: Arguments<'_>) {
    let line = format!("{text}\n");
    let opened = OpenOptions::new().append(true).create(true).open(setting::path(path));
    if let Err(error) = opened.and_then(|mut file| file.write_all(line.as_bytes())) {
        complain(format_args!("cannot write the log {}: {error}", String::from_utf8_lossy(path)));
    }
}

/// Adds the counters of this process to the file that was asked for.
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
