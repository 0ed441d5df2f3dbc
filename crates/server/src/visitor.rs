//! Who is at the other end of a connection, whichever way its requests come.

use crate::fence::Fence;
use crate::service::{Caller, Service};
use crate::session::Session;
use crate::several::Helps;
use forebay_model::{Error, ErrorKind, Identity, Result};
use std::sync::Arc;

/// A peer that is known.
#[derive(Clone)]
pub(crate) struct Visitor {
    pub(crate) session: Arc<Session>,
    pub(crate) fence: Arc<Fence>,
    pub(crate) identity: Identity,
    /// Whether it is root or the service's owner.
    pub(crate) privileged: bool,
    /// Whether it comes from this machine.
    pub(crate) local: bool,
}

impl Visitor {
    /// Who asks in one request, which may name somebody else. A word has come.
    pub(crate) fn caller(&mut self, service: &Service, named: Option<Identity>) -> Result<Caller> {
        if self.session.is_over() {
            self.session = service.sessions.attach(self.session.owner(), service.age())?;
        }
        self.session.heard(service.age());
        let who = match named {
            None => self.identity.clone(),
            // The largest number means nobody.
            Some(named) if named.uid.0 == u32::MAX => {
                return Err(Error::new(ErrorKind::Invalid, "there is no user with the largest number"));
            }
            Some(named) if self.privileged || named == self.identity => named,
            Some(named) => {
                let text = format!("user {} may not act as user {}", self.identity.uid, named.uid);
                return Err(Error::new(ErrorKind::NotPermitted, text));
            }
        };
        let (session, fence) = (self.session.clone(), self.fence.clone());
        let (privileged, local) = (self.privileged, self.local);
        Ok(Caller { who, session, fence, privileged, local, helps: Helps::default() })
    }
}
