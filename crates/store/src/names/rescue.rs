//! Repair of a namespace at run time after the store of another server was lost.
//!
//! **Invariant**: no function of this module removes an inode or bytes; [`Names::drop_dangling`] removes a name whose
//! inode is lost.

use super::messages::{InodePart, NameRequest, Part};
use super::plan::{Known, NoPlan, Plan, Planned};
use super::rename::Place;
use super::{Attempt, Body, Inode, Names, Target, no_file, taken};
use forebay_model::{FileId, FileKind, Name, Stamp};

impl Names {
    /// Removes one name in `dir` from the inode of a file that has others, because the store of the entry is lost.
    /// False if it is the only name that the inode records.
    pub fn forget_name(&self, file: FileId, dir: FileId, now: Stamp) -> Attempt<bool> {
        let _held = self.locks.hold(&[file]);
        self.holds.file_is_free(file)?;
        let mut edit = self.edit();
        let inode = edit.inode(file)?;
        if inode.kind() == FileKind::Directory || inode.parents.len() < 2 {
            return Ok(false);
        }
        inode.leave(file, dir)?;
        inode.changed(now);
        edit.commit()?;
        Ok(true)
    }

    /// Removes a name whose inode is lost. False if the name has another target by now.
    pub fn drop_dangling(&self, dir: FileId, name: &Name, file: FileId, now: Stamp) -> Attempt<bool> {
        let _held = self.locks.hold(&[dir]);
        self.holds.entry_is_free(dir, name)?;
        let Some(target) = self.entry(dir, name)?.filter(|target| target.file == file) else {
            return Ok(false);
        };
        let mut edit = self.edit();
        edit.entries_changed(dir, -i32::from(target.kind == FileKind::Directory), now)?;
        edit.remove_entry(dir, name);
        edit.commit()?;
        Ok(true)
    }

    /// Recreates the lost inode of a directory of ours, with its remaining parent and name. It belongs to the owner of
    /// the root directory and is accessible to that owner only, because its mode is lost.
    pub(super) fn revive(&self, dir: FileId, place: Option<&(FileId, Name)>) -> Attempt<()> {
        let root = self.dir(FileId::ROOT)?;
        let _held = self.locks.hold(&[dir]);
        if self.find_inode(dir)?.is_some() {
            return Ok(());
        }
        if dir.maker() != self.server() || dir >= self.next_id() {
            return Err(no_file(dir).into());
        }
        let (parent, name) = match place {
            Some((parent, name)) => (*parent, Some(name.clone())),
            None => (FileId::ROOT, None),
        };
        let body = Body::Directory { epoch: 0, name, striping: None };
        let inode = Inode::new(body, parent, 0o700, (root.uid, root.gid), Stamp::default());
        let mut edit = self.edit();
        edit.make(dir, &inode);
        Ok(edit.commit()?)
    }

    /// Plans a new name in the root directory for a file or directory whose name in `dir` was lost.
    pub(super) fn plan_rescue(
        &self,
        (file, dir): (FileId, FileId),
        name: &Name,
        known: &Known,
    ) -> Result<Planned, NoPlan> {
        if self.known_entry(FileId::ROOT, name, known)?.is_some() {
            return Err(taken(FileId::ROOT, name).into());
        }
        let authority = self.known_authority(file)?;
        let kind = match known.kinds.get(&file) {
            Some(&kind) => kind,
            None if authority == self.server() => self.inode(file)?.kind(),
            None => return Err(NoPlan::Unknown(authority, NameRequest::Kind(file))),
        };
        let mut plan = Plan::default();
        self.add_entry(&mut plan, Place { dir: FileId::ROOT, name }, None, Some(Target { file, kind }));
        let part = InodePart { leaves: Some(dir), joins: Some(FileId::ROOT), ..InodePart::of(file, name) };
        plan.parts.push((authority, 0, Part::Inode(part)));
        Ok(Planned::Parts(Box::new(plan)))
    }
}
