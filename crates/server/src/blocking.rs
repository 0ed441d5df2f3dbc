//! Requests that may block: they run outside of the threads that serve connections, under permits.

use crate::caller::Caller;
use crate::cluster::Blocked;
use crate::handle::Class;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{Answer, Request};
use std::pin::Pin;
use std::sync::Arc;

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

/// Runs a call that may block on a device or the back end, under a permit of its user and a shared one.
pub(crate) async fn at_place<T: Send + 'static>(
    service: &Arc<Service>,
    caller: &Caller,
    request: &Request,
    class: Class,
    work: impl FnOnce(&Service, &Caller) -> Result<T, Blocked> + Send + 'static,
) -> Result<Result<T, Blocked>> {
    let (places, own) = match (class, &service.backing) {
        (Class::Backing, Some(backing)) if service.layer.stays_in_buffer(&caller.who, request) => {
            (&backing.here, &service.users.buffer)
        }
        (Class::Backing, Some(backing)) => (&backing.waiting, &service.users.backend),
        _ => (&service.syncs, &service.users.syncs),
    };
    // Take the user's permit first: waiting for it blocks no other user.
    let (uid, patience) = (caller.who.uid, service.config.times.answer);
    let _own = own.wait(uid, patience).await?;
    let begun = match class {
        // A flush waits for a device and needs no core.
        Class::Slow => None,
        _ => Some(service.users.working.begin(uid, patience).await?),
    };
    let _place = places.acquire().await.map_err(|_| Error::from(ErrorKind::Busy))?;
    let (service, caller) = (service.clone(), caller.clone());
    let work = move || work(&service, &caller);
    let done = tokio::task::spawn_blocking(|| match begun {
        Some(begun) => begun.run(work),
        None => work(),
    });
    let done = done.await;
    Ok(done.unwrap_or_else(|_| Err(failed().into())))
}
