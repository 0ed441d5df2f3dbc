//! Why an operation did not happen: it failed, or an obstacle must be resolved first.

use super::messages::IntentId;
use forebay_model::{Error, ErrorKind, FileId};

/// The result of an operation that may have to be retried.
pub type Attempt<T> = Result<T, Stopped>;

/// Why an operation did not happen. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// It failed.
    Failed(Error),
    /// It can be retried once this obstacle is resolved.
    Obstacle(Obstacle),
}

/// An obstacle to an operation. The caller resolves it and retries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// A copy of another server's directory is needed: [`super::Names::question`].
    Directory(FileId),
    /// An intent holds a lock and may be decided already: [`super::Names::question`].
    Intent(IntentId),
    /// Other servers may hold copies of this directory, which is about to change: [`super::Names::withdraw`].
    Copies(FileId),
    /// It involves several servers: [`super::Names::task`].
    SeveralShards,
    /// A conflicting operation is in progress: wait.
    Busy,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        Stopped::Failed(error)
    }
}

impl From<Obstacle> for Stopped {
    fn from(obstacle: Obstacle) -> Stopped {
        Stopped::Obstacle(obstacle)
    }
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Error {
        match stopped {
            Stopped::Failed(error) => error,
            Stopped::Obstacle(obstacle) => Error::new(ErrorKind::Busy, obstacle.to_string()),
        }
    }
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Obstacle::Directory(dir) => {
                write!(f, "directory {dir} is on server {}, which was not queried: try again", dir.maker())
            }
            Obstacle::Intent(intent) => {
                let server = intent.coordinator();
                write!(f, "server {server} has a conflicting operation in progress: try again")
            }
            Obstacle::Copies(dir) => write!(f, "other servers hold copies of directory {dir}: try again"),
            Obstacle::SeveralShards => f.write_str("the operation involves several servers: try again"),
            Obstacle::Busy => f.write_str("a conflicting operation is in progress: try again"),
        }
    }
}
