//! The error type of the whole system: a kind, and a message for the user.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Shorthand for results of this system.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error. The edges map each kind to one error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ErrorKind {
    /// No such file or directory.
    NotFound,
    /// The name exists already.
    Exists,
    /// Not a directory.
    NotDirectory,
    /// Is a directory.
    IsDirectory,
    /// The directory still has entries.
    NotEmpty,
    /// The file's mode denies the access.
    AccessDenied,
    /// Only the owner or the superuser may do this.
    NotPermitted,
    /// The buffer is full.
    NoSpace,
    /// Invalid argument.
    Invalid,
    /// A name is longer than 255 bytes or a path longer than 4,096.
    NameTooLong,
    /// Too many symbolic links in one path.
    TooManyLinks,
    /// The file has the maximum number of hard links.
    LinkLimit,
    /// The file would be too large.
    TooLarge,
    /// No such extended attribute.
    NoAttribute,
    /// The caller's buffer is too small for the result.
    Range,
    /// The file is not open in the needed mode.
    BadHandle,
    /// The open file no longer exists, or the token is not from this service.
    Stale,
    /// The data is lost or damaged.
    Io,
    /// The service is overloaded: try again.
    Busy,
    /// No response in time, or the connection broke.
    Unreachable,
    /// The peer uses another protocol or version.
    Protocol,
    /// The peer failed authentication.
    Unauthenticated,
    /// The store cannot be used by this program.
    BadStore,
    /// The operation is not supported.
    Unsupported,
    /// A request was sent and got no answer in its time: its outcome is unknown. Made by clients, never sent.
    TimedOut,
    /// The connection broke behind a request that must not be sent twice: its outcome is unknown. Made by clients, never sent.
    OutcomeUnknown,
}

impl ErrorKind {
    /// Whether the service did not answer, be it before or after a request was sent.
    #[must_use]
    pub fn is_no_answer(self) -> bool {
        matches!(self, ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::OutcomeUnknown)
    }
}

/// An error: its kind and a message that names the failed operation, its object, and a remedy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Error {
    kind: ErrorKind,
    text: String,
}

impl Error {
    /// An error with a message for the user.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into() }
    }

    /// What kind of error this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with context: `context: text`.
    #[must_use]
    pub fn within(self, context: impl fmt::Display) -> Error {
        Error { kind: self.kind, text: format!("{context}: {}", self.text) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error::new(kind, kind.to_string())
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::NotFound => "no such file or directory",
            ErrorKind::Exists => "the name exists already",
            ErrorKind::NotDirectory => "not a directory",
            ErrorKind::IsDirectory => "is a directory",
            ErrorKind::NotEmpty => "the directory is not empty",
            ErrorKind::AccessDenied => "permission denied",
            ErrorKind::NotPermitted => "operation not permitted",
            ErrorKind::NoSpace => "no space left in the buffer",
            ErrorKind::Invalid => "invalid argument",
            ErrorKind::NameTooLong => "the name is too long",
            ErrorKind::TooManyLinks => "too many levels of symbolic links",
            ErrorKind::LinkLimit => "too many hard links",
            ErrorKind::TooLarge => "the file would be too large",
            ErrorKind::NoAttribute => "no such attribute",
            ErrorKind::Range => "the answer does not fit the buffer",
            ErrorKind::BadHandle => "the file is not open for this",
            ErrorKind::Stale => "the open file is gone",
            ErrorKind::Io => "the bytes are lost or damaged",
            ErrorKind::Busy => "the service is busy",
            ErrorKind::Unreachable => "the service does not answer",
            ErrorKind::Protocol => "the peer does not speak this protocol",
            ErrorKind::Unauthenticated => "the peer did not prove who it is",
            ErrorKind::BadStore => "the store cannot be used",
            ErrorKind::Unsupported => "not supported",
            ErrorKind::TimedOut => "the service did not answer in time, and the outcome is unknown",
            ErrorKind::OutcomeUnknown => "the connection broke, and the outcome is unknown",
        })
    }
}
