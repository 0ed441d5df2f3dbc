//! The authenticated peer of a connection, whether requests arrive by socket or by queue.

use crate::caller::Caller;
use crate::cluster::RetryContext;
use crate::connection_epoch::ConnectionEpoch;
use crate::privileges::Privileges;
use crate::session::{Session, Sessions};
use forebay_model::{Error, ErrorKind, Identity, Result};
use std::sync::Arc;
use std::time::Duration;

/// An authenticated peer.
#[derive(Clone)]
pub(crate) struct PeerIdentity {
    pub(crate) session: Arc<Session>,
    pub(crate) connection_epoch: Arc<ConnectionEpoch>,
    pub(crate) identity: Identity,
    /// Whether it is root or the service's owner.
    pub(crate) privileged: bool,
    /// Who may act for other users.
    pub(crate) privileges: Privileges,
    /// Whether it authenticated with a user's key: it may act as that user only.
    pub(crate) keyed: bool,
    /// Whether it comes from this machine.
    pub(crate) local: bool,
}

impl PeerIdentity {
    /// The caller of one request, which may name another user. Also records that a message arrived
    /// `now`, by the clock of sessions.
    pub(crate) fn caller(
        &mut self,
        sessions: &Sessions,
        now: Duration,
        named: Option<Identity>,
    ) -> Result<Caller> {
        if self.session.is_over() {
            // An abandoned connection does not start a new session.
            drop(self.connection_epoch.pass()?);
            self.session = sessions.attach(self.session.owner(), now)?;
        }
        self.session.note_message(now);
        let who = match named {
            None => self.identity.clone(),
            // This uid means "none".
            Some(named) if named.uid.0 == u32::MAX => {
                return Err(Error::new(ErrorKind::Invalid, "uid 4294967295 is reserved"));
            }
            Some(named) if self.privileged || named == self.identity => named,
            // The server's own record of the groups applies, whatever the client claims.
            Some(named) if self.keyed && named.uid == self.identity.uid => self.identity.clone(),
            Some(named) => {
                let text = format!("user {} may not act as user {}", self.identity.uid, named.uid);
                return Err(Error::new(ErrorKind::NotPermitted, text));
            }
        };
        let (session, connection_epoch) = (self.session.clone(), self.connection_epoch.clone());
        let (privileged, local) = (self.privileged, self.local);
        Ok(Caller {
            who,
            session,
            connection_epoch,
            privileged,
            privileges: self.privileges,
            local,
            fills: false,
            retry_context: RetryContext::default(),
        })
    }
}
