//! Lines to the other servers: one connection each, many questions at once, connected again whenever it breaks.
//!
//! **Invariant**: a question is answered, or fails within the time it was given with an error that names the server.
//! While a server has been away for longer than that, questions to it fail at once.

use crate::dial::{Dialled, dial};
use crate::link::gone;
use crate::service::{Service, stopped};
use forebay_model::{Error, ErrorKind, Members, Result, ServerId};
use forebay_wire::{Answer, Call, FrameKind, Meeting, Met, PeerReply, PeerRequest, Reply, Request, body};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// Questions that wait for a line.
const QUEUE: usize = 4096;
/// Questions on their way at the same time.
const ASKED: usize = 1024;
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// The lines of a server.
pub(crate) struct Lines {
    list: Vec<Arc<Line>>,
}

/// The line to one other server.
pub(crate) struct Line {
    address: String,
    /// Who has to be at the other end, if a list says so.
    expected: Option<ServerId>,
    queue: mpsc::Sender<Errand>,
    waiting: Mutex<Option<mpsc::Receiver<Errand>>>,
    state: Mutex<State>,
    hang_up: Notify,
}

struct State {
    /// Who is at the other end, once it was met.
    server: Option<ServerId>,
    trouble: Option<Trouble>,
}

struct Trouble {
    since: Instant,
    error: Error,
}

/// A question on its way.
struct Errand {
    request: Request,
    tell: oneshot::Sender<Answer>,
}

impl Lines {
    /// Lines to all other members of the service, and to these addresses.
    pub(crate) fn new(own: ServerId, members: &Members, peers: &[String]) -> Lines {
        let others = members.all().iter().filter(|member| member.server != own);
        let listed = others.map(|member| Line::new(member.address.clone(), Some(member.server)));
        let list = listed.chain(peers.iter().map(|peer| Line::new(peer.clone(), None)));
        Lines { list: list.map(Arc::new).collect() }
    }

    pub(crate) fn all(&self) -> &[Arc<Line>] {
        &self.list
    }

    /// The line to a member.
    pub(crate) fn to(&self, server: ServerId) -> Result<&Arc<Line>> {
        self.list.iter().find(|line| line.expected == Some(server)).ok_or_else(|| {
            Error::new(ErrorKind::Stale, format!("server {server} is not another server of this service"))
        })
    }
}

impl Line {
    fn new(address: String, expected: Option<ServerId>) -> Line {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let never = Error::new(ErrorKind::Unreachable, "not connected yet");
        let trouble = Some(Trouble { since: Instant::now(), error: never });
        let state = Mutex::new(State { server: None, trouble });
        let waiting = Mutex::new(Some(waiting));
        Line { address, expected, queue, waiting, state, hang_up: Notify::new() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The member at the other end, where a list names it.
    pub(crate) fn member(&self) -> Option<ServerId> {
        self.expected
    }

    /// Who was last met at the other end.
    pub(crate) fn server(&self) -> Option<ServerId> {
        self.lock().server
    }

    /// Gives the connection up, so that another is made.
    pub(crate) fn hang_up(&self) {
        self.hang_up.notify_waiters();
    }

    /// Asks, and waits for the answer for so long. If the connection breaks, or a server that has just started has not
    /// joined yet, it is asked again.
    pub(crate) async fn ask(&self, request: Request, patience: Duration) -> Answer {
        let asked = async {
            loop {
                match self.send(&request, patience)?.await {
                    Ok(Err(error)) if error.kind() == ErrorKind::Unreachable => sleep(PAUSE).await,
                    Ok(answer) => return answer,
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        match timeout(patience, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(self.silent(patience)),
        }
    }

    /// Asks once. `None` if nobody knows whether it was done.
    pub(crate) async fn ask_once(&self, request: &Request, patience: Duration) -> Option<Answer> {
        match self.send(request, patience) {
            Ok(told) => timeout(patience, told).await.ok()?.ok(),
            Err(error) => Some(Err(error)),
        }
    }

    fn send(&self, request: &Request, patience: Duration) -> Result<oneshot::Receiver<Answer>> {
        self.fail_soon(patience)?;
        let (tell, told) = oneshot::channel();
        match self.queue.try_send(Errand { request: request.clone(), tell }) {
            Ok(()) => Ok(told),
            Err(_) => {
                let text = format!("too many questions wait for {}: try again", self.name());
                Err(Error::new(ErrorKind::Busy, text))
            }
        }
    }

    /// Fails at once if nobody has been there for longer than anybody would wait.
    fn fail_soon(&self, patience: Duration) -> Result<()> {
        match &self.lock().trouble {
            Some(trouble) if trouble.since.elapsed() > patience => {
                Err(trouble.error.clone().within(self.name()))
            }
            _ => Ok(()),
        }
    }

    fn silent(&self, patience: Duration) -> Error {
        match &self.lock().trouble {
            Some(trouble) => trouble.error.clone().within(self.name()),
            None => {
                let text = format!("{} did not answer within {patience:?}", self.name());
                Error::new(ErrorKind::Unreachable, text)
            }
        }
    }

    fn name(&self) -> String {
        match self.expected {
            Some(server) => format!("server {server} ({})", self.address),
            None => self.address.clone(),
        }
    }

    fn up(&self, server: ServerId) {
        let mut state = self.lock();
        if state.trouble.take().is_some() {
            tracing::info!(%server, address = %self.address, "connected to another server");
        }
        state.server = Some(server);
    }

    fn down(&self, error: Error) {
        let mut state = self.lock();
        let since = state.trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        if state.trouble.as_ref().is_none_or(|trouble| trouble.error != error) {
            tracing::warn!(address = %self.address, %error, "no line to another server");
        }
        state.trouble = Some(Trouble { since, error });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a line up for as long as the server serves.
pub(crate) async fn keep(service: Arc<Service>, line: Arc<Line>) {
    let queue = line.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut queue) = queue else { return };
    let mut stopping = service.stopping();
    loop {
        tokio::select! {
            error = live(&service, &line, &mut queue) => line.down(error),
            () = stopped(&mut stopping) => return,
        }
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            () = sleep(PAUSE) => {}
        }
    }
}

/// One connection, from its beginning to what ended it.
async fn live(service: &Arc<Service>, line: &Line, queue: &mut mpsc::Receiver<Errand>) -> Error {
    let patience = service.config.times.peer;
    let begin = async {
        let mut dialled = dial(&line.address, &service.key.key, service.config.server, patience).await?;
        check_number(service, line, dialled.server)?;
        if line.expected.is_some() {
            let met = meet(service, &mut dialled).await?;
            service.has_met(&met)?;
        }
        Ok(dialled)
    };
    match timeout(patience, begin).await {
        Ok(Ok(dialled)) => {
            service.circle.admit(dialled.server);
            line.up(dialled.server);
            match carry(line, dialled, queue).await {
                Err(error) => error,
                Ok(never) => match never {},
            }
        }
        Ok(Err(error)) => turned_away(service, line, error),
        Err(_) => {
            let error = Error::new(ErrorKind::Unreachable, format!("no handshake within {patience:?}"));
            turned_away(service, line, error)
        }
    }
}

/// Whoever asks this server for its standing wants to know.
fn turned_away(service: &Service, line: &Line, error: Error) -> Error {
    if let Some(server) = line.expected {
        service.joining.turned_away(server, &error);
    }
    error
}

/// Refuses a server that is not the one the list names, or has the number of this one.
fn check_number(service: &Service, line: &Line, server: ServerId) -> Result<()> {
    let (own, address) = (service.config.server, &line.address);
    let text = match line.expected {
        Some(expected) if server != expected => {
            format!("{address} calls itself server {server}, not {expected}: correct the list of servers")
        }
        None if server == own => {
            format!("{address} calls itself server {own} too: give each its own server = N")
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, text))
}

async fn meet(service: &Service, dialled: &mut Dialled) -> Result<Met> {
    let meeting = Request::Peer(Box::new(PeerRequest::Meet(service.introduction())));
    dialled.outbox.say(FrameKind::Call, 0, &Call { identity: None, request: meeting })?;
    dialled.outbox.flush().await.map_err(|error| gone(&error))?;
    let answer = crate::handshake::message(&mut dialled.inbox, FrameKind::Answer).await?;
    match body::<Answer>(&answer)?? {
        Reply::Peer(reply) => match *reply {
            PeerReply::Met(met) => Ok(met),
            other => Err(nonsense(&other)),
        },
        other => Err(nonsense(&other)),
    }
}

/// Carries questions and answers until the connection ends.
async fn carry(
    line: &Line,
    Dialled { mut inbox, mut outbox, .. }: Dialled,
    queue: &mut mpsc::Receiver<Errand>,
) -> Result<std::convert::Infallible> {
    let mut asked: HashMap<u64, oneshot::Sender<Answer>> = HashMap::new();
    let mut calls = 0;
    loop {
        while let Some(header) = inbox.frame()? {
            let len = header.body as usize;
            let answer = body::<Answer>(&inbox.held()[..len])?;
            inbox.consume(len);
            if header.kind != FrameKind::Answer || header.payload > 0 {
                return Err(Error::new(ErrorKind::Protocol, "the server says what nobody asked"));
            }
            // Whoever asked may have given up meanwhile.
            if let Some(tell) = asked.remove(&header.id) {
                let _ = tell.send(answer);
            }
        }
        tokio::select! {
            errand = queue.recv(), if asked.len() < ASKED => {
                let mut next = errand;
                while let Some(Errand { request, tell }) = next.take() {
                    if !tell.is_closed() {
                        calls += 1;
                        outbox.say(FrameKind::Call, calls, &Call { identity: None, request })?;
                        asked.insert(calls, tell);
                    }
                    if asked.len() < ASKED && !outbox.is_full() {
                        next = queue.try_recv().ok();
                    }
                }
                outbox.flush().await.map_err(|error| gone(&error))?;
            }
            filled = inbox.fill_frame() => match filled {
                Ok(true) => {}
                Ok(false) => return Err(Error::new(ErrorKind::Unreachable, "the server has gone")),
                Err(error) => return Err(gone(&error)),
            },
            () = line.hang_up.notified() => {
                return Err(Error::new(ErrorKind::Unreachable, "the server does not answer any more"));
            }
        }
        asked.retain(|_, tell| !tell.is_closed());
    }
}

pub(crate) fn nonsense(reply: &dyn std::fmt::Debug) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!("another server answered something else than was asked: {reply:?}"),
    )
}

impl Service {
    fn introduction(&self) -> Meeting {
        Meeting {
            server: self.config.server,
            incarnation: self.store.incarnation(),
            joined: self.joining.has_joined(),
            members: (*self.members.members()).clone(),
        }
    }

    /// Asks a member.
    pub(crate) async fn ask(&self, server: ServerId, request: PeerRequest) -> Result<PeerReply> {
        self.ask_for(server, request, self.config.times.peer).await
    }

    /// Asks a member, with this much patience.
    pub(crate) async fn ask_for(
        &self,
        server: ServerId,
        request: PeerRequest,
        patience: Duration,
    ) -> Result<PeerReply> {
        match self.lines.to(server)?.ask(Request::Peer(Box::new(request)), patience).await? {
            Reply::Peer(reply) => Ok(*reply),
            other => Err(nonsense(&other)),
        }
    }
}
