//! Memory for answers that clients have not read yet.
//!
//! **Invariant**: the answers of one connection, and of all connections of one user, that are being built or wait to be
//! sent take no more memory than their limits. A request whose answer may be long waits for memory before it takes a
//! turn or another shared resource.

use crate::per_user::Places;
use forebay_model::{Error, ErrorKind, MAX_NAME, MAX_PATH, Result};
use forebay_wire::{Entry, MAX_BODY, Request};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Maximum bytes of extended attribute names or values in one answer.
const XATTRS: usize = 64 << 10;

/// Maximum number of entries in one answer: with the longest names and attributes they still fit a frame.
const MOST_ENTRIES: u32 = 1024;

/// Number of entries in the answer to a listing with this limit.
pub(crate) fn entries(limit: u32) -> usize {
    limit.clamp(1, MOST_ENTRIES) as usize
}

/// Maximum memory of the answer to a request; 0 for answers of a few hundred bytes, which are bounded by the number of
/// requests.
pub(crate) fn longest_answer(request: &Request) -> usize {
    match request {
        Request::Walk { .. }
        | Request::Jump { .. }
        | Request::ReadLink { .. }
        | Request::LocalPipe { .. } => 2 * MAX_PATH,
        Request::ReadDir { limit, .. } => entries(*limit) * (size_of::<Entry>() + MAX_NAME),
        Request::GetXattr { .. } | Request::ListXattr { .. } => XATTRS,
        Request::Status
        | Request::History { .. }
        | Request::GetPolicy
        | Request::Exchange(_)
        | Request::Losses
        | Request::Repair { .. }
        | Request::Keys(_)
        | Request::Drain(_)
        | Request::Map { .. } => MAX_BODY as usize,
        Request::Ping
        | Request::GetAttr { .. }
        | Request::SetAttr { .. }
        | Request::Open { .. }
        | Request::Create { .. }
        | Request::Reopen { .. }
        | Request::Close { .. }
        | Request::Truncate { .. }
        | Request::TruncateFile { .. }
        | Request::Punch { .. }
        | Request::Sync { .. }
        | Request::SyncAll
        | Request::MakeDir { .. }
        | Request::RemoveDir { .. }
        | Request::Unlink { .. }
        | Request::Rename { .. }
        | Request::Link { .. }
        | Request::Symlink { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::StatFs
        | Request::Shutdown
        | Request::Write { .. }
        | Request::Read { .. }
        | Request::SetPolicy { .. }
        | Request::Extend { .. }
        | Request::MakeSpecial { .. }
        | Request::GetLayout { .. }
        | Request::SetLayout { .. }
        | Request::ReplaceServer { .. }
        | Request::Peer(_)
        | Request::Abandon { .. }
        | Request::Ring { .. }
        | Request::Slab { .. }
        | Request::Number { .. }
        | Request::SetRoute { .. }
        | Request::Queue
        | Request::MapFile { .. }
        | Request::KeepPages { .. }
        | Request::Seek { .. } => 0,
    }
}

/// The memory budget for the answers of one connection.
#[derive(Clone)]
pub(crate) struct AnswerRoom {
    own: Arc<Semaphore>,
    most: usize,
    user: Arc<Places>,
    patience: Duration,
}

/// Memory reserved for one answer; released when the answer is sent or dropped.
pub(crate) struct Reserved {
    own: OwnedSemaphorePermit,
    user: Option<OwnedSemaphorePermit>,
    /// Dropped after the permits, so that the user's entry can be removed.
    _places: Arc<Places>,
}

impl AnswerRoom {
    /// At most `most` bytes on this connection, and the rest of its user's budget. A request waits for memory as long
    /// as a client may take to read its answers.
    pub(crate) fn new(most: usize, user: Places, patience: Duration) -> AnswerRoom {
        let most = most.min(u32::MAX as usize);
        AnswerRoom { own: Arc::new(Semaphore::new(most)), most, user: Arc::new(user), patience }
    }

    /// An answer longer than the whole budget takes all of it.
    fn amount(&self, bytes: usize) -> u32 {
        let most = self.user.most().map_or(self.most, |user| user.min(self.most));
        u32::try_from(bytes.min(most)).unwrap_or(u32::MAX)
    }

    /// Reserves memory for an answer of at most `bytes` bytes, if available.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Option<Reserved> {
        let amount = self.amount(bytes);
        let own = self.own.clone().try_acquire_many_owned(amount).ok()?;
        let user = match self.user.places() {
            Some(user) => Some(user.clone().try_acquire_many_owned(amount).ok()?),
            None => None,
        };
        Some(Reserved { own, user, _places: self.user.clone() })
    }

    /// Waits for memory.
    pub(crate) async fn reserve(self, bytes: usize) -> Result<Reserved> {
        let amount = self.amount(bytes);
        let reserving = async {
            let own = self.own.clone().acquire_many_owned(amount).await.ok()?;
            let user = match self.user.places() {
                Some(user) => Some(user.clone().acquire_many_owned(amount).await.ok()?),
                None => None,
            };
            Some(Reserved { own, user, _places: self.user.clone() })
        };
        match timeout(self.patience, reserving).await {
            Ok(Some(reserved)) => Ok(reserved),
            _ => {
                let text = "earlier answers were not read: read them, or raise limits.connection_answers or \
                            limits.user_answers";
                Err(Error::new(ErrorKind::Busy, text))
            }
        }
    }
}

impl Reserved {
    /// The answer takes only `bytes` bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        for permit in [Some(&mut self.own), self.user.as_mut()].into_iter().flatten() {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_user::tests::UNPRIVILEGED;
    use crate::per_user::{UserLimit, UserPlaces};
    use forebay_model::Uid;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn answers_of_a_connection_and_of_a_user_are_bounded_in_bytes() {
        let users = UserPlaces::new(UserLimit { most: 150, owner: Some(Uid(1)), ..UNPRIVILEGED });
        let connect = |uid| AnswerRoom::new(100, users.of(Uid(uid)), PATIENCE);
        let (first, second, others) = (connect(7), connect(7), connect(8));
        let mut one = first.try_reserve(100).unwrap();
        assert!(first.try_reserve(1).is_none(), "the connection's budget is used up");
        let two = second.try_reserve(50).unwrap();
        assert!(second.try_reserve(1).is_none(), "the user's budget is used up");
        assert!(others.try_reserve(100).is_some());
        let refused = second.clone().reserve(1).await.err().expect("it waits, then fails");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        one.shrink(20);
        assert!(first.try_reserve(80).is_some() && second.try_reserve(50).is_some());
        drop((one, two));
        let all = second.try_reserve(1 << 30).expect("one that is too long takes the whole budget");
        assert!(second.try_reserve(1).is_none());
        let waiting = tokio::spawn(second.reserve(1));
        tokio::task::yield_now().await;
        drop(all);
        assert!(waiting.await.unwrap().is_ok());
        let owners = (connect(1), connect(1));
        let reserved = (owners.0.try_reserve(100), owners.1.try_reserve(100));
        assert!(reserved.0.is_some() && reserved.1.is_some(), "the owner is bounded per connection only");
    }
}
