//! New files, directories and links.

use super::key::Target;
use super::{Body, Inode, MAX_LINKS, Names, SET_GID, demand, no_file, taken};
use forebay_model::{
    Access, Error, ErrorKind, FileId, FileKind, Gid, Identity, Incarnation, Layout, MAX_PATH, Name, Result,
    Special, Stamp,
};

impl Names {
    /// Makes an empty file whose bytes will be held by this life of the store.
    #[expect(clippy::too_many_arguments, reason = "each is a different thing that a new file needs to know")]
    pub fn create_file(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        layout: Layout,
        incarnation: Incarnation,
        now: Stamp,
    ) -> Result<(FileId, Inode)> {
        let body = Body::File { layout, incarnations: vec![incarnation] };
        self.make(who, dir, name, mode & 0o7777, body, now)
    }

    /// Makes an empty directory.
    pub fn make_dir(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mode: u16,
        now: Stamp,
    ) -> Result<(FileId, Inode)> {
        let body = Body::Directory { subdirs: 0, epoch: 0 };
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
    ) -> Result<(FileId, Inode)> {
        if target.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "a symbolic link cannot lead to the empty path"));
        }
        if target.len() >= MAX_PATH {
            let text = format!("the target of a symbolic link has fewer than {MAX_PATH} bytes");
            return Err(Error::new(ErrorKind::NameTooLong, text));
        }
        if target.contains(&0) {
            return Err(Error::new(ErrorKind::Invalid, "the target of a symbolic link holds no NUL byte"));
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
    ) -> Result<(FileId, Inode)> {
        if matches!(special, Special::Character(_) | Special::Block(_)) && !who.is_root() {
            let text = format!("only the superuser may make a device, not user {}", who.uid);
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        self.make(who, dir, name, mode & 0o7777, Body::Special { special }, now)
    }

    /// Gives a file one more name.
    pub fn link(&self, who: &Identity, file: FileId, dir: FileId, name: &Name, now: Stamp) -> Result<Inode> {
        let _held = self.locks.hold(&[file, dir]);
        let mut edit = self.edit();
        self.vacant(who, dir, edit.directory(dir)?, name)?;
        let inode = edit.inode(file)?;
        let kind = inode.kind();
        match kind {
            FileKind::Directory => {
                let text = format!("file {file} is a directory: it cannot have a second name");
                return Err(Error::new(ErrorKind::NotPermitted, text));
            }
            _ if inode.parents.is_empty() => return Err(no_file(file)),
            _ if inode.parents.len() >= MAX_LINKS => {
                let text = format!("file {file} has {MAX_LINKS} names: it cannot have more");
                return Err(Error::new(ErrorKind::LinkLimit, text));
            }
            _ => {}
        }
        inode.parents.push(dir);
        inode.changed(now);
        let result = inode.clone();
        edit.inode(dir)?.entries_changed(now);
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
    ) -> Result<(FileId, Inode)> {
        let _held = self.locks.hold(&[dir]);
        let mut edit = self.edit();
        let parent = edit.directory(dir)?;
        self.vacant(who, dir, parent, name)?;
        let (mode, gid) = inherit(who, parent, mode, &body);
        parent.entries_changed(now);
        let inode = Inode::new(body, dir, mode, (who.uid, gid), now);
        let kind = inode.kind();
        if kind == FileKind::Directory {
            parent.count_subdir(dir, 1)?;
        }
        let file = self.ids.next(&*self.kv)?;
        edit.make(file, inode.clone());
        edit.put_entry(dir, name, Target { file, kind });
        edit.commit()?;
        Ok((file, inode))
    }

    /// Fails unless `who` may make this entry. That a name is taken is said before that it could not be made,
    /// because it can be seen by whoever may search the directory.
    fn vacant(&self, who: &Identity, dir: FileId, inode: &Inode, name: &Name) -> Result<()> {
        demand(who, dir, inode, Access::EXECUTE)?;
        if self.entry(dir, name)?.is_some() {
            return Err(taken(dir, name));
        }
        demand(who, dir, inode, Access::ENTRIES)
    }
}

/// The mode and group of something new: a set-group-id directory hands on its group, and the bit to directories.
fn inherit(who: &Identity, parent: &Inode, mode: u16, body: &Body) -> (u16, Gid) {
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
