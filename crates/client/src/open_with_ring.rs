//! Opens a small file in one message: the slot of the queue that carries the open also carries the requests for a ring,
//! and for the extents of a file that is only read.
//!
//! A client does so if it has an idle ring and has used the last such file. The server may leave those replies out; the
//! file then gets its ring when it is written or read, as without this.
//!
//! **Invariant**: a ring is idle again only if the server has not received the requests, or has answered them. If the
//! outcome is unknown the ring is dropped: the server could bind it to this file after it was bound to another one.

use crate::queue::Begun;
use crate::ring_writer::RingWriter;
use crate::session::{Session, Who};
use forebay_shm::monotonic;
use forebay_wire::{MapGrant, Reply, Request, Token};
use std::sync::atomic::Ordering;

/// What a client wants for the file that it opens.
#[derive(Clone, Copy)]
pub(crate) struct WithOpen {
    ring: u32,
    write: bool,
}

impl WithOpen {
    /// The requests for it, to be sent behind the open.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Request> + use<> {
        let WithOpen { ring, write } = *self;
        let bind = Request::Ring { token: Token::OPENED, own: Some(ring), write };
        let map = (!write).then_some(Request::Map { token: Token::OPENED, ring, from: 0 });
        std::iter::once(bind).chain(map)
    }
}

/// An idle ring for a file that is being opened.
pub(crate) struct IdleRing {
    ring_writer: RingWriter,
    write: bool,
    /// On the monotonic clock: before the request.
    since: u64,
}

/// A ring that was bound to a file when it was opened.
pub(crate) struct BoundRing {
    pub(crate) ring_writer: RingWriter,
    /// The extents of a file that is only read.
    pub(crate) extents: Option<MapGrant>,
}

impl Session {
    /// An idle ring for the file that this request opens, if the program is likely to use it.
    pub(crate) fn ring_for_open(&self, who: &Who, request: &Request) -> Option<IdleRing> {
        let (Request::Create { access, .. } | Request::Open { access, .. }) = request else { return None };
        let shared_rings = &self.shared_rings;
        let lately = match (access.write, access.read) {
            (true, _) => &shared_rings.last_was_written,
            (false, true) => &shared_rings.last_was_read,
            (false, false) => return None,
        };
        if !lately.load(Ordering::Relaxed) || shared_rings.is_off() {
            return None;
        }
        let ring_writer = match who {
            Some(identity) => shared_rings.take(identity.uid),
            None => shared_rings.take_any(),
        };
        Some(IdleRing { ring_writer: ring_writer?, write: access.write, since: monotonic() })
    }
}

impl IdleRing {
    pub(crate) fn with_open(&self) -> WithOpen {
        WithOpen { ring: self.ring_writer.ring, write: self.write }
    }

    /// The ring, if the server has bound it. Otherwise it is idle again, or dropped.
    pub(crate) fn resolve(
        self,
        session: &Session,
        begun: &Begun,
        replies: Vec<Reply>,
        connection_epoch: u64,
    ) -> Option<BoundRing> {
        let IdleRing { mut ring_writer, write, since } = self;
        let mut replies = replies.into_iter();
        match (begun, replies.next()) {
            (Begun::Answered(Ok(Ok(Reply::Opened { token, .. }))), Some(Reply::Ring(grant)))
                if grant.ring == ring_writer.ring && ring_writer.is_of(token.uid) =>
            {
                if !(since..=monotonic()).contains(&grant.clock) {
                    // Client and server are in different time namespaces, so time stamps are not comparable.
                    session.shared_rings.switch_off();
                    return None;
                }
                ring_writer.bound(&grant, connection_epoch, write);
                let extents = match replies.next() {
                    Some(Reply::Map(grant)) => Some(*grant),
                    _ => None,
                };
                Some(BoundRing { ring_writer, extents })
            }
            (Begun::Answered(Ok(_)), None) | (Begun::UseSocket | Begun::NotSent, _) => {
                session.shared_rings.put(ring_writer);
                None
            }
            _ => None,
        }
    }
}
