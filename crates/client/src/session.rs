//! The session with one server: what stays when connections come and go.
//!
//! A client is known to all servers by one random number for its life. A session knows the open files of which its
//! server has the inodes, keeps the control connection beating, makes a new one when it breaks, and re-establishes
//! every open file on it before anything else is asked there.

use crate::data::Pool;
use crate::handshake::enter;
use crate::lane::Lanes;
use crate::line::{CallRef, Line};
use crate::opens::Opens;
use crate::queue::{Begun, may_ask_here};
use crate::retry::{Pauses, Trouble, may_pass, repeatable};
use crate::roll::Roll;
use crate::transport::Pipe;
use crate::{Address, ClientConfig};
use forebay_model::{Error, ErrorKind, Identity, Result, ServerId};
use forebay_wire::{Answer, Channel, Reply, Request, Roster, Welcome};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Before a server has said how often it wants to hear of its clients.
const FIRST_BEAT: Duration = Duration::from_millis(500);

/// On whose behalf, if not the connection's own.
pub(crate) type Who = Option<Arc<Identity>>;

/// Where a session's server is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whereabouts {
    /// At the address of the configuration.
    Given,
    /// Where the list says.
    Listed,
}

pub(crate) struct Session {
    pub(crate) config: ClientConfig,
    pub(crate) roll: Arc<Roll>,
    whereabouts: Whereabouts,
    /// Its number, once it is known.
    server: OnceLock<ServerId>,
    pub(crate) client: u128,
    pub(crate) runtime: Handle,
    pub(crate) pool: Pool,
    line: Mutex<Option<Arc<Line>>>,
    /// Held by whoever makes a new line; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    calls: Arc<Semaphore>,
    pub(crate) opens: Opens,
    pub(crate) lanes: Lanes,
}

impl Session {
    /// A session with the server at the address of the configuration.
    pub(crate) async fn first(config: ClientConfig) -> Result<Arc<Session>> {
        config.check()?;
        let mut client = [0; 16];
        getrandom::fill(&mut client).map_err(|error| {
            Error::new(ErrorKind::Io, format!("the system gives no random numbers: {error}"))
        })?;
        let roll = Arc::new(Roll::new(matches!(config.address, Address::Unix(_))));
        let client = u128::from_le_bytes(client);
        let session = Session::new(config, roll, Whereabouts::Given, client, Handle::current());
        let session = Arc::new(session);
        let pause = pause_of(session.line().await?.as_ref());
        tokio::spawn(Session::beat(Arc::downgrade(&session), pause));
        Ok(session)
    }

    /// A session of the same client with another server of the service; connects when it is first used.
    pub(crate) fn sibling(&self, server: ServerId) -> Arc<Session> {
        let (config, roll, runtime) = (self.config.clone(), self.roll.clone(), self.runtime.clone());
        let session = Session::new(config, roll, Whereabouts::Listed, self.client, runtime);
        session.server.set(server).expect("nobody else has seen it");
        let session = Arc::new(session);
        self.runtime.spawn(Session::beat(Arc::downgrade(&session), FIRST_BEAT));
        session
    }

    fn new(
        config: ClientConfig,
        roll: Arc<Roll>,
        whereabouts: Whereabouts,
        client: u128,
        runtime: Handle,
    ) -> Session {
        Session {
            pool: Pool::new(config.data_connections),
            calls: Arc::new(Semaphore::new(config.outstanding)),
            config,
            roll,
            whereabouts,
            server: OnceLock::new(),
            client,
            runtime,
            line: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            opens: Opens::default(),
            lanes: Lanes::default(),
        }
    }

    /// The server's number, once it is known.
    pub(crate) fn server(&self) -> Option<ServerId> {
        self.server.get().copied()
    }

    fn address(&self) -> Result<Address> {
        match (self.whereabouts, self.server()) {
            (Whereabouts::Listed, Some(server)) => self.roll.address(server),
            _ => Ok(self.config.address.clone()),
        }
    }

    /// Opens a connection to the server, and makes sure that it is the one that was meant.
    pub(crate) async fn enter(&self, channel: Channel) -> Result<(Pipe, Welcome)> {
        let entered = async {
            let address = self.address()?;
            let (pipe, welcome) = self.knock(&address, channel).await?;
            if *self.server.get_or_init(|| welcome.server) != welcome.server {
                let text = format!("server {} of the service answers there: check the list", welcome.server);
                return Err(Error::new(ErrorKind::Protocol, text));
            }
            self.roll.learn(&welcome.members)?;
            Ok((pipe, welcome))
        };
        Box::pin(entered).await.map_err(|error| self.at_service(error))
    }

    /// Connects with the list that this client goes by. Where that is refused, and the server has a newer one, with that.
    async fn knock(&self, address: &Address, channel: Channel) -> Result<(Pipe, Welcome)> {
        let known = self.roll.members();
        let roster = known.as_deref().map(Roster::from);
        match (enter(&self.config, address, self.client, channel, roster).await, known) {
            (Err(refusal), Some(known)) if refusal.kind() == ErrorKind::Stale => {
                let (pipe, welcome) = enter(&self.config, address, self.client, channel, None).await?;
                match welcome.members.epoch() > known.epoch() {
                    true => Ok((pipe, welcome)),
                    false => Err(Error::new(ErrorKind::Protocol, refusal.to_string())),
                }
            }
            (entered, _) => entered,
        }
    }

    /// Asks on the control connection, again where that is safe, for as long as the configuration says.
    pub(crate) async fn call(&self, who: &Who, request: &Request) -> Result<Reply> {
        match self.ask_at_once(who, request) {
            Begun::Answered(Ok(Ok(reply))) => Ok(reply),
            begun => Box::pin(self.call_on(who, request, begun)).await,
        }
    }

    /// Goes on with a request, of which no more has come than this.
    pub(crate) async fn call_on(&self, who: &Who, request: &Request, begun: Begun) -> Result<Reply> {
        let mut begun = Some(begun);
        let repeatable = repeatable(request);
        let deadline = Instant::now() + self.config.request_timeout;
        let mut pauses = self.pauses();
        loop {
            let sent = AtomicBool::new(false);
            let attempt = Box::pin(self.attempt(who, request, begun.take().unwrap_or(Begun::Not), &sent));
            let trouble = match timeout_at(deadline, attempt).await {
                Ok(Ok(Ok(reply))) => return Ok(reply),
                Ok(Ok(Err(error))) if !may_pass(&error) => return Err(error),
                Ok(Ok(Err(error))) => Trouble::unsent(error),
                Ok(Err(trouble)) => trouble,
                Err(_) => {
                    let trouble = Trouble { sent: sent.into_inner(), error: self.no_answer() };
                    return Err(trouble.into_error(repeatable));
                }
            };
            let pause = pauses.next();
            if !trouble.is_passing(repeatable) || Instant::now() + pause >= deadline {
                return Err(trouble.into_error(repeatable));
            }
            sleep(pause).await;
        }
    }

    /// Asks a server that is there, and does not wait for one that is not.
    pub(crate) async fn call_once(&self, who: &Who, request: &Request) -> Option<Answer> {
        let line = self.live()?;
        let call = CallRef { identity: who.as_deref(), request };
        timeout(self.config.request_timeout, line.call(&call, None)).await.ok()?.ok()
    }

    async fn attempt(
        &self,
        who: &Who,
        request: &Request,
        begun: Begun,
        sent: &AtomicBool,
    ) -> Result<Answer, Trouble> {
        let outcome = match begun {
            Begun::Answered(outcome) => Some(outcome),
            Begun::Asked(line, asked) => self.answer_to(&line, who, request, asked, sent).await,
            Begun::Not if may_ask_here(request) => {
                let line = self.line().await.map_err(Trouble::unsent)?;
                self.ask_here(&line, who, request, sent).await
            }
            Begun::Elsewhere | Begun::Not => None,
        };
        if let Some(outcome) = outcome {
            return outcome;
        }
        let permit = self.calls.clone().acquire_owned().await.expect("the semaphore is never closed");
        let line = self.line().await.map_err(Trouble::unsent)?;
        sent.store(true, Ordering::Relaxed);
        let call = CallRef { identity: who.as_deref(), request };
        let outcome = line.call(&call, Some(permit)).await;
        outcome.map_err(|trouble| Trouble { error: self.at_service(trouble.error), ..trouble })
    }

    /// The live control connection, on which the server was told what was given up on others.
    pub(crate) async fn line(&self) -> Result<Arc<Line>> {
        let line = self.connected().await?;
        self.tell_forsaken(&line).await?;
        Ok(line)
    }

    /// Tells the server which connections were given up: nothing that was asked there happens from now on.
    async fn tell_forsaken(&self, line: &Line) -> Result<()> {
        while let Some(connection) = self.pool.forsaken() {
            let call = CallRef { identity: None, request: &Request::Abandon { connection } };
            let told = line.call(&call, None).await.map_err(|trouble| self.at_service(trouble.error))?;
            told.map_err(|error| self.at_service(error))?;
            self.pool.told(connection);
        }
        Ok(())
    }

    /// The live control connection; makes one where there is none.
    async fn connected(&self) -> Result<Arc<Line>> {
        if let Some(line) = self.live() {
            return Ok(line);
        }
        let _turn = self.connecting.lock().await;
        if let Some(line) = self.live() {
            return Ok(line);
        }
        if let Some(broken) = &*self.line.lock().expect("nothing panics while it holds this") {
            self.pool.forsake(broken.welcome().connection);
        }
        let (pipe, welcome) = self.enter(Channel::Control).await?;
        let line = Arc::new(Line::start(pipe, welcome));
        let resume = async {
            self.tell_forsaken(&line).await?;
            self.opens.reopen(&line).await.map_err(|error| self.at_service(error))
        };
        timeout(self.config.request_timeout, resume).await.map_err(|_| self.no_answer())??;
        *self.line.lock().expect("nothing panics while it holds this") = Some(line.clone());
        Ok(line)
    }

    /// Says a word now and then for as long as somebody holds the session, and brings the connection back where
    /// open files depend on it.
    async fn beat(session: Weak<Session>, mut pause: Duration) {
        loop {
            sleep(pause).await;
            let Some(session) = session.upgrade() else {
                return;
            };
            match session.live() {
                Some(line) => {
                    pause = pause_of(&line);
                    let call = CallRef { identity: None, request: &Request::Ping };
                    if timeout(3 * pause, line.call(&call, None)).await.is_err() {
                        let text = "the service does not answer a ping";
                        line.give_up(&Error::new(ErrorKind::Unreachable, text));
                    }
                }
                // If it fails, the next beat tries again, and the next request says why.
                None if !session.opens.is_empty() => drop(session.line().await),
                None => {}
            }
        }
    }

    pub(crate) fn live(&self) -> Option<Arc<Line>> {
        let line = self.line.lock().expect("nothing panics while it holds this");
        line.clone().filter(|line| !line.is_broken())
    }

    pub(crate) fn pauses(&self) -> Pauses {
        Pauses::new(self.client as u64)
    }

    pub(crate) fn no_answer(&self) -> Error {
        self.no_answer_in(self.config.request_timeout)
    }

    pub(crate) fn no_answer_in(&self, patience: Duration) -> Error {
        self.at_service(Error::new(ErrorKind::Unreachable, format!("no answer within {patience:?}")))
    }

    /// The error with the name of the service, or of the server of several, in front.
    pub(crate) fn at_service(&self, error: Error) -> Error {
        let address = self.address().map_or_else(|_| "nowhere".to_owned(), |address| address.to_string());
        let several = self.roll.members().is_some_and(|members| members.all().len() > 1);
        let name = match self.server() {
            Some(server) if several => format!("server {server} ({address})"),
            _ => format!("service {address}"),
        };
        if error.to_string().starts_with(&name) { error } else { error.within(name) }
    }
}

/// A client that speaks three times in the time it is given is not forgotten for one lost word.
fn pause_of(line: &Line) -> Duration {
    Duration::from_millis((line.welcome().session_millis / 3).max(1))
}
