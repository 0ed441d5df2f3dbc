//! Clients of the other servers: one connection each, many requests at once, reconnected whenever it breaks.
//!
//! **Invariant**: a request is answered, or fails within its timeout with an error that names the server. While a
//! server has been unreachable for longer than the timeout, requests to it fail at once.

use super::JoinState;
use crate::config::TransportSettings;
use crate::connector::{PeerConnection, connect_peer};
use crate::framing::{gone, message};
use crate::gossip::Gossip;
use crate::key::KeyHolder;
use crate::keys::Keys;
use crate::lifecycle::{Lifecycle, stopped};
use crate::members::Membership;
use crate::session::Sessions;
use forebay_model::{Error, ErrorKind, Members, Result, ServerId, shown_time};
use forebay_store::Store;
use forebay_wire::{
    Answer, Call, FrameKind, Introduction, IntroductionReply, PeerReply, PeerRequest, Reply, Request, body,
    variant_name,
};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// Most requests that wait for a connection.
const QUEUE: usize = 4096;
/// Most requests in flight.
const MAX_IN_FLIGHT: usize = 1024;
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// The clients of all other servers.
pub(crate) struct PeerClients {
    list: Vec<Arc<PeerClient>>,
}

/// The client of one other server.
pub(crate) struct PeerClient {
    address: String,
    /// The number of the other server, if the list of servers gives it.
    expected: Option<ServerId>,
    queue: mpsc::Sender<PendingCall>,
    waiting: Mutex<Option<mpsc::Receiver<PendingCall>>>,
    state: Mutex<State>,
    disconnect: Notify,
}

struct State {
    /// The number of the other server, once it was met.
    server: Option<ServerId>,
    trouble: Option<Trouble>,
}

struct Trouble {
    since: Instant,
    error: Error,
}

/// A request with the sender of its answer.
struct PendingCall {
    request: Request,
    notify: oneshot::Sender<Answer>,
}

impl PeerClients {
    /// Clients of all other members of the service, and of these addresses.
    pub(crate) fn new(own: ServerId, members: &Members, peers: &[String]) -> PeerClients {
        let others = members.all().iter().filter(|member| member.server != own);
        let listed = others.map(|member| PeerClient::new(member.address.clone(), Some(member.server)));
        let list = listed.chain(peers.iter().map(|peer| PeerClient::new(peer.clone(), None)));
        PeerClients { list: list.map(Arc::new).collect() }
    }

    pub(crate) fn all(&self) -> &[Arc<PeerClient>] {
        &self.list
    }

    /// The client of a member.
    pub(crate) fn to(&self, server: ServerId) -> Result<&Arc<PeerClient>> {
        self.list.iter().find(|client| client.expected == Some(server)).ok_or_else(|| {
            Error::new(ErrorKind::Stale, format!("server {server} is not another server of this service"))
        })
    }
}

impl PeerClient {
    fn new(address: String, expected: Option<ServerId>) -> PeerClient {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let never = Error::new(ErrorKind::Unreachable, "not connected yet");
        let trouble = Some(Trouble { since: Instant::now(), error: never });
        let state = Mutex::new(State { server: None, trouble });
        let waiting = Mutex::new(Some(waiting));
        PeerClient { address, expected, queue, waiting, state, disconnect: Notify::new() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The other server's number, if the list of servers gives it.
    pub(crate) fn member(&self) -> Option<ServerId> {
        self.expected
    }

    /// The number of the server that was last met.
    pub(crate) fn server(&self) -> Option<ServerId> {
        self.lock().server
    }

    /// Drops the connection, so that a new one is made.
    pub(crate) fn disconnect(&self) {
        self.disconnect.notify_waiters();
    }

    /// Sends a request and waits for the answer. Repeats the request if the connection breaks, or if the other server
    /// has just started and not joined yet.
    pub(crate) async fn ask(&self, request: Request, patience: Duration) -> Answer {
        let attempts = async {
            loop {
                match self.send(&request, patience)?.await {
                    Ok(Err(error)) if error.kind() == ErrorKind::Unreachable => sleep(PAUSE).await,
                    Ok(answer) => return answer,
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        match timeout(patience, attempts).await {
            Ok(answer) => answer,
            Err(_) => Err(self.timeout_error(patience)),
        }
    }

    /// Sends a request once. `None` if it is unknown whether it was done.
    pub(crate) async fn request_once(&self, request: &Request, patience: Duration) -> Option<Answer> {
        match self.send(request, patience) {
            Ok(reply) => timeout(patience, reply).await.ok()?.ok(),
            Err(error) => Some(Err(error)),
        }
    }

    fn send(&self, request: &Request, patience: Duration) -> Result<oneshot::Receiver<Answer>> {
        self.fail_if_down(patience)?;
        let (notify, reply) = oneshot::channel();
        match self.queue.try_send(PendingCall { request: request.clone(), notify }) {
            Ok(()) => Ok(reply),
            Err(_) => {
                let text = format!("too many requests wait for {}: try again", self.name());
                Err(Error::new(ErrorKind::Busy, text))
            }
        }
    }

    /// Fails at once if the server has been unreachable for longer than the timeout.
    fn fail_if_down(&self, patience: Duration) -> Result<()> {
        match &self.lock().trouble {
            Some(trouble) if trouble.since.elapsed() > patience => {
                Err(trouble.error.clone().within(self.name()))
            }
            _ => Ok(()),
        }
    }

    fn timeout_error(&self, patience: Duration) -> Error {
        match &self.lock().trouble {
            Some(trouble) => trouble.error.clone().within(self.name()),
            None => {
                let text = format!("{} did not answer within {}", self.name(), shown_time(patience));
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
            tracing::warn!(address = %self.address, %error, "no connection to another server");
        }
        state.trouble = Some(Trouble { since, error });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// What a connection to another server needs: the servers introduce themselves and compare the keys of users.
pub(crate) struct PeerLinks {
    pub(crate) own: ServerId,
    pub(crate) members: Arc<dyn Membership>,
    pub(crate) store: Arc<Store>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) key: Arc<KeyHolder>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) gossip: Arc<Gossip>,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) transport: TransportSettings,
    /// Timeout of the handshake.
    pub(crate) patience: Duration,
}

impl PeerLinks {
    fn introduction(&self) -> Introduction {
        Introduction {
            server: self.own,
            incarnation: self.store.incarnation(),
            joined: self.join_state.has_joined(),
            members: (*self.members.members()).clone(),
        }
    }
}

/// Keeps a connection up for as long as the server runs.
pub(crate) async fn keep(links: Arc<PeerLinks>, client: Arc<PeerClient>) {
    let queue = client.waiting.lock().take();
    let Some(mut queue) = queue else { return };
    let mut stopping = links.life.stopping();
    loop {
        tokio::select! {
            error = run_connection(&links, &client, &mut queue) => client.down(error),
            () = stopped(&mut stopping) => return,
        }
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            () = sleep(PAUSE) => {}
        }
    }
}

/// One connection; returns the error that ended it.
async fn run_connection(
    links: &PeerLinks,
    client: &PeerClient,
    queue: &mut mpsc::Receiver<PendingCall>,
) -> Error {
    let patience = links.patience;
    let begin = async {
        let mut connection =
            connect_peer(&client.address, &links.key.key, links.transport, links.own, patience).await?;
        check_number(links, client, connection.server)?;
        if client.expected.is_some() {
            let met = record_meeting(links, &mut connection).await?;
            links.join_state.has_met(&links.store, &links.members.members(), &met)?;
            if let Err(error) = compare_keys(links, &mut connection).await {
                tracing::warn!(%error, "cannot exchange the keys of users with another server");
            }
        }
        Ok(connection)
    };
    match timeout(patience, begin).await {
        Ok(Ok(connection)) => {
            links.gossip.admit(connection.server);
            client.up(connection.server);
            match exchange(client, connection, queue).await {
                Err(error) => error,
                Ok(never) => match never {},
            }
        }
        Ok(Err(error)) => meeting_failed(links, client, error),
        Err(_) => {
            let error =
                Error::new(ErrorKind::Unreachable, format!("no handshake within {}", shown_time(patience)));
            meeting_failed(links, client, error)
        }
    }
}

/// Records the error, for the status of this server.
fn meeting_failed(links: &PeerLinks, client: &PeerClient, error: Error) -> Error {
    if let Some(server) = client.expected {
        links.join_state.meeting_failed(server, &error);
    }
    error
}

/// Refuses a server whose number differs from the list, or is this server's own.
fn check_number(links: &PeerLinks, client: &PeerClient, server: ServerId) -> Result<()> {
    let (own, address) = (links.own, &client.address);
    let text = match client.expected {
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

async fn record_meeting(links: &PeerLinks, connection: &mut PeerConnection) -> Result<IntroductionReply> {
    match request_first(connection, PeerRequest::Introduce(links.introduction())).await? {
        PeerReply::Introduced(met) => Ok(met),
        other => Err(nonsense(&other)),
    }
}

/// Exchanges keys that were granted or revoked while the two servers were not connected.
async fn compare_keys(links: &PeerLinks, connection: &mut PeerConnection) -> Result<()> {
    match request_first(connection, PeerRequest::Keys { keys: links.keys.all() }).await? {
        PeerReply::Keys { keys } => tokio::task::block_in_place(|| links.keys.join(&keys, &links.sessions)),
        other => Err(nonsense(&other)),
    }
}

/// Sends the first request on a connection.
async fn request_first(connection: &mut PeerConnection, request: PeerRequest) -> Result<PeerReply> {
    let request = Request::Peer(Box::new(request));
    connection.send_queue.queue(FrameKind::Call, 0, &Call { identity: None, request })?;
    connection.send_queue.flush().await.map_err(|error| gone(&error))?;
    let answer = message(&mut connection.frame_reader, FrameKind::Answer).await?;
    match body::<Answer>(&answer)?? {
        Reply::Peer(reply) => Ok(*reply),
        other => Err(nonsense(&other)),
    }
}

/// Sends requests and receives answers until the connection ends.
async fn exchange(
    client: &PeerClient,
    PeerConnection { mut frame_reader, mut send_queue, .. }: PeerConnection,
    queue: &mut mpsc::Receiver<PendingCall>,
) -> Result<std::convert::Infallible> {
    let mut in_flight: HashMap<u64, oneshot::Sender<Answer>> = HashMap::new();
    let mut calls = 0;
    loop {
        while let Some(header) = frame_reader.frame()? {
            let len = header.body as usize;
            let answer = body::<Answer>(&frame_reader.held()[..len])?;
            frame_reader.consume(len);
            if header.kind != FrameKind::Answer || header.payload > 0 {
                return Err(Error::new(ErrorKind::Protocol, "the server sent a frame that is not an answer"));
            }
            // The caller may have given up meanwhile.
            if let Some(notify) = in_flight.remove(&header.id) {
                let _ = notify.send(answer);
            }
        }
        tokio::select! {
            pending_call = queue.recv(), if in_flight.len() < MAX_IN_FLIGHT => {
                let mut next = pending_call;
                while let Some(PendingCall { request, notify }) = next.take() {
                    if !notify.is_closed() {
                        calls += 1;
                        send_queue.queue(FrameKind::Call, calls, &Call { identity: None, request })?;
                        in_flight.insert(calls, notify);
                    }
                    if in_flight.len() < MAX_IN_FLIGHT && !send_queue.is_full() {
                        next = queue.try_recv().ok();
                    }
                }
                send_queue.flush().await.map_err(|error| gone(&error))?;
            }
            filled = frame_reader.fill_frame() => match filled {
                Ok(true) => {}
                Ok(false) => return Err(Error::new(ErrorKind::Unreachable, "the server closed the connection")),
                Err(error) => return Err(gone(&error)),
            },
            () = client.disconnect.notified() => {
                return Err(Error::new(ErrorKind::Unreachable, "the server does not answer heartbeats"));
            }
        }
        in_flight.retain(|_, notify| !notify.is_closed());
    }
}

pub(crate) fn nonsense(reply: &impl Serialize) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!("another server answered something else than was asked: {}", variant_name(reply)),
    )
}
