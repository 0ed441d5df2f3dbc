//! Bringing things behind that are only here: directories first, each under a claim.

use super::change::{Spot, changed_behind};
use super::meet::Order;
use super::record::{self, Home, Record};
use super::{Union, gone_behind, is_private};
use crate::service::Service;
use forebay_backend::{Creation, Found, Layout};
use forebay_model::{Error, ErrorKind, FileId, FileKind, Name, Result, Uid};
use forebay_store::{Batch, Body, Inode};

/// Most names of files that are remembered.
const MOST_HINTS: usize = 1 << 18;

/// Something that is behind, and claimed.
pub(crate) struct Born {
    pub(crate) path: Vec<Name>,
    pub(crate) kind: FileKind,
    pub(crate) owner: Uid,
    /// It was not there before.
    pub(crate) is_new: bool,
}

/// How a file of such a length is to lie behind; as the back end likes if nothing is wished.
pub(crate) type Wish<'a> = &'a dyn Fn(u64) -> Option<Layout>;

impl Service {
    /// Makes sure that something is behind, and claims it. Nothing if it has no name any more.
    pub(crate) fn bear(&self, union: &Union, file: FileId, wish: Wish<'_>) -> Result<Option<Born>> {
        // Whoever has something made behind of which others hold bytes keeps its order.
        let order = if self.is_shared(file) { Order::Kept } else { Order::Free };
        self.refresh_in(file, order)?;
        if self.store.names().inode(file).is_ok_and(|inode| inode.kind() == FileKind::File) {
            // Bytes that were lost are never drained as zeros.
            self.store.data().holes(file, 0)?;
        }
        let (_length, mut dirs) = (union.length(file), Vec::new());
        let held = self.store.names().hold(file, |inode| match inode {
            Some(inode) if !inode.parents.is_empty() => {
                let _still = union.still();
                self.bear_here(union, (file, inode), wish, &mut dirs).map(Some)
            }
            _ => Ok(None),
        });
        // Whether it could be made or not: directories that were claimed for it are to be let go of.
        self.drain.iter().for_each(|engine| engine.touched(&dirs));
        held.map_err(Error::from)
    }

    fn bear_here(
        &self,
        union: &Union,
        (file, inode): (FileId, &Inode),
        wish: Wish<'_>,
        dirs: &mut Vec<FileId>,
    ) -> Result<Born> {
        let mut born = Born { path: Vec::new(), kind: inode.kind(), owner: inode.uid, is_new: false };
        let Some(record) = union.record(file)? else {
            return self.make_behind(union, (file, inode), wish, born, dirs);
        };
        born.path = union.path(file)?.ok_or_else(|| gone_behind(file))?;
        let is_file = born.kind == FileKind::File;
        let found = union.ask(|backend| backend.find(&born.path))?;
        if union.claimed(file).is_some() && (found.is_some() || !is_file) {
            return Ok(born);
        }
        match found {
            Some(found) if is_file && found.version != record.version => Err(changed_behind(file)),
            Some(found) if found.kind != born.kind => Err(changed_behind(file)),
            Some(_) => union.claim(file).map(|_| born),
            None => {
                let mut forgotten = Batch::default();
                forgotten.remove(record::key(file));
                match is_file {
                    // All of it is here: it can be made again.
                    true if self.forgets_behind(file, forgotten.clone())? => {}
                    true => return Err(gone_behind(file)),
                    false => self.store.meta().commit(forgotten)?,
                }
                self.make_behind(union, (file, inode), wish, born, dirs)
            }
        }
    }

    /// Forgets what is behind of a file that is not there any more, if it is all here. Of one that several servers hold
    /// that has to be found out before (`forget_vanished`).
    fn forgets_behind(&self, file: FileId, forgotten: Batch) -> Result<bool> {
        Ok(!self.is_shared(file) && self.store.data().forget_behind(file, forgotten, |_| true)?)
    }

    fn make_behind(
        &self,
        union: &Union,
        (file, inode): (FileId, &Inode),
        wish: Wish<'_>,
        mut born: Born,
        dirs: &mut Vec<FileId>,
    ) -> Result<Born> {
        let (dir, name) = self.name_of(union, file, inode)?;
        if is_private(dir, &name) {
            let text = format!(
                "\"{name}\" at the root is a name that the back end's part keeps for itself: rename it"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        born.path = self.dirs_behind(union, dir, dirs)?;
        born.path.push(name.clone());
        let path = &born.path;
        self.unmake_begun(union, file, inode)?;
        match union.ask(|backend| backend.find(path))? {
            None => {}
            Some(found) if found.kind == FileKind::Directory && born.kind == FileKind::Directory => {
                union.claim(file)?;
                self.note_behind(union, file, (dir, name), &found)?;
                return Ok(born);
            }
            Some(_) => return Err(taken_behind(path)),
        }
        union.claim(file)?;
        if dir != FileId::ROOT {
            union.claim(dir)?;
            dirs.push(dir);
        }
        let made = match self.create_behind(union, file, inode, wish, path) {
            // A directory that nobody may write to is one that its owner may, until everything is in it.
            Err(error) if error.kind() == ErrorKind::AccessDenied && dir != FileId::ROOT => {
                let above = self.store.names().inode(dir)?;
                let (owner, mode) = ((above.uid, above.gid), above.mode | 0o700);
                union.ask(|backend| backend.set_attr(&path[..path.len() - 1], owner, mode, above.mtime))?;
                self.create_behind(union, file, inode, wish, path)
            }
            made => made,
        };
        made.or_else(|error| self.not_made(union, file, error))?;
        let found = union.ask(|backend| backend.find(path))?.ok_or_else(|| gone_behind(file))?;
        self.note_behind(union, file, (dir, name), &found)?;
        if union.lasting {
            // What has bytes behind and no record would be taken for somebody else's.
            union.kv.sync()?;
        }
        born.is_new = true;
        Ok(born)
    }

    /// Something could not be made. If that is because somebody else has just made it, nothing is there that was begun
    /// here, and his is never to be taken for that.
    fn not_made(&self, union: &Union, file: FileId, error: Error) -> Result<()> {
        if error.kind() == ErrorKind::Exists {
            let mut batch = Batch::default();
            Union::end_claim(file, &mut batch);
            union.kv.commit(batch)?;
            union.unclaim(file);
        }
        Err(error)
    }

    fn create_behind(
        &self,
        union: &Union,
        file: FileId,
        inode: &Inode,
        wish: Wish<'_>,
        path: &[Name],
    ) -> Result<()> {
        let size = self.store.data().facts(file).map_or(0, |facts| facts.size);
        let owner = (inode.uid, inode.gid);
        union.ask(|backend| match &inode.body {
            Body::File { .. } => {
                // It looks as it should when everything is in it.
                let creation = Creation { owner, mode: inode.mode & 0o777 | 0o600, stripes: None };
                match wish(size) {
                    Some(layout) => backend.create_on(path, &creation, &layout).map(drop),
                    None => backend.create(path, &creation).map(drop),
                }
            }
            Body::Directory { .. } => backend.make_dir(path, owner, inode.mode | 0o700),
            Body::Symlink { target } => backend.symlink(path, target),
            Body::Special { .. } => Err(left_out(path)),
        })
    }

    fn note_behind(
        &self,
        union: &Union,
        file: FileId,
        (dir, name): (FileId, Name),
        found: &Found,
    ) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(record::key(file), Record::of(Home::Entry { dir, name }, found).encode());
        union.kv.commit(batch)
    }

    /// The path of a directory behind; it and those above it are made if they are not there.
    pub(super) fn dirs_behind(
        &self,
        union: &Union,
        dir: FileId,
        claimed: &mut Vec<FileId>,
    ) -> Result<Vec<Name>> {
        if let Some(path) = union.path(dir)? {
            return Ok(path);
        }
        let inode = self.store.names().inode(dir)?;
        let (above, name) = self.name_of(union, dir, &inode)?;
        let mut path = self.dirs_behind(union, above, claimed)?;
        path.push(name.clone());
        let found = match union.ask(|backend| backend.find(&path))? {
            Some(found) if found.kind != FileKind::Directory => return Err(taken_behind(&path)),
            // Whoever made it, maybe this server who was told that it had failed: it is to look as it does here.
            Some(found) => {
                union.claim(dir)?;
                claimed.push(dir);
                found
            }
            None => {
                let made = [Some(dir), (above != FileId::ROOT).then_some(above)];
                for one in made.into_iter().flatten() {
                    union.claim(one)?;
                    claimed.push(one);
                }
                // Searchable by whoever fills it; it looks as it should afterwards.
                let mode = inode.mode | 0o700;
                union.ask(|backend| backend.make_dir(&path, (inode.uid, inode.gid), mode))?;
                union.ask(|backend| backend.find(&path))?.ok_or_else(|| gone_behind(dir))?
            }
        };
        self.note_behind(union, dir, (above, name), &found)?;
        Ok(path)
    }

    /// What an earlier life of the server was about to make behind, and may have made: it goes, and is made again.
    pub(super) fn unmake(&self, union: &Union) -> Result<()> {
        for file in union.all_claims() {
            if union.record(file)?.is_some() {
                continue;
            }
            if let Ok(inode) = self.store.names().inode(file) {
                self.unmake_begun(union, file, &inode)?;
            }
            let mut batch = Batch::default();
            Union::end_claim(file, &mut batch);
            union.kv.commit(batch)?;
            union.unclaim(file);
        }
        Ok(())
    }

    /// Removes what was begun to be made of a file behind, under whatever name.
    pub(super) fn unmake_begun(&self, union: &Union, file: FileId, inode: &Inode) -> Result<()> {
        if union.claimed(file).is_none() || union.record(file)?.is_some() {
            return Ok(());
        }
        // A directory that is there is the same one, whoever made it.
        if inode.kind() == FileKind::Directory {
            return Ok(());
        }
        let names = match inode.parents.as_slice() {
            &[_] => vec![self.name_of(union, file, inode)?],
            dirs => self.names_in_all(dirs, file)?,
        };
        for (dir, name) in &names {
            if let Some((path, _)) = self.begun(union, file, Spot { dir: *dir, name })? {
                union.ask(|backend| backend.unlink(&path))?;
            }
        }
        Ok(())
    }

    /// What was begun to be made behind, under this name: it may be there though whoever made it died, or was told that it
    /// had failed.
    pub(super) fn begun(
        &self,
        union: &Union,
        file: FileId,
        spot: Spot<'_>,
    ) -> Result<Option<(Vec<Name>, Found)>> {
        if union.claimed(file).is_none() || union.record(file)?.is_some() {
            return Ok(None);
        }
        let Some(mut path) = union.path(spot.dir)? else { return Ok(None) };
        path.push(spot.name.clone());
        let inode = self.store.names().inode(file)?;
        let found = union.ask(|backend| backend.find(&path))?;
        Ok(found.filter(|found| is_fresh(found, &inode)).map(|found| (path, found)))
    }

    /// Where something is here, for people, and whose it is.
    pub(crate) fn path_for_people(&self, union: &Union, file: FileId) -> Result<(String, Uid)> {
        let (mut path, mut at, mut owner) = (String::new(), file, None);
        while at != FileId::ROOT {
            let inode = self.store.names().inode(at)?;
            let (dir, name) = self.name_of(union, at, &inode)?;
            owner.get_or_insert(inode.uid);
            path = format!("/{name}{path}");
            at = dir;
        }
        Ok((path, owner.unwrap_or(Uid(0))))
    }

    /// A name of something, and the directory that holds it.
    fn name_of(&self, union: &Union, file: FileId, inode: &Inode) -> Result<(FileId, Name)> {
        let names = self.store.names();
        if let (Body::Directory { name: Some(name), .. }, Some(dir)) = (&inode.body, inode.parent()) {
            return Ok((dir, name.clone()));
        }
        if let Some((dir, name)) = union.hint(file)
            && names.leads(dir, &name, file)?
        {
            return Ok((dir, name));
        }
        for &dir in &inode.parents {
            // One look at a directory is good for all files in it.
            let mut found = None;
            self.visit(dir, |name, other| {
                if other == file {
                    found = Some(name.clone());
                }
                union.note_name(other, dir, name);
                Ok(())
            })?;
            if let Some(name) = found {
                return Ok((dir, name));
            }
        }
        Err(gone_behind(file))
    }
}

impl Union {
    /// Remembers a name of a file.
    pub(crate) fn note_name(&self, file: FileId, dir: FileId, name: Name) {
        let mut hints = self.hints.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if hints.len() >= MOST_HINTS {
            hints.clear();
        }
        hints.insert(file, (dir, name));
    }

    fn hint(&self, file: FileId) -> Option<(FileId, Name)> {
        self.hints.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(&file).cloned()
    }
}

fn shown(path: &[Name]) -> String {
    path.iter().map(ToString::to_string).collect::<Vec<_>>().join("/")
}

/// Whether something is as it is made, with nothing in it.
fn is_fresh(found: &Found, inode: &Inode) -> bool {
    match (&inode.body, found.kind) {
        (Body::File { .. }, FileKind::File) => found.version.size == 0,
        (Body::Symlink { target }, FileKind::Symlink) => found.target == *target,
        (Body::Directory { .. }, FileKind::Directory) => true,
        _ => false,
    }
}

pub(super) fn taken_behind(path: &[Name]) -> Error {
    let text = format!("the back end has another /{} by now: rename one of the two", shown(path));
    Error::new(ErrorKind::Exists, text)
}

fn left_out(path: &[Name]) -> Error {
    let text = format!("/{} is a pipe, socket or device: the back end holds none of ours", shown(path));
    Error::new(ErrorKind::Unsupported, text)
}
