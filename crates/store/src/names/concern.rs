//! Whose attributes a record is part of.

use super::key::{ENTRIES, INODES, SHARES, Target, split_id};
use super::{Body, Inode};
use forebay_model::FileId;

/// What a change of a record is about.
pub(crate) struct Concern {
    /// The file whose attributes, or names, change.
    pub(crate) file: FileId,
    /// Whether ways through it may lead elsewhere, or be closed, from then on.
    pub(crate) tree: bool,
}

/// What a change of a record is about, if that is a file. A name that goes away is known by the inode that loses it.
pub(crate) fn concern(key: &[u8], value: Option<&[u8]>) -> Option<Concern> {
    let (letter, _) = key.split_at_checked(1)?;
    match (letter, value) {
        (INODES, value) => {
            let (file, _) = split_id(key)?;
            Some(Concern { file, tree: value.is_some_and(|value| is_known_elsewhere(file, value)) })
        }
        (SHARES, _) => split_id(key).map(|(file, _)| Concern { file, tree: false }),
        (ENTRIES, Some(value)) => {
            Target::read(value).map(|target| Concern { file: target.file, tree: false })
        }
        _ => None,
    }
}

/// Whether this is a directory whose mode, owner, parent or name has changed since it was made. One that goes away takes
/// nothing with it: it is empty.
fn is_known_elsewhere(file: FileId, inode: &[u8]) -> bool {
    let inode = Inode::decode(file, inode);
    inode.is_ok_and(|inode| matches!(inode.body, Body::Directory { epoch, .. } if epoch > 0))
}
