//! New files, directories and links.

use super::key::{self, Target};
use super::{
    Attempt, Body, DirCopy, Extent, Inode, MAX_LINKS, Names, Obstacle, SET_GID, demand, no_file, taken,
};
use forebay_model::{
    Access, Error, ErrorKind, FileId, FileKind, Gid, Identity, Incarnation, Layout, MAX_PATH, Name, Result,
    Special, Stamp,
};

impl Names {
    /// Makes an empty file whose bytes will be held by these lives of the stores in its layout. `before` is told its
    /// number before anybody can see it.
    #[expect(clippy::too_many_arguments, reason = "each is a different thing that a new file needs to know")]
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
        let body = Body::File { layout, incarnations, extent: Extent::default() };
        self.make_after(who, dir, name, mode & 0o7777, body, now, before)
    }

    /// Makes an empty directory, whose files are laid out as those of its parent.
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

    /// Makes a symbolic link.
    pub fn symlink(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        target: &[u8],
        now: Stamp,
    ) -> Attempt<(FileId, Inode)> {
        if target.is_empty() {
            let text = "a symbolic link cannot lead to the empty path";
            return Err(Error::new(ErrorKind::NotFound, text).into());
        }
        if target.len() >= MAX_PATH {
            let text = format!("the target of a symbolic link has fewer than {MAX_PATH} bytes");
            return Err(Error::new(ErrorKind::NameTooLong, text).into());
        }
        if target.contains(&0) {
            let text = "the target of a symbolic link holds no NUL byte";
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        self.make(who, dir, name, 0o777, Body::Symlink { target: target.to_vec() }, now)
    }

    /// Makes a pipe, socket or device.
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
            let text = format!("only the superuser may make a device, not user {}", who.uid);
            return Err(Error::new(ErrorKind::NotPermitted, text).into());
        }
        self.make(who, dir, name, mode & 0o7777, Body::Special { special }, now)
    }

    /// Gives a file one more name.
    pub fn link(&self, who: &Identity, file: FileId, dir: FileId, name: &Name, now: Stamp) -> Attempt<Inode> {
        let _held = self.locks.hold(&[file, dir]);
        self.vacant(who, dir, &self.dir(dir)?, name)?;
        if !self.is_here(file) {
            return Err(Obstacle::Several.into());
        }
        self.holds.file_is_free(file)?;
        let mut edit = self.edit();
        let inode = edit.inode(file)?;
        let kind = inode.kind();
        demand_linkable(file, inode)?;
        inode.parents.push(dir);
        inode.changed(now);
        let result = inode.clone();
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
        let (file, inode, ()) = self.make_after(who, dir, name, mode, body, now, |_| Ok(()))?;
        Ok((file, inode))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "each is a different thing that something new needs to know"
    )]
    fn make_after<T>(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        body: Body,
        now: Stamp,
        before: impl FnOnce(FileId) -> Result<T>,
    ) -> Attempt<(FileId, Inode, T)> {
        let _held = self.locks.hold(&[dir]);
        let mut edit = self.edit();
        let parent = self.dir(dir)?;
        self.vacant(who, dir, &parent, name)?;
        let (mode, gid) = inherit(who, &parent, mode, &body);
        let body = match body {
            Body::Directory { epoch, name, .. } => Body::Directory { epoch, name, striping: parent.striping },
            other => other,
        };
        let inode = Inode::new(body, dir, mode, (who.uid, gid), now);
        let kind = inode.kind();
        edit.entries_changed(dir, i32::from(kind == FileKind::Directory), now)?;
        let file = self.ids.next(&*self.kv)?;
        let done = before(file)?;
        if kind == FileKind::Directory {
            // No other had its number.
            self.kv.begins(&key::entries(file));
        }
        edit.make(file, &inode);
        edit.put_entry(dir, name, Target { file, kind });
        edit.commit()?;
        Ok((file, inode, done))
    }

    /// Fails unless `who` may make this entry. That a name is taken is said before that it could not be made,
    /// because it can be seen by whoever may search the directory. The caller holds the directory's stripe.
    pub(super) fn vacant(&self, who: &Identity, dir: FileId, copy: &DirCopy, name: &Name) -> Attempt<()> {
        self.demand_home(dir, name)?;
        demand(who, dir, copy, Access::EXECUTE)?;
        self.holds.entry_is_free(dir, name)?;
        if self.entry(dir, name)?.is_some() {
            return Err(taken(dir, name).into());
        }
        Ok(demand(who, dir, copy, Access::ENTRIES)?)
    }
}

/// Fails unless a file can have one more name.
pub(super) fn demand_linkable(file: FileId, inode: &Inode) -> Result<()> {
    match inode.kind() {
        FileKind::Directory => {
            let text = format!("file {file} is a directory: it cannot have a second name");
            Err(Error::new(ErrorKind::NotPermitted, text))
        }
        _ if inode.parents.is_empty() => Err(no_file(file)),
        _ if inode.parents.len() >= MAX_LINKS => {
            let text = format!("file {file} has {MAX_LINKS} names: it cannot have more");
            Err(Error::new(ErrorKind::LinkLimit, text))
        }
        _ => Ok(()),
    }
}

/// The mode and group of something new: a set-group-id directory hands on its group, and the bit to directories.
fn inherit(who: &Identity, parent: &DirCopy, mode: u16, body: &Body) -> (u16, Gid) {
    let inherits = parent.mode & SET_GID != 0;
    let gid = if inherits { parent.gid } else { who.gid };
    let mode = match body {
        Body::Directory { .. } if inherits => mode | SET_GID,
        // Nobody makes a program that runs with the rights of a group they are not in.
        Body::File { .. } if !who.is_root() && !who.in_group(gid) => mode & !SET_GID,
        _ => mode,
    };
    (mode, gid)
}
