//! Importing files from the back end into the namespace.

use super::key::{self, Target};
use super::{Attempt, Body, Inode, Names, damaged, taken};
use crate::meta::Batch;
use forebay_model::{FileId, FileKind, Gid, Name, Result, Stamp, Time, Uid};
use std::ops::ControlFlow;

/// A file found in the back end, to be imported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Fields specific to its type.
    pub body: Body,
    /// Permission bits with set-id and sticky, `0o7777`.
    pub mode: u16,
    /// Owner and group.
    pub owner: (Uid, Gid),
    /// Last access.
    pub atime: Time,
    /// Last modification.
    pub mtime: Time,
    /// Last change.
    pub ctime: Time,
}

impl Names {
    /// Creates an entry for a file that already exists in the back end. No permission is checked, because the file is
    /// not new. The batch that `with` builds for the new file is committed with it.
    pub fn bring(
        &self,
        dir: FileId,
        name: &Name,
        arrival: Arrival,
        now: Stamp,
        with: impl FnOnce(FileId) -> Result<Batch>,
    ) -> Attempt<(FileId, Inode)> {
        let _held = self.locks.hold(&[dir]);
        let mut edit = self.edit();
        self.dir(dir)?;
        if self.entry(dir, name)?.is_some() {
            return Err(taken(dir, name).into());
        }
        let Arrival { body, mode, owner, atime, mtime, ctime } = arrival;
        let ctime = self.times().kept(ctime);
        let inode = Inode { atime, mtime, ctime, ..Inode::new(body, dir, mode & 0o7777, owner, now) };
        let kind = inode.kind();
        edit.count(dir, i32::from(kind == FileKind::Directory))?;
        let file = self.ids.next(&*self.kv)?;
        edit.make(file, &inode);
        edit.put_entry(dir, name, Target { file, kind });
        edit.append(with(file)?);
        edit.commit()?;
        Ok((file, inode))
    }

    /// Passes a file's inode to `act`, or `None` if it is gone, while the file neither gains nor loses a name.
    pub fn hold<T>(&self, file: FileId, act: impl FnOnce(Option<&Inode>) -> Result<T>) -> Attempt<T> {
        let _held = self.locks.hold(&[file]);
        self.holds.file_is_free(file)?;
        Ok(act(self.find_inode(file)?.as_ref())?)
    }

    /// Whether an entry leads to a file.
    pub fn leads(&self, dir: FileId, name: &Name, file: FileId) -> Result<bool> {
        Ok(self.entry(dir, name)?.is_some_and(|target| target.file == file))
    }

    /// The names of a file in a directory.
    pub fn names_in(&self, dir: FileId, file: FileId) -> Result<Vec<Name>> {
        let (mut names, mut bad) = (Vec::new(), None);
        self.kv.scan(&key::entries(dir), &[], &mut |key, value| {
            let entry =
                key::split_entry(key).and_then(|(_, _, name)| Ok((Target::decode(dir, &name, value)?, name)));
            match entry {
                Ok((target, name)) if target.file == file => names.push(name),
                Ok(_) => {}
                Err(error) => {
                    bad = Some(damaged(error));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        bad.map_or(Ok(names), Err)
    }
}
