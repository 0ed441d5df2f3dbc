//! One error for the whole system: what kind it is, and a sentence for the person who meets it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Shorthand for results of this system.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as a program sees it. The edges map each kind to one error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ErrorKind {
    /// No such file, directory or attribute's file.
    NotFound,
    /// The name is taken.
    Exists,
    /// A directory was needed.
    NotDirectory,
    /// A directory was not wanted.
    IsDirectory,
    /// The directory still has entries.
    NotEmpty,
    /// The file's mode forbids it.
    AccessDenied,
    /// Only the owner or the superuser may do this.
    NotPermitted,
    /// The buffer is full.
    NoSpace,
    /// An argument makes no sense.
    Invalid,
    /// A name is longer than 255 bytes or a path longer than 4,096.
    NameTooLong,
    /// Too many symbolic links in one path.
    TooManyLinks,
    /// The file has as many hard links as it may.
    LinkLimit,
    /// The file would be too large.
    TooLarge,
    /// No such extended attribute.
    NoAttribute,
    /// The caller's buffer is too small for the answer.
    Range,
    /// The open file is not open for this.
    BadHandle,
    /// The open file is gone, or the token was not made by this service.
    Stale,
    /// The bytes are lost or damaged.
    Io,
    /// The service is full of work: try again.
    Busy,
    /// Nobody answered in time, or the connection broke.
    Unreachable,
    /// The peer does not speak our protocol or version.
    Protocol,
    /// The peer could not prove who it is.
    Unauthenticated,
    /// The store is not one this program can use.
    BadStore,
    /// The operation is not supported here.
    Unsupported,
}

/// An error: its kind and a sentence that names what failed, on what, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Error {
    kind: ErrorKind,
    text: String,
}

impl Error {
    /// An error with a sentence for people.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into() }
    }

    /// What kind of error this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error seen from further out: `context: text`.
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
        })
    }
}
