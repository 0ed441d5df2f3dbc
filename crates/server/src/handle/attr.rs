//! Attributes, extended attributes, and the length of files.

use super::open::{SET_ID, note_set_id};
use super::vanished;
use crate::opens::Hold;
use crate::service::{Caller, Service};
use forebay_model::{Access, Change, Error, ErrorKind, FileId, FileKind, Name, Result, Span};
use forebay_store::Batch;
use forebay_wire::{Answer, Reply, Token, XattrMode};

impl Service {
    pub(super) fn get_attr(&self, caller: &Caller, file: FileId) -> Answer {
        self.reach(caller, file)?;
        let inode = self.store.names().inode(file).map_err(vanished)?;
        Ok(Reply::Attr(self.attr(file, &inode)?))
    }

    pub(super) fn set_attr(&self, caller: &Caller, file: FileId, change: &Change) -> Answer {
        self.reach(caller, file)?;
        let _hold = self.opens.hold(file)?;
        let inode = self.store.names().set_attr(&caller.who, file, change, self.now()).map_err(vanished)?;
        if inode.mode & SET_ID != 0 {
            self.opens.has_set_id(file);
        }
        Ok(Reply::Attr(self.attr(file, &inode)?))
    }

    pub(super) fn truncate(&self, caller: &Caller, token: &Token, size: u64) -> Answer {
        let hold = self.claim(caller, token, Access::WRITE)?;
        self.set_length(caller, &hold, size)
    }

    pub(super) fn truncate_file(&self, caller: &Caller, file: FileId, size: u64) -> Answer {
        self.reach(caller, file)?;
        let hold = self.opens.hold(file)?;
        let inode = self.store.names().check_open(&caller.who, file, Access::WRITE).map_err(vanished)?;
        if inode.kind() != FileKind::File {
            return Err(Error::new(ErrorKind::Invalid, format!("file {file} has no length to set")));
        }
        note_set_id(&hold, &inode);
        self.set_length(caller, &hold, size)
    }

    pub(super) fn set_length(&self, caller: &Caller, hold: &Hold, size: u64) -> Answer {
        self.shed_set_id(caller, hold)?;
        let file = hold.file();
        self.store.data().truncate(file, size, Batch::default())?;
        self.behind(|backend| backend.truncate(file, size))?;
        Ok(Reply::Done)
    }

    pub(super) fn extend(&self, caller: &Caller, token: &Token, size: u64) -> Answer {
        let hold = self.claim(caller, token, Access::WRITE)?;
        self.shed_set_id(caller, &hold)?;
        self.store.data().extend(token.file, size)?;
        Ok(Reply::Done)
    }

    pub(super) fn punch(&self, caller: &Caller, token: &Token, offset: u64, len: u64) -> Answer {
        let hold = self.claim(caller, token, Access::WRITE)?;
        let span = Span::at(offset, len).filter(|span| !span.is_empty());
        let span = span.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("{len} bytes from {offset} on are no range to punch"))
        })?;
        self.shed_set_id(caller, &hold)?;
        self.store.data().punch(token.file, span, Batch::default())?;
        Ok(Reply::Done)
    }

    pub(super) fn get_xattr(&self, caller: &Caller, file: FileId, name: &Name) -> Answer {
        self.reach(caller, file)?;
        self.store.names().get_xattr(&caller.who, file, name).map(Reply::Value).map_err(vanished)
    }

    pub(super) fn list_xattr(&self, caller: &Caller, file: FileId) -> Answer {
        self.reach(caller, file)?;
        self.store.names().list_xattrs(&caller.who, file).map(Reply::Names).map_err(vanished)
    }

    pub(super) fn set_xattr(
        &self,
        caller: &Caller,
        file: FileId,
        name: &Name,
        value: &[u8],
        mode: XattrMode,
    ) -> Answer {
        self.reach(caller, file)?;
        let _hold = self.opens.hold(file)?;
        done(self.store.names().set_xattr(&caller.who, file, name, value, mode, self.now()))
    }

    pub(super) fn remove_xattr(&self, caller: &Caller, file: FileId, name: &Name) -> Answer {
        self.reach(caller, file)?;
        let _hold = self.opens.hold(file)?;
        done(self.store.names().remove_xattr(&caller.who, file, name, self.now()))
    }
}

fn done(result: Result<()>) -> Answer {
    result.map(|()| Reply::Done).map_err(vanished)
}
