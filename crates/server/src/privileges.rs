//! Who may use the service, and who may act for other users.

use forebay_model::{Error, ErrorKind, Identity, Result, Uid};

/// The privileges of users: root and the service's owner may do everything.
#[derive(Clone, Copy)]
pub(crate) struct Privileges {
    /// The user the server runs as. Like root, this user may act for other users.
    owner: Uid,
    /// Whether others are refused.
    owner_only: bool,
}

impl Privileges {
    pub(crate) fn new(owner: Uid, owner_only: bool) -> Privileges {
        Privileges { owner, owner_only }
    }

    /// Whether a peer may act for other users.
    pub(crate) fn trusts(&self, peer: &Identity) -> bool {
        self.trusts_user(peer.uid)
    }

    /// Whether a user may act for other users.
    pub(crate) fn trusts_user(&self, uid: Uid) -> bool {
        uid == Uid::ROOT || uid == self.owner
    }

    /// Refuses users other than the owner if the service is for its owner only. Root is always admitted: it can become
    /// the owner with one call, so a refusal would protect nothing.
    pub(crate) fn admit(&self, peer: &Identity) -> Result<()> {
        if !self.owner_only || self.trusts(peer) {
            return Ok(());
        }
        let text = format!(
            "this service is for user {} only; user {} is refused: start a service of your own",
            self.owner, peer.uid
        );
        Err(Error::new(ErrorKind::NotPermitted, text))
    }
}
