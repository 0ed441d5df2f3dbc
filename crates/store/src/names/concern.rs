//! Maps a changed record to the file whose attributes it affects.

use super::key::{BACKING_RECORDS, ENTRIES, INODES, SHARES, Target, split_id};
use super::{Body, Inode};
use forebay_model::FileId;

/// The effect of a changed record.
pub(crate) struct Concern {
    /// The file whose attributes or names change.
    pub(crate) file: FileId,
    /// Whether paths through it may change or become inaccessible.
    pub(crate) tree: bool,
}

/// The effect of a changed record, if it concerns a file. A removed name is reported by the inode that loses it.
pub(crate) fn concern(key: &[u8], value: Option<&[u8]>) -> Option<Concern> {
    let (letter, _) = key.split_at_checked(1)?;
    match (letter, value) {
        (INODES, value) => {
            let (file, _) = split_id(key)?;
            Some(Concern { file, tree: value.is_some_and(|value| is_known_elsewhere(file, value)) })
        }
        // What is in the back end can change there without notice: its answers are leased no longer.
        (BACKING_RECORDS, _) => split_id(key).map(|(file, _)| Concern { file, tree: false }),
        (SHARES, _) => split_id(key).map(|(file, _)| Concern { file, tree: false }),
        (ENTRIES, Some(value)) => {
            Target::read(value).map(|target| Concern { file: target.file, tree: false })
        }
        _ => None,
    }
}

/// Whether this is a directory whose mode, owner, parent or name has changed since its creation. A removed directory
/// affects no path: it is empty.
fn is_known_elsewhere(file: FileId, inode: &[u8]) -> bool {
    let inode = Inode::decode(file, inode);
    inode.is_ok_and(|inode| matches!(inode.body, Body::Directory { epoch, .. } if epoch > 0))
}
