//! A connection, from the handshake to its end.

use crate::accept_limiter::Place;
use crate::answers::AnswerRoom;
use crate::caller::Caller;
use crate::connection_epoch::ConnectionEpoch;
use crate::framing::{FrameReader, SendQueue, gone};
use crate::handshake::{self, AuthenticatedPeer};
use crate::jobs::Membership;
use crate::keys::Attached;
use crate::lifecycle::stopped;
use crate::log_limit::about_peer;
use crate::peer_identity::PeerIdentity;
use crate::per_user::UserShare;
use crate::service::Service;
use crate::session::Session;
use crate::shm_queue::Queue;
use crate::transport::{Transport, Vouch};
use crate::{control, data, people};
use forebay_model::{Error, ErrorKind, Result, ServerId, Uid, shown_time};
use forebay_wire::{Call, Channel, FrameKind, Header, Request, body, variant_name};
use std::sync::Arc;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// A connection with an authenticated peer.
pub(crate) struct Connection {
    pub(crate) service: Arc<Service>,
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
fn answer_room(service: &Service, uid: Uid) -> AnswerRoom {
    let most = usize::try_from(service.config.limits.connection_answers.0).unwrap_or(usize::MAX);
    AnswerRoom::new(most, service.users.answers.of(uid), service.config.times.answer)
}

/// Serves a peer. Its place in the accept limiter covers the handshake only; authenticated peers have a separate limit.
pub(crate) async fn serve(service: Arc<Service>, transport: Box<dyn Transport>, vouch: Vouch, place: Place) {
    let local = !matches!(vouch, Vouch::Key(_));
    let times = service.config.times;
    let mut stopping = service.life.stopping();
    let deadline = Instant::now() + times.handshake;
    let evicted = || {
        about_peer!(
            service.log,
            "too many connections from one address that have not authenticated: closed the oldest"
        );
    };
    // A peer whose first message has not arrived in full takes no handshake permit and no buffer memory.
    tokio::select! {
        spoken = timeout_at(deadline, transport.first_frame()) => if !matches!(spoken, Ok(Ok(()))) {
            return about_peer!(service.log, "closed the connection of a silent peer");
        },
        () = place.must_leave() => return evicted(),
        () = stopped(&mut stopping) => return,
    }
    let (reading, writing) = transport.split();
    let (mut frame_reader, mut send_queue) =
        (FrameReader::new(reading), SendQueue::new(writing, times.answer));
    let handshake = handshake::receive(&service, vouch, &place, &mut frame_reader, &mut send_queue);
    let met = tokio::select! {
        met = timeout_at(deadline, handshake) => met,
        () = place.must_leave() => return evicted(),
        () = stopped(&mut stopping) => return,
    };
    let met = met.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Unreachable,
            format!("no handshake within {}", shown_time(times.handshake)),
        ))
    });
    let entered = met.and_then(|peer| enter(&service, peer, &frame_reader));
    drop(place);
    let Entered { peer, session, connection_epoch, job, _share, _place, _attached } = match entered {
        Ok(entered) => entered,
        Err(error) => {
            about_peer!(service.log, %error, "refused a peer");
            return handshake::refuse(error, &mut send_queue).await;
        }
    };
    let (uid, label, channel) = (peer.identity.uid, &peer.hello.job.label, peer.hello.channel);
    tracing::debug!(%uid, job = %label, channel = variant_name(&channel), "connected");
    let mut connection = Connection {
        stopping,
        peer_identity: PeerIdentity {
            session,
            connection_epoch: connection_epoch.clone(),
            identity: peer.identity.clone(),
            privileged: service.vouches(&peer),
            privileges: service.privileges,
            keyed: peer.key.is_some(),
            local,
        },
        queue: None,
        server: None,
        job: Arc::new(job),
        frame_reader,
        send_queue,
        answers: answer_room(&service, uid),
        service: service.clone(),
    };
    let Connection { frame_reader, send_queue, .. } = &mut connection;
    let served = match handshake::welcome(
        &service,
        &peer,
        connection_epoch.number(),
        frame_reader,
        send_queue,
    )
    .await
    {
        Ok(()) => match channel {
            Channel::Control => control::serve(&mut connection).await,
            Channel::Data => data::serve(&mut connection).await,
        },
        Err(error) => Err(error),
    };
    match served {
        Ok(()) => tracing::debug!(%uid, job = %label, "disconnected"),
        Err(error) => about_peer!(service.log, %uid, job = %label, %error, "disconnected"),
    }
    // Deliver pending answers if possible.
    let _ = connection.send_queue.flush().await;
    connection.send_queue.close().await;
    let Connection { peer_identity, service, queue, .. } = connection;
    if let Some(queue) = queue {
        queue.end(&service);
        queue.finished().await;
    }
    service.sessions.leave(peer_identity.session);
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
    service: &'a Service,
    peer: AuthenticatedPeer,
    frame_reader: &FrameReader,
) -> Result<Entered<'a>> {
    if !peer.is_of_run {
        service.privileges.admit(&peer.identity)?;
    }
    service.check_roster(&peer.hello)?;
    let share = service.users.connections.take(peer.identity.uid)?;
    let place = service.connections.try_acquire().map_err(|_| {
        let limit = service.config.limits.connections;
        let text = format!("too many connections ({limit}): try again, or raise limits.connections");
        Error::new(ErrorKind::Busy, text)
    })?;
    let owner = (peer.hello.client, peer.identity.uid);
    let session = service.sessions.attach(owner, service.life.age())?;
    match join(service, &peer, frame_reader) {
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
            service.sessions.leave(session);
            Err(error)
        }
    }
}

/// Creates the rest of the state of a peer that has a session.
fn join(
    service: &Service,
    peer: &AuthenticatedPeer,
    frame_reader: &FrameReader,
) -> Result<(Arc<ConnectionEpoch>, Option<Attached>, Membership)> {
    let owner = (peer.hello.client, peer.identity.uid);
    let connection_epoch = service.connection_epochs.raise(owner)?;
    let attached = match peer.key {
        Some(id) => match frame_reader.cutter().map_err(|error| gone(&error))? {
            Some(socket) => Some(service.keys.attach(id, owner, &connection_epoch, socket)?),
            None => None,
        },
        None => None,
    };
    let caller = people::caller(&peer.identity, service.vouches(peer));
    let now = service.store.data().now();
    let job = service.jobs.join(&peer.hello.job, (peer.identity.uid, &caller), now)?;
    Ok((connection_epoch, attached, job))
}

pub(crate) enum Waited {
    /// More bytes have arrived.
    More,
    /// The peer has disconnected, the server is stopping, or the session is over.
    End,
}

impl Connection {
    /// The header of the next frame, once it has arrived. `None` if the server is stopping.
    pub(crate) fn frame(&mut self) -> Result<Option<Header>> {
        if *self.stopping.borrow() { Ok(None) } else { self.frame_reader.frame() }
    }

    /// Waits for more of the next frame. Flush answers before: the peer may be waiting for them.
    ///
    /// Cancel-safe.
    pub(crate) async fn wait(&mut self) -> Result<Waited> {
        let patience = self.service.config.times.session;
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
        self.job.request(self.service.store.data().now());
        Ok(call.and_then(|call| Ok((self.peer_identity.caller(&self.service, call.identity)?, call.request))))
    }
}
