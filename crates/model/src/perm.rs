//! Permission checks.

use crate::{Attr, FileKind, Gid, Uid};
use serde::{Deserialize, Serialize};

/// Most supplementary groups of an identity.
pub const MAX_GROUPS: usize = 65_536;

/// The user and groups of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The user.
    pub uid: Uid,
    /// The primary group.
    pub gid: Gid,
    /// All other groups.
    pub groups: Vec<Gid>,
}

impl Identity {
    /// The superuser.
    #[must_use]
    pub fn root() -> Identity {
        Identity { uid: Uid::ROOT, gid: Gid(0), groups: Vec::new() }
    }

    /// Whether this is the superuser, who passes permission checks.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == Uid::ROOT
    }

    /// Whether this identity is in a group.
    #[must_use]
    pub fn in_group(&self, gid: Gid) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The requested access to a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Access {
    /// Read its bytes, or list the directory.
    pub read: bool,
    /// Write its bytes, or change the directory's entries.
    pub write: bool,
    /// Execute it, or search the directory.
    pub execute: bool,
}

impl Access {
    /// Only reading.
    pub const READ: Access = Access { read: true, write: false, execute: false };
    /// Only writing.
    pub const WRITE: Access = Access { read: false, write: true, execute: false };
    /// Reading and writing.
    pub const BOTH: Access = Access { read: true, write: true, execute: false };
    /// Executing it, or searching the directory.
    pub const EXECUTE: Access = Access { read: false, write: false, execute: true };
    /// Creating or removing entries of a directory: write and search.
    pub const ENTRIES: Access = Access { read: false, write: true, execute: true };
}

/// Whether `who` may have `access` to a file with these attributes.
///
/// Only the first matching class decides, as in POSIX: an owner whose bits deny the access is refused even
/// where the group's bits would allow it. The superuser may do everything, but executes only files with an
/// execute bit.
#[must_use]
pub fn may(who: &Identity, attr: &Attr, access: Access) -> bool {
    if who.is_root() {
        return !access.execute || attr.kind == FileKind::Directory || attr.mode & 0o111 != 0;
    }
    let class = match (who.uid == attr.uid, who.in_group(attr.gid)) {
        (true, _) => attr.mode >> 6,
        (false, true) => attr.mode >> 3,
        (false, false) => attr.mode,
    };
    let wanted = u16::from(access.read) << 2 | u16::from(access.write) << 1 | u16::from(access.execute);
    class & wanted == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileId, Time};

    fn check(mode: u16, uid: u32, gid: u32, groups: &[u32], access: Access) -> bool {
        let attr = Attr {
            id: FileId(9),
            kind: FileKind::File,
            mode,
            links: 1,
            uid: Uid(10),
            gid: Gid(20),
            size: 0,
            buffered: 0,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
        };
        let who =
            Identity { uid: Uid(uid), gid: Gid(gid), groups: groups.iter().copied().map(Gid).collect() };
        may(&who, &attr, access)
    }

    #[test]
    fn first_matching_class_decides() {
        assert!(check(0o600, 10, 1, &[], Access::BOTH));
        assert!(!check(0o077, 10, 20, &[], Access::READ), "the owner's own bits forbid it");
        assert!(check(0o040, 11, 20, &[], Access::READ));
        assert!(check(0o040, 11, 1, &[7, 20], Access::READ), "a further group counts");
        assert!(!check(0o004, 11, 20, &[], Access::READ), "the group's bits decide for the group");
        assert!(check(0o004, 11, 1, &[], Access::READ));
        assert!(!check(0o004, 11, 1, &[], Access::BOTH));
    }

    #[test]
    fn root_passes_but_executes_only_with_an_execute_bit() {
        assert!(check(0o000, 0, 0, &[], Access::BOTH));
        assert!(!check(0o666, 0, 0, &[], Access::EXECUTE));
        assert!(check(0o001, 0, 0, &[], Access::EXECUTE));
    }
}
