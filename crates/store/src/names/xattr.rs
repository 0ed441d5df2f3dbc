//! Extended attributes, with the permission rules of Linux.
//!
//! | name | read by | written by | on |
//! |---|---|---|---|
//! | `user.*` | users with read permission | users with write permission; sticky: the owner | files, directories |
//! | `trusted.*` | root | root | everything |
//! | `security.*` | all users | root | everything |
//!
//! Other names are not supported.

use super::{FileId, Inode, Names, STICKY, check_access, damaged, is_owner, key};
use forebay_model::{Access, Error, ErrorKind, FileKind, Identity, Name, Result, Stamp, XattrMode};
use std::ops::ControlFlow;

/// Maximum size of the value of one attribute in bytes.
pub const MAX_XATTR: usize = 64 << 10;
/// Maximum total size of the names and values of all attributes of a file in bytes.
pub const MAX_XATTRS: usize = 256 << 10;
/// Maximum total size of the names of all attributes of a file, each with a NUL: the limit of `listxattr`.
const MAX_LIST: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
}

impl Names {
    /// The value of an attribute.
    pub fn get_xattr(&self, who: &Identity, file: FileId, name: &Name) -> Result<Vec<u8>> {
        check_read(who, file, &self.inode(file)?, name)?;
        self.kv.get(&key::xattr(file, name))?.ok_or_else(|| no_attribute(file, name))
    }

    /// The names of all attributes visible to `who`.
    pub fn list_xattrs(&self, who: &Identity, file: FileId) -> Result<Vec<Name>> {
        self.inode(file)?;
        let mut names = Vec::new();
        self.visit_xattrs(file, |name, _| {
            if who.is_root() || space_of(&name).is_ok_and(|space| space != Space::Trusted) {
                names.push(name);
            }
        })?;
        Ok(names)
    }

    /// Sets an attribute.
    pub fn set_xattr(
        &self,
        who: &Identity,
        file: FileId,
        name: &Name,
        value: &[u8],
        mode: XattrMode,
        now: Stamp,
    ) -> Result<()> {
        if value.len() > MAX_XATTR {
            let text = format!(
                "an attribute has at most {MAX_XATTR} bytes, {name} has {}",
                value.len(),
                name = name.quoted()
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        let _held = self.locks.hold(&[file]);
        let mut edit = self.edit();
        let inode = edit.inode(file)?;
        check_write(who, file, inode, name)?;
        inode.changed(now);
        let (mut exists, mut total, mut list) = (false, 0, 0);
        self.visit_xattrs(file, |other, size| {
            if other == *name {
                exists = true;
            } else {
                total += other.as_bytes().len() + size;
                list += other.as_bytes().len() + 1;
            }
        })?;
        match (mode, exists) {
            (XattrMode::Create, true) => {
                let text = format!("file {file} has an attribute {name} already", name = name.quoted());
                return Err(Error::new(ErrorKind::Exists, text));
            }
            (XattrMode::Replace, false) => return Err(no_attribute(file, name)),
            _ => {}
        }
        let length = name.as_bytes().len();
        if total + length + value.len() > MAX_XATTRS || list + length + 1 > MAX_LIST {
            let text = format!(
                "the attributes of file {file} would have more than {MAX_XATTRS} bytes, or too many names"
            );
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        self.xattr_filter.note(file);
        edit.put(key::xattr(file, name), value);
        edit.commit()
    }

    /// Removes an attribute.
    pub fn remove_xattr(&self, who: &Identity, file: FileId, name: &Name, now: Stamp) -> Result<()> {
        let _held = self.locks.hold(&[file]);
        let mut edit = self.edit();
        let inode = edit.inode(file)?;
        check_write(who, file, inode, name)?;
        inode.changed(now);
        let key = key::xattr(file, name);
        if self.kv.get(&key)?.is_none() {
            return Err(no_attribute(file, name));
        }
        edit.remove(key);
        edit.commit()
    }

    /// Visits the name of every attribute of a file and the length of its value.
    fn visit_xattrs(&self, file: FileId, mut visit: impl FnMut(Name, usize)) -> Result<()> {
        let mut bad = None;
        self.kv.scan(&key::xattrs(file), &[], &mut |key, value| match key::split_id(key)
            .map(|(_, name)| Name::new(name))
        {
            Some(Ok(name)) => {
                visit(name, value.len());
                ControlFlow::Continue(())
            }
            _ => {
                bad = Some(damaged(format!("\"{}\" is not the key of an attribute", key.escape_ascii())));
                ControlFlow::Break(())
            }
        })?;
        bad.map_or(Ok(()), Err)
    }
}

fn space_of(name: &Name) -> Result<Space> {
    let bytes = name.as_bytes();
    let spaces =
        [(&b"user."[..], Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)];
    for (prefix, space) in spaces {
        if bytes == prefix {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{name} is only the prefix of an attribute's name", name = name.quoted()),
            ));
        }
        if bytes.starts_with(prefix) {
            return Ok(space);
        }
    }
    let text = format!(
        "attribute {name}: only user.*, trusted.* and security.* are supported",
        name = name.quoted()
    );
    Err(Error::new(ErrorKind::Unsupported, text))
}

fn check_read(who: &Identity, file: FileId, inode: &Inode, name: &Name) -> Result<()> {
    match space_of(name)? {
        Space::Trusted if !who.is_root() => Err(no_attribute(file, name)),
        Space::User if !has_user_attributes(inode) => Err(no_attribute(file, name)),
        Space::User => check_access(who, file, inode, Access::READ),
        Space::Trusted | Space::Security => Ok(()),
    }
}

fn check_write(who: &Identity, file: FileId, inode: &Inode, name: &Name) -> Result<()> {
    let refuse = |why: &str| {
        let text = format!("attribute {name} of {} {file}: {why}", inode.noun(), name = name.quoted());
        Err(Error::new(ErrorKind::NotPermitted, text))
    };
    match space_of(name)? {
        Space::Trusted | Space::Security if !who.is_root() => refuse("only the superuser may change it"),
        Space::Trusted | Space::Security => Ok(()),
        Space::User if !has_user_attributes(inode) => refuse("only files and directories can have it"),
        Space::User
            if inode.kind() == FileKind::Directory && inode.mode & STICKY != 0 && !is_owner(who, inode) =>
        {
            refuse("the directory is sticky, so only its owner may change it")
        }
        Space::User => check_access(who, file, inode, Access::WRITE),
    }
}

/// Only these types have `user.*` attributes: the mode of other files does not control access to bytes.
fn has_user_attributes(inode: &Inode) -> bool {
    matches!(inode.kind(), FileKind::File | FileKind::Directory)
}

fn no_attribute(file: FileId, name: &Name) -> Error {
    Error::new(ErrorKind::NoAttribute, format!("file {file} has no attribute {name}", name = name.quoted()))
}
