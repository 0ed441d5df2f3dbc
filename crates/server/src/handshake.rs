//! The handshake: authenticates a peer and negotiates the connection.

use crate::accept_limiter::Place;
use crate::config::TransportSettings;
use crate::framing::{FrameReader, SendQueue, gone, message};
use crate::key::KeyHolder;
use crate::keys::{Keys, now};
use crate::lifecycle::Lifecycle;
use crate::members::Membership;
use crate::people;
use crate::privileges::Privileges;
use crate::transport::Vouch;
use forebay_model::{Error, ErrorKind, Identity, Result, ServerId};
use forebay_store::Store;
use forebay_wire::{
    Agreed, Answered, ConnectionKey, FrameKind, Greeting, Hello, KeyId, MAX_PAYLOAD, Opener, Opening, Proof,
    Roster, Sealer, Security, UserKey, Welcome, answer_opening, body,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// An authenticated peer that is not yet admitted.
pub(crate) struct AuthenticatedPeer {
    pub(crate) identity: Identity,
    /// Whether it is a program of the run that the service belongs to: every user is admitted.
    pub(crate) is_of_run: bool,
    /// The user's key with which it authenticated, if any.
    pub(crate) key: Option<KeyId>,
    /// Its hello message.
    pub(crate) hello: Hello,
    /// Protection of the connection after the handshake.
    pub(crate) level: Security,
}

/// Runs the handshake up to the point where the peer can be welcomed.
pub(crate) async fn receive(
    handshakes: &Handshakes,
    vouch: Vouch,
    place: &Place,
    frame_reader: &mut FrameReader,
    send_queue: &mut SendQueue,
) -> Result<AuthenticatedPeer> {
    // Held until the message has been worked on. It has arrived, so nothing waits for the peer meanwhile.
    let permit = place.handshake_permit().await;
    let first = message(frame_reader, FrameKind::Hello).await?;
    let (identity, is_of_run) = match vouch {
        Vouch::Kernel(identity) => (identity, false),
        Vouch::Program(identity) => (identity, true),
        Vouch::Key(address) => {
            let challenge = challenge(handshakes, address, &Opening::read(&first)?)?;
            drop(permit);
            return prove(challenge, frame_reader, send_queue).await;
        }
    };
    let hello = Hello::read(&first)?;
    Ok(AuthenticatedPeer { identity, is_of_run, key: None, hello, level: Security::None })
}

/// A challenge to a peer, and what the peer is once it has answered.
struct Challenge {
    noise: Vec<u8>,
    sealer: Sealer,
    opener: Opener,
    user: Option<UserKey>,
    peer: AuthenticatedPeer,
}

/// Negotiates session keys with a peer that seems to hold the key it names.
fn challenge(handshakes: &Handshakes, address: IpAddr, opening: &Opening) -> Result<Challenge> {
    let user = handshakes.user_key(opening.key)?;
    let own = &handshakes.key;
    let secret = user.as_ref().map_or_else(|| own.key.clone(), |user| own.key.for_user(user));
    let least = handshakes.transport.least(address);
    let key = ConnectionKey { id: opening.key, secret };
    let Answered { hello, challenge: noise, agreed } = answer_opening(opening, &key, least)?;
    let Agreed { level, sealer, opener } = agreed;
    let identity = user.as_ref().map_or_else(|| own.identity.clone(), people::identity);
    let peer = AuthenticatedPeer {
        identity,
        is_of_run: false,
        key: user.as_ref().map(|user| user.id),
        hello,
        level,
    };
    Ok(Challenge { noise, sealer, opener, user, peer })
}

/// Makes the peer prove that it holds the key it named.
async fn prove(
    Challenge { noise, sealer, opener, user, peer }: Challenge,
    frame_reader: &mut FrameReader,
    send_queue: &mut SendQueue,
) -> Result<AuthenticatedPeer> {
    send_queue.greet(&Greeting::Challenge { noise })?;
    send_queue.flush().await.map_err(|error| gone(&error))?;
    // The opening message can be replayed; only the client that created it has the session keys.
    send_queue.seal(sealer);
    frame_reader.seal(opener);
    let Proof {} = body(&message(frame_reader, FrameKind::Proof).await?)?;
    // Said only now, so that the client knows from whom it comes.
    user.map_or(Ok(()), |user| user.check(now()))?;
    Ok(peer)
}

/// What handshakes use.
pub(crate) struct Handshakes {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) members: Arc<dyn Membership>,
    /// The service's own key.
    pub(crate) key: Arc<KeyHolder>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) privileges: Privileges,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) transport: TransportSettings,
    /// How long a client may be silent.
    pub(crate) session: Duration,
}

impl Handshakes {
    /// The user's key of this id; `None` for the service's own key.
    fn user_key(&self, id: KeyId) -> Result<Option<UserKey>> {
        if id == KeyId::SERVICE {
            return Ok(None);
        }
        if !self.life.is_alone() && !self.keys.has_compared() {
            let text = "this server has not contacted another one since it started and may miss revoked keys: \
                        try again";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        self.keys.known(id).map(Some)
    }

    /// Whether a peer may act for other users; never with a user's key.
    pub(crate) fn vouches(&self, peer: &AuthenticatedPeer) -> bool {
        peer.key.is_none() && self.privileges.trusts(&peer.identity)
    }

    /// Refuses a client whose list of servers differs from this server's: it would look up names on the wrong servers.
    pub(crate) fn check_roster(&self, hello: &Hello) -> Result<()> {
        let own = Roster::from(&*self.members.members());
        match &hello.roster {
            Some(roster) if *roster != own => {
                let which = if roster.epoch < own.epoch { "an old" } else { "another" };
                let text = format!(
                    "the client has {which} list of servers: it has [{roster}], server {} has [{own}]: reconnect",
                    self.own
                );
                Err(Error::new(ErrorKind::Stale, text))
            }
            _ => Ok(()),
        }
    }
}

/// Sends the welcome message.
pub(crate) async fn welcome(
    handshakes: &Handshakes,
    peer: &AuthenticatedPeer,
    connection: u64,
    frame_reader: &mut FrameReader,
    send_queue: &mut SendQueue,
) -> Result<()> {
    let welcome = Welcome {
        server: handshakes.own,
        incarnation: handshakes.store.incarnation(),
        uid: peer.identity.uid,
        max_payload: MAX_PAYLOAD,
        session_millis: u64::try_from(handshakes.session.as_millis()).unwrap_or(u64::MAX),
        members: (*handshakes.members.members()).clone(),
        connection,
    };
    send_queue.greet(&Greeting::Welcome(welcome))?;
    send_queue.flush().await.map_err(|error| gone(&error))?;
    send_queue.agree(peer.level);
    frame_reader.agree(peer.level);
    Ok(())
}

/// Sends a refusal if the peer is still connected.
pub(crate) async fn refuse(error: Error, send_queue: &mut SendQueue) {
    if error.kind() != ErrorKind::Unreachable && send_queue.greet(&Greeting::Refusal(error)).is_ok() {
        // Best effort: the connection is closed anyway.
        let _ = send_queue.flush().await;
    }
    send_queue.close().await;
}
