//! Names: walking, making, moving, removing, listing.

use crate::service::{Caller, Service};
use forebay_backend::Place;
use forebay_model::{Access, Attr, ErrorKind, FileId, Name, Result, Special, may};
use forebay_store::{Facts, Fate, Unlinked, Walked};
use forebay_wire::{Answer, Entry, RenameMode, Reply};

/// Most entries in one answer: with the longest names and attributes they still fit a frame.
const MOST_ENTRIES: u32 = 1024;

impl Service {
    pub(super) fn walk(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Answer {
        self.reach(caller, dir)?;
        match self.store.names().walk(&caller.who, dir, path, follow) {
            Ok(Walked::Found(file, inode)) => Ok(Reply::Found(self.attr(file, &inode)?)),
            Ok(Walked::Link { dir, target, rest }) => Ok(Reply::Link { dir, target, rest }),
            Err(miss) if miss.kind() == ErrorKind::NotFound => {
                match self.behind(|backend| backend.find(Place { dir, path }))? {
                    Some(attr) => Ok(Reply::Found(attr)),
                    None => Err(miss),
                }
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn make_dir(&self, caller: &Caller, dir: FileId, name: &Name, mode: u16) -> Answer {
        self.reach(caller, dir)?;
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
        let made = self.store.names().make_special(&caller.who, dir, name, mode, special, self.now());
        let (file, inode) = made?;
        Ok(Reply::Attr(self.attr(file, &inode)?))
    }

    pub(super) fn symlink(&self, caller: &Caller, dir: FileId, name: &Name, target: &[u8]) -> Answer {
        self.reach(caller, dir)?;
        let (file, inode) = self.store.names().symlink(&caller.who, dir, name, target, self.now())?;
        Ok(Reply::Attr(self.attr(file, &inode)?))
    }

    pub(super) fn link(&self, caller: &Caller, file: FileId, dir: FileId, name: &Name) -> Answer {
        self.reach(caller, file)?;
        self.reach(caller, dir)?;
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
        let here = self.store.names().unlink(&caller.who, dir, name, self.now());
        self.removed(here, || self.behind(|backend| backend.unlink(place(dir, name))))
    }

    pub(super) fn remove_dir(&self, caller: &Caller, dir: FileId, name: &Name) -> Answer {
        self.reach(caller, dir)?;
        let here = self.store.names().remove_dir(&caller.who, dir, name, self.now());
        self.removed(here, || self.behind(|backend| backend.remove_dir(place(dir, name))))
    }

    /// What is here is removed first, because here the caller's rights are checked; then what is behind. What is
    /// in neither place was not found.
    fn removed(&self, here: Result<Unlinked>, behind: impl FnOnce() -> Result<bool>) -> Answer {
        match here {
            Ok(unlinked) => {
                self.unlinked(&unlinked);
                behind()?;
                Ok(Reply::Done)
            }
            Err(miss) if miss.kind() == ErrorKind::NotFound => match behind()? {
                true => Ok(Reply::Done),
                false => Err(miss),
            },
            Err(error) => Err(error),
        }
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
        let here = self.store.names().rename(&caller.who, dir, name, to_dir, to_name, mode, self.now());
        let behind = || self.behind(|backend| backend.rename(place(dir, name), place(to_dir, to_name)));
        match here {
            Ok(replaced) => {
                replaced.iter().for_each(|unlinked| self.unlinked(unlinked));
                behind()?;
                Ok(Reply::Done)
            }
            Err(miss) if miss.kind() == ErrorKind::NotFound => match behind()? {
                true => Ok(Reply::Done),
                false => Err(miss),
            },
            Err(error) => Err(error),
        }
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
        let (listed, next) = self.store.names().read_dir(&caller.who, dir, cookie, limit)?;
        // Names are for those who may read a directory, attributes for those who may search it.
        let itself = self.store.names().inode(dir)?.attr(dir, &Facts::default());
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

fn place(dir: FileId, name: &Name) -> Place<'_> {
    Place { dir, path: name.as_bytes() }
}
