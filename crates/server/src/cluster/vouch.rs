//! Vouching for tokens of files of other authorities.

use super::{Blocked, Peers, nonsense};
use crate::caller::Caller;
use crate::direct::DirectIo;
use crate::file_homes::FileHomes;
use crate::opens::{Opens, SET_ID};
use crate::orphans::OrphanGrace;
use crate::session::Sessions;
use crate::tokens::OpenTokens;
use forebay_model::{Error, ErrorKind, Result, ServerId};
use forebay_store::Store;
use forebay_wire::{Key, PeerReply, PeerRequest, Token, Vouched};
use std::sync::Arc;

/// Vouches for tokens of this authority's files, and has other authorities vouch.
pub(crate) struct Vouching {
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) tokens: Arc<OpenTokens>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Arc<OrphanGrace>,
    pub(crate) direct: Arc<DirectIo>,
    /// The secret that seals tokens.
    pub(crate) seal: Key,
}

impl Vouching {
    /// Vouches for a token of a file of this authority; returns what the other server has to know.
    pub(super) fn vouch(&self, from: ServerId, token: &Token) -> Result<Vouched, Blocked> {
        let file = token.file;
        let stale = |text: String| Blocked::Failed(Error::new(ErrorKind::Stale, text));
        if !token.is_sealed_by(&self.seal) {
            return Err(stale(format!("the token for file {file} was not made by this service")));
        }
        let is_known = self.sessions.knows(token);
        if !is_known && !self.tokens.is_left_open(token) {
            return Err(stale(format!("file {file} is no longer open: open it again")));
        }
        let hold = self.opens.hold(file)?;
        let inode = self.store.names().inode(file)?;
        let lost_below = self.homes.lost_below(file, from)?;
        if token.access.write {
            self.homes.allow_write(file)?;
        }
        if !is_known {
            self.grace.vouched(token, hold);
        }
        Ok(Vouched { lost_below, set_id: inode.mode & SET_ID != 0, stripes: self.homes.stripes(file)? })
    }

    /// Has the authority of a file vouch for a token, and adds it to the caller's session.
    pub(crate) async fn have_vouched(&self, caller: &Caller, token: &Token) -> Result<()> {
        let authority = self.homes.authority(token.file);
        // Held before the request, so that the authority does not take the file for closed.
        let hold = Arc::new(self.opens.open(token.file, token.uid, token.access)?);
        let vouched = match self.peers.ask(authority, PeerRequest::Vouch { token: *token }).await? {
            PeerReply::Vouched(vouched) => vouched,
            other => return Err(nonsense(&other)),
        };
        if vouched.lost_below > 0 {
            self.store.data().lose(token.file, vouched.lost_below)?;
        }
        if vouched.set_id {
            hold.has_set_id();
        }
        self.direct.note_stripes(token.file, vouched.stripes);
        caller.session.insert(*token, hold)
    }
}
