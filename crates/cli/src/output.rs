//! The only module that prints.

use crate::failure::{Failure, Outcome};
use serde::Serialize;
use std::fmt::{Arguments, Display};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::panic::PanicHookInfo;

/// Prints a view, as text or as JSON.
pub(crate) fn show<V: Display + Serialize>(view: &V, json: bool) -> Outcome {
    if !json {
        return text(view);
    }
    match serde_json::to_string_pretty(view) {
        Ok(line) => text(line),
        Err(error) => Err(Failure::Failed(format!("cannot write as JSON: {error}"))),
    }
}

/// Prints a value as one line of JSON, for a process that reads it.
pub(crate) fn message<V: Serialize>(value: &V) -> Outcome {
    match serde_json::to_string(value) {
        Ok(line) => text(line),
        Err(error) => Err(Failure::Failed(format!("cannot write as JSON: {error}"))),
    }
}

/// Prints text with a final newline; prints nothing for an empty text.
pub(crate) fn text(shown: impl Display) -> Outcome {
    let mut shown = without_control_chars(&shown.to_string());
    if shown.is_empty() {
        return Ok(());
    }
    shown.push('\n');
    bytes(shown.as_bytes())
}

/// Replaces control characters: names and labels come from other users and must not control the terminal.
fn without_control_chars(shown: &str) -> String {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    shown.chars().map(|c| if steers(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Writes bytes to standard output.
pub(crate) fn bytes(bytes: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| write_failure(&error))
}

fn write_failure(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Failed(format!("cannot write to standard output: {error}")),
    }
}

/// Whether standard error is a terminal.
pub(crate) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Prints a failure on standard error: in one line, unless it points at a place in a text.
pub(crate) fn complain(failure: &Failure) {
    if let Failure::Pointed(text) = failure {
        return note(format_args!("{text}"));
    }
    if let Some(text) = failure.text() {
        note(format_args!("{}", without_control_chars(&text.replace('\n', " "))));
    }
}

/// Prints a view on standard error, for commands whose standard output belongs to another program; JSON in one
/// line.
pub(crate) fn report<V: Display + Serialize>(view: &V, json: bool) -> Outcome {
    let shown = match json {
        true => serde_json::to_string(view)
            .map_err(|error| Failure::Failed(format!("cannot write as JSON: {error}")))?,
        false => without_control_chars(view.to_string().trim_end()),
    };
    let mut err = io::stderr().lock();
    for line in shown.lines() {
        let start = if json { "" } else { "forebay: " };
        // A failed write to standard error cannot be reported anywhere.
        let _ = writeln!(err, "{start}{line}");
    }
    Ok(())
}

/// Prints a line on standard error.
pub(crate) fn note(text: Arguments<'_>) {
    // A failed write to standard error cannot be reported anywhere.
    let _ = writeln!(io::stderr().lock(), "forebay: {text}");
}

/// Reports a panic as a bug, in one line.
pub(crate) fn report_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().copied();
    let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let what = what.replace('\n', " ");
    note(format_args!("internal error: {what}{place}: this is a bug, please report this line"));
}

#[cfg(test)]
mod tests {
    use super::without_control_chars;

    #[test]
    fn control_characters_in_names_are_replaced() {
        assert_eq!(without_control_chars("a\u{1b}[2Jb\tc\nd\u{9b}e"), "a\u{fffd}[2Jb\tc\nd\u{fffd}e");
    }
}
