//! A connection, from the handshake to its end.

use crate::accept_limiter::Place;
use crate::answers::AnswerRoom;
use crate::caller::Caller;
use crate::cluster::PeerAnswers;
use crate::config::{Limits, Times};
use crate::connection_epoch::{ConnectionEpoch, ConnectionEpochs};
use crate::data::Transfers;
use crate::dispatch::RequestServer;
use crate::framing::{FrameReader, SendQueue, gone};
use crate::handshake::{self, AuthenticatedPeer, Handshakes};
use crate::jobs::{Jobs, Membership};
use crate::keys::{Attached, Keys};
use crate::lifecycle::{Lifecycle, stopped};
use crate::log_limit::{LogLimit, about_peer};
use crate::peer_identity::PeerIdentity;
use crate::per_user::{UserBounds, UserShare};
use crate::privileges::Privileges;
use crate::session::{Session, Sessions};
use crate::shm_queue::{Queue, ShmQueues};
use crate::transport::{Transport, Vouch};
use crate::{control, data, people};
use forebay_model::{Error, ErrorKind, Result, ServerId, Uid, shown_time};
use forebay_store::Store;
use forebay_wire::{Call, Channel, FrameKind, Header, Request, body, variant_name};
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// What all connections share.
pub(crate) struct Connections {
    pub(crate) limits: Limits,
    pub(crate) times: Times,
    pub(crate) log: Arc<LogLimit>,
    pub(crate) life: Arc<Lifecycle>,
    /// Permits for connections.
    pub(crate) places: Arc<Semaphore>,
    pub(crate) users: Arc<UserBounds>,
    pub(crate) privileges: Privileges,
    pub(crate) handshakes: Handshakes,
    pub(crate) keys: Arc<Keys>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) connection_epochs: Arc<ConnectionEpochs>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) store: Arc<Store>,
    /// Serves requests of clients.
    pub(crate) server: Arc<RequestServer>,
    /// Serves requests of other servers.
    pub(crate) peer_answers: Arc<PeerAnswers>,
    pub(crate) shm_queues: Arc<ShmQueues>,
    pub(crate) transfers: Arc<Transfers>,
}

/// A connection with an authenticated peer.
pub(crate) struct Connection {
    pub(crate) shared: Arc<Connections>,
    pub(crate) frame_reader: FrameReader,
    pub(crate) send_queue: SendQueue,
    /// The budget for answers that the client has not read yet.
    pub(crate) answers: AnswerRoom,
    pub(crate) job: Arc<Membership>,
    pub(crate) peer_identity: PeerIdentity,
    /// The shared-memory queue of its client, if any.
    pub(crate) queue: Option<Arc<Queue>>,
    /// The server at the other end, if the peer is one and has identified itself.
    pub(crate) server: Option<ServerId>,
    stopping: watch::Receiver<bool>,
}

/// The budget for unsent answers on a new connection of this user.
fn answer_room(shared: &Connections, uid: Uid) -> AnswerRoom {
    let most = usize::try_from(shared.limits.connection_answers.0).unwrap_or(usize::MAX);
    AnswerRoom::new(most, shared.users.answers.of(uid), shared.times.answer)
}

/// A peer after the handshake, or why it is refused.
struct Arrival {
    peer: Result<AuthenticatedPeer>,
    frame_reader: FrameReader,
    send_queue: SendQueue,
}

/// Receives the handshake of a peer; `None` if the connection ended before it was complete.
async fn arrive(
    shared: &Connections,
    transport: Box<dyn Transport>,
    vouch: Vouch,
    place: &Place,
) -> Option<Arrival> {
    let times = shared.times;
    let mut stopping = shared.life.stopping();
    let deadline = Instant::now() + times.handshake;
    let evicted = || {
        about_peer!(
            shared.log,
            "too many connections from one address that have not authenticated: closed the oldest"
        );
    };
    // A peer whose first message has not arrived in full takes no handshake permit and no buffer memory.
    tokio::select! {
        spoken = timeout_at(deadline, transport.first_frame()) => if !matches!(spoken, Ok(Ok(()))) {
            about_peer!(shared.log, "closed the connection of a silent peer");
            return None;
        },
        () = place.must_leave() => {
            evicted();
            return None;
        }
        () = stopped(&mut stopping) => return None,
    }
    let (reading, writing) = transport.split();
    let (mut frame_reader, mut send_queue) =
        (FrameReader::new(reading), SendQueue::new(writing, times.answer));
    let handshake = handshake::receive(&shared.handshakes, vouch, place, &mut frame_reader, &mut send_queue);
    let received = tokio::select! {
        received = timeout_at(deadline, handshake) => received,
        () = place.must_leave() => {
            evicted();
            return None;
        }
        () = stopped(&mut stopping) => return None,
    };
    let peer = received.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Unreachable,
            format!("no handshake within {}", shown_time(times.handshake)),
        ))
    });
    Some(Arrival { peer, frame_reader, send_queue })
}

/// Serves a peer. Its place in the accept limiter covers the handshake only; authenticated peers have a separate limit.
pub(crate) async fn serve(
    shared: Arc<Connections>,
    transport: Box<dyn Transport>,
    vouch: Vouch,
    place: Place,
) {
    let local = !matches!(vouch, Vouch::Key(_));
    let Some(arrival) = arrive(&shared, transport, vouch, &place).await else { return };
    let Arrival { peer, frame_reader, mut send_queue } = arrival;
    let entered = peer.and_then(|peer| enter(&shared, peer, &frame_reader));
    drop(place);
    let Entered { peer, session, connection_epoch, job, _share, _place, _attached } = match entered {
        Ok(entered) => entered,
        Err(error) => {
            about_peer!(shared.log, %error, "refused a peer");
            return handshake::refuse(error, &mut send_queue).await;
        }
    };
    let (uid, label, channel) = (peer.identity.uid, &peer.hello.job.label, peer.hello.channel);
    tracing::debug!(%uid, job = %label, channel = variant_name(&channel), "connected");
    let mut connection = Connection {
        stopping: shared.life.stopping(),
        peer_identity: PeerIdentity {
            session,
            connection_epoch: connection_epoch.clone(),
            identity: peer.identity.clone(),
            privileged: shared.handshakes.vouches(&peer),
            privileges: shared.privileges,
            keyed: peer.key.is_some(),
            local,
        },
        queue: None,
        server: None,
        job: Arc::new(job),
        frame_reader,
        send_queue,
        answers: answer_room(&shared, uid),
        shared: shared.clone(),
    };
    match connection.serve_requests(&peer, connection_epoch.number()).await {
        Ok(()) => tracing::debug!(%uid, job = %label, "disconnected"),
        Err(error) => about_peer!(shared.log, %uid, job = %label, %error, "disconnected"),
    }
    connection.end().await;
}

/// The resources of an admitted peer.
struct Entered<'a> {
    peer: AuthenticatedPeer,
    session: Arc<Session>,
    connection_epoch: Arc<ConnectionEpoch>,
    job: Membership,
    _share: UserShare,
    _place: SemaphorePermit<'a>,
    _attached: Option<Attached>,
}

/// Takes a connection permit and creates the session and job of a peer.
fn enter<'a>(
    shared: &'a Connections,
    peer: AuthenticatedPeer,
    frame_reader: &FrameReader,
) -> Result<Entered<'a>> {
    if !peer.is_of_run {
        shared.privileges.admit(&peer.identity)?;
    }
    shared.handshakes.check_roster(&peer.hello)?;
    let share = shared.users.connections.take(peer.identity.uid)?;
    let place = shared.places.try_acquire().map_err(|_| {
        let limit = shared.limits.connections;
        let text = format!("too many connections ({limit}): try again, or raise limits.connections");
        Error::new(ErrorKind::Busy, text)
    })?;
    let owner = (peer.hello.client, peer.identity.uid);
    let session = shared.sessions.attach(owner, shared.life.age())?;
    match join(shared, &peer, frame_reader) {
        Ok((connection_epoch, attached, job)) => Ok(Entered {
            peer,
            session,
            connection_epoch,
            job,
            _share: share,
            _place: place,
            _attached: attached,
        }),
        Err(error) => {
            shared.sessions.leave(session);
            Err(error)
        }
    }
}

/// Creates the rest of the state of a peer that has a session.
fn join(
    shared: &Connections,
    peer: &AuthenticatedPeer,
    frame_reader: &FrameReader,
) -> Result<(Arc<ConnectionEpoch>, Option<Attached>, Membership)> {
    let owner = (peer.hello.client, peer.identity.uid);
    let connection_epoch = shared.connection_epochs.raise(owner)?;
    let attached = match peer.key {
        Some(id) => match frame_reader.cutter().map_err(|error| gone(&error))? {
            Some(socket) => Some(shared.keys.attach(id, owner, &connection_epoch, socket)?),
            None => None,
        },
        None => None,
    };
    let caller = people::caller(&peer.identity, shared.handshakes.vouches(peer));
    let now = shared.store.data().now();
    let job = shared.jobs.join(&peer.hello.job, (peer.identity.uid, &caller), now)?;
    Ok((connection_epoch, attached, job))
}

pub(crate) enum Waited {
    /// More bytes have arrived.
    More,
    /// The peer has disconnected, the server is stopping, or the session is over.
    End,
}

impl Connection {
    /// Welcomes the peer, and serves its requests until it disconnects.
    async fn serve_requests(&mut self, peer: &AuthenticatedPeer, epoch: u64) -> Result<()> {
        let Connection { shared, frame_reader, send_queue, .. } = self;
        handshake::welcome(&shared.handshakes, peer, epoch, frame_reader, send_queue).await?;
        match peer.hello.channel {
            Channel::Control => control::serve(self).await,
            Channel::Data => data::serve(self).await,
        }
    }

    /// Delivers pending answers if possible, and gives up what the connection held.
    async fn end(mut self) {
        let _ = self.send_queue.flush().await;
        self.send_queue.close().await;
        if let Some(queue) = self.queue {
            queue.end(&self.shared.shm_queues);
            queue.finished().await;
        }
        self.shared.sessions.leave(self.peer_identity.session);
    }

    /// The header of the next frame, once it has arrived. `None` if the server is stopping.
    pub(crate) fn frame(&mut self) -> Result<Option<Header>> {
        if *self.stopping.borrow() { Ok(None) } else { self.frame_reader.frame() }
    }

    /// Waits for more of the next frame. Flush answers before: the peer may be waiting for them.
    ///
    /// Cancel-safe.
    pub(crate) async fn wait(&mut self) -> Result<Waited> {
        let patience = self.shared.times.session;
        loop {
            tokio::select! {
                filled = timeout(patience, self.frame_reader.fill_frame()) => match filled {
                    Ok(Ok(true)) => return Ok(Waited::More),
                    Ok(Ok(false)) if self.frame_reader.is_between_frames() => return Ok(Waited::End),
                    Ok(Ok(false)) => {
                        return Err(Error::new(ErrorKind::Unreachable, "the peer disconnected in the middle of a frame"));
                    }
                    Ok(Err(error)) => return Err(gone(&error)),
                    // Nothing arrived on this connection, but the client may be active on its other ones.
                    Err(_) if !self.peer_identity.session.is_over() => {}
                    Err(_) => return Err(Error::new(ErrorKind::Unreachable, "the client has sent nothing for too long")),
                },
                () = stopped(&mut self.stopping) => return Ok(Waited::End),
            }
        }
    }

    /// Decodes the call whose frame has arrived, and determines the caller. The outer error closes the connection, the
    /// inner one is the answer.
    pub(crate) fn call(&mut self, header: Header) -> Result<Result<(Caller, Request)>> {
        if header.kind != FrameKind::Call {
            let text = format!("a frame of kind {} arrived where a call was expected", header.kind);
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        let len = header.body as usize;
        let call = body::<Call>(&self.frame_reader.held()[..len]);
        self.frame_reader.consume(len);
        self.job.request(self.shared.store.data().now());
        let (sessions, now) = (&self.shared.sessions, self.shared.life.age());
        let peer = &mut self.peer_identity;
        Ok(call.and_then(|call| Ok((peer.caller(sessions, now, call.identity)?, call.request))))
    }
}
