//! The sender of a request.

use crate::cluster::RetryContext;
use crate::connection_epoch::ConnectionEpoch;
use crate::privileges::Privileges;
use crate::session::Session;
use forebay_model::{Error, ErrorKind, Identity, Result, Uid};
use std::sync::Arc;

/// The sender of one request.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The user for whom the request is made.
    pub(crate) who: Identity,
    pub(crate) session: Arc<Session>,
    /// The connection of the request; the client may have abandoned it.
    pub(crate) connection_epoch: Arc<ConnectionEpoch>,
    /// Whether the connection belongs to root or the service's owner.
    pub(crate) privileged: bool,
    /// Who may act for other users.
    pub(crate) privileges: Privileges,
    /// Whether the connection comes from this machine.
    pub(crate) local: bool,
    /// Whether the same message has the client's ring bound to the file that it creates.
    pub(crate) fills: bool,
    /// Results from other servers that this request needed.
    pub(crate) retry_context: RetryContext,
}

impl Caller {
    /// Whether root or the service's owner sent the request, on their own behalf.
    fn is_trusted(&self) -> bool {
        self.privileged && self.privileges.trusts(&self.who)
    }

    /// The user whose files the caller may see by path; `None` for all users. Paths may lead through directories that
    /// are closed to the self.
    pub(crate) fn only_own(&self) -> Option<Uid> {
        (!self.is_trusted()).then_some(self.who.uid)
    }

    /// Refuses callers other than root and the service's owner.
    pub(crate) fn demand(&self, what: &str) -> Result<()> {
        if self.is_trusted() {
            return Ok(());
        }
        let text = format!("user {} may not {what}: only root and its owner may", self.who.uid);
        Err(Error::new(ErrorKind::NotPermitted, text))
    }
}
