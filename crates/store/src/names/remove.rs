//! Removal of names, and of files without names.

use super::edit::Edit;
use super::key::{self, Target};
use super::{
    Attempt, DirCopy, Inode, MAX_TRIES, Names, Obstacle, STICKY, check_access, contended, damaged, is_owner,
    no_entry,
};
use crate::meta::Batch;
use forebay_model::{Access, Error, ErrorKind, FileId, FileKind, Identity, Name, Result, Stamp, Uid};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// A file that lost a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unlinked {
    /// The file.
    pub file: FileId,
    /// Its inode after the change; for a removed file, its last state.
    pub inode: Inode,
    /// What happened to it.
    pub fate: Fate,
}

/// The fate of a file that loses a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It has other names.
    Named,
    /// It was the last name of a regular file, which stays until [`Names::reap`] because it may be open.
    Orphaned,
    /// It is removed: a directory, a symbolic link or a special file.
    Gone,
}

impl Names {
    /// Removes a name of a file that is not a directory.
    pub fn unlink(&self, who: &Identity, dir: FileId, name: &Name, now: Stamp) -> Attempt<Unlinked> {
        self.unlink_via(who, dir, name, now, |_, batch| self.kv.commit(batch))
    }

    /// Like [`Names::unlink`], but committed by `via`, which may do work first. The name is locked meanwhile; if `via`
    /// fails, nothing has changed.
    pub fn unlink_via(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        now: Stamp,
        via: impl FnMut(&Unlinked, Batch) -> Result<()>,
    ) -> Attempt<Unlinked> {
        self.remove(who, dir, name, now, false, via)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, who: &Identity, dir: FileId, name: &Name, now: Stamp) -> Attempt<Unlinked> {
        self.remove_dir_via(who, dir, name, now, |_, batch| self.kv.commit(batch))
    }

    /// Like [`Names::remove_dir`], but committed by `via`: see [`Names::unlink_via`].
    pub fn remove_dir_via(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        now: Stamp,
        via: impl FnMut(&Unlinked, Batch) -> Result<()>,
    ) -> Attempt<Unlinked> {
        self.remove(who, dir, name, now, true, via)
    }

    /// Files without a name that are not reaped yet.
    pub fn orphans(&self) -> Result<Vec<FileId>> {
        let (mut orphans, mut bad) = (Vec::new(), None);
        self.kv.scan(key::ORPHANS, &[], &mut |key, _| match key::split_id(key) {
            Some((file, [])) => {
                orphans.push(file);
                ControlFlow::Continue(())
            }
            _ => {
                bad = Some(damaged(format!("\"{}\" is not the key of an orphan", key.escape_ascii())));
                ControlFlow::Break(())
            }
        })?;
        bad.map_or(Ok(orphans), Err)
    }

    /// Removes all records of an orphan; `via` commits this together with the removal of its bytes. Call it once for
    /// each orphan, when it is not open. The inode is locked meanwhile: a concurrent update of it happens before, or
    /// finds it gone.
    pub fn reap(&self, file: FileId, via: impl FnOnce(Batch) -> Result<()>) -> Result<()> {
        let _held = self.locks.hold(&[file]);
        if self.kv.get(&key::orphan(file))?.is_none() {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("file {file} is not an orphan: it cannot be reaped"),
            ));
        }
        let mut edit = self.edit();
        edit.erase(file)?;
        edit.remove(key::orphan(file));
        edit.commit_via(via)
    }

    /// Like [`Names::reap`], for a file that loses its last name in this batch and is not open. `via` commits.
    pub fn reap_with(
        &self,
        file: FileId,
        mut batch: Batch,
        via: impl FnOnce(Batch) -> Result<()>,
    ) -> Result<()> {
        let mut edit = self.edit();
        edit.erase(file)?;
        // Leave out the records of an orphan that would never be visible.
        batch.leave_out(&[&key::inode(file), &key::orphan(file)]);
        batch.append(edit.into_batch());
        via(batch)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn remove(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        now: Stamp,
        want_dir: bool,
        mut via: impl FnMut(&Unlinked, Batch) -> Result<()>,
    ) -> Attempt<Unlinked> {
        self.check_home(dir, name)?;
        for _ in 0..MAX_TRIES {
            let seen = self.entry(dir, name)?;
            let _held = self.locks.hold(&[dir, seen.map_or(dir, |target| target.file)]);
            let parent = self.dir(dir)?;
            check_access(who, dir, &parent, Access::EXECUTE)?;
            self.holds.entry_is_free(dir, name)?;
            let target = self.entry(dir, name)?.ok_or_else(|| no_entry(dir, name))?;
            if seen != Some(target) {
                continue;
            }
            if self.concerns_others(target) {
                return Err(Obstacle::SeveralShards.into());
            }
            self.holds.file_is_free(target.file)?;
            let mut edit = self.edit();
            let inode = edit.inode(target.file)?;
            may_take(who, dir, &parent, name, inode)?;
            check_kind(dir, name, target, want_dir)?;
            let unlinked = self.drop_name(&mut edit, dir, target, now)?;
            edit.remove_entry(dir, name);
            edit.commit_via(|batch| via(&unlinked, batch))?;
            return Ok(unlinked);
        }
        Err(contended(dir, name).into())
    }

    /// Whether removing a name involves other servers.
    pub(super) fn concerns_others(&self, target: Target) -> bool {
        self.is_cluster() && (target.kind == FileKind::Directory || !self.is_here(target.file))
    }

    /// Removes a name in `dir` from a file, and removes the file if it was the last. The caller removes the entry.
    pub(super) fn drop_name(
        &self,
        edit: &mut Edit<'_>,
        dir: FileId,
        target: Target,
        now: Stamp,
    ) -> Result<Unlinked> {
        let file = target.file;
        let is_dir = target.kind == FileKind::Directory;
        if is_dir {
            self.check_empty(file)?;
            edit.drop_share(file);
        }
        edit.entries_changed(dir, -i32::from(is_dir), now)?;
        lose_name(edit, file, dir, now)
    }

    /// Fails unless a directory has no entries on this server.
    pub(super) fn check_empty(&self, dir: FileId) -> Result<()> {
        let mut empty = true;
        self.kv.scan(&key::entries(dir), &[], &mut |_, _| {
            empty = false;
            ControlFlow::Break(())
        })?;
        match empty {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NotEmpty, format!("directory {dir} is not empty"))),
        }
    }
}

/// Removes a name in `dir` from an inode, and removes the inode if it was the last.
pub(super) fn lose_name(edit: &mut Edit<'_>, file: FileId, dir: FileId, now: Stamp) -> Result<Unlinked> {
    let inode = edit.inode(file)?;
    inode.leave(file, dir)?;
    inode.changed(now);
    let inode = inode.clone();
    let fate = match inode.kind() {
        FileKind::Directory => Fate::Gone,
        _ if !inode.parents.is_empty() => Fate::Named,
        FileKind::Symlink | FileKind::Special(_) => Fate::Gone,
        FileKind::File => Fate::Orphaned,
    };
    match fate {
        Fate::Named => {}
        Fate::Orphaned => edit.orphan(file),
        Fate::Gone => edit.erase(file)?,
    }
    Ok(Unlinked { file, inode, fate })
}

/// Fails unless `who` may remove a name from a directory; in a sticky directory only owners may.
pub(super) fn may_take(
    who: &Identity,
    dir: FileId,
    parent: &DirCopy,
    name: &Name,
    inode: &Inode,
) -> Result<()> {
    check_access(who, dir, parent, Access::ENTRIES)?;
    match is_restricted(who, parent) && !is_owner(who, inode) {
        true => Err(sticky(who, dir, parent.uid, name, inode)),
        false => Ok(()),
    }
}

/// Whether `who` may remove only its own files from a directory.
pub(super) fn is_restricted(who: &Identity, parent: &DirCopy) -> bool {
    parent.mode & STICKY != 0 && !is_owner(who, parent)
}

pub(super) fn sticky(who: &Identity, dir: FileId, owner: Uid, name: &Name, inode: &Inode) -> Error {
    let text = format!(
        "directory {dir} is sticky: only its owner (user {owner}) and the owner of {name} (user {}) may remove or \
         rename that, not user {}",
        inode.uid,
        who.uid,
        name = name.quoted()
    );
    Error::new(ErrorKind::NotPermitted, text)
}

/// Fails if the target is a directory and must not be, or is not and must be.
pub(super) fn check_kind(dir: FileId, name: &Name, target: Target, want_dir: bool) -> Result<()> {
    match (want_dir, target.kind == FileKind::Directory) {
        (true, false) => Err(not_directory(dir, name)),
        (false, true) => Err(is_directory(dir, name)),
        _ => Ok(()),
    }
}

pub(super) fn is_directory(dir: FileId, name: &Name) -> Error {
    Error::new(
        ErrorKind::IsDirectory,
        format!("{name} in directory {dir} is a directory", name = name.quoted()),
    )
}

pub(super) fn not_directory(dir: FileId, name: &Name) -> Error {
    Error::new(
        ErrorKind::NotDirectory,
        format!("{name} in directory {dir} is not a directory", name = name.quoted()),
    )
}
