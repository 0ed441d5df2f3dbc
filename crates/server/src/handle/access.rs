//! What a caller may do with a file: reach it, use the token of an open file, and see its attributes.

use super::vanished;
use crate::backing::BackingLayer;
use crate::caller::Caller;
use crate::cluster::{Blocked, JoinState};
use crate::file_homes::{FileHomes, is_striped};
use crate::members::{Membership, check_maker};
use crate::opens::{Hold, Opens, SET_ID};
use crate::orphans::OrphanGrace;
use crate::session::Sessions;
use crate::tokens::OpenTokens;
use forebay_model::{Access, Attr, Error, ErrorKind, FileId, FileKind, Result, Stamp};
use forebay_store::{Body, Facts, Inode, Store};
use forebay_wire::{Key, Token};
use std::sync::Arc;

/// Checks of callers, for all requests about files.
pub(crate) struct FileAccess {
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) members: Arc<dyn Membership>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) tokens: Arc<OpenTokens>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Arc<OrphanGrace>,
    /// The secret that seals tokens.
    pub(crate) seal: Key,
    /// When the server started, by the store's clock.
    pub(crate) began: Stamp,
}

impl FileAccess {
    /// Fails unless the caller can reach this file; see the head of the parent module.
    pub(super) fn reach(&self, caller: &Caller, file: FileId) -> Result<(), Blocked> {
        check_maker(&*self.members, file)?;
        if file == FileId::ROOT {
            return Ok(());
        }
        if caller.session.holds(file, caller.who.uid) {
            return Ok(());
        }
        self.layer.refresh_above(file)?;
        // A name would have been looked up before: an id that leads nowhere belongs to a removed file.
        self.store.names().reach(&caller.who, file).map_err(|stopped| match Blocked::from(stopped) {
            Blocked::Failed(miss)
                if miss.kind() == ErrorKind::NotFound && self.join_state.may_have_lost_file(file) =>
            {
                self.join_state.lost(&miss).into()
            }
            stop => vanished(stop),
        })
    }

    /// The `stat` attributes of a file of this server.
    pub(super) fn attr(&self, caller: &Caller, file: FileId, inode: &Inode) -> Result<Attr, Blocked> {
        let facts = match &inode.body {
            Body::File { extent, .. } if is_striped(extent) => {
                let mut facts = self.store.data().facts(file)?;
                (facts.size, facts.touched) =
                    (facts.size.max(extent.least), facts.touched.max(extent.touched));
                match (extent.is_open(), caller.retry_context.held.get(&file)) {
                    (true, None) => return Err(Blocked::Gather(file)),
                    (true, Some(held)) => {
                        facts.size = facts.size.max(held.size);
                        facts.touched = facts.touched.max(held.touched);
                        facts.buffered += held.buffered;
                    }
                    (false, _) => facts.buffered += extent.elsewhere.unwrap_or(0),
                }
                facts
            }
            Body::File { .. } => self.store.data().facts(file)?,
            Body::Directory { .. } if self.homes.has_all_names() => self.store.names().share(file)?.into(),
            Body::Directory { .. } => match caller.retry_context.shares.get(&file) {
                Some(&share) => share.into(),
                None => return Err(Blocked::Shares(file)),
            },
            Body::Symlink { .. } | Body::Special { .. } => Facts::default(),
        };
        Ok(self.shown(file, inode, &facts))
    }

    pub(super) fn shown(&self, file: FileId, inode: &Inode, facts: &Facts) -> Attr {
        let mut attr = inode.attr(file, facts, self.store.data().times());
        if self.layer.backing.is_some() && attr.kind == FileKind::Directory {
            // The number of subdirectories in the back end is unknown without listing; a link count of 1 means "not
            // counted".
            attr.links = 1;
        }
        attr
    }

    pub(super) fn now(&self) -> Stamp {
        self.store.data().now()
    }

    pub(super) fn seal(&self, caller: &Caller, file: FileId, access: Access) -> Token {
        // Stamps are unique, even across boots of the server.
        let serial = self.now().0;
        Token { file, access, uid: caller.who.uid, serial, seal: [0; 16] }.seal(&self.seal)
    }

    /// Ends a token: closes the file for the caller's session.
    pub(super) fn close(&self, caller: &Caller, token: &Token) -> Result<()> {
        mine(caller, token)?;
        if caller.session.hold(token).is_none() && !token.is_sealed_by(&self.seal) {
            return Err(forged(token));
        }
        // A token that the session has not re-asserted is closed too.
        if caller.session.remove(token).is_none() {
            self.tokens.take_left_open(token, caller.session.owner().0);
        }
        self.grace.release(token);
        Ok(())
    }

    /// Holds the file of a token for the duration of the request. A token that this session does not
    /// know is adopted.
    pub(crate) fn claim(&self, caller: &Caller, token: &Token, need: Access) -> Result<Arc<Hold>, Blocked> {
        mine(caller, token)?;
        let hold = match caller.session.hold(token) {
            Some(hold) => hold,
            None => self.adopt(caller, token)?,
        };
        if (need.read && !token.access.read) || (need.write && !token.access.write) {
            let what = if need.write { "writing" } else { "reading" };
            let text = format!("file {} is not open for {what}", token.file);
            return Err(Error::new(ErrorKind::BadHandle, text).into());
        }
        Ok(hold)
    }

    /// Holds the file of a token if this server has its inode.
    pub(crate) fn claim_here(&self, caller: &Caller, token: &Token, need: Access) -> Result<Arc<Hold>> {
        self.claim(caller, token, need).map_err(|stop| match stop {
            Blocked::Failed(error) => error,
            _ => Error::new(ErrorKind::Invalid, "another server has the file's inode"),
        })
    }

    /// Clears the set-id bits of a file whose bytes change, unless root changes them.
    pub(crate) fn shed_set_id(&self, caller: &Caller, hold: &Hold) -> Result<()> {
        if caller.who.is_root() || !hold.take_set_id() {
            return Ok(());
        }
        let dropped = self.store.names().drop_set_id(hold.file(), self.now());
        dropped.inspect_err(|_| hold.has_set_id())
    }

    /// Accepts a token by its seal if it was open when an earlier server process ended, or if another session of its
    /// user has it open (a process passed it on). Any other token was closed or belongs to an ended session: then the
    /// file is opened again under the current permissions. A file without a name is opened by its mode alone, during
    /// the grace period after a start.
    fn adopt(&self, caller: &Caller, token: &Token) -> Result<Arc<Hold>, Blocked> {
        if !token.is_sealed_by(&self.seal) {
            return Err(forged(token).into());
        }
        check_maker(&*self.members, token.file)?;
        if !self.homes.is_authority(token.file) {
            return Err(Blocked::Vouch(*token));
        }
        let hold = Arc::new(self.opens.open(token.file, token.uid, token.access)?);
        let names = self.store.names();
        let is_left_open = self.tokens.is_left_open(token);
        let inode = if is_left_open || self.sessions.knows(token) {
            names.inode(token.file)
        } else {
            let of_earlier_life = token.serial < self.began.0 && self.grace.lasts();
            let is_nameless = || names.inode(token.file).is_ok_and(|inode| inode.parents.is_empty());
            if !(of_earlier_life && is_nameless()) {
                self.reach(caller, token.file)?;
            }
            names.check_open(&caller.who, token.file, token.access)
        };
        note_set_id(&hold, &inode.map_err(vanished)?);
        caller.session.insert(*token, hold.clone())?;
        if is_left_open {
            self.tokens.take_left_open(token, caller.session.owner().0);
        }
        self.grace.release(token);
        Ok(hold)
    }
}

/// Records a set-id bit, to be cleared when the file's bytes change.
pub(super) fn note_set_id(hold: &Hold, inode: &Inode) {
    if inode.mode & SET_ID != 0 {
        hold.has_set_id();
    }
}

fn mine(caller: &Caller, token: &Token) -> Result<()> {
    if token.uid == caller.who.uid {
        return Ok(());
    }
    let text = format!("user {} cannot use a file opened by user {}", caller.who.uid, token.uid);
    Err(Error::new(ErrorKind::AccessDenied, text))
}

fn forged(token: &Token) -> Error {
    let text =
        format!("the token for file {} was not issued by this service: open the file again", token.file);
    Error::new(ErrorKind::Stale, text)
}
