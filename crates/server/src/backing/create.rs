//! Creates files in the back end that are only in the buffer: parent directories first, each under a writeback mark.

use super::BackingLayer;
use super::lookup::Order;
use super::mutate::{Spot, changed_in_backing};
use super::record::BackingSpot;
use super::record::{self, Home};
use super::{Backing, is_private, may_adopt, may_merge, missing_in_backing, shown};
use forebay_backend::{Creation, Found, Layout, Slot};
use forebay_model::{Error, ErrorKind, FileId, FileKind, Name, Result, Uid};
use forebay_store::{Batch, Body, Inode};

/// Most names of files that are remembered.
const MOST_HINTS: usize = 1 << 18;

/// A file in the back end with a writeback mark.
pub(crate) struct BackingFile {
    pub(crate) path: Vec<Name>,
    pub(crate) kind: FileKind,
    pub(crate) owner: Uid,
    /// Whether it was created just now.
    pub(crate) is_new: bool,
}

/// A directory in the back end in which a file is to be created: its path and serial number.
pub(super) struct Within {
    pub(super) path: Vec<Name>,
    pub(super) serial: u64,
}

/// Chooses the layout of a file of the given size; `None` is the back end's default.
pub(crate) type ChooseLayout<'a> = &'a dyn Fn(u64) -> Option<Layout>;

impl BackingLayer {
    /// Makes sure that a file exists in the back end, and sets its writeback mark. `None` if it has no name any more.
    pub(crate) fn create_backing(
        &self,
        backing: &Backing,
        file: FileId,
        choose_layout: ChooseLayout<'_>,
    ) -> Result<Option<BackingFile>> {
        // For a striped file, the caller holds its order lock.
        let order = if self.homes.is_shared(file) { Order::Kept } else { Order::Free };
        self.refresh_in(file, order)?;
        if self.store.names().inode(file).is_ok_and(|inode| inode.kind() == FileKind::File) {
            // Lost bytes must not be drained as zeros.
            self.store.data().holes(file, 0)?;
        }
        let (_size_lock, mut dirs) = (backing.lock_size(file), Vec::new());
        let held = self.store.names().hold(file, |inode| match inode {
            Some(inode) if !inode.parents.is_empty() => {
                let _tree = backing.lock_tree();
                self.create_backing_locked(backing, (file, inode), choose_layout, &mut dirs).map(Some)
            }
            _ => Ok(None),
        });
        // Directories with new writeback marks have to be finalized even if the file could not be created.
        backing.touched(&dirs);
        held.map_err(Error::from)
    }

    fn create_backing_locked(
        &self,
        backing: &Backing,
        (file, inode): (FileId, &Inode),
        choose_layout: ChooseLayout<'_>,
        dirs: &mut Vec<FileId>,
    ) -> Result<BackingFile> {
        let mut backing_file =
            BackingFile { path: Vec::new(), kind: inode.kind(), owner: inode.uid, is_new: false };
        let Some(record) = backing.record(file)? else {
            return self.create_in_backing(backing, (file, inode), choose_layout, backing_file, dirs);
        };
        backing_file.path = backing.path(file)?.ok_or_else(|| missing_in_backing(file))?;
        let is_file = backing_file.kind == FileKind::File;
        let found = backing.spot_of(file)?.map(|at| backing.look(&at)).transpose()?.flatten();
        if backing.mark(file).is_some() && (found.is_some() || !is_file) {
            return Ok(backing_file);
        }
        match found {
            Some(found) if is_file && found.version != record.version => Err(changed_in_backing(file)),
            Some(found) if found.kind != backing_file.kind => Err(changed_in_backing(file)),
            Some(_) => backing.set_mark(file).map(|_| backing_file),
            None => {
                let mut forgotten = Batch::default();
                forgotten.remove(record::key(file));
                match is_file {
                    // All its bytes are in the buffer: it can be created again.
                    true if self.forgets_backing(file, forgotten.clone())? => {}
                    true => return Err(missing_in_backing(file)),
                    false => self.store.meta().commit(forgotten)?,
                }
                self.create_in_backing(backing, (file, inode), choose_layout, backing_file, dirs)
            }
        }
    }

    /// Forgets the back end's part of a file that is missing there, if all its bytes are in the buffer. For a striped
    /// file, `forget_vanished` has checked that before.
    fn forgets_backing(&self, file: FileId, forgotten: Batch) -> Result<bool> {
        Ok(!self.homes.is_shared(file) && self.store.data().forget_backing(file, forgotten, |_| true)?)
    }

    fn create_in_backing(
        &self,
        backing: &Backing,
        (file, inode): (FileId, &Inode),
        choose_layout: ChooseLayout<'_>,
        mut backing_file: BackingFile,
        dirs: &mut Vec<FileId>,
    ) -> Result<BackingFile> {
        let (dir, name) = self.name_of(backing, file, inode)?;
        if is_private(dir, &name) {
            let text = format!(
                "\"{name}\" at the root is a name that the server keeps for itself in the back end: rename it"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let within = self.backing_dirs(backing, dir, dirs)?;
        backing_file.path = within.path;
        backing_file.path.push(name.clone());
        let path = &backing_file.path;
        let at = Slot { path, dir: within.serial };
        let is_dir = backing_file.kind == FileKind::Directory;
        let _creation = is_dir.then(|| backing.lock_creation(file));
        if is_dir && backing.record(file)?.is_some() {
            // It was created for a file in it.
            backing.set_mark(file)?;
            return Ok(backing_file);
        }
        self.remove_incomplete_file(backing, file, inode)?;
        match backing.ask(|backend| backend.find_at(at))? {
            None => {}
            Some(found) if found.kind == FileKind::Directory && is_dir => {
                let found = self.merge_or_complete(backing, (file, inode), at, found)?;
                backing.set_mark(file)?;
                self.put_place(backing, file, (dir, name), &found)?;
                return Ok(backing_file);
            }
            Some(_) => return Err(taken_in_backing(path)),
        }
        self.make_in_backing(backing, (file, inode), choose_layout, at, (dir, &name), dirs)?;
        backing_file.is_new = true;
        Ok(backing_file)
    }

    /// Creates a file at a free place of the back end, and records it.
    fn make_in_backing(
        &self,
        backing: &Backing,
        (file, inode): (FileId, &Inode),
        choose_layout: ChooseLayout<'_>,
        at: Slot<'_>,
        (dir, name): (FileId, &Name),
        dirs: &mut Vec<FileId>,
    ) -> Result<()> {
        backing.set_mark(file)?;
        let _filling = backing.lock_filling(dir);
        if dir != FileId::ROOT {
            backing.set_mark(dir)?;
            dirs.push(dir);
        }
        let made = match self.create_object(backing, file, inode, choose_layout, at) {
            // A directory that is read-only for its owner is writable until all files are in it.
            Err(error) if error.kind() == ErrorKind::AccessDenied && dir != FileId::ROOT => {
                let above = self.store.names().inode(dir)?;
                let (owner, mode) = ((above.uid, above.gid), above.mode | 0o700);
                backing.ask(|backend| backend.set_attr_of(at.dir(), owner, mode, above.mtime))?;
                self.create_object(backing, file, inode, choose_layout, at)
            }
            made => made,
        };
        let serial = made.or_else(|error| self.creation_failed(backing, file, error))?;
        let found = backing.ask(|backend| backend.find_at(at))?.ok_or_else(|| missing_in_backing(file))?;
        if !is_created_object(&found, inode, serial) {
            self.creation_failed(backing, file, taken_in_backing(at.path))?;
        }
        self.put_place(backing, file, (dir, name.clone()), &found)?;
        if backing.durable {
            // A file with bytes in the back end and without a record would look like another program's.
            backing.kv.sync()?;
        }
        Ok(())
    }

    /// Handles a failed creation. If another program has just created the file, the writeback mark is removed, so that
    /// its file is never taken for this server's.
    fn creation_failed<T>(&self, backing: &Backing, file: FileId, error: Error) -> Result<T> {
        if error.kind() == ErrorKind::Exists {
            let mut batch = Batch::default();
            Backing::end_mark(file, &mut batch);
            backing.kv.commit(batch)?;
            backing.drop_mark(file);
        }
        Err(error)
    }

    /// Creates a file and returns its serial number where it is known: the object found under its name afterwards may
    /// be another.
    fn create_object(
        &self,
        backing: &Backing,
        file: FileId,
        inode: &Inode,
        choose_layout: ChooseLayout<'_>,
        at: Slot<'_>,
    ) -> Result<Option<u64>> {
        let size = self.store.data().facts(file).map_or(0, |facts| facts.size);
        let owner = (inode.uid, inode.gid);
        backing.ask(|backend| match &inode.body {
            Body::File { .. } => {
                // Its attributes are set when all bytes are written.
                let creation = Creation { owner, mode: inode.mode & 0o777 | 0o600, stripes: None };
                let object = match choose_layout(size) {
                    Some(layout) => backend.create_on_at(at, &creation, &layout)?,
                    None => backend.create_at(at, &creation)?,
                };
                object.version().map(|version| Some(version.serial))
            }
            Body::Directory { .. } => backend.make_dir_at(at, owner, inode.mode | 0o700),
            Body::Symlink { target } => backend.symlink_at(at, target).map(|()| None),
            Body::Special { .. } => Err(unsupported_kind(at.path)),
        })
    }

    fn put_place(
        &self,
        backing: &Backing,
        file: FileId,
        (dir, name): (FileId, Name),
        found: &Found,
    ) -> Result<()> {
        let mut batch = Batch::default();
        backing.put_record(file, Home::Entry { dir, name }, found, &mut batch);
        backing.kv.commit(batch)
    }

    /// The path of a directory in the back end; creates it and its parents if they are missing.
    pub(super) fn backing_dirs(
        &self,
        backing: &Backing,
        dir: FileId,
        marked: &mut Vec<FileId>,
    ) -> Result<Within> {
        if let Some(path) = backing.path(dir)? {
            return Ok(Within { path, serial: backing.serial_of_dir(dir)? });
        }
        let inode = self.store.names().inode(dir)?;
        let (above, name) = self.name_of(backing, dir, &inode)?;
        let Within { mut path, serial } = self.backing_dirs(backing, above, marked)?;
        path.push(name.clone());
        let at = Slot { path: &path, dir: serial };
        let _creation = backing.lock_creation(dir);
        if backing.record(dir)?.is_some() {
            return Ok(Within { serial: backing.serial_of_dir(dir)?, path });
        }
        let found = match backing.ask(|backend| backend.find_at(at))? {
            Some(found) if found.kind != FileKind::Directory => return Err(taken_in_backing(&path)),
            // Possibly created by an earlier attempt of this server that reported failure. Its attributes are set
            // later.
            Some(found) => {
                let found = self.merge_or_complete(backing, (dir, &inode), at, found)?;
                backing.set_mark(dir)?;
                marked.push(dir);
                found
            }
            None => {
                let _filling = backing.lock_filling(above);
                let made = [Some(dir), (above != FileId::ROOT).then_some(above)];
                for one in made.into_iter().flatten() {
                    backing.set_mark(one)?;
                    marked.push(one);
                }
                // Accessible to the drain, which fills it; its attributes are set later.
                let mode = inode.mode | 0o700;
                let serial = backing.ask(|backend| backend.make_dir_at(at, (inode.uid, inode.gid), mode))?;
                let found =
                    backing.ask(|backend| backend.find_at(at))?.ok_or_else(|| missing_in_backing(dir))?;
                if !is_created_object(&found, &inode, serial) {
                    return Err(taken_in_backing(&path));
                }
                found
            }
        };
        self.put_place(backing, dir, (above, name), &found)?;
        Ok(Within { path, serial: found.version.serial })
    }

    /// Merges a directory in the back end with the one of the same name in the buffer if they have the same owner and
    /// rights. A directory that this server began to create, and that has not got its owner yet, is completed.
    fn merge_or_complete(
        &self,
        backing: &Backing,
        (dir, inode): (FileId, &Inode),
        at: Slot<'_>,
        found: Found,
    ) -> Result<Found> {
        if may_adopt(inode, &found) {
            return Ok(found);
        }
        if backing.mark(dir).is_some() {
            // Created by an attempt that reported failure, before its mode changed in the buffer. Its attributes are set
            // later, which shows nothing of an empty directory.
            let it = at.seen(found.version.serial);
            let mut is_empty = true;
            if found.kind == FileKind::Directory && may_merge(inode, &found) {
                backing.ask(|backend| backend.list_of(it, &mut |_| is_empty = false))?;
                if is_empty {
                    return Ok(found);
                }
            }
            let (owner, mode) = ((inode.uid, inode.gid), inode.mode | 0o700);
            let serial = backing.ask(|backend| backend.make_dir_at(at, owner, mode))?;
            let found = backing.ask(|backend| backend.find_at(at))?;
            let found = found.filter(|found| is_created_object(found, inode, serial));
            return found.ok_or_else(|| taken_in_backing(at.path));
        }
        Err(taken_in_backing(at.path))
    }

    /// Removes what an earlier run of the server began to create in the back end: the drain creates it again.
    pub(super) fn remove_incomplete(&self, backing: &Backing) -> Result<()> {
        for file in backing.all_marked() {
            if backing.record(file)?.is_some() {
                continue;
            }
            if let Ok(inode) = self.store.names().inode(file) {
                self.remove_incomplete_file(backing, file, &inode)?;
            }
            let mut batch = Batch::default();
            Backing::end_mark(file, &mut batch);
            backing.kv.commit(batch)?;
            backing.drop_mark(file);
        }
        Ok(())
    }

    /// Removes an incompletely created file or directory from the back end, under any of its names.
    pub(super) fn remove_incomplete_file(
        &self,
        backing: &Backing,
        file: FileId,
        inode: &Inode,
    ) -> Result<()> {
        if backing.mark(file).is_none() || backing.record(file)?.is_some() {
            return Ok(());
        }
        let names = match inode.parents.as_slice() {
            &[_] => vec![self.name_of(backing, file, inode)?],
            dirs => self.names_in_all(dirs, file)?,
        };
        for (dir, name) in &names {
            if let Some((at, found)) = self.find_incomplete(backing, file, Spot { dir: *dir, name })? {
                let it = at.seen(found.version.serial);
                match found.kind {
                    // It is merged.
                    FileKind::Directory if may_adopt(inode, &found) => {}
                    // Its creation was interrupted before it got its owner and mode. One with entries is not new.
                    FileKind::Directory => match backing.ask(|backend| backend.remove_dir_of(it)) {
                        Err(error) if error.kind() == ErrorKind::NotEmpty => {}
                        removed => drop(removed?),
                    },
                    _ => drop(backing.ask(|backend| backend.unlink_of(it))?),
                }
            }
        }
        Ok(())
    }

    /// An incompletely created file under this name: it may exist although the server crashed or its creation reported
    /// failure.
    pub(super) fn find_incomplete(
        &self,
        backing: &Backing,
        file: FileId,
        spot: Spot<'_>,
    ) -> Result<Option<(BackingSpot, Found)>> {
        if backing.mark(file).is_none() || backing.record(file)?.is_some() {
            return Ok(None);
        }
        let Some(at) = backing.spot(spot.dir, spot.name)? else { return Ok(None) };
        let inode = self.store.names().inode(file)?;
        let found = backing.look(&at)?;
        Ok(found.filter(|found| is_fresh(found, &inode)).map(|found| (at, found)))
    }

    /// The path of a file in the buffer, for messages, and its owner.
    pub(crate) fn display_path(&self, backing: &Backing, file: FileId) -> Result<(String, Uid)> {
        let (mut path, mut at, mut owner) = (String::new(), file, None);
        while at != FileId::ROOT {
            let inode = self.store.names().inode(at)?;
            let (dir, name) = self.name_of(backing, at, &inode)?;
            owner.get_or_insert(inode.uid);
            path = format!("/{name}{path}");
            at = dir;
        }
        Ok((path, owner.unwrap_or(Uid(0))))
    }

    /// A name of a file, and the directory that holds it.
    fn name_of(&self, backing: &Backing, file: FileId, inode: &Inode) -> Result<(FileId, Name)> {
        let names = self.store.names();
        if let (Body::Directory { name: Some(name), .. }, Some(dir)) = (&inode.body, inode.parent()) {
            return Ok((dir, name.clone()));
        }
        if let Some((dir, name)) = backing.hint(file)
            && names.leads(dir, &name, file)?
        {
            return Ok((dir, name));
        }
        for &dir in &inode.parents {
            // One scan of a directory serves all files in it.
            let mut found = None;
            self.visit(dir, |name, other| {
                if other == file {
                    found = Some(name.clone());
                }
                backing.note_names([(other, dir, name)]);
                Ok(())
            })?;
            if let Some(name) = found {
                return Ok((dir, name));
            }
        }
        Err(missing_in_backing(file))
    }
}

impl Backing {
    /// Remembers names of files.
    pub(crate) fn note_names(&self, names: impl IntoIterator<Item = (FileId, FileId, Name)>) {
        let mut hints = self.hints.lock();
        for (file, dir, name) in names {
            if hints.len() >= MOST_HINTS {
                hints.clear();
            }
            hints.insert(file, (dir, name));
        }
    }

    fn hint(&self, file: FileId) -> Option<(FileId, Name)> {
        self.hints.lock().get(&file).cloned()
    }
}

/// Whether the object found under a name is the one that was just created, and not another program's.
fn is_created_object(found: &Found, inode: &Inode, serial: Option<u64>) -> bool {
    match (serial, found.kind) {
        (Some(serial), _) => found.version.serial == serial,
        (None, FileKind::Directory) => may_adopt(inode, found),
        (None, _) => is_fresh(found, inode),
    }
}

/// Whether an object is as it was created, with nothing in it.
fn is_fresh(found: &Found, inode: &Inode) -> bool {
    match (&inode.body, found.kind) {
        (Body::File { .. }, FileKind::File) => {
            // Until its owner is set, it belongs to the server.
            found.version.size == 0 && (may_merge(inode, found) || found.uid == Uid(0))
        }
        (Body::Symlink { target }, FileKind::Symlink) => {
            found.target == *target && (may_merge(inode, found) || found.uid == Uid(0))
        }
        (Body::Directory { .. }, FileKind::Directory) => may_merge(inode, found) || found.uid == Uid(0),
        _ => false,
    }
}

pub(super) fn taken_in_backing(path: &[Name]) -> Error {
    let text = format!("the back end has another /{} by now: rename one of the two", shown(path));
    Error::new(ErrorKind::Exists, text)
}

fn unsupported_kind(path: &[Name]) -> Error {
    let text = format!("/{} is a pipe, socket or device: the back end cannot hold it", shown(path));
    Error::new(ErrorKind::Unsupported, text)
}
