//! Names: walking, making, moving, removing, listing.

use crate::service::{Caller, Service};
use crate::union::Spot;
use forebay_model::{Access, Attr, ErrorKind, FileId, FileKind, Name, Result, Special, may};
use forebay_store::{Facts, Fate, Unlinked, Walked};
use forebay_wire::{Answer, Entry, RenameMode, Reply};

/// Most entries in one answer: with the longest names and attributes they still fit a frame.
const MOST_ENTRIES: u32 = 1024;

impl Service {
    pub(super) fn walk(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Answer {
        self.reach(caller, dir)?;
        match self.walk_both(caller, dir, path, follow)? {
            Walked::Found(file, inode) => Ok(Reply::Found(self.attr(file, &inode)?)),
            Walked::Link { dir, target, rest } => Ok(Reply::Link { dir, target, rest }),
        }
    }

    /// Walks here, and where that leads no further, behind.
    fn walk_both(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Result<Walked> {
        let mut looked_again = None;
        loop {
            match self.store.names().walk(&caller.who, dir, path, follow) {
                // What was met behind may have changed since.
                Ok(Walked::Found(file, inode)) if self.union.is_some() && looked_again != Some(file) => {
                    looked_again = Some(file);
                    self.refresh(file)?;
                    if inode.kind() == FileKind::Directory {
                        self.join_last(&caller.who, dir, path)?;
                    }
                }
                Err(miss) if miss.kind() == ErrorKind::NotFound => {
                    if !self.meet_on_path(&caller.who, dir, path)? {
                        return Err(miss);
                    }
                }
                walked => return walked,
            }
        }
    }

    pub(super) fn make_dir(&self, caller: &Caller, dir: FileId, name: &Name, mode: u16) -> Answer {
        self.reach(caller, dir)?;
        self.meet(dir, name)?;
        let (file, inode) = self.store.names().make_dir(&caller.who, dir, name, mode, self.now())?;
        Ok(Reply::Attr(self.attr(file, &inode)?))
    }

    pub(super) fn make_special(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &Name,
        mode: u16,
        special: Special,
    ) -> Answer {
        self.reach(caller, dir)?;
        self.meet(dir, name)?;
        let made = self.store.names().make_special(&caller.who, dir, name, mode, special, self.now());
        let (file, inode) = made?;
        Ok(Reply::Attr(self.attr(file, &inode)?))
    }

    pub(super) fn symlink(&self, caller: &Caller, dir: FileId, name: &Name, target: &[u8]) -> Answer {
        self.reach(caller, dir)?;
        self.meet(dir, name)?;
        let (file, inode) = self.store.names().symlink(&caller.who, dir, name, target, self.now())?;
        Ok(Reply::Attr(self.attr(file, &inode)?))
    }

    pub(super) fn link(&self, caller: &Caller, file: FileId, dir: FileId, name: &Name) -> Answer {
        self.reach(caller, file)?;
        self.reach(caller, dir)?;
        self.meet(dir, name)?;
        let _hold = self.opens.hold(file)?;
        let inode = self.store.names().link(&caller.who, file, dir, name, self.now())?;
        Ok(Reply::Attr(self.attr(file, &inode)?))
    }

    pub(super) fn read_link(&self, caller: &Caller, file: FileId) -> Answer {
        self.reach(caller, file)?;
        self.store.names().read_link(file).map(Reply::Target).map_err(super::vanished)
    }

    pub(super) fn unlink(&self, caller: &Caller, dir: FileId, name: &Name) -> Answer {
        self.reach(caller, dir)?;
        let unlinked = self.unlink_both(caller, Spot { dir, name }, false)?;
        self.unlinked(&unlinked);
        Ok(Reply::Done)
    }

    pub(super) fn remove_dir(&self, caller: &Caller, dir: FileId, name: &Name) -> Answer {
        self.reach(caller, dir)?;
        self.unlink_both(caller, Spot { dir, name }, true)?;
        Ok(Reply::Done)
    }

    pub(super) fn rename(
        &self,
        caller: &Caller,
        (dir, name): (FileId, &Name),
        (to_dir, to_name): (FileId, &Name),
        mode: RenameMode,
    ) -> Answer {
        self.reach(caller, dir)?;
        self.reach(caller, to_dir)?;
        let mode = match mode {
            RenameMode::Replace => forebay_store::RenameMode::Replace,
            RenameMode::NoReplace => forebay_store::RenameMode::NoReplace,
            RenameMode::Exchange => forebay_store::RenameMode::Exchange,
        };
        let (from, to) = (Spot { dir, name }, Spot { dir: to_dir, name: to_name });
        let replaced = self.rename_both(caller, from, to, mode)?;
        replaced.iter().for_each(|unlinked| self.unlinked(unlinked));
        Ok(Reply::Done)
    }

    fn unlinked(&self, unlinked: &Unlinked) {
        match unlinked.fate {
            Fate::Orphaned => self.grace.orphaned(&self.opens, unlinked.file),
            Fate::Named | Fate::Gone => {}
        }
    }

    pub(super) fn read_dir(
        &self,
        caller: &Caller,
        dir: FileId,
        cookie: u64,
        limit: u32,
        plus: bool,
    ) -> Answer {
        self.reach(caller, dir)?;
        let limit = limit.clamp(1, MOST_ENTRIES) as usize;
        let itself = self.store.names().inode(dir)?.attr(dir, &Facts::default());
        if cookie == 0 && may(&caller.who, &itself, Access::READ) {
            self.survey(dir)?;
        }
        let (listed, next) = self.store.names().read_dir(&caller.who, dir, cookie, limit)?;
        // Names are for those who may read a directory, attributes for those who may search it.
        let plus = plus && may(&caller.who, &itself, Access::EXECUTE);
        let mut entries = Vec::with_capacity(listed.len());
        for entry in listed {
            let attr = if plus { self.attr_if_there(entry.file)? } else { None };
            let forebay_store::Entry { name, file, kind, cookie } = entry;
            entries.push(Entry { name, file, kind, cookie, attr });
        }
        Ok(Reply::Entries { entries, next })
    }

    /// Attributes of an entry that may have gone since it was listed.
    fn attr_if_there(&self, file: FileId) -> Result<Option<Attr>> {
        match self.store.names().inode(file) {
            Ok(inode) => self.attr(file, &inode).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
