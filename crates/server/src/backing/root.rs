//! The root directory has the mode and owner of the back end's root.
//!
//! The server reads them before it serves the first client, and then once a second; `chmod` and `chown` of the root are
//! applied to the back end's root before they are answered.

use super::Backing;
use super::BackingLayer;
use forebay_backend::{Found, Slot};
use forebay_model::{Change, Error, ErrorKind, FileId, Identity, Result};
use forebay_store::{Attempt, Inode};

impl BackingLayer {
    /// Gives the root directory the mode and owner of the back end's root. Nothing changes with a back end whose root
    /// has no attributes, such as a bucket.
    pub(crate) fn follow_root(&self) -> Result<()> {
        let Some(backing) = self.backing.as_ref().filter(|_| self.homes.is_authority(FileId::ROOT)) else {
            return Ok(());
        };
        let _root = backing.lock_root();
        self.take_root(backing).map(drop)
    }

    fn take_root(&self, backing: &Backing) -> Result<Option<Found>> {
        let Some(found) = backing.ask(|backend| backend.root())? else { return Ok(None) };
        let inode = match self.store.names().inode(FileId::ROOT) {
            // The store of a replaced server has no root until it is rebuilt.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(found)),
            inode => inode?,
        };
        if (found.mode, found.uid, found.gid) != (inode.mode, inode.uid, inode.gid) {
            let (mode, uid, gid) = (Some(found.mode), Some(found.uid), Some(found.gid));
            let change = Change { mode, uid, gid, ..Change::default() };
            let (root, now) = (Identity::root(), self.store.data().now());
            self.store.names().set_attr(&root, FileId::ROOT, &change, now).map_err(Error::from)?;
        }
        Ok(Some(found))
    }

    /// Changes attributes of the root directory, and mode and owner of the back end's root as well. If the back end
    /// refuses, both stay as they were.
    pub(crate) fn set_root_attr(&self, who: &Identity, change: &Change) -> Attempt<Inode> {
        let (names, now) = (self.store.names(), self.store.data().now());
        let set_here = || names.set_attr(who, FileId::ROOT, change, now);
        let follows = change.mode.is_some() || change.uid.is_some() || change.gid.is_some();
        let Some(backing) = self.backing.as_ref().filter(|_| follows) else { return set_here() };
        let _root = backing.lock_root();
        let Some(found) = self.take_root(backing)? else { return set_here() };
        let inode = set_here()?;
        let (owner, mtime) = ((inode.uid, inode.gid), found.version.mtime);
        let it = Slot::any(&[]).seen(found.version.serial);
        let set = backing.ask(|backend| backend.set_attr_of(it, owner, inode.mode, mtime));
        self.take_root(backing)?;
        set?;
        let inode = names.inode(FileId::ROOT)?;
        if (inode.uid, inode.gid) != owner {
            let text = format!("this server cannot change the owner of the root of {}", backing.name());
            return Err(Error::new(ErrorKind::NotPermitted, text).into());
        }
        Ok(inode)
    }
}
