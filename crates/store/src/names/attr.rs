//! Attributes, and the permissions to change them.

use super::{Attempt, Body, Extent, Inode, Names, SET_GID, SET_UID, check_access, is_owner};
use crate::meta::Batch;
use forebay_model::{
    Access, Change, Error, ErrorKind, FileId, FileKind, Identity, Incarnation, Result, ServerId, SetTime,
    Stamp, Striping, Time,
};

impl Names {
    /// Fails unless `who` may open a file with this access.
    pub fn check_open(&self, who: &Identity, file: FileId, access: Access) -> Result<Inode> {
        let inode = self.inode(file)?;
        match inode.kind() {
            FileKind::Directory if access.write => {
                let text = format!("file {file} is a directory: it cannot be opened for writing");
                return Err(Error::new(ErrorKind::IsDirectory, text));
            }
            FileKind::Symlink => {
                let text = format!("file {file} is a symbolic link: it cannot be opened");
                return Err(Error::new(ErrorKind::TooManyLinks, text));
            }
            FileKind::Special(_) => {
                let text =
                    format!("file {file} is a pipe, socket or device: only a client's kernel can open it");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            FileKind::File | FileKind::Directory => {}
        }
        check_access(who, file, &inode, access)?;
        Ok(inode)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, file: FileId) -> Result<Vec<u8>> {
        match self.inode(file)?.body {
            Body::Symlink { target } => Ok(target),
            _ => Err(Error::new(ErrorKind::Invalid, format!("file {file} is not a symbolic link"))),
        }
    }

    /// Changes all given attributes or none.
    pub fn set_attr(&self, who: &Identity, file: FileId, change: &Change, now: Stamp) -> Attempt<Inode> {
        let _held = self.locks.hold(&[file]);
        self.holds.file_is_free(file)?;
        let mut edit = self.edit();
        let inode = edit.inode(file)?;
        if *change == Change::default() {
            return Ok(inode.clone());
        }
        check_owner_change(who, file, inode, change)?;
        check_mode_change(who, file, inode, change)?;
        check_time_change(who, file, inode, change)?;
        if self.is_cluster() && inode.kind() == FileKind::Directory && is_seen_by_others(change) {
            self.copies.check_none_lent(file)?;
        }
        apply(who, inode, change, (now, self.times().time_of(now)));
        let result = inode.clone();
        edit.commit()?;
        Ok(result)
    }

    /// Sets the layout of new files in a directory.
    pub fn set_striping(
        &self,
        who: &Identity,
        dir: FileId,
        new: Option<Striping>,
        now: Stamp,
    ) -> Attempt<Inode> {
        let _held = self.locks.hold(&[dir]);
        self.holds.file_is_free(dir)?;
        let mut edit = self.edit();
        let inode = edit.inode(dir)?;
        check_owner(who, dir, inode, "layout")?;
        if self.is_cluster() {
            self.copies.check_none_lent(dir)?;
        }
        match &mut inode.body {
            Body::Directory { striping, .. } => *striping = new,
            _ => {
                let text = format!("file {dir} is not a directory: its layout was fixed when it was made");
                return Err(Error::new(ErrorKind::NotDirectory, text).into());
            }
        }
        inode.new_epoch();
        inode.changed(now);
        let result = inode.clone();
        edit.commit()?;
        Ok(result)
    }

    /// Records what is known of the size of a striped file.
    pub fn note_extent(&self, file: FileId, new: Extent) -> Result<()> {
        match self.inode(file)?.body {
            Body::File { extent, .. } if extent == new => Ok(()),
            _ => self.note_extent_via(file, new, |batch| self.kv.commit(batch)),
        }
    }

    /// Like [`Names::note_extent`], but committed by `via` together with other changes.
    pub fn note_extent_via(
        &self,
        file: FileId,
        new: Extent,
        via: impl FnOnce(Batch) -> Result<()>,
    ) -> Result<()> {
        let _held = self.locks.hold(&[file]);
        let mut edit = self.edit();
        match &mut edit.inode(file)?.body {
            Body::File { extent, .. } => *extent = new,
            _ => return Err(Error::new(ErrorKind::Invalid, format!("file {file} has no bytes"))),
        }
        edit.commit_via(via)
    }

    /// Records that a file's bytes on a server belong to another incarnation of its store.
    pub fn note_incarnation(&self, file: FileId, server: ServerId, current: Incarnation) -> Result<()> {
        let _held = self.locks.hold(&[file]);
        let mut edit = self.edit();
        if let Body::File { layout, incarnations, .. } = &mut edit.inode(file)?.body {
            let held = layout.servers.iter().zip(incarnations).filter(|(holder, _)| **holder == server);
            held.for_each(|(_, incarnation)| *incarnation = current);
        }
        edit.commit()
    }

    /// Clears the set-id bits of a file because a user other than root changes its bytes.
    pub fn drop_set_id(&self, file: FileId, now: Stamp) -> Result<()> {
        let _held = self.locks.hold(&[file]);
        let mut edit = self.edit();
        let inode = edit.inode(file)?;
        let before = inode.mode;
        inode.mode &= !SET_UID;
        // Without group execute permission the bit has another meaning.
        if inode.mode & 0o010 != 0 {
            inode.mode &= !SET_GID;
        }
        if inode.mode == before {
            return Ok(());
        }
        inode.changed(now);
        edit.commit()
    }
}

/// Whether a change invalidates copies of a directory.
fn is_seen_by_others(change: &Change) -> bool {
    change.mode.is_some() || change.uid.is_some() || change.gid.is_some()
}

fn apply(who: &Identity, inode: &mut Inode, change: &Change, (now, time): (Stamp, Time)) {
    let moment = |set: SetTime| match set {
        SetTime::Now => time,
        SetTime::To(time) => time,
    };
    if change.uid.is_some() || change.gid.is_some() {
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
        if inode.kind() != FileKind::Directory {
            // A program must not run with the rights of an owner that did not request it. Without group execute
            // permission the set-gid bit has another meaning, and stays for members of the group.
            inode.mode &= !SET_UID;
            if inode.mode & 0o010 != 0 || !in_group(who, inode) {
                inode.mode &= !SET_GID;
            }
        }
    }
    if let Some(mode) = change.mode {
        let kept = if in_group(who, inode) { 0o7777 } else { 0o7777 & !SET_GID };
        inode.mode = mode & kept;
    }
    if let Some(atime) = change.atime {
        inode.atime = moment(atime);
    }
    if let Some(mtime) = change.mtime {
        inode.mtime = moment(mtime);
        inode.mtime_set = now;
    }
    if is_seen_by_others(change) {
        inode.new_epoch();
    }
    inode.changed(now);
}

fn in_group(who: &Identity, inode: &Inode) -> bool {
    who.is_root() || who.in_group(inode.gid)
}

fn check_owner_change(who: &Identity, file: FileId, inode: &Inode, change: &Change) -> Result<()> {
    if who.is_root() {
        return Ok(());
    }
    if let Some(uid) = change.uid
        && (who.uid != inode.uid || uid != inode.uid)
    {
        let text = format!("only the superuser may give {} {file} to user {uid}", inode.noun());
        return Err(Error::new(ErrorKind::NotPermitted, text));
    }
    if let Some(gid) = change.gid
        && (who.uid != inode.uid || (gid != inode.gid && !who.in_group(gid)))
    {
        let text = format!(
            "only the owner (user {}) as a member, or the superuser, may give {} {file} to group {gid}",
            inode.uid,
            inode.noun()
        );
        return Err(Error::new(ErrorKind::NotPermitted, text));
    }
    Ok(())
}

fn check_mode_change(who: &Identity, file: FileId, inode: &Inode, change: &Change) -> Result<()> {
    let Some(mode) = change.mode else { return Ok(()) };
    if inode.kind() == FileKind::Symlink {
        let text = format!("file {file} is a symbolic link: its mode cannot be changed");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    if mode > 0o7777 {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("a mode has at most the bits 7777, not {mode:o}"),
        ));
    }
    check_owner(who, file, inode, "mode")
}

fn check_time_change(who: &Identity, file: FileId, inode: &Inode, change: &Change) -> Result<()> {
    match (change.atime, change.mtime) {
        (None, None) => return Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) if !is_owner(who, inode) => {
            return check_access(who, file, inode, Access::WRITE);
        }
        _ => {}
    }
    for set in [change.atime, change.mtime].into_iter().flatten() {
        if matches!(set, SetTime::To(Time { nanos: 1_000_000_000.., .. })) {
            return Err(Error::new(ErrorKind::Invalid, "a time has fewer than 1,000,000,000 nanoseconds"));
        }
    }
    check_owner(who, file, inode, "times")
}

fn check_owner(who: &Identity, file: FileId, inode: &Inode, what: &str) -> Result<()> {
    if is_owner(who, inode) {
        return Ok(());
    }
    let text = format!(
        "only the owner (user {}) may change the {what} of {} {file}, not user {}",
        inode.uid,
        inode.noun(),
        who.uid
    );
    Err(Error::new(ErrorKind::NotPermitted, text))
}
