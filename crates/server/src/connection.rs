//! A connection, from the handshake to its end.

use crate::desk::Queue;
use crate::fence::Fence;
use crate::hall::Place;
use crate::handshake::{self, Guest};
use crate::jobs::Membership;
use crate::link::{Inbox, Outbox, gone};
use crate::service::{Caller, Service, stopped};
use crate::session::Session;
use crate::transport::{Transport, Vouch};
use crate::visitor::Visitor;
use crate::{control, data, people};
use forebay_model::{Error, ErrorKind, Result, ServerId};
use forebay_wire::{Call, Channel, FrameKind, Header, Request, body};
use std::sync::Arc;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::timeout;

/// A connection whose peer is known.
pub(crate) struct Connection {
    pub(crate) service: Arc<Service>,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    pub(crate) job: Arc<Membership>,
    pub(crate) visitor: Visitor,
    /// The queue in shared memory in which its client asks as well.
    pub(crate) queue: Option<Arc<Queue>>,
    /// The server at the other end, if it is one and has said so.
    pub(crate) server: Option<ServerId>,
    stopping: watch::Receiver<bool>,
}

/// Serves a peer. Its place in the hall is for the handshake only: peers that are known have a limit of their own.
pub(crate) async fn serve(service: Arc<Service>, transport: Box<dyn Transport>, vouch: Vouch, place: Place) {
    let local = matches!(vouch, Vouch::Kernel(_));
    let (reading, writing) = transport.split();
    let times = service.config.times;
    let (mut inbox, mut outbox) = (Inbox::new(reading), Outbox::new(writing, times.answer));
    let mut stopping = service.stopping();
    let meeting = async {
        let _word = place.word().await;
        handshake::receive(&service, vouch, &mut inbox, &mut outbox).await
    };
    let met = tokio::select! {
        met = timeout(times.handshake, meeting) => met,
        () = stopped(&mut stopping) => return,
    };
    let met = met.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unreachable, format!("no handshake within {:?}", times.handshake)))
    });
    let entered = met.and_then(|guest| enter(&service, guest));
    drop(place);
    let Entered { guest, session, fence, job, _place } = match entered {
        Ok(entered) => entered,
        Err(error) => {
            tracing::info!(%error, "a peer was not let in");
            return handshake::refuse(error, &mut outbox).await;
        }
    };
    let (uid, label, channel) = (guest.identity.uid, &guest.hello.job.label, guest.hello.channel);
    tracing::debug!(%uid, job = %label, ?channel, "connected");
    let mut connection = Connection {
        stopping,
        visitor: Visitor {
            session,
            fence: fence.clone(),
            identity: guest.identity.clone(),
            privileged: service.trusts(&guest.identity),
            local,
        },
        queue: None,
        server: None,
        job: Arc::new(job),
        inbox,
        outbox,
        service: service.clone(),
    };
    let served = match handshake::welcome(&service, &guest, fence.number(), &mut connection.outbox).await {
        Ok(()) => match channel {
            Channel::Control => control::serve(&mut connection).await,
            Channel::Data => data::serve(&mut connection).await,
        },
        Err(error) => Err(error),
    };
    match served {
        Ok(()) => tracing::debug!(%uid, job = %label, "disconnected"),
        Err(error) => tracing::info!(%uid, job = %label, %error, "disconnected"),
    }
    // What was answered is still delivered where that is possible.
    let _ = connection.outbox.flush().await;
    connection.outbox.close().await;
    let Connection { visitor, service, queue, .. } = connection;
    if let Some(queue) = queue {
        queue.end(&service);
    }
    service.sessions.leave(visitor.session);
}

/// What a guest is given.
struct Entered<'a> {
    guest: Guest,
    session: Arc<Session>,
    fence: Arc<Fence>,
    job: Membership,
    _place: SemaphorePermit<'a>,
}

/// A place among the connections, a session and a job for a guest.
fn enter(service: &Service, guest: Guest) -> Result<Entered<'_>> {
    service.check_roster(&guest.hello)?;
    let place = service.connections.try_acquire().map_err(|_| {
        let limit = service.config.limits.connections;
        let text = format!("{limit} connections are open already: try again, or raise limits.connections");
        Error::new(ErrorKind::Busy, text)
    })?;
    let owner = (guest.hello.client, guest.identity.uid);
    let session = service.sessions.attach(owner, service.age())?;
    let fence = service.fences.raise(owner)?;
    let caller = people::caller(&guest.identity, service.trusts(&guest.identity));
    let job = service.jobs.join(&guest.hello.job, &caller, service.store.data().now())?;
    Ok(Entered { guest, session, fence, job, _place: place })
}

/// What ended a wait for the next request.
pub(crate) enum Waited {
    /// More bytes have come.
    More,
    /// The peer has gone, the server is going, or the session is over.
    End,
}

impl Connection {
    /// The header of the next frame, once it has come. Nothing more is begun when the server ends.
    pub(crate) fn frame(&mut self) -> Result<Option<Header>> {
        if *self.stopping.borrow() { Ok(None) } else { self.inbox.frame() }
    }

    /// Waits for more of the next frame. Answers have to be flushed before: the peer may be waiting for them.
    ///
    /// Safe to cancel.
    pub(crate) async fn wait(&mut self) -> Result<Waited> {
        let patience = self.service.config.times.session;
        loop {
            tokio::select! {
                filled = timeout(patience, self.inbox.fill_frame()) => match filled {
                    Ok(Ok(true)) => return Ok(Waited::More),
                    Ok(Ok(false)) if self.inbox.is_between_frames() => return Ok(Waited::End),
                    Ok(Ok(false)) => {
                        return Err(Error::new(ErrorKind::Unreachable, "the peer left in the middle of a frame"));
                    }
                    Ok(Err(error)) => return Err(gone(&error)),
                    // Nothing came here, but the client may live on its other connections.
                    Err(_) if !self.visitor.session.is_over() => {}
                    Err(_) => return Err(Error::new(ErrorKind::Unreachable, "the client has been silent for too long")),
                },
                () = stopped(&mut self.stopping) => return Ok(Waited::End),
            }
        }
    }

    /// Reads the call whose frame has come, and says who asks. The outer error ends the connection, the inner one
    /// is the answer.
    pub(crate) fn call(&mut self, header: Header) -> Result<Result<(Caller, Request)>> {
        if header.kind != FrameKind::Call {
            let text = format!("a {:?} frame came where calls were expected", header.kind);
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        let len = header.body as usize;
        let call = body::<Call>(&self.inbox.held()[..len]);
        self.inbox.consume(len);
        self.job.request(self.service.store.data().now());
        Ok(call.and_then(|call| Ok((self.visitor.caller(&self.service, call.identity)?, call.request))))
    }
}
