//! Failures of commands: messages and exit codes.

use forebay_model::{Error, ErrorKind};
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// A text in the input is wrong; the second line of the message shows it, the third points at the place.
    Pointed(String),
    /// The command failed; this is the message.
    Failed(String),
    /// The checked object is faulty.
    Wrong(String),
    /// Some servers of the service do not answer; the output covers the others.
    Away(String),
    /// A program cannot be run; the second field is the exit code that shells use for that.
    Unrunnable(String, u8),
    /// Parts of the command failed; each failure has been reported already.
    Reported,
    /// The program that was run ended with this code and has reported its own errors.
    Program(u8),
    /// The command was interrupted.
    Interrupted,
    /// The reader of standard output has gone away; this is not an error.
    Unread,
}

impl Failure {
    /// A failure at a local path.
    pub(crate) fn local(what: &str, path: &Path, error: &io::Error) -> Failure {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => ": check the path",
            io::ErrorKind::PermissionDenied => ": ask its owner for access",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": free space there",
            io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => ": name another path",
            _ => "",
        };
        Failure::Failed(format!("cannot {what} {}: {}{advice}", path.display(), plain(error)))
    }

    /// A program cannot be run: 127 if it is not found, 126 otherwise, as shells do.
    pub(crate) fn unrunnable(program: &Path, error: &io::Error) -> Failure {
        let (code, advice) = match error.kind() {
            io::ErrorKind::NotFound => (127, ": check its name and PATH"),
            io::ErrorKind::PermissionDenied => (126, ": make it executable"),
            _ => (126, ""),
        };
        Failure::Unrunnable(format!("cannot run {}: {}{advice}", program.display(), plain(error)), code)
    }

    /// An input file has an invalid value.
    #[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
    pub(crate) fn misread(error: Error) -> Failure {
        Failure::Usage(error.to_string())
    }

    /// The process's exit code.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) | Failure::Pointed(_) => ExitCode::from(2),
            Failure::Failed(_) | Failure::Reported => ExitCode::FAILURE,
            Failure::Wrong(_) => ExitCode::from(3),
            Failure::Away(_) => ExitCode::from(4),
            Failure::Unrunnable(_, code) | Failure::Program(code) => ExitCode::from(*code),
            Failure::Interrupted => ExitCode::from(130),
            Failure::Unread => ExitCode::SUCCESS,
        }
    }

    /// The message to print, if it was not printed before.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Failure::Usage(text)
            | Failure::Pointed(text)
            | Failure::Failed(text)
            | Failure::Wrong(text)
            | Failure::Away(text)
            | Failure::Unrunnable(text, _) => Some(text),
            Failure::Interrupted => Some("interrupted"),
            Failure::Reported | Failure::Program(_) | Failure::Unread => None,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let whole = without_numbers(&error.to_string());
        let text = without_ids(&whole);
        // An error with a detail of its own carries its own advice.
        let bare = text.len() < whole.len() || text.ends_with(&error.kind().to_string());
        match advice(error.kind()) {
            Some(advice) if bare => Failure::Failed(format!("{text}: {advice}")),
            _ => Failure::Failed(whole),
        }
    }
}

impl From<forebay_bench::Failure> for Failure {
    fn from(failure: forebay_bench::Failure) -> Failure {
        match failure {
            forebay_bench::Failure::Misread(text) => Failure::Usage(text),
            forebay_bench::Failure::Pointed(text) => Failure::Pointed(text),
            forebay_bench::Failure::Failed(text) => Failure::Failed(text),
            forebay_bench::Failure::Local { what, path, error } => Failure::local(what, &path, &error),
            forebay_bench::Failure::Service(error) => Failure::from(error),
            forebay_bench::Failure::Interrupted => Failure::Interrupted,
        }
    }
}

/// Cuts ` in directory 17` off the end: the path in the message is clearer.
fn without_ids(text: &str) -> &str {
    match text.rsplit_once(" in directory ") {
        Some((start, id)) if id.bytes().all(|byte| byte.is_ascii_digit()) => start,
        _ => text,
    }
}

fn advice(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::NotFound => "look for it with \"forebay ls\"",
        ErrorKind::Exists => "remove it first, or choose another name",
        ErrorKind::NotDirectory | ErrorKind::IsDirectory => "name another path",
        ErrorKind::NotEmpty => "remove what is in it first, or use \"forebay rm -r\"",
        ErrorKind::AccessDenied => "see its mode with \"forebay stat\", or ask its owner for access",
        ErrorKind::NotPermitted => "only its owner or root may do that",
        ErrorKind::NoSpace => "remove files; \"forebay df\" shows how full it is",
        ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::OutcomeUnknown => {
            "see whether it runs with \"forebay status\""
        }
        ErrorKind::Busy => "try again",
        ErrorKind::Io => "see \"forebay status\" for what was lost",
        _ => return None,
    })
}

/// The text of an operating-system error, without its number.
pub(crate) fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => without_numbers(&error.to_string()).to_lowercase(),
        None => error.to_string(),
    }
}

/// Removes ` (os error 2)`: the words before it say the same.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_errors_get_advice_and_others_keep_theirs() {
        let bare = Error::from(ErrorKind::NotEmpty).within("cannot remove directory /a");
        let text = "cannot remove directory /a: the directory is not empty: remove what is in it first, or use \
                    \"forebay rm -r\"";
        assert_eq!(Failure::from(bare).text(), Some(text));
        let inner = Error::new(ErrorKind::NotFound, "cannot stat /a/b: no \"a\" in directory 1");
        let text = "cannot stat /a/b: no \"a\": look for it with \"forebay ls\"";
        assert_eq!(Failure::from(inner).text(), Some(text));
        let own = Error::new(ErrorKind::NoSpace, "cannot write /x: No space left: free space there");
        assert_eq!(Failure::from(own.clone()).text(), Some(own.to_string().as_str()));
    }

    #[test]
    fn os_errors_lose_their_number() {
        assert_eq!(plain(&io::Error::from_raw_os_error(2)), "no such file or directory");
        assert_eq!(plain(&io::Error::other("odd")), "odd");
        assert_eq!(without_numbers("a (os error 2): b (os error 13)"), "a: b");
    }
}
