//! Attributes, extended attributes, and file sizes.

use super::access::note_set_id;
use super::{FileAccess, vanished};
use crate::backing::{BackingLayer, Order};
use crate::caller::Caller;
use crate::cluster::{Blocked, Outcome};
use crate::drain::DrainEngine;
use crate::file_homes::{FileHomes, is_striped};
use crate::lifecycle::Lifecycle;
use crate::opens::{Hold, Opens, SET_ID};
use crate::pipes::{PIPE, Pipes};
use crate::writers::Writers;
use forebay_model::{
    Access, Change, Error, ErrorKind, FileId, FileKind, Name, Reshape, Result, Span, Striping,
};
use forebay_store::{Batch, Body, MAX_FILE, Store};
use forebay_wire::{Reply, Token, XattrMode};
use std::sync::Arc;

/// Smallest allowed stripe.
const LEAST_STRIPE: u64 = 64 << 10;

/// Serves requests about attributes and sizes.
pub(crate) struct AttrRequests {
    pub(crate) access: Arc<FileAccess>,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) drain: Option<Arc<DrainEngine>>,
    pub(crate) pipes: Arc<Pipes>,
    pub(crate) life: Arc<Lifecycle>,
}

impl AttrRequests {
    pub(super) fn get_attr(&self, caller: &Caller, file: FileId) -> Outcome {
        self.access.reach(caller, file)?;
        self.layer.refresh(file)?;
        let inode = self.store.names().settled(file).map_err(vanished)?;
        Ok(Reply::Attr(self.access.attr(caller, file, &inode)?))
    }

    pub(super) fn set_attr(&self, caller: &Caller, file: FileId, change: &Change) -> Outcome {
        self.access.reach(caller, file)?;
        let _hold = self.opens.hold(file)?;
        let inode = self.store.names().inode(file).map_err(vanished)?;
        // Read before anything is changed, so that the answer cannot fail afterwards.
        let before = self.access.attr(caller, file, &inode)?;
        if let Body::File { extent, .. } = &inode.body
            && is_striped(extent)
            && change.mode.is_some_and(|mode| mode & SET_ID != 0)
            && !caller.retry_context.set_id
        {
            return Err(Blocked::SetId(file));
        }
        // An explicitly set time takes effect even if another server's clock was ahead when it wrote.
        let now = match caller.retry_context.held.get(&file).and_then(|held| held.touched) {
            Some(touched) => self.access.now().max(touched),
            None => self.access.now(),
        };
        let inode = match file == FileId::ROOT {
            true => self.layer.set_root_attr(&caller.who, change).map_err(vanished)?,
            false => self.store.names().set_attr(&caller.who, file, change, now).map_err(vanished)?,
        };
        if inode.mode & SET_ID != 0 {
            self.opens.has_set_id(file);
            // Clients that write through rings must send a request first, which clears the set-id bits.
            self.store.data().recall_file(file);
        }
        if inode.kind() == PIPE {
            self.pipes.follow(&self.access.seal, file, || self.store.names().inode(file));
        }
        let after = self.access.attr(caller, file, &inode);
        Ok(Reply::Attr(after.unwrap_or(before)))
    }

    pub(super) fn truncate(&self, caller: &Caller, token: &Token, size: u64) -> Outcome {
        let hold = self.access.claim(caller, token, Access::WRITE)?;
        self.set_length(caller, &hold, size)
    }

    pub(super) fn truncate_file(&self, caller: &Caller, file: FileId, size: u64) -> Outcome {
        self.access.reach(caller, file)?;
        let hold = self.opens.hold(file)?;
        let inode = self.store.names().check_open(&caller.who, file, Access::WRITE).map_err(vanished)?;
        if inode.kind() != FileKind::File {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("file {file} is not a regular file: its size cannot be set"),
            )
            .into());
        }
        note_set_id(&hold, &inode);
        self.set_length(caller, &hold, size)
    }

    pub(super) fn set_length(&self, caller: &Caller, hold: &Hold, size: u64) -> Outcome {
        let file = hold.file();
        if size > MAX_FILE {
            return Err(Error::from(ErrorKind::TooLarge).into());
        }
        if self.others_hold(file)? {
            return self.reshape(caller, hold, Reshape::Cut(size));
        }
        self.access.shed_set_id(caller, hold)?;
        self.layer.cut_both(file, size)?;
        Ok(Reply::Done)
    }

    /// Changes bytes on several servers after the others have prepared the change.
    fn reshape(&self, caller: &Caller, hold: &Hold, change: Reshape) -> Outcome {
        let file = hold.file();
        match (caller.retry_context.order(file), caller.retry_context.reshape(file)) {
            (Order::Free, _) => Err(Blocked::Order(file)),
            (Order::Kept, None) => Err(Blocked::Reshape(file, change)),
            (Order::Kept, Some(opening)) => {
                self.access.shed_set_id(caller, hold)?;
                let engine = self.drain.as_ref();
                engine.map_or(Ok(()), |engine| engine.claim_shared(file))?;
                let _still = engine.map(|engine| engine.be_still(file)).transpose()?;
                self.writers.range_locks.hide(file, opening.change().hides());
                self.homes.decide_reshape(file, opening)?;
                self.writers.clear_failed_direct(file);
                engine.into_iter().for_each(|engine| engine.trim_shared(file, opening.change()));
                Ok(Reply::Done)
            }
        }
    }

    pub(super) fn extend(&self, caller: &Caller, token: &Token, size: u64) -> Outcome {
        let hold = self.access.claim(caller, token, Access::WRITE)?;
        self.access.shed_set_id(caller, &hold)?;
        self.store.data().extend(token.file, size)?;
        Ok(Reply::Done)
    }

    /// Whether other servers may hold bytes of a file of this server.
    fn others_hold(&self, file: FileId) -> Result<bool, Blocked> {
        if self.life.is_alone() || !self.homes.is_authority(file) {
            return Ok(false);
        }
        match &self.store.names().inode(file).map_err(vanished)?.body {
            Body::File { extent, .. } => Ok(is_striped(extent)),
            _ => Ok(false),
        }
    }

    pub(super) fn get_layout(&self, caller: &Caller, file: FileId) -> Outcome {
        self.access.reach(caller, file)?;
        let (striping, layout) = match self.store.names().inode(file).map_err(vanished)?.body {
            Body::Directory { striping, .. } => (striping, None),
            Body::File { layout, .. } => (None, Some(layout)),
            _ => (None, None),
        };
        Ok(Reply::Layout { striping, layout })
    }

    pub(super) fn set_layout(&self, caller: &Caller, dir: FileId, striping: Option<Striping>) -> Outcome {
        self.access.reach(caller, dir)?;
        if striping.is_some_and(|striping| striping.stripe < LEAST_STRIPE || striping.stripe > MAX_FILE) {
            let text = format!("stripes must have {LEAST_STRIPE} to {MAX_FILE} bytes");
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        self.store.names().set_striping(&caller.who, dir, striping, self.access.now()).map_err(vanished)?;
        Ok(Reply::Layout { striping, layout: None })
    }

    pub(super) fn punch(&self, caller: &Caller, token: &Token, offset: u64, len: u64) -> Outcome {
        let hold = self.access.claim(caller, token, Access::WRITE)?;
        let span = Span::at(offset, len).filter(|span| !span.is_empty());
        let span = span.ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("cannot punch {len} bytes at offset {offset}: not a valid range"),
            )
        })?;
        if self.others_hold(token.file)? {
            return self.reshape(caller, &hold, Reshape::Punch(span));
        }
        self.access.shed_set_id(caller, &hold)?;
        self.writers.range_locks.hide(token.file, span);
        self.store.data().punch(token.file, span, Batch::default())?;
        Ok(Reply::Done)
    }

    pub(super) fn get_xattr(&self, caller: &Caller, file: FileId, name: &Name) -> Outcome {
        self.access.reach(caller, file)?;
        self.store.names().get_xattr(&caller.who, file, name).map(Reply::Value).map_err(vanished)
    }

    pub(super) fn list_xattr(&self, caller: &Caller, file: FileId) -> Outcome {
        self.access.reach(caller, file)?;
        self.store.names().list_xattrs(&caller.who, file).map(Reply::Names).map_err(vanished)
    }

    pub(super) fn set_xattr(
        &self,
        caller: &Caller,
        file: FileId,
        name: &Name,
        value: &[u8],
        mode: XattrMode,
    ) -> Outcome {
        self.access.reach(caller, file)?;
        let _hold = self.opens.hold(file)?;
        done(self.store.names().set_xattr(&caller.who, file, name, value, mode, self.access.now()))
    }

    pub(super) fn remove_xattr(&self, caller: &Caller, file: FileId, name: &Name) -> Outcome {
        self.access.reach(caller, file)?;
        let _hold = self.opens.hold(file)?;
        done(self.store.names().remove_xattr(&caller.who, file, name, self.access.now()))
    }
}

fn done(result: Result<()>) -> Outcome {
    result.map(|()| Reply::Done).map_err(vanished)
}
