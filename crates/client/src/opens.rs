//! The open files of a session: registered when opened, re-established after a reconnect, closed when dropped.

use crate::join::join;
use crate::line::{CallRef, Line};
use crate::queue::{Begun, at_once};
use crate::session::{Session, Who};
use crate::spread::Spread;
use forebay_model::{Attr, Error, ErrorKind, FileId, Layout, Result};
use forebay_wire::{Reply, Request, Token};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How many files are re-established at a time.
const REOPEN_BATCH: usize = 64;

/// All open files of a session.
#[derive(Default)]
pub(crate) struct Opens {
    files: Mutex<BTreeMap<u64, (Token, Who)>>,
    next: AtomicU64,
    /// Counts control connections, each before the open files are listed for it.
    lives: AtomicU64,
}

/// An open file's place in its session. Dropping it closes the file in the background.
pub(crate) struct Held {
    session: Arc<Session>,
    slot: u64,
    token: Token,
    who: Who,
    /// Where its bytes are, unless they are all where it was opened.
    spread: Option<Spread>,
}

/// An open file, where its bytes are, and whether it was made by this request.
pub(crate) struct Opened {
    pub(crate) held: Held,
    pub(crate) attr: Attr,
    pub(crate) layout: Layout,
    pub(crate) created: bool,
}

/// What comes of a request to open.
pub(crate) enum Opening {
    /// It is open.
    Here(Box<Opened>),
    /// This file, which has to be opened where its inode is.
    At(FileId),
}

impl Opens {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (Token, Who)>> {
        self.files.lock().expect("nothing panics while it holds the open files")
    }

    /// Counts control connections: what was agreed on an earlier one has to be agreed anew.
    pub(crate) fn life(&self) -> u64 {
        self.lives.load(Ordering::SeqCst)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Re-establishes every open file on a new line. One that the server no longer knows is forgotten here too:
    /// whoever uses it next is told by the server.
    pub(crate) async fn reopen(&self, line: &Line) -> Result<()> {
        self.lives.fetch_add(1, Ordering::SeqCst);
        let all: Vec<(u64, Token, Who)> =
            self.lock().iter().map(|(slot, (token, who))| (*slot, *token, who.clone())).collect();
        for batch in all.chunks(REOPEN_BATCH) {
            let reopened = batch.iter().map(|(slot, token, who)| self.reopen_one(line, *slot, *token, who));
            join(reopened.collect()).await.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    async fn reopen_one(&self, line: &Line, slot: u64, token: Token, who: &Who) -> Result<()> {
        let request = Request::Reopen { token };
        let call = CallRef { identity: who.as_deref(), request: &request };
        match line.call(&call, None).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.kind() == ErrorKind::Busy => Err(error),
            Ok(Err(_)) => {
                self.lock().remove(&slot);
                Ok(())
            }
            Err(trouble) => Err(trouble.error),
        }
    }
}

impl Session {
    /// Opens or makes a file. Runs to its end even if the caller goes away, so that no file stays open on the
    /// server that nobody holds here.
    pub(crate) async fn open(self: &Arc<Session>, who: &Who, request: &Request) -> Result<Opening> {
        let life = self.opens.life();
        match self.ask_at_once(who, request) {
            Begun::Answered(Ok(Ok(reply))) => self.opened(who, request, reply, life).await,
            begun => self.open_on(who, request, begun, life).await,
        }
    }

    async fn open_on(
        self: &Arc<Session>,
        who: &Who,
        request: &Request,
        begun: Begun,
        life: u64,
    ) -> Result<Opening> {
        let (session, who, request) = (self.clone(), who.clone(), request.clone());
        let mut work = Box::pin(async move {
            let reply = session.call_on(&who, &request, begun).await?;
            session.opened(&who, &request, reply, life).await
        });
        if let Some(opened) = at_once(work.as_mut()) {
            return opened;
        }
        let task = self.runtime.spawn(work);
        let ended = |_| Error::new(ErrorKind::Unreachable, "the client's runtime ended");
        task.await.map_err(ended)?
    }

    /// Notes what was opened, on the line of this life or a later one.
    async fn opened(
        self: &Arc<Session>,
        who: &Who,
        request: &Request,
        reply: Reply,
        life: u64,
    ) -> Result<Opening> {
        let (token, attr, layout, created) = match reply {
            Reply::Opened { token, attr, layout, created } => (token, attr, layout, created),
            Reply::At { file, .. } => return Ok(Opening::At(file)),
            other => return Err(unexpected(request, &other)),
        };
        let slot = self.opens.next.fetch_add(1, Ordering::Relaxed);
        self.opens.lock().insert(slot, (token, who.clone()));
        let held = Held { session: self.clone(), slot, token, who: who.clone(), spread: None };
        // A new line may have listed the open files just before this one was among them.
        if self.opens.life() != life {
            self.call(who, &Request::Reopen { token }).await?;
        }
        Ok(Opening::Here(Box::new(Opened { held, attr, layout, created })))
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

    /// Where its bytes are, unless they are all where it was opened.
    pub(crate) fn spread(&self) -> Option<&Spread> {
        self.spread.as_ref()
    }

    pub(crate) fn with_spread(mut self, spread: Spread) -> Held {
        self.spread = Some(spread);
        self
    }

    /// Closes the file and waits for it.
    pub(crate) async fn close(self) -> Result<()> {
        match self.let_go() {
            true => close(&self.session, self.used(), &self.who, self.token).await,
            false => Ok(()),
        }
    }

    /// Closes the file without waiting for that, if it can be asked so; if not, it is still held.
    pub(crate) fn close_now(&self) -> bool {
        if !self.used().is_empty() || !self.let_go() {
            return false;
        }
        // Not held any more when it is asked: a connection that is made meanwhile does not open it again.
        let asked = self.session.close_now(&self.who, self.token);
        if !asked {
            self.session.opens.lock().insert(self.slot, (self.token, self.who.clone()));
        }
        asked
    }

    /// The other servers that have seen its token.
    fn used(&self) -> Vec<Arc<Session>> {
        self.spread.as_ref().map(Spread::used).unwrap_or_default()
    }

    /// Whether it was still held.
    fn let_go(&self) -> bool {
        self.session.opens.lock().remove(&self.slot).is_some()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.let_go() {
            let (session, who, token) = (self.session.clone(), self.who.clone(), self.token);
            let used = self.used();
            self.session.runtime.spawn(async move {
                // Nobody is left to tell; the server closes it with the session at the latest.
                let _ = close(&session, used, &who, token).await;
            });
        }
    }
}

/// Closes a file where its bytes are, and then where it was opened: there its size is gathered.
async fn close(session: &Session, used: Vec<Arc<Session>>, who: &Who, token: Token) -> Result<()> {
    let request = Request::Close { token };
    if !used.is_empty() {
        // One that is away has forgotten it by the time it is back.
        let calls = used.iter().map(|session| session.call_once(who, &request));
        join(calls.collect()).await;
    }
    match session.call(who, &request).await {
        // A repeated close finds it closed.
        Err(error) if error.kind() == ErrorKind::Stale => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// The server answered something that is no answer to this.
pub(crate) fn unexpected(request: &Request, reply: &Reply) -> Error {
    let word = |text: String| text.split([' ', '(']).next().unwrap_or_default().to_owned();
    let (asked, got) = (word(format!("{request:?}")), word(format!("{reply:?}")));
    Error::new(ErrorKind::Protocol, format!("the service answered {got} to {asked}"))
}

/// Asks for something that is answered with nothing.
pub(crate) async fn done(session: &Session, who: &Who, request: &Request) -> Result<()> {
    match session.call(who, request).await? {
        Reply::Done => Ok(()),
        other => Err(unexpected(request, &other)),
    }
}
