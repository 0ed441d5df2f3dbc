//! Why a request could not be served at once.

use crate::union::Order;
use forebay_model::{Error, FileId, Reshape};
use forebay_store::{Obstacle, Opening, Share, Stopped};
use forebay_wire::{Held, Reply, Token};
use std::collections::HashMap;
use std::sync::Arc;

/// What serving a request comes to.
pub(crate) type Handled = Result<Reply, Stop>;

/// Why a request was not served. Nothing has changed.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It cannot be.
    Failed(Error),
    /// Something about names is in the way.
    Names(Obstacle),
    /// It has to be known what others hold of this file.
    Gather(FileId),
    /// It has to be known what others count for this directory.
    Shares(FileId),
    /// The server that opened the file has to be asked about this token.
    Vouch(Token),
    /// Others have to prepare a change of this file's bytes first.
    Reshape(FileId, Reshape),
    /// Others have to know that a file got a set-id bit.
    SetId(FileId),
    /// Whatever puts this file's bytes in order has to be done one after the other.
    Order(FileId),
}

/// What others said, for the next attempt.
#[derive(Clone, Default)]
pub(crate) struct Helps {
    /// What they hold of files, all together.
    pub(crate) held: HashMap<FileId, Held>,
    /// What they count for directories, all together.
    pub(crate) shares: HashMap<FileId, Share>,
    /// They have prepared this change of the file's bytes.
    pub(crate) reshape: Option<Arc<Opening>>,
    /// They know of the set-id bit.
    pub(crate) set_id: bool,
    /// Nobody else changes the order of this file's bytes.
    pub(crate) ordered: bool,
}

impl Helps {
    /// Whether whoever is helped keeps the order of the file that it is about.
    pub(crate) fn order(&self) -> Order {
        if self.ordered { Order::Kept } else { Order::Free }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl From<Stopped> for Stop {
    fn from(stopped: Stopped) -> Stop {
        match stopped {
            Stopped::Failed(error) => Stop::Failed(error),
            Stopped::Obstacle(obstacle) => Stop::Names(obstacle),
        }
    }
}

impl Stop {
    /// The same with another error, if it is one.
    pub(crate) fn map(self, change: impl FnOnce(Error) -> Error) -> Stop {
        match self {
            Stop::Failed(error) => Stop::Failed(change(error)),
            other => other,
        }
    }
}
