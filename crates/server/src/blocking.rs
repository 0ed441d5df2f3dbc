//! Requests that may block: they run outside of the threads that serve connections, under permits.

use crate::backing::BackingLayer;
use crate::cluster::Blocked;
use crate::handle::Class;
use crate::per_user::UserBounds;
use forebay_model::{Error, ErrorKind, Identity, Result};
use forebay_wire::{Answer, Request};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The state of a request; no answer if its outcome is unknown.
pub(crate) enum Begun {
    /// It was served inline.
    Done(Option<Answer>),
    /// It must wait.
    Later(Pin<Box<dyn Future<Output = Option<Answer>> + Send>>),
}

pub(crate) fn failed() -> Error {
    Error::new(ErrorKind::Io, "the server failed while it served this request: see its log")
}

/// Runs calls that may block on a device or the back end.
pub(crate) struct BlockingCalls {
    layer: Arc<BackingLayer>,
    users: Arc<UserBounds>,
    /// Shared permits for calls that wait for a device.
    syncs: Semaphore,
    /// How long a call waits for a permit of its user.
    patience: Duration,
}

impl BlockingCalls {
    /// At most `syncs` calls wait for a device at the same time.
    pub(crate) fn new(
        layer: Arc<BackingLayer>,
        users: Arc<UserBounds>,
        syncs: usize,
        patience: Duration,
    ) -> BlockingCalls {
        BlockingCalls { layer, users, syncs: Semaphore::new(syncs), patience }
    }

    /// Runs a call under a permit of its user and a shared one.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        who: &Identity,
        request: &Request,
        class: Class,
        work: impl FnOnce() -> Result<T, Blocked> + Send + 'static,
    ) -> Result<Result<T, Blocked>> {
        let (places, own) = match (class, &self.layer.backing) {
            (Class::Backing, Some(backing)) if self.layer.stays_in_buffer(who, request) => {
                (&backing.here, &self.users.buffer)
            }
            (Class::Backing, Some(backing)) => (&backing.waiting, &self.users.backend),
            _ => (&self.syncs, &self.users.syncs),
        };
        // Take the user's permit first: waiting for it blocks no other user.
        let _own = own.wait(who.uid, self.patience).await?;
        let begun = match class {
            // A flush waits for a device and needs no core.
            Class::Slow => None,
            _ => Some(self.users.working.begin(who.uid, self.patience).await?),
        };
        let _place = places.acquire().await.map_err(|_| Error::from(ErrorKind::Busy))?;
        let done = tokio::task::spawn_blocking(|| match begun {
            Some(begun) => begun.run(work),
            None => work(),
        });
        let done = done.await;
        Ok(done.unwrap_or_else(|_| Err(failed().into())))
    }
}
