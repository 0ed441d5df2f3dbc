//! Names: walking, making, moving, removing, listing.

use crate::members::check_maker;
use crate::service::{Caller, Service};
use crate::several::{Handled, Stop};
use crate::union::Spot;
use forebay_model::{Access, Attr, Error, ErrorKind, FileId, FileKind, Name, Result, Special, Time, may};
use forebay_store::{DirCopy, Facts, Fate, Inode, Obstacle, Unlinked, Walked};
use forebay_wire::{Entry, Known, RenameMode, Reply};

/// Most entries in one answer: with the longest names and attributes they still fit a frame.
const MOST_ENTRIES: u32 = 1024;

impl Service {
    pub(super) fn walk(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Handled {
        self.reach(caller, dir)?;
        self.walk_from(caller, dir, path, follow)
    }

    fn walk_from(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Handled {
        match self.walk_both(caller, dir, path, follow)? {
            Walked::Found(file, inode) => Ok(Reply::Found(self.attr(caller, file, &inode)?)),
            Walked::Link { dir, target, rest } => Ok(Reply::Link { dir, target, rest }),
            Walked::At { dir, file, rest } => Ok(Reply::At { dir, file, rest }),
            Walked::Elsewhere { dir, rest } => Ok(Reply::Elsewhere { dir, rest }),
        }
    }

    /// Walks here, and where that leads no further, behind.
    fn walk_both(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Result<Walked, Stop> {
        let mut looked_again = None;
        loop {
            match self.store.names().walk(&caller.who, dir, path, follow).map_err(Stop::from) {
                // What was met behind may have changed since.
                Ok(Walked::Found(file, inode)) if self.union.is_some() && looked_again != Some(file) => {
                    looked_again = Some(file);
                    self.refresh(file)?;
                    if inode.kind() == FileKind::Directory {
                        self.join_last(&caller.who, dir, path)?;
                    }
                }
                Err(Stop::Failed(miss)) if miss.kind() == ErrorKind::NotFound => {
                    if !self.meet_on_path(&caller.who, dir, path)? {
                        return Err(self.missed(dir, path, miss).into());
                    }
                }
                walked => return walked,
            }
        }
    }

    /// Walks on from where the client remembers to have come, if the names before still lead there.
    pub(super) fn jump(&self, caller: &Caller, path: &[u8], follow: bool, known: Known) -> Handled {
        let (before, behind) = path.split_at(usize::from(known.len).min(path.len()));
        let names: Result<Vec<Name>> = match before.is_empty() {
            true => Ok(Vec::new()),
            false => before.split(|&byte| byte == b'/').map(Name::new).collect(),
        };
        let rest = behind.strip_prefix(b"/").unwrap_or(behind);
        check_maker(&*self.members, known.dir)?;
        if !self.store.names().leads_to(&caller.who, &names?, known.dir)? {
            return Ok(Reply::Elsewhere { dir: FileId::ROOT, rest: path.to_vec() });
        }
        match rest.is_empty() {
            true => Ok(Reply::Elsewhere { dir: known.dir, rest: Vec::new() }),
            false => self.walk_from(caller, known.dir, rest, follow),
        }
    }

    fn missed_in(&self, dir: FileId, stop: Stop) -> Stop {
        match stop {
            Stop::Failed(miss) if miss.kind() == ErrorKind::NotFound => self.missed(dir, b"", miss).into(),
            stop => stop,
        }
    }

    /// What is not here may have been here before the store was lost.
    fn missed(&self, dir: FileId, path: &[u8], miss: Error) -> Error {
        let may_be_lost = match path.contains(&b'/') {
            // Some directory on the way; whichever it was.
            true => self.joining.has_lost(),
            false => self.joining.may_have_lost(dir),
        };
        match may_be_lost {
            true => self.joining.lost(&miss),
            false => miss,
        }
    }

    pub(super) fn make_dir(&self, caller: &Caller, dir: FileId, name: &Name, mode: u16) -> Handled {
        self.reach(caller, dir)?;
        self.meet(dir, name)?;
        let (file, inode) = self.store.names().make_dir(&caller.who, dir, name, mode, self.now())?;
        Ok(Reply::Attr(self.new_attr(file, &inode)?))
    }

    pub(super) fn make_special(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &Name,
        mode: u16,
        special: Special,
    ) -> Handled {
        self.reach(caller, dir)?;
        self.meet(dir, name)?;
        let made = self.store.names().make_special(&caller.who, dir, name, mode, special, self.now());
        let (file, inode) = made?;
        Ok(Reply::Attr(self.new_attr(file, &inode)?))
    }

    pub(super) fn symlink(&self, caller: &Caller, dir: FileId, name: &Name, target: &[u8]) -> Handled {
        self.reach(caller, dir)?;
        self.meet(dir, name)?;
        let (file, inode) = self.store.names().symlink(&caller.who, dir, name, target, self.now())?;
        Ok(Reply::Attr(self.new_attr(file, &inode)?))
    }

    /// What `stat` says of something that was just made.
    fn new_attr(&self, file: FileId, inode: &Inode) -> Result<Attr> {
        let facts = match inode.kind() {
            FileKind::File => self.store.data().facts(file)?,
            _ => Facts::default(),
        };
        Ok(self.shown(file, inode, &facts))
    }

    pub(super) fn link(&self, caller: &Caller, file: FileId, dir: FileId, name: &Name) -> Handled {
        self.reach(caller, dir)?;
        self.meet(dir, name)?;
        if self.members.members().authority(file) != self.config.server {
            return Err(Stop::Names(Obstacle::Several));
        }
        self.reach(caller, file)?;
        let _hold = self.opens.hold(file)?;
        // Asked before anything is changed: from then on nothing is in the way of the answer.
        let before = self.attr(caller, file, &self.store.names().settled(file)?)?;
        let inode = self.store.names().link(&caller.who, file, dir, name, self.now())?;
        let after = self.attr(caller, file, &inode);
        Ok(Reply::Attr(after.unwrap_or(before)))
    }

    pub(super) fn read_link(&self, caller: &Caller, file: FileId) -> Handled {
        self.reach(caller, file)?;
        self.store.names().read_link(file).map(Reply::Target).map_err(super::vanished)
    }

    pub(super) fn unlink(&self, caller: &Caller, dir: FileId, name: &Name) -> Handled {
        self.reach(caller, dir)?;
        let unlinked = self.unlink_both(caller, Spot { dir, name }, false);
        self.removed(dir, unlinked)
    }

    pub(super) fn remove_dir(&self, caller: &Caller, dir: FileId, name: &Name) -> Handled {
        self.reach(caller, dir)?;
        let removed = self.unlink_both(caller, Spot { dir, name }, true);
        self.removed(dir, removed)
    }

    fn removed(&self, dir: FileId, removed: Result<Unlinked, Stop>) -> Handled {
        match removed {
            Ok(unlinked) => {
                self.unlinked(&unlinked);
                Ok(Reply::Done)
            }
            Err(stop) => Err(self.missed_in(dir, stop)),
        }
    }

    pub(super) fn rename(
        &self,
        caller: &Caller,
        (dir, name): (FileId, &Name),
        (to_dir, to_name): (FileId, &Name),
        mode: RenameMode,
    ) -> Handled {
        self.reach(caller, dir)?;
        self.reach(caller, to_dir)?;
        let (from, to) = (Spot { dir, name }, Spot { dir: to_dir, name: to_name });
        match self.rename_both(caller, from, to, mode) {
            Ok(replaced) => {
                replaced.iter().for_each(|unlinked| self.unlinked(unlinked));
                Ok(Reply::Done)
            }
            Err(stop) => Err(self.missed_in(dir, stop)),
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
    ) -> Handled {
        self.reach(caller, dir)?;
        let limit = limit.clamp(1, MOST_ENTRIES) as usize;
        if cookie == 0 && self.union.is_some() && self.may(caller, dir, Access::READ)? {
            self.survey(dir)?;
        }
        let (listed, next) = self.store.names().read_dir(&caller.who, dir, cookie, limit)?;
        // Names are for those who may read a directory, attributes for those who may search it.
        let plus = plus && self.may(caller, dir, Access::EXECUTE)?;
        let mut entries = Vec::with_capacity(listed.len());
        for entry in listed {
            let attr = if plus { self.attr_if_there(caller, entry.file)? } else { None };
            let forebay_store::Entry { name, file, kind, cookie } = entry;
            entries.push(Entry { name, file, kind, cookie, attr });
        }
        Ok(Reply::Entries { entries, next })
    }

    fn may(&self, caller: &Caller, dir: FileId, access: Access) -> Result<bool, Stop> {
        let DirCopy { mode, uid, gid, .. } = self.store.names().dir(dir)?;
        let (kind, time) = (FileKind::Directory, Time::default());
        let (links, size, buffered) = (0, 0, 0);
        let itself = Attr {
            id: dir,
            kind,
            mode,
            links,
            uid,
            gid,
            size,
            buffered,
            atime: time,
            mtime: time,
            ctime: time,
        };
        Ok(may(&caller.who, &itself, access))
    }

    /// Attributes of an entry that may have gone since it was listed; none if other servers would have to be asked.
    fn attr_if_there(&self, caller: &Caller, file: FileId) -> Result<Option<Attr>, Stop> {
        match self.store.names().inode(file) {
            Ok(inode) => match self.attr(caller, file, &inode) {
                Ok(attr) => Ok(Some(attr)),
                Err(Stop::Gather(_) | Stop::Shares(_)) => Ok(None),
                Err(stop) => Err(stop),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
