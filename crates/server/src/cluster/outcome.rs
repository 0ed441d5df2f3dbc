//! Outcomes of requests that could not be served at once.

use crate::backing::Order;
use forebay_model::{Error, FileId, Reshape};
use forebay_store::{Obstacle, Opening, Share, Stopped};
use forebay_wire::{FilePart, Reply, Token};
use std::collections::HashMap;
use std::sync::Arc;

/// The outcome of serving a request.
pub(crate) type Outcome = Result<Reply, Blocked>;

/// Why a request was not served. Nothing has changed.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// It failed.
    Failed(Error),
    /// An obstacle in the namespace.
    Names(Obstacle),
    /// What other servers hold of this file has to be gathered.
    Gather(FileId),
    /// The counts of other servers for this directory have to be gathered.
    Shares(FileId),
    /// The authority of the file has to vouch for this token.
    Vouch(Token),
    /// Other holders have to prepare a change of this file's bytes first.
    Reshape(FileId, Reshape),
    /// Other holders have to be notified that the file got a set-id bit.
    SetId(FileId),
    /// The file's order lock has to be taken.
    Order(FileId),
}

/// What was fetched for the next attempt.
#[derive(Clone, Default)]
pub(crate) struct RetryContext {
    /// What other servers hold of files, altogether.
    pub(crate) held: HashMap<FileId, FilePart>,
    /// The counts of other servers for directories, altogether.
    pub(crate) shares: HashMap<FileId, Share>,
    /// The change of a file's bytes that other holders have prepared.
    pub(crate) reshape: Option<Arc<Opening>>,
    /// Whether other holders know of the set-id bit.
    pub(crate) set_id: bool,
    /// The file whose order lock is held.
    pub(crate) ordered: Option<FileId>,
}

impl RetryContext {
    /// Whether the request holds a file's order lock. The name may lead to another file than in the last attempt.
    pub(crate) fn order(&self, file: FileId) -> Order {
        if self.ordered == Some(file) { Order::Kept } else { Order::Free }
    }

    /// The change of this file's bytes that other holders have prepared.
    pub(crate) fn reshape(&self, file: FileId) -> Option<&Arc<Opening>> {
        self.reshape.as_ref().filter(|opening| opening.file() == file)
    }
}

impl From<Error> for Blocked {
    fn from(error: Error) -> Blocked {
        Blocked::Failed(error)
    }
}

impl From<Stopped> for Blocked {
    fn from(stopped: Stopped) -> Blocked {
        match stopped {
            Stopped::Failed(error) => Blocked::Failed(error),
            Stopped::Obstacle(obstacle) => Blocked::Names(obstacle),
        }
    }
}

impl Blocked {
    /// Changes the error, if it is one.
    pub(crate) fn map(self, change: impl FnOnce(Error) -> Error) -> Blocked {
        match self {
            Blocked::Failed(error) => Blocked::Failed(change(error)),
            other => other,
        }
    }
}
