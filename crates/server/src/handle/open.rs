//! Open files: create, open, re-assert, check tokens, sync and close.

use super::access::note_set_id;
use super::attr::AttrRequests;
use super::{FileAccess, vanished};
use crate::backing::BackingLayer;
use crate::caller::Caller;
use crate::cluster::{Blocked, Outcome};
use crate::direct::DirectIo;
use crate::drain::BufferSpace;
use crate::file_homes::FileHomes;
use crate::lifecycle::Lifecycle;
use crate::opens::{Hold, Opens};
use crate::people;
use forebay_model::{
    Access, Attr, Error, ErrorKind, FileId, FileKind, Identity, Incarnation, Layout, Name, Result, SeekTo,
    ServerId, Stripes, Striping,
};
use forebay_store::{Batch, Body, Data, Facts, Found, Inode, Store};
use forebay_wire::{IfExists, Reply, Token};
use std::sync::Arc;

/// Bytes per stripe; irrelevant with one server.
const STRIPE: u64 = 4 << 20;
/// How often a create is retried because the name appeared or vanished concurrently.
const TRIES: u32 = 100;

/// Serves requests about open files.
pub(crate) struct OpenRequests {
    pub(crate) own: ServerId,
    pub(crate) access: Arc<FileAccess>,
    pub(crate) attrs: Arc<AttrRequests>,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) direct: Arc<DirectIo>,
    pub(crate) space: Arc<BufferSpace>,
    pub(crate) life: Arc<Lifecycle>,
}

impl OpenRequests {
    pub(super) fn open(&self, caller: &Caller, file: FileId, access: Access, truncate: bool) -> Outcome {
        self.access.reach(caller, file)?;
        self.layer.refresh_in(file, caller.retry_context.order(file))?;
        let hold = Arc::new(self.opens.open(file, caller.who.uid, access)?);
        let inode = self.store.names().check_open(&caller.who, file, access).map_err(vanished)?;
        note_set_id(&hold, &inode);
        self.opened(caller, file, inode, access, truncate, hold)
    }

    pub(super) fn create(
        &self,
        caller: &Caller,
        (dir, name): (FileId, &Name),
        mode: u16,
        access: Access,
        if_exists: IfExists,
    ) -> Outcome {
        self.access.reach(caller, dir)?;
        // Checked first, so that a refused create changes nothing.
        self.opens.check_room(caller.who.uid)?;
        caller.session.check_room(caller.who.uid)?;
        for _ in 0..TRIES {
            self.layer.lookup_backing_in(dir, name, |file| caller.retry_context.order(file))?;
            let (layout, incarnations) = self.new_layout(caller, (dir, name))?;
            let (names, data) = (self.store.names(), self.store.data());
            let fills = caller.fills && layout.only() == Some(self.own);
            let before = |file| self.before_create(caller, file, access, fills);
            let made = names.create_file_with(
                &caller.who,
                dir,
                name,
                mode,
                layout,
                incarnations,
                self.access.now(),
                before,
            );
            match made.map_err(Blocked::from) {
                Ok((file, inode, hold)) => {
                    if fills {
                        data.await_bytes(file)?;
                    }
                    note_set_id(&hold, &inode);
                    // The creator may open the file with any access, whatever its mode.
                    let token = self.access.seal(caller, file, access);
                    caller.session.insert(token, hold)?;
                    // Attributes of a new, empty file.
                    let attr = self.access.shown(file, &inode, &Facts::default());
                    return Ok(self.opened_reply(token, attr, inode, true));
                }
                Err(Blocked::Failed(error))
                    if error.kind() == ErrorKind::Exists && if_exists != IfExists::Refuse =>
                {
                    let truncate = if_exists == IfExists::Truncate;
                    if let Some(reply) = self.open_entry(caller, dir, name, access, truncate)? {
                        return Ok(reply);
                    }
                }
                Err(stop) => return Err(stop),
            }
        }
        let text = format!(
            "{} in directory {dir} was created and removed {TRIES} times meanwhile: try again",
            name.quoted()
        );
        Err(Error::new(ErrorKind::Busy, text).into())
    }

    /// Holds a file before it is visible, so that it is not reaped meanwhile and cannot get a set-id bit unnoticed. Also
    /// returns what is committed with its name; `fills` if a ring will be bound to it.
    fn before_create(
        &self,
        caller: &Caller,
        file: FileId,
        access: Access,
        fills: bool,
    ) -> Result<(Arc<Hold>, Batch)> {
        let hold = Arc::new(self.opens.open(file, caller.who.uid, access)?);
        let mut with = Batch::default();
        if fills {
            self.store.data().will_be_filled(file, &mut with)?;
        }
        Ok((hold, with))
    }

    /// The layout of a new file and the incarnations of its servers' stores. Follows the directory's striping if it is
    /// set; otherwise one server for local clients, and all servers beginning with that one for remote clients.
    fn new_layout(
        &self,
        caller: &Caller,
        (dir, name): (FileId, &Name),
    ) -> Result<(Layout, Vec<Incarnation>), Blocked> {
        let (own, here) = (self.own, self.store.incarnation());
        if self.life.is_alone() {
            return Ok((Layout::whole(own, STRIPE), vec![here]));
        }
        let striping = match (self.store.names().dir(dir)?.striping, caller.local) {
            (Some(striping), _) => striping,
            (None, true) => Striping { width: 1, stripe: STRIPE },
            (None, false) => Striping { width: 0, stripe: STRIPE },
        };
        Ok(self.homes.laid_out(striping, (dir, name)))
    }

    /// Opens an existing name; `None` if it vanished meanwhile.
    fn open_entry(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &Name,
        access: Access,
        truncate: bool,
    ) -> Result<Option<Reply>, Blocked> {
        let names = self.store.names();
        let Some(found) = unless_gone(names.lookup(&caller.who, dir, name))? else { return Ok(None) };
        let file = match found {
            Found::Here(file, _) => file,
            Found::Away(file, _) => return Ok(Some(Reply::At { dir, file, rest: Vec::new() })),
        };
        let opened = self.opens.open(file, caller.who.uid, access);
        let Some(hold) = unless_gone(opened)?.map(Arc::new) else { return Ok(None) };
        let Some(inode) = unless_gone(names.check_open(&caller.who, file, access))? else { return Ok(None) };
        note_set_id(&hold, &inode);
        self.opened(caller, file, inode, access, truncate, hold).map(Some)
    }

    fn opened(
        &self,
        caller: &Caller,
        file: FileId,
        inode: Inode,
        access: Access,
        truncate: bool,
        hold: Arc<Hold>,
    ) -> Outcome {
        if truncate && inode.kind() == FileKind::File {
            if !access.write {
                let text = "truncating a file on open needs write access";
                return Err(Error::new(ErrorKind::Invalid, text).into());
            }
            self.attrs.set_length(caller, &hold, 0)?;
        }
        // Truncation may have cleared set-id bits.
        let after = if truncate { self.store.names().inode(file).map_err(vanished)? } else { inode };
        let token = self.access.seal(caller, file, access);
        let reply = self.opened_reply(token, self.access.attr(caller, file, &after)?, after, false);
        caller.session.insert(token, hold)?;
        Ok(reply)
    }

    fn opened_reply(&self, token: Token, attr: Attr, inode: Inode, created: bool) -> Reply {
        let layout = match inode.body {
            Body::File { layout, .. } => layout,
            _ => Layout::whole(self.own, STRIPE),
        };
        Reply::Opened { token, attr, layout, created }
    }

    pub(super) fn reopen(&self, caller: &Caller, token: &Token) -> Outcome {
        if caller.privileged && token.uid != caller.who.uid {
            return self.hand_on(caller, token);
        }
        let _hold = self.access.claim(caller, token, Access::default())?;
        let inode = self.store.names().inode(token.file).map_err(vanished)?;
        Ok(self.opened_reply(*token, self.access.attr(caller, token.file, &inode)?, inode, false))
    }

    /// Opens for another user a file that a user has open. Only for connections that may act for both: a program that
    /// drops root privileges keeps its open files.
    fn hand_on(&self, caller: &Caller, token: &Token) -> Outcome {
        let opener = Identity { uid: token.uid, gid: people::NO_GROUP, groups: Vec::new() };
        let opener = Caller { who: opener, ..caller.clone() };
        let hold = self.access.claim(&opener, token, Access::default())?;
        let inode = self.store.names().inode(token.file).map_err(vanished)?;
        let handed = self.access.seal(caller, token.file, token.access);
        caller.session.insert(handed, hold)?;
        Ok(self.opened_reply(handed, self.access.attr(caller, token.file, &inode)?, inode, false))
    }

    pub(super) fn close(&self, caller: &Caller, token: &Token) -> Outcome {
        self.access.close(caller, token)?;
        Ok(Reply::Done)
    }

    pub(super) fn sync(&self, caller: &Caller, token: &Token) -> Outcome {
        let _hold = self.access.claim(caller, token, Access::default())?;
        self.direct.synced(token.file);
        // Sync the data in the back end first, then the metadata that refers to it.
        self.direct.sync(token.file)?;
        Ok(self.space.when_there_is_room(|data| data.sync(token.file)).map(|()| Reply::Done)?)
    }

    /// Syncs everything.
    pub(super) fn sync_all(&self) -> Outcome {
        self.direct.sync_all()?;
        Ok(self.space.when_there_is_room(Data::sync_all).map(|()| Reply::Done)?)
    }

    pub(super) fn seek(
        &self,
        caller: &Caller,
        token: &Token,
        offset: u64,
        to: SeekTo,
        end: Option<u64>,
        stripes: Option<Stripes>,
    ) -> Outcome {
        let _hold = self.access.claim(caller, token, Access::default())?;
        let mut found = None;
        self.space.when_there_is_room(|data| {
            found = data.seek(token.file, offset, to, end, stripes)?;
            Ok(())
        })?;
        Ok(Reply::Position(found))
    }
}

/// `None` for a file that no longer exists.
fn unless_gone<T>(result: Result<T, impl Into<Blocked>>) -> Result<Option<T>, Blocked> {
    match result.map_err(Into::into) {
        Ok(value) => Ok(Some(value)),
        Err(Blocked::Failed(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => {
            Ok(None)
        }
        Err(stop) => Err(stop),
    }
}
