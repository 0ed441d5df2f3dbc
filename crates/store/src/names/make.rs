//! Creation of files, directories and links.

use super::key::{self, Target};
use super::{
    Attempt, Body, DirCopy, Extent, Inode, MAX_LINKS, Names, Obstacle, SET_GID, check_access, is_owner,
    no_file, taken,
};
use crate::meta::Batch;
use forebay_model::{
    Access, Error, ErrorKind, FileId, FileKind, Gid, Identity, Incarnation, Layout, MAX_PATH, Name, Result,
    Special, Stamp,
};

impl Names {
    /// Creates an empty file whose bytes these incarnations of the stores in its layout will hold. `before` receives
    /// its id before the file is visible.
    #[expect(clippy::too_many_arguments, reason = "the arguments are independent of each other")]
    pub fn create_file<T>(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        layout: Layout,
        incarnations: Vec<Incarnation>,
        now: Stamp,
        before: impl FnOnce(FileId) -> Result<T>,
    ) -> Attempt<(FileId, Inode, T)> {
        let before = |file| Ok((before(file)?, Batch::default()));
        self.create_file_with(who, dir, name, mode, layout, incarnations, now, before)
    }

    /// The same; `before` also returns changes that are committed with the file's name.
    #[expect(clippy::too_many_arguments, reason = "the arguments are independent of each other")]
    pub fn create_file_with<T>(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        layout: Layout,
        incarnations: Vec<Incarnation>,
        now: Stamp,
        before: impl FnOnce(FileId) -> Result<(T, Batch)>,
    ) -> Attempt<(FileId, Inode, T)> {
        let body = Body::File { layout, incarnations, extent: Extent::default() };
        self.make_after(who, dir, name, mode & 0o7777, body, now, before)
    }

    /// Creates an empty directory, which inherits the layout for new files from its parent.
    pub fn make_dir(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        now: Stamp,
    ) -> Attempt<(FileId, Inode)> {
        let body = Body::Directory { epoch: 0, name: Some(name.clone()), striping: None };
        self.make(who, dir, name, mode & 0o1777, body, now)
    }

    /// Creates a symbolic link.
    pub fn symlink(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        target: &[u8],
        now: Stamp,
    ) -> Attempt<(FileId, Inode)> {
        if target.is_empty() {
            let text = "the target of a symbolic link cannot be empty";
            return Err(Error::new(ErrorKind::NotFound, text).into());
        }
        if target.len() >= MAX_PATH {
            let text = format!("the target of a symbolic link must have fewer than {MAX_PATH} bytes");
            return Err(Error::new(ErrorKind::NameTooLong, text).into());
        }
        if target.contains(&0) {
            let text = "the target of a symbolic link must not contain a NUL byte";
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        self.make(who, dir, name, 0o777, Body::Symlink { target: target.to_vec() }, now)
    }

    /// Creates a pipe, socket or device.
    pub fn make_special(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        special: Special,
        now: Stamp,
    ) -> Attempt<(FileId, Inode)> {
        if matches!(special, Special::Character(_) | Special::Block(_)) && !who.is_root() {
            let text = format!("only root may create a device, not uid {}", who.uid);
            return Err(Error::new(ErrorKind::NotPermitted, text).into());
        }
        self.make(who, dir, name, mode & 0o7777, Body::Special { special }, now)
    }

    /// Adds a name to a file.
    pub fn link(&self, who: &Identity, file: FileId, dir: FileId, name: &Name, now: Stamp) -> Attempt<Inode> {
        self.add_name(who, file, dir, name, now, false)
    }

    /// Gives a file that has no name its first; for its owner, who has it open.
    pub fn link_orphan(
        &self,
        who: &Identity,
        file: FileId,
        dir: FileId,
        name: &Name,
        now: Stamp,
    ) -> Attempt<Inode> {
        self.add_name(who, file, dir, name, now, true)
    }

    fn add_name(
        &self,
        who: &Identity,
        file: FileId,
        dir: FileId,
        name: &Name,
        now: Stamp,
        orphan: bool,
    ) -> Attempt<Inode> {
        let _held = self.locks.hold(&[file, dir]);
        self.check_vacant(who, dir, &self.dir(dir)?, name)?;
        if !self.is_here(file) {
            return Err(Obstacle::SeveralShards.into());
        }
        self.holds.file_is_free(file)?;
        let mut edit = self.edit();
        let inode = edit.inode(file)?;
        let kind = inode.kind();
        let is_orphan =
            orphan && kind == FileKind::File && inode.parents.is_empty() && is_owner(who, &*inode);
        if !is_orphan {
            check_linkable(file, inode)?;
        }
        inode.parents.push(dir);
        inode.changed(now);
        let result = inode.clone();
        if is_orphan {
            edit.remove(key::orphan(file));
        }
        edit.entries_changed(dir, 0, now)?;
        edit.put_entry(dir, name, Target { file, kind });
        edit.commit()?;
        Ok(result)
    }

    fn make(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        body: Body,
        now: Stamp,
    ) -> Attempt<(FileId, Inode)> {
        let (file, inode, ()) =
            self.make_after(who, dir, name, mode, body, now, |_| Ok(((), Batch::default())))?;
        Ok((file, inode))
    }

    #[expect(clippy::too_many_arguments, reason = "the arguments are independent of each other")]
    fn make_after<T>(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        body: Body,
        now: Stamp,
        before: impl FnOnce(FileId) -> Result<(T, Batch)>,
    ) -> Attempt<(FileId, Inode, T)> {
        let _held = self.locks.hold(&[dir]);
        let mut edit = self.edit();
        let parent = self.dir(dir)?;
        self.check_vacant(who, dir, &parent, name)?;
        let (mode, gid) = inherit(who, &parent, mode, &body);
        let body = match body {
            Body::Directory { epoch, name, .. } => Body::Directory { epoch, name, striping: parent.striping },
            other => other,
        };
        let time = self.times().time_of(now);
        let inode = Inode { atime: time, mtime: time, ..Inode::new(body, dir, mode, (who.uid, gid), now) };
        let kind = inode.kind();
        edit.entries_changed(dir, i32::from(kind == FileKind::Directory), now)?;
        let file = self.ids.next(&*self.kv)?;
        let (done, with) = before(file)?;
        if kind == FileKind::Directory {
            // The id is new, so no entries with it exist.
            self.kv.begins(&key::entries(file));
        }
        edit.make(file, &inode);
        edit.put_entry(dir, name, Target { file, kind });
        edit.append(with);
        edit.commit()?;
        Ok((file, inode, done))
    }

    /// Fails unless `who` may create this entry. An existing name is reported before a missing write permission,
    /// because a user with search permission can see it. The caller holds the directory's stripe.
    pub(super) fn check_vacant(
        &self,
        who: &Identity,
        dir: FileId,
        copy: &DirCopy,
        name: &Name,
    ) -> Attempt<()> {
        self.check_home(dir, name)?;
        check_access(who, dir, copy, Access::EXECUTE)?;
        self.holds.entry_is_free(dir, name)?;
        if self.entry(dir, name)?.is_some() {
            return Err(taken(dir, name).into());
        }
        Ok(check_access(who, dir, copy, Access::ENTRIES)?)
    }
}

/// Fails unless a file can have one more name.
pub(super) fn check_linkable(file: FileId, inode: &Inode) -> Result<()> {
    match inode.kind() {
        FileKind::Directory => {
            let text = format!("file {file} is a directory: it cannot have a hard link");
            Err(Error::new(ErrorKind::NotPermitted, text))
        }
        _ if inode.parents.is_empty() => Err(no_file(file)),
        _ if inode.parents.len() >= MAX_LINKS => {
            let text = format!("file {file} has the maximum of {MAX_LINKS} names");
            Err(Error::new(ErrorKind::LinkLimit, text))
        }
        _ => Ok(()),
    }
}

/// The mode and group of a new file: a set-group-id directory passes on its group, and the bit to subdirectories.
fn inherit(who: &Identity, parent: &DirCopy, mode: u16, body: &Body) -> (u16, Gid) {
    let inherits = parent.mode & SET_GID != 0;
    let gid = if inherits { parent.gid } else { who.gid };
    let mode = match body {
        Body::Directory { .. } if inherits => mode | SET_GID,
        // A user cannot create a program that runs with the rights of a group it is not in.
        Body::File { .. } if !who.is_root() && !who.in_group(gid) => mode & !SET_GID,
        _ => mode,
    };
    (mode, gid)
}
