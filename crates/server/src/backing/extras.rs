//! What a back end need not support: hard links and extended attributes. They are stored only when the buffer is
//! drained for the last time, because a record holds one name of a file and no attributes.

use super::Backing;
use super::BackingLayer;
use super::create::{Within, taken_in_backing};
use forebay_backend::{Seen, Slot};
use forebay_model::{ErrorKind, FileId, FileKind, Identity, Result};
use forebay_store::Inode;

/// The result of storing extras.
#[derive(Default)]
pub(crate) struct Extras {
    /// Directories whose modification time the server changed.
    pub(crate) dirs: Vec<FileId>,
    /// What the back end could not store.
    pub(crate) notes: Vec<String>,
}

impl BackingLayer {
    /// Whether a file has extras.
    pub(crate) fn has_extras(&self, file: FileId, inode: &Inode) -> Result<bool> {
        let is_linked = inode.kind() != FileKind::Directory && inode.parents.len() > 1;
        Ok(is_linked || !self.store.names().list_xattrs(&Identity::root(), file)?.is_empty())
    }

    pub(super) fn add_extras(
        &self,
        backing: &Backing,
        file: FileId,
        inode: &Inode,
        it: Seen<'_>,
        extras: &mut Extras,
    ) -> Result<()> {
        let (names, root) = (self.store.names(), Identity::root());
        if inode.kind() != FileKind::Symlink {
            for name in names.list_xattrs(&root, file)? {
                let value = names.get_xattr(&root, file, &name)?;
                let set = backing.ask(|backend| backend.set_xattr_of(it, &name, &value));
                kept(
                    set,
                    "extended attributes could not be kept: the back end does not support them",
                    extras,
                )?;
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
                let Within { path: mut other, serial } = self.backing_dirs(backing, dir, &mut extras.dirs)?;
                other.push(name);
                if other == it.path {
                    continue;
                }
                let _filling = backing.lock_filling(dir);
                // It may have been linked before a crash: then the directory's time still has to be set.
                if dir != FileId::ROOT {
                    backing.set_mark(dir)?;
                    extras.dirs.push(dir);
                }
                let at = Slot { path: &other, dir: serial };
                match backing.ask(|backend| backend.find_at(at))? {
                    Some(found) if found.version.serial == it.serial => continue,
                    Some(_) => return Err(taken_in_backing(&other)),
                    None => {}
                }
                let linked = backing.ask(|backend| backend.link_of(it, at));
                kept(linked, "hard links could not be kept: the back end does not support them", extras)?;
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
