//! The open files of a session: registered on open, reopened after a reconnect, closed on drop.

use crate::control::{CallRef, ControlConnection};
use crate::join::join;
use crate::open_with_ring::{BoundRing, IdleRing};
use crate::queue::{Begun, WithAnswer, at_once};
use crate::session::{Session, Who};
use crate::striped::StripedFile;
use forebay_model::{Attr, Error, ErrorKind, FileId, Layout, Result};
use forebay_shm::Lease;
use forebay_wire::{Reply, Request, Token, variant_name};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Number of files reopened at a time.
const REOPEN_BATCH: usize = 64;

/// All open files of a session.
#[derive(Default)]
pub(crate) struct Opens {
    files: Mutex<BTreeMap<u64, (Token, Who)>>,
    next: AtomicU64,
    /// Number of control connections so far. Incremented before the open files are listed for a new connection.
    connection_epoch: AtomicU64,
}

/// An open file of a session. Dropping it closes the file in the background.
pub(crate) struct Held {
    session: Arc<Session>,
    slot: u64,
    token: Token,
    who: Who,
    /// The layout, unless all data is on the server that opened the file.
    striped: Option<StripedFile>,
}

/// An open file, its layout, and whether this request created it.
pub(crate) struct Opened {
    pub(crate) held: Held,
    pub(crate) attr: Attr,
    pub(crate) layout: Layout,
    pub(crate) created: bool,
    /// The ring that was bound to it in the same message.
    pub(crate) bound: Option<BoundRing>,
    /// The lease of its attributes, and the control connection on which it was granted.
    pub(crate) lease: Option<(Lease, u64)>,
}

/// Result of an open request.
pub(crate) enum Opening {
    /// The file is open.
    Here(Box<Opened>),
    /// The file must be opened on the server that has its inode.
    At(FileId),
}

impl Opens {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (Token, Who)>> {
        self.files.lock().expect("no thread panics while it holds this lock")
    }

    /// Number of the current control connection. State that was agreed on an earlier connection is void.
    pub(crate) fn connection_epoch(&self) -> u64 {
        self.connection_epoch.load(Ordering::SeqCst)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Reopens every open file on a new control connection. A file that the server no longer knows is dropped from the
    /// list; its next use fails with the server's error.
    pub(crate) async fn reopen(&self, control: &ControlConnection) -> Result<()> {
        self.connection_epoch.fetch_add(1, Ordering::SeqCst);
        let all: Vec<(u64, Token, Who)> =
            self.lock().iter().map(|(slot, (token, who))| (*slot, *token, who.clone())).collect();
        for batch in all.chunks(REOPEN_BATCH) {
            let reopened =
                batch.iter().map(|(slot, token, who)| self.reopen_one(control, *slot, *token, who));
            join(reopened.collect()).await.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    async fn reopen_one(
        &self,
        control: &ControlConnection,
        slot: u64,
        token: Token,
        who: &Who,
    ) -> Result<()> {
        let request = Request::Reopen { token };
        let call = CallRef { identity: who.as_deref(), request: &request };
        match control.call(&call, None).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.kind() == ErrorKind::Busy => Err(error),
            Ok(Err(_)) => {
                self.lock().remove(&slot);
                Ok(())
            }
            Err(failure) => Err(failure.error),
        }
    }
}

impl Session {
    /// Opens or creates a file. Runs to completion even if the caller is cancelled, so that the server keeps no open
    /// file that the client has lost.
    pub(crate) async fn open(self: &Arc<Session>, who: &Who, request: &Request) -> Result<Opening> {
        let connection_epoch = self.opens.connection_epoch();
        let idle = self.ring_for_open(who, request);
        let with_open = idle.as_ref().map(IdleRing::with_open);
        let (begun, WithAnswer { replies, lease }) = self.call_at_once_with(who, request, with_open);
        let bound = idle.and_then(|idle| idle.resolve(self, &begun, replies, connection_epoch));
        let lease = lease.map(|lease| (lease, connection_epoch));
        match begun {
            Begun::Answered(Ok(Ok(reply))) => {
                let opening = self.opened(who, request, reply, connection_epoch).await?;
                Ok(match (opening, bound) {
                    (Opening::Here(opened), bound) => {
                        Opening::Here(Box::new(Opened { bound, lease, ..*opened }))
                    }
                    (at, _) => at,
                })
            }
            begun => self.open_on(who, request, begun, connection_epoch).await,
        }
    }

    async fn open_on(
        self: &Arc<Session>,
        who: &Who,
        request: &Request,
        begun: Begun,
        connection_epoch: u64,
    ) -> Result<Opening> {
        let (session, who, request) = (self.clone(), who.clone(), request.clone());
        let mut work = Box::pin(async move {
            let reply = session.call_on(&who, &request, begun).await?;
            session.opened(&who, &request, reply, connection_epoch).await
        });
        if let Some(opened) = at_once(work.as_mut()) {
            return opened;
        }
        let task = self.runtime.spawn(work);
        let ended = |_| Error::new(ErrorKind::Unreachable, "the client's runtime ended");
        task.await.map_err(ended)?
    }

    /// Registers an opened file, on the control connection of `connection_epoch` or a later one.
    async fn opened(
        self: &Arc<Session>,
        who: &Who,
        request: &Request,
        reply: Reply,
        connection_epoch: u64,
    ) -> Result<Opening> {
        let (token, attr, layout, created) = match reply {
            Reply::Opened { token, attr, layout, created } => (token, attr, layout, created),
            Reply::At { file, .. } => return Ok(Opening::At(file)),
            other => return Err(unexpected(request, &other)),
        };
        let slot = self.opens.next.fetch_add(1, Ordering::Relaxed);
        self.opens.lock().insert(slot, (token, who.clone()));
        let held = Held { session: self.clone(), slot, token, who: who.clone(), striped: None };
        // A new connection may have listed the open files before this one was registered.
        if self.opens.connection_epoch() != connection_epoch {
            self.call(who, &Request::Reopen { token }).await?;
        }
        Ok(Opening::Here(Box::new(Opened { held, attr, layout, created, bound: None, lease: None })))
    }
}

impl Held {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn who(&self) -> &Who {
        &self.who
    }

    /// The layout, unless all data is on the server that opened the file.
    pub(crate) fn striped(&self) -> Option<&StripedFile> {
        self.striped.as_ref()
    }

    pub(crate) fn with_striped(mut self, striped: StripedFile) -> Held {
        self.striped = Some(striped);
        self
    }

    /// Closes the file and waits for the answer.
    pub(crate) async fn close(self) -> Result<()> {
        match self.deregister() {
            true => close(&self.session, self.used(), &self.who, self.token).await,
            false => Ok(()),
        }
    }

    /// Closes the file by the queue without waiting for the answer. If it returns false, the file is still open.
    pub(crate) fn close_now(&self) -> bool {
        if !self.used().is_empty() || !self.deregister() {
            return false;
        }
        // Deregister the file before the request is sent, so that a concurrent reconnect does not reopen it.
        let asked = self.session.close_now(&self.who, self.token);
        if !asked {
            self.session.opens.lock().insert(self.slot, (self.token, self.who.clone()));
        }
        asked
    }

    /// The other servers that have received the file's token.
    fn used(&self) -> Vec<Arc<Session>> {
        self.striped.as_ref().map(StripedFile::used).unwrap_or_default()
    }

    /// Deregisters the file; returns whether it was registered.
    fn deregister(&self) -> bool {
        self.session.opens.lock().remove(&self.slot).is_some()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.deregister() {
            let (session, who, token) = (self.session.clone(), self.who.clone(), self.token);
            let used = self.used();
            self.session.runtime.spawn(async move {
                // No caller is left for the error. The server closes the file at the end of the session at the latest.
                let _ = close(&session, used, &who, token).await;
            });
        }
    }
}

/// Closes a file on the servers that have its data, and then on the server that opened it, which collects the size.
async fn close(session: &Session, used: Vec<Arc<Session>>, who: &Who, token: Token) -> Result<()> {
    let request = Request::Close { token };
    if !used.is_empty() {
        // A server that is down forgets the open file when it restarts.
        let calls = used.iter().map(|session| session.call_once(who, &request));
        join(calls.collect()).await;
    }
    match session.call(who, &request).await {
        // A repeated close finds the file closed.
        Err(error) if error.kind() == ErrorKind::Stale => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// The error for a reply of the wrong kind.
pub(crate) fn unexpected(request: &Request, reply: &Reply) -> Error {
    let (asked, got) = (variant_name(request), variant_name(reply));
    Error::new(ErrorKind::Protocol, format!("the service answered {got} to {asked}"))
}

/// Requests a position in a file.
pub(crate) async fn position(session: &Session, who: &Who, request: &Request) -> Result<Option<u64>> {
    match session.call(who, request).await? {
        Reply::Position(found) => Ok(found),
        other => Err(unexpected(request, &other)),
    }
}

/// Sends a request whose reply carries nothing.
pub(crate) async fn done(session: &Session, who: &Who, request: &Request) -> Result<()> {
    match session.call(who, request).await? {
        Reply::Done => Ok(()),
        other => Err(unexpected(request, &other)),
    }
}
