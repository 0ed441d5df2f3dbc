//! What a back end need not hold: further names of a file, and extended attributes. Only brought there when the buffer is
//! drained for the last time, because the union knows one name of a file behind, and no attributes.

use super::Union;
use super::birth::taken_behind;
use crate::service::Service;
use forebay_model::{ErrorKind, FileId, FileKind, Identity, Name, Result};
use forebay_store::Inode;

/// What came of it.
#[derive(Default)]
pub(crate) struct Extras {
    /// Directories whose time of change is our doing.
    pub(crate) dirs: Vec<FileId>,
    /// What could not be kept.
    pub(crate) notes: Vec<String>,
}

impl Service {
    /// Whether there is anything of this kind.
    pub(crate) fn has_extras(&self, file: FileId, inode: &Inode) -> Result<bool> {
        let is_linked = inode.kind() != FileKind::Directory && inode.parents.len() > 1;
        Ok(is_linked || !self.store.names().list_xattrs(&Identity::root(), file)?.is_empty())
    }

    pub(super) fn add_extras(
        &self,
        union: &Union,
        file: FileId,
        inode: &Inode,
        (path, serial): (&[Name], u64),
        extras: &mut Extras,
    ) -> Result<()> {
        let (names, root) = (self.store.names(), Identity::root());
        if inode.kind() != FileKind::Symlink {
            for name in names.list_xattrs(&root, file)? {
                let value = names.get_xattr(&root, file, &name)?;
                let set = union.ask(|backend| backend.set_xattr(path, &name, &value));
                kept(set, "extended attributes could not be kept: the back end does not take them", extras)?;
            }
        }
        if inode.kind() == FileKind::Directory || inode.parents.len() < 2 {
            return Ok(());
        }
        let mut dirs = inode.parents.clone();
        dirs.sort_unstable();
        dirs.dedup();
        for dir in dirs {
            for name in names.names_in(dir, file)? {
                let mut other = self.dirs_behind(union, dir, &mut extras.dirs)?;
                other.push(name);
                if other == path {
                    continue;
                }
                // It may have been linked before, and nobody was told: then the directory is still to get its time.
                if dir != FileId::ROOT {
                    union.claim(dir)?;
                    extras.dirs.push(dir);
                }
                match union.ask(|backend| backend.find(&other))? {
                    Some(found) if found.version.serial == serial => continue,
                    Some(_) => return Err(taken_behind(&other)),
                    None => {}
                }
                let linked = union.ask(|backend| backend.link(path, &other));
                kept(linked, "hard links could not be kept: the back end does not take them", extras)?;
            }
        }
        Ok(())
    }
}

fn kept(done: Result<()>, note: &str, extras: &mut Extras) -> Result<()> {
    match done {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Unsupported
                    | ErrorKind::NotPermitted
                    | ErrorKind::AccessDenied
                    | ErrorKind::NoSpace
            ) =>
        {
            extras.notes.push(note.to_owned());
            Ok(())
        }
        done => done,
    }
}
