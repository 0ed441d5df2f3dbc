//! Why a benchmark of a scenario fails.

use forebay_model::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of a part of a benchmark.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a benchmark of a scenario failed.
#[derive(Debug)]
pub enum Failure {
    /// The scenario has an invalid value.
    Misread(String),
    /// The scenario has an invalid policy; the second line of the message shows it, the third points at the place.
    Pointed(String),
    /// It could not be run; this is the message.
    Failed(String),
    /// A local path could not be used.
    Local {
        /// What was to be done, such as `make`.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The service, its back end or a name failed.
    Service(Error),
    /// It was asked to stop.
    Interrupted,
}

impl Failure {
    pub(crate) fn local(what: &'static str, path: &Path, error: io::Error) -> Failure {
        Failure::Local { what, path: path.to_owned(), error }
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
    pub(crate) fn misread(error: Error) -> Failure {
        Failure::Misread(error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Service(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Misread(text) | Failure::Pointed(text) | Failure::Failed(text) => f.write_str(text),
            Failure::Local { what, path, error } => write!(f, "cannot {what} {}: {error}", path.display()),
            Failure::Service(error) => write!(f, "{error}"),
            Failure::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Failure {}
