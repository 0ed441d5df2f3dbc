//! Who comes in, and what for.

use crate::key::random;
use crate::link::{Inbox, Outbox, gone};
use crate::service::Service;
use crate::transport::Vouch;
use forebay_model::{Error, ErrorKind, Identity, Result};
use forebay_wire::{
    FrameKind, Greeting, HEADER, Hello, MAX_PAYLOAD, Proof, Roster, Welcome, body, client_proof, same_proof,
    server_proof,
};

/// A peer that may come in.
pub(crate) struct Guest {
    /// Who it is.
    pub(crate) identity: Identity,
    /// What it said.
    pub(crate) hello: Hello,
    /// What proves that this server holds the key too, where that was asked.
    pub(crate) seal: Option<[u8; 32]>,
}

/// Hears the peer out, up to the point where it could be welcomed.
pub(crate) async fn receive(
    service: &Service,
    vouch: Vouch,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Guest> {
    let hello = Hello::read(&message(inbox, FrameKind::Hello).await?)?;
    let Vouch::Kernel(identity) = vouch else {
        let nonce = random()?;
        outbox.greet(&Greeting::Challenge { nonce })?;
        outbox.flush().await.map_err(|error| gone(&error))?;
        let proof: Proof = body(&message(inbox, FrameKind::Proof).await?)?;
        let holder = &service.key;
        if !same_proof(&proof.seal, &client_proof(&holder.key, &hello, &nonce)) {
            let text = "the client does not hold this server's key: use the key file that the server made";
            return Err(Error::new(ErrorKind::Unauthenticated, text));
        }
        let seal = Some(server_proof(&holder.key, &hello, &nonce));
        return Ok(Guest { identity: holder.identity.clone(), hello, seal });
    };
    Ok(Guest { identity, hello, seal: None })
}

impl Service {
    /// Refuses a client that takes other servers for the service than this one does: it would look for names where they
    /// are not.
    pub(crate) fn check_roster(&self, hello: &Hello) -> Result<()> {
        let own = Roster::from(&*self.members.members());
        match &hello.roster {
            Some(roster) if *roster != own => {
                let which = if roster.epoch < own.epoch { "an old" } else { "another" };
                let text = format!(
                    "the client has {which} list of servers: it has [{roster}], server {} has [{own}]: connect anew",
                    self.config.server
                );
                Err(Error::new(ErrorKind::Stale, text))
            }
            _ => Ok(()),
        }
    }
}

/// Lets the peer in.
pub(crate) async fn welcome(
    service: &Service,
    guest: &Guest,
    connection: u64,
    outbox: &mut Outbox,
) -> Result<()> {
    let welcome = Welcome {
        server: service.config.server,
        incarnation: service.store.incarnation(),
        uid: guest.identity.uid,
        max_payload: MAX_PAYLOAD,
        session_millis: u64::try_from(service.config.times.session.as_millis()).unwrap_or(u64::MAX),
        members: (*service.members.members()).clone(),
        seal: guest.seal,
        connection,
    };
    outbox.greet(&Greeting::Welcome(welcome))?;
    outbox.flush().await.map_err(|error| gone(&error))
}

/// Tells the peer to stay out, if it still listens.
pub(crate) async fn refuse(error: Error, outbox: &mut Outbox) {
    if error.kind() != ErrorKind::Unreachable && outbox.greet(&Greeting::Refusal(error)).is_ok() {
        // It was told; whether it heard is its own affair.
        let _ = outbox.flush().await;
    }
    outbox.close().await;
}

/// The body of the next frame, which has to be of this kind.
pub(crate) async fn message(inbox: &mut Inbox, kind: FrameKind) -> Result<Vec<u8>> {
    need(inbox, HEADER).await?;
    let header = inbox.take_header()?;
    if header.kind != kind {
        let text = format!("a {kind:?} was expected in the handshake, not a {:?}", header.kind);
        return Err(Error::new(ErrorKind::Protocol, text));
    }
    let len = header.body as usize;
    need(inbox, len).await?;
    let bytes = inbox.held()[..len].to_vec();
    inbox.consume(len);
    Ok(bytes)
}

async fn need(inbox: &mut Inbox, len: usize) -> Result<()> {
    match inbox.need(len).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::new(ErrorKind::Unreachable, "the peer left in the middle of the handshake")),
        Err(error) => Err(gone(&error)),
    }
}
