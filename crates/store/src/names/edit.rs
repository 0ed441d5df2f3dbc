//! One change of the namespace: inodes are read, changed in memory and written together.

use super::key::{self, Target};
use super::share::Share;
use super::{Inode, Names, no_file};
use crate::meta::Batch;
use forebay_model::{FileId, Name, Result, Stamp};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// A change in progress. The caller holds the locks of everything it touches.
pub(super) struct Edit<'a> {
    names: &'a Names,
    /// Few, so that a linear search is enough.
    inodes: Vec<(FileId, Inode)>,
    shares: Vec<(FileId, Share)>,
    batch: Batch,
    made: u64,
    gone: u64,
}

impl<'a> Edit<'a> {
    pub(super) fn new(names: &'a Names) -> Edit<'a> {
        let (inodes, shares) = (Vec::new(), Vec::new());
        Edit { names, inodes, shares, batch: Batch::default(), made: 0, gone: 0 }
    }

    /// An inode, to be read or changed; [`Edit::commit`] writes it.
    pub(super) fn inode(&mut self, id: FileId) -> Result<&mut Inode> {
        let at = match self.inodes.iter().position(|(known, _)| *known == id) {
            Some(at) => at,
            None => {
                let inode = self.names.find_inode(id)?.ok_or_else(|| no_file(id))?;
                self.inodes.push((id, inode));
                self.inodes.len() - 1
            }
        };
        Ok(&mut self.inodes[at].1)
    }

    /// Records that entries of a directory on this server changed, and the change of the number of subdirectories.
    pub(super) fn entries_changed(&mut self, dir: FileId, subdirs: i32, now: Stamp) -> Result<()> {
        let share = self.share(dir)?;
        self.set_share(dir, share.changed(dir, subdirs, now)?);
        Ok(())
    }

    /// Adjusts the number of subdirectories without recording a change of entries.
    pub(super) fn count(&mut self, dir: FileId, subdirs: i32) -> Result<()> {
        let share = self.share(dir)?;
        self.set_share(dir, share.counted(dir, subdirs)?);
        Ok(())
    }

    fn share(&self, dir: FileId) -> Result<Share> {
        let known = self.shares.iter().find(|(known, _)| *known == dir);
        known.map_or_else(|| self.names.share(dir), |(_, share)| Ok(*share))
    }

    fn set_share(&mut self, dir: FileId, share: Share) {
        match self.shares.iter_mut().find(|(known, _)| *known == dir) {
            Some((_, known)) => *known = share,
            None => self.shares.push((dir, share)),
        }
    }

    /// Removes the share of a directory that is gone.
    pub(super) fn drop_share(&mut self, dir: FileId) {
        self.shares.retain(|(known, _)| *known != dir);
        self.batch.remove(key::share(dir));
    }

    /// Adds a new inode in its final state.
    pub(super) fn make(&mut self, id: FileId, inode: &Inode) {
        self.batch.put(key::inode(id), inode.encode());
        self.made += 1;
    }

    pub(super) fn put_entry(&mut self, dir: FileId, name: &Name, target: Target) {
        self.batch.put(key::entry(dir, name), target.encode());
    }

    pub(super) fn remove_entry(&mut self, dir: FileId, name: &Name) {
        self.batch.remove(key::entry(dir, name));
    }

    /// Records that a file has no name left.
    pub(super) fn orphan(&mut self, id: FileId) {
        self.batch.put(key::orphan(id), []);
    }

    /// Removes all records of a file except its orphan record.
    pub(super) fn erase(&mut self, id: FileId) -> Result<()> {
        self.inodes.retain(|(known, _)| *known != id);
        self.batch.remove(key::inode(id));
        if self.names.xattr_filter.may_have(id) {
            let batch = &mut self.batch;
            self.names.kv.scan(&key::xattrs(id), &[], &mut |key, _| {
                batch.remove(key);
                ControlFlow::Continue(())
            })?;
        }
        self.gone += 1;
        Ok(())
    }

    pub(super) fn put(&mut self, key: impl Into<Vec<u8>>, value: &[u8]) {
        self.batch.put(key, value);
    }

    pub(super) fn remove(&mut self, key: impl Into<Vec<u8>>) {
        self.batch.remove(key);
    }

    /// Adds a batch that is committed with this change.
    pub(super) fn append(&mut self, batch: Batch) {
        self.batch.append(batch);
    }

    /// Commits the change atomically.
    pub(super) fn commit(self) -> Result<()> {
        let kv = self.names.kv.clone();
        self.commit_via(|batch| kv.commit(batch))
    }

    /// Commits the change with `via`, which may add to it and do work first.
    pub(super) fn commit_via(self, via: impl FnOnce(Batch) -> Result<()>) -> Result<()> {
        let (names, made, gone) = (self.names, self.made, self.gone);
        via(self.into_batch())?;
        names.count.fetch_add(made, Ordering::Relaxed);
        names.count.fetch_sub(gone, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn into_batch(mut self) -> Batch {
        for (id, inode) in &self.inodes {
            self.batch.put(key::inode(*id), inode.encode());
        }
        for (dir, share) in &self.shares {
            self.batch.put(key::share(*dir), share.encode());
        }
        self.batch
    }
}
