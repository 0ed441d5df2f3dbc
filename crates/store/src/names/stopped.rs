//! Why an operation did not happen: because it cannot, or because something has to be done about it first.

use super::talk::IntentId;
use forebay_model::{Error, ErrorKind, FileId};

/// What an operation comes to that may have to be tried again.
pub type Attempt<T> = Result<T, Stopped>;

/// Why an operation did not happen. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// It cannot.
    Failed(Error),
    /// It can, once this is out of the way.
    Obstacle(Obstacle),
}

/// What stands in the way of an operation. Whoever called deals with it and calls again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// A copy of another server's directory is needed: [`super::Names::question`].
    Directory(FileId),
    /// An intent has something locked, and may be decided already: [`super::Names::question`].
    Intent(IntentId),
    /// Other servers may hold copies of this directory, which is about to change: [`super::Names::withdraw`].
    Copies(FileId),
    /// It concerns several servers: [`super::Names::task`].
    Several,
    /// Somebody else is at it: pause.
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
                write!(f, "directory {dir} belongs to server {}, which was not asked", dir.maker())
            }
            Obstacle::Intent(intent) => {
                let server = intent.coordinator();
                write!(f, "server {server} is in the middle of something that concerns this: try again")
            }
            Obstacle::Copies(dir) => write!(f, "other servers know directory {dir} as it was: try again"),
            Obstacle::Several => f.write_str("this concerns several servers: try again"),
            Obstacle::Busy => f.write_str("something else that concerns this is under way: try again"),
        }
    }
}
