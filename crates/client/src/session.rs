//! The session with one server: the state that outlives connections.
//!
//! All servers know a client by one random number for its whole lifetime. A session tracks the open files whose inodes
//! are on its server, sends heartbeats on the control connection, reconnects when the connection breaks, and reopens
//! every open file on the new connection before it sends other requests there.

use crate::ClientConfig;
use crate::connect::{Reached, ServerLocation};
use crate::control::{CallRef, ControlConnection};
use crate::data::Pool;
use crate::opens::Opens;
use crate::queue::{Begun, may_use_queue};
use crate::retry::{AttemptError, Backoff, End, is_transient, repeatable};
use crate::ring_writer::SharedRings;
use crate::server_list::ServerList;
use forebay_model::{Error, ErrorKind, Identity, Result, ServerId, Uid, shown_time};
use forebay_wire::{Answer, Channel, Reply, Request};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Heartbeat interval until the server has announced its session timeout.
const FIRST_BEAT: Duration = Duration::from_millis(500);

/// The identity on whose behalf a request is sent; `None` for the connection's own.
pub(crate) type Who = Option<Arc<Identity>>;

pub(crate) struct Session {
    pub(crate) config: ClientConfig,
    pub(crate) server_list: Arc<ServerList>,
    pub(crate) location: ServerLocation,
    /// The server's id, once known.
    pub(crate) server: OnceLock<ServerId>,
    /// Where the server last answered.
    pub(crate) reached: Mutex<Option<Reached>>,
    pub(crate) client: u128,
    pub(crate) runtime: Handle,
    pub(crate) pool: Pool,
    control: Mutex<Option<Arc<ControlConnection>>>,
    /// Held by the task that opens a new control connection; other tasks wait for it.
    connecting: tokio::sync::Mutex<()>,
    calls: Arc<Semaphore>,
    pub(crate) opens: Opens,
    pub(crate) shared_rings: SharedRings,
    /// The uid that the server assigned on the first connection.
    pub(crate) user: OnceLock<Uid>,
    is_closed: AtomicBool,
    closing: Arc<Notify>,
}

impl Session {
    /// Creates the session with the server at the configured addresses.
    pub(crate) async fn first(config: ClientConfig) -> Result<Arc<Session>> {
        config.check()?;
        let mut client = [0; 16];
        getrandom::fill(&mut client).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot get random numbers from the system: {error}"))
        })?;
        let client = u128::from_le_bytes(client);
        let meant = config.server.as_ref().map_or_else(OnceLock::new, |member| OnceLock::from(member.server));
        let session = Session::new(
            config,
            Arc::new(ServerList::new()),
            ServerLocation::Given,
            meant,
            client,
            Handle::current(),
        );
        let session = Arc::new(session);
        let pause = pause_of(session.control().await?.as_ref());
        tokio::spawn(Session::beat(Arc::downgrade(&session), session.closing.clone(), pause));
        Ok(session)
    }

    /// Creates a session of the same client with another server of the service. It connects on first use.
    pub(crate) fn sibling(&self, server: ServerId) -> Arc<Session> {
        let (config, server_list, runtime) =
            (self.config.clone(), self.server_list.clone(), self.runtime.clone());
        let meant = OnceLock::from(server);
        let session = Session::new(config, server_list, ServerLocation::Listed, meant, self.client, runtime);
        let session = Arc::new(session);
        self.runtime.spawn(Session::beat(Arc::downgrade(&session), session.closing.clone(), FIRST_BEAT));
        session
    }

    fn new(
        config: ClientConfig,
        server_list: Arc<ServerList>,
        location: ServerLocation,
        server: OnceLock<ServerId>,
        client: u128,
        runtime: Handle,
    ) -> Session {
        Session {
            pool: Pool::new(config.data_connections),
            calls: Arc::new(Semaphore::new(config.outstanding)),
            config,
            server_list,
            location,
            server,
            reached: Mutex::default(),
            client,
            runtime,
            control: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            opens: Opens::default(),
            shared_rings: SharedRings::default(),
            user: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            closing: Arc::default(),
        }
    }

    /// Closes connections, rings and queue. Later requests fail.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.shared_rings.close();
        self.pool.close();
        drop(self.control.lock().expect("no thread panics while it holds this lock").take());
        self.closing.notify_one();
    }

    pub(crate) fn demand_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Stale, "the session of this client is closed")),
        }
    }

    /// The server's id, once known.
    pub(crate) fn server(&self) -> Option<ServerId> {
        self.server.get().copied()
    }

    /// Sends a request on the control connection; retries it where that is safe, until the request timeout.
    pub(crate) async fn call(&self, who: &Who, request: &Request) -> Result<Reply> {
        match self.call_at_once(who, request) {
            Begun::Answered(Ok(Ok(reply))) => Ok(reply),
            begun => Box::pin(self.call_on(who, request, begun)).await,
        }
    }

    /// Continues a request from the given state.
    pub(crate) async fn call_on(&self, who: &Who, request: &Request, begun: Begun) -> Result<Reply> {
        let mut begun = Some(begun);
        let repeatable = repeatable(request);
        let deadline = Instant::now() + self.config.request_timeout;
        let mut pauses = self.pauses();
        // Whether the server may have received an earlier attempt.
        let mut maybe_received = false;
        loop {
            let sent = AtomicBool::new(false);
            let attempt = Box::pin(self.attempt(who, request, begun.take().unwrap_or(Begun::NotSent), &sent));
            let failure = match timeout_at(deadline, attempt).await {
                Ok(Ok(Ok(reply))) => return Ok(reply),
                Ok(Ok(Err(error))) if !is_transient(&error) => return Err(error),
                Ok(Ok(Err(error))) => AttemptError::unsent(error),
                Ok(Err(failure)) => failure,
                Err(_) => {
                    let failure =
                        AttemptError { sent: maybe_received || sent.into_inner(), error: self.no_answer() };
                    return Err(failure.into_error(repeatable, End::Timeout));
                }
            };
            let pause = pauses.next();
            if !failure.may_retry(repeatable) {
                return Err(failure.into_error(repeatable, End::NoRetry));
            }
            maybe_received |= failure.sent;
            if Instant::now() + pause >= deadline {
                return Err(
                    AttemptError { sent: maybe_received, ..failure }.into_error(repeatable, End::Timeout)
                );
            }
            sleep(pause).await;
        }
    }

    /// Sends a request once, over the live connection only; does not reconnect.
    pub(crate) async fn call_once(&self, who: &Who, request: &Request) -> Option<Answer> {
        let control = self.live()?;
        let call = CallRef { identity: who.as_deref(), request };
        timeout(self.config.request_timeout, control.call(&call, None)).await.ok()?.ok()
    }

    async fn attempt(
        &self,
        who: &Who,
        request: &Request,
        begun: Begun,
        sent: &AtomicBool,
    ) -> Result<Answer, AttemptError> {
        let outcome = match begun {
            Begun::Answered(outcome) => Some(outcome),
            Begun::Sent(control, asked) => self.answer_to(&control, who, request, asked, sent).await,
            Begun::NotSent if may_use_queue(request) => {
                let control = self.control().await.map_err(AttemptError::unsent)?;
                self.call_by_queue(&control, who, request, sent).await
            }
            Begun::UseSocket | Begun::NotSent => None,
        };
        if let Some(outcome) = outcome {
            return outcome;
        }
        let permit = self.calls.clone().acquire_owned().await.expect("the semaphore is never closed");
        let control = self.control().await.map_err(AttemptError::unsent)?;
        sent.store(true, Ordering::Relaxed);
        let call = CallRef { identity: who.as_deref(), request };
        let outcome = control.call(&call, Some(permit)).await;
        outcome.map_err(|failure| AttemptError { error: self.at_service(failure.error), ..failure })
    }

    /// The live control connection, after the server has been notified of abandoned connections.
    pub(crate) async fn control(&self) -> Result<Arc<ControlConnection>> {
        let control = self.connected().await?;
        self.announce_abandoned(&control).await?;
        Ok(control)
    }

    /// Notifies the server of abandoned connections: their outstanding requests have no further effect.
    async fn announce_abandoned(&self, control: &ControlConnection) -> Result<()> {
        while let Some(connection) = self.pool.abandoned() {
            let call = CallRef { identity: None, request: &Request::Abandon { connection } };
            let reply = control.call(&call, None).await.map_err(|failure| self.at_service(failure.error))?;
            reply.map_err(|error| self.at_service(error))?;
            self.pool.mark_announced(connection);
        }
        Ok(())
    }

    /// The live control connection; opens one if there is none.
    async fn connected(&self) -> Result<Arc<ControlConnection>> {
        if let Some(control) = self.live() {
            return Ok(control);
        }
        let _turn = self.connecting.lock().await;
        if let Some(control) = self.live() {
            return Ok(control);
        }
        if let Some(broken) = &*self.control.lock().expect("no thread panics while it holds this lock") {
            self.pool.abandon(broken.welcome().connection);
        }
        let (pipe, welcome) = self.open_connection(Channel::Control).await?;
        let control = Arc::new(ControlConnection::start(pipe, welcome));
        let resume = async {
            self.announce_abandoned(&control).await?;
            self.opens.reopen(&control).await.map_err(|error| self.at_service(error))
        };
        timeout(self.config.request_timeout, resume).await.map_err(|_| self.no_answer())??;
        *self.control.lock().expect("no thread panics while it holds this lock") = Some(control.clone());
        // The session may have been closed meanwhile.
        self.demand_open().inspect_err(|_| self.close())?;
        Ok(control)
    }

    /// Sends heartbeats for as long as the session is referenced, and reconnects if there are open files.
    async fn beat(session: Weak<Session>, closing: Arc<Notify>, mut pause: Duration) {
        loop {
            if timeout(pause, closing.notified()).await.is_ok() {
                return;
            }
            let Some(session) = session.upgrade() else {
                return;
            };
            match session.live() {
                Some(control) => {
                    pause = pause_of(&control);
                    let call = CallRef { identity: None, request: &Request::Ping };
                    if timeout(3 * pause, control.call(&call, None)).await.is_err() {
                        let text = "the service did not answer a heartbeat";
                        control.give_up(&Error::new(ErrorKind::Unreachable, text));
                    }
                }
                // If this fails, the next heartbeat tries again, and the next request reports the error.
                None if !session.opens.is_empty() => drop(session.control().await),
                None => {}
            }
        }
    }

    pub(crate) fn live(&self) -> Option<Arc<ControlConnection>> {
        let control = self.control.lock().expect("no thread panics while it holds this lock");
        control.clone().filter(|control| !control.is_broken())
    }

    pub(crate) fn pauses(&self) -> Backoff {
        Backoff::new(self.client as u64)
    }

    pub(crate) fn no_answer(&self) -> Error {
        self.no_answer_in(self.config.request_timeout)
    }

    pub(crate) fn no_answer_in(&self, patience: Duration) -> Error {
        self.at_service(Error::new(
            ErrorKind::Unreachable,
            format!("no answer within {}", shown_time(patience)),
        ))
    }
}

/// A third of the session timeout, so that one lost heartbeat does not expire the session.
fn pause_of(control: &ControlConnection) -> Duration {
    Duration::from_millis((control.welcome().session_millis / 3).max(1))
}
