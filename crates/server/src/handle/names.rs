//! Names: lookup, create, rename, remove, list.

use super::FileAccess;
use crate::answers::entries;
use crate::backing::{BackingLayer, Spot};
use crate::caller::Caller;
use crate::cluster::{Blocked, JoinState, Outcome};
use crate::file_homes::FileHomes;
use crate::members::{Membership, check_maker};
use crate::opens::Opens;
use crate::orphans::OrphanGrace;
use crate::pipes::{PIPE, Pipes};
use forebay_model::{
    Access, Attr, Error, ErrorKind, FileId, FileKind, Identity, Name, Result, Special, Time, may,
};
use forebay_store::{DirCopy, Facts, Fate, Inode, Obstacle, Store, Unlinked, Walked};
use forebay_wire::{Entry, Known, RenameMode, Reply};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

/// Serves requests about names.
pub(crate) struct NameRequests {
    pub(crate) access: Arc<FileAccess>,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) members: Arc<dyn Membership>,
    pub(crate) join_state: Arc<JoinState>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) grace: Arc<OrphanGrace>,
    pub(crate) pipes: Arc<Pipes>,
}

impl NameRequests {
    pub(super) fn walk(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Outcome {
        self.access.reach(caller, dir)?;
        self.walk_from(caller, dir, path, follow)
    }

    fn walk_from(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Outcome {
        match self.walk_both(caller, dir, path, follow)? {
            Walked::Found(file, inode) => Ok(Reply::Found(self.access.attr(caller, file, &inode)?)),
            Walked::Link { dir, target, rest } => Ok(Reply::Link { dir, target, rest }),
            Walked::At { dir, file, rest } => Ok(Reply::At { dir, file, rest }),
            Walked::Elsewhere { dir, rest } => Ok(Reply::Elsewhere { dir, rest }),
        }
    }

    /// Looks up a path in the buffer, and looks up missing names in the back end.
    fn walk_both(&self, caller: &Caller, dir: FileId, path: &[u8], follow: bool) -> Result<Walked, Blocked> {
        let mut looked_again = None;
        loop {
            match self.store.names().walk(&caller.who, dir, path, follow).map_err(Blocked::from) {
                // A file that was found in the back end may have changed there since.
                Ok(Walked::Found(file, inode))
                    if self.layer.backing.is_some() && looked_again != Some(file) =>
                {
                    looked_again = Some(file);
                    if !self.layer.follow_up(&caller.who, (dir, path), (file, inode.kind()))? {
                        return Ok(Walked::Found(file, inode));
                    }
                }
                Err(Blocked::Failed(miss)) if miss.kind() == ErrorKind::NotFound => {
                    if !self.layer.lookup_backing_on_path(&caller.who, dir, path)? {
                        return Err(self.missed(|| self.last_on_path(&caller.who, dir, path), miss));
                    }
                }
                walked => return walked,
            }
        }
    }

    /// Continues a lookup from the directory that the client remembers, if the names before it still lead there.
    pub(super) fn jump(&self, caller: &Caller, path: &[u8], follow: bool, known: Known) -> Outcome {
        let (before, after) = path.split_at(usize::from(known.len).min(path.len()));
        let names: Result<Vec<Name>> = match before.is_empty() {
            true => Ok(Vec::new()),
            false => before.split(|&byte| byte == b'/').map(Name::new).collect(),
        };
        let rest = after.strip_prefix(b"/").unwrap_or(after);
        check_maker(&*self.members, known.dir)?;
        if !self.store.names().leads_to(&caller.who, &names?, known.dir)? {
            return Ok(Reply::Elsewhere { dir: FileId::ROOT, rest: path.to_vec() });
        }
        match rest.is_empty() {
            true => Ok(Reply::Elsewhere { dir: known.dir, rest: Vec::new() }),
            false => self.walk_from(caller, known.dir, rest, follow),
        }
    }

    fn missed_in(&self, dir: FileId, stop: Blocked) -> Blocked {
        match stop {
            Blocked::Failed(miss) if miss.kind() == ErrorKind::NotFound => self.missed(|| Ok(dir), miss),
            stop => stop,
        }
    }

    /// A name that is missing from a directory may have existed before the store was lost.
    fn missed(&self, dir: impl FnOnce() -> Result<FileId, Blocked>, miss: Error) -> Blocked {
        if !self.join_state.has_lost() {
            return miss.into();
        }
        match dir().and_then(|dir| Ok(self.join_state.may_have_lost(&self.store, dir)?)) {
            Ok(true) => self.join_state.lost(&miss).into(),
            Ok(false) => miss.into(),
            Err(stop) => stop,
        }
    }

    /// The last existing directory on a path that cannot be resolved.
    fn last_on_path(&self, who: &Identity, dir: FileId, path: &[u8]) -> Result<FileId, Blocked> {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let mut above = &path[..end];
        while let Some(slash) = above.iter().rposition(|&byte| byte == b'/') {
            above = &above[..slash];
            match self.store.names().walk(who, dir, above, true).map_err(Blocked::from) {
                Ok(Walked::Found(last, _) | Walked::At { file: last, .. }) => return Ok(last),
                Err(Blocked::Failed(miss)) if miss.kind() == ErrorKind::NotFound => {}
                // The path has changed since: any directory on it may have lost the name.
                Ok(Walked::Link { .. } | Walked::Elsewhere { .. }) => return Ok(FileId::ROOT),
                Err(stop) => return Err(stop),
            }
        }
        Ok(dir)
    }

    pub(super) fn make_dir(&self, caller: &Caller, dir: FileId, name: &Name, mode: u16) -> Outcome {
        self.access.reach(caller, dir)?;
        self.layer.lookup_backing(dir, name)?;
        let (file, inode) = self.store.names().make_dir(&caller.who, dir, name, mode, self.access.now())?;
        Ok(Reply::Attr(self.new_attr(file, &inode)?))
    }

    pub(super) fn make_special(
        &self,
        caller: &Caller,
        dir: FileId,
        name: &Name,
        mode: u16,
        special: Special,
    ) -> Outcome {
        self.access.reach(caller, dir)?;
        self.layer.lookup_backing(dir, name)?;
        let made = self.store.names().make_special(&caller.who, dir, name, mode, special, self.access.now());
        let (file, inode) = made?;
        Ok(Reply::Attr(self.new_attr(file, &inode)?))
    }

    pub(super) fn symlink(&self, caller: &Caller, dir: FileId, name: &Name, target: &[u8]) -> Outcome {
        self.access.reach(caller, dir)?;
        self.layer.lookup_backing(dir, name)?;
        let (file, inode) = self.store.names().symlink(&caller.who, dir, name, target, self.access.now())?;
        Ok(Reply::Attr(self.new_attr(file, &inode)?))
    }

    /// The `stat` attributes of a file that was just created.
    fn new_attr(&self, file: FileId, inode: &Inode) -> Result<Attr> {
        let facts = match inode.kind() {
            FileKind::File => self.store.data().facts(file)?,
            _ => Facts::default(),
        };
        Ok(self.access.shown(file, inode, &facts))
    }

    pub(super) fn link(&self, caller: &Caller, file: FileId, dir: FileId, name: &Name) -> Outcome {
        self.access.reach(caller, dir)?;
        self.layer.lookup_backing(dir, name)?;
        if !self.homes.is_authority(file) {
            return Err(Blocked::Names(Obstacle::SeveralShards));
        }
        self.access.reach(caller, file)?;
        let _hold = self.opens.hold(file)?;
        // Read before anything is changed, so that the answer cannot fail afterwards.
        let before = self.access.attr(caller, file, &self.store.names().settled(file)?)?;
        // Marked before the name exists, since the name could be removed again at once.
        let was_orphan = self.opens.named(file);
        let (names, who) = (self.store.names(), &caller.who);
        let linked = match was_orphan {
            false => names.link(who, file, dir, name, self.access.now()),
            true => names.link_orphan(who, file, dir, name, self.access.now()),
        };
        if linked.is_err() && was_orphan {
            self.opens.orphaned(file);
        }
        let inode = linked?;
        let after = self.access.attr(caller, file, &inode);
        Ok(Reply::Attr(after.unwrap_or(before)))
    }

    pub(super) fn read_link(&self, caller: &Caller, file: FileId) -> Outcome {
        self.access.reach(caller, file)?;
        self.store.names().read_link(file).map(Reply::Target).map_err(super::vanished)
    }

    pub(super) fn local_pipe(&self, caller: &Caller, file: FileId) -> Outcome {
        self.access.reach(caller, file)?;
        let inode = self.store.names().inode(file).map_err(super::vanished)?;
        let attr = self.access.attr(caller, file, &inode)?;
        if !may(&caller.who, &attr, Access::READ) && !may(&caller.who, &attr, Access::WRITE) {
            return Err(Error::from(ErrorKind::AccessDenied).into());
        }
        let twin = self.pipes.twin(&self.access.seal, file, || self.store.names().inode(file));
        Ok(Reply::Target(twin?.into_os_string().into_vec()))
    }

    pub(super) fn unlink(&self, caller: &Caller, dir: FileId, name: &Name) -> Outcome {
        self.access.reach(caller, dir)?;
        let unlinked = self.layer.unlink_both(&caller.who, Spot { dir, name }, false);
        self.removed(dir, unlinked.map_err(Blocked::from))
    }

    pub(super) fn remove_dir(&self, caller: &Caller, dir: FileId, name: &Name) -> Outcome {
        self.access.reach(caller, dir)?;
        let removed = self.layer.unlink_both(&caller.who, Spot { dir, name }, true);
        self.removed(dir, removed.map_err(Blocked::from))
    }

    fn removed(&self, dir: FileId, removed: Result<Unlinked, Blocked>) -> Outcome {
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
    ) -> Outcome {
        self.access.reach(caller, dir)?;
        self.access.reach(caller, to_dir)?;
        let (from, to) = (Spot { dir, name }, Spot { dir: to_dir, name: to_name });
        match self.layer.rename_both(&caller.who, from, to, mode) {
            Ok(replaced) => {
                replaced.iter().for_each(|unlinked| self.unlinked(unlinked));
                Ok(Reply::Done)
            }
            Err(stop) => Err(self.missed_in(dir, stop.into())),
        }
    }

    fn unlinked(&self, unlinked: &Unlinked) {
        match unlinked.fate {
            Fate::Orphaned => self.grace.orphaned(&self.opens, unlinked.file),
            Fate::Gone if unlinked.inode.kind() == PIPE => {
                self.pipes.remove(&self.access.seal, unlinked.file);
            }
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
    ) -> Outcome {
        self.find_listed(caller, dir, cookie)?;
        self.list(caller, dir, cookie, entries(limit), plus)
    }

    /// The first step of a listing: checks that the caller can reach the directory, and loads the directory's entries
    /// from the back end. Fails as the listing would.
    pub(crate) fn find_listed(&self, caller: &Caller, dir: FileId, cookie: u64) -> Result<(), Blocked> {
        self.access.reach(caller, dir)?;
        if cookie == 0 && self.layer.backing.is_some() && self.may(caller, dir, Access::READ)? {
            self.layer.survey(dir)?;
        }
        Ok(())
    }

    /// Lists a directory from the buffer, for a caller that can reach it.
    pub(crate) fn list(
        &self,
        caller: &Caller,
        dir: FileId,
        cookie: u64,
        limit: usize,
        plus: bool,
    ) -> Outcome {
        let (listed, next) = self.store.names().read_dir(&caller.who, dir, cookie, limit)?;
        // Names need read permission on the directory, attributes need search permission.
        let plus = plus && self.may(caller, dir, Access::EXECUTE)?;
        let mut entries = Vec::with_capacity(listed.len());
        for entry in listed {
            let attr = if plus { self.attr_if_there(caller, entry.file)? } else { None };
            let forebay_store::Entry { name, file, kind, cookie } = entry;
            entries.push(Entry { name, file, kind, cookie, attr });
        }
        Ok(Reply::Entries { entries, next })
    }

    fn may(&self, caller: &Caller, dir: FileId, access: Access) -> Result<bool, Blocked> {
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

    /// Attributes of an entry that may have vanished since it was listed; `None` if other servers would have to be
    /// called.
    fn attr_if_there(&self, caller: &Caller, file: FileId) -> Result<Option<Attr>, Blocked> {
        match self.store.names().inode(file) {
            Ok(inode) => match self.access.attr(caller, file, &inode) {
                Ok(attr) => Ok(Some(attr)),
                Err(Blocked::Gather(_) | Blocked::Shares(_)) => Ok(None),
                Err(stop) => Err(stop),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
