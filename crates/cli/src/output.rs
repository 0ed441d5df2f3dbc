//! The only place that prints.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::fmt::{Arguments, Display};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::panic::PanicHookInfo;

/// Shows a view: as text for people, as JSON for machines.
pub(crate) fn show<V: Display + Serialize>(view: &V, json: bool) -> Outcome {
    if !json {
        return text(view);
    }
    match serde_json::to_string_pretty(view) {
        Ok(line) => text(line),
        Err(error) => Err(Failure::Failed(format!("cannot write as JSON: {error}"))),
    }
}

/// Prints a value as one line of JSON, for a process that waits for it.
pub(crate) fn message<V: Serialize>(value: &V) -> Outcome {
    match serde_json::to_string(value) {
        Ok(line) => text(line),
        Err(error) => Err(Failure::Failed(format!("cannot write as JSON: {error}"))),
    }
}

/// Prints text and ends its line; prints nothing for nothing.
pub(crate) fn text(shown: impl Display) -> Outcome {
    let mut shown = tame(&shown.to_string());
    if shown.is_empty() {
        return Ok(());
    }
    shown.push('\n');
    bytes(shown.as_bytes())
}

/// Names and labels are other people's words: what would steer a terminal is not passed on.
fn tame(shown: &str) -> String {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    shown.chars().map(|c| if steers(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Writes bytes to standard output.
pub(crate) fn bytes(bytes: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| unwritten(&error))
}

fn unwritten(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Failed(format!("cannot write to standard output: {error}")),
    }
}

/// Whether somebody watches standard error.
pub(crate) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Says on standard error what went wrong: in one line, unless a place has to be pointed at.
pub(crate) fn complain(failure: &Failure) {
    if let Failure::Pointed(text) = failure {
        return note(format_args!("{text}"));
    }
    if let Some(text) = failure.text() {
        note(format_args!("{}", tame(&text.replace('\n', " "))));
    }
}

/// Shows a view on standard error, where standard output belongs to somebody else: JSON in one line.
pub(crate) fn report<V: Display + Serialize>(view: &V, json: bool) -> Outcome {
    let shown = match json {
        true => serde_json::to_string(view)
            .map_err(|error| Failure::Failed(format!("cannot write as JSON: {error}")))?,
        false => tame(view.to_string().trim_end()),
    };
    let mut err = io::stderr().lock();
    for line in shown.lines() {
        let start = if json { "" } else { "forebay: " };
        // If even that fails there is nobody left to tell.
        let _ = writeln!(err, "{start}{line}");
    }
    Ok(())
}

/// A line on standard error.
pub(crate) fn note(text: Arguments<'_>) {
    // If even that fails there is nobody left to tell.
    let _ = writeln!(io::stderr().lock(), "forebay: {text}");
}

/// Says that this program has a bug, in one line.
pub(crate) fn confess(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().copied();
    let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let what = what.replace('\n', " ");
    note(format_args!("a bug of forebay itself: {what}{place}: please report this line"));
}

#[cfg(test)]
mod tests {
    use super::tame;

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(tame("a\u{1b}[2Jb\tc\nd\u{9b}e"), "a\u{fffd}[2Jb\tc\nd\u{fffd}e");
    }
}
