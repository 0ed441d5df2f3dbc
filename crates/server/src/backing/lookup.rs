//! Lookups in the back end: on a miss, when a directory is listed, and again whenever a file may have changed there.

use super::BackingLayer;
use super::record::{self, Home, Record};
use super::{Backing, can_chown, is_private, may_adopt, private_dir, private_name};
use forebay_backend::{Found, Slot, Target};
use forebay_model::{Change, Error, ErrorKind, FileId, FileKind, Identity, Layout, Name, Result, SetTime};
use forebay_store::{
    Arrival, Batch, Body, Extent, Fate, Found as Named, Inode, MAX_LISTED, Unlinked, Walked,
};
use std::collections::HashSet;

/// Stripe size of a file on one server, which has no effect.
const STRIPE: u64 = 4 << 20;
/// Most names in a directory of the back end: all are in memory while it is listed.
const MOST_NAMES: usize = 1 << 22;

/// Whether the caller holds the file's order lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Free,
    Kept,
}

impl BackingLayer {
    /// Looks up a name in the back end, before the name is used in the buffer.
    pub(crate) fn lookup_backing(&self, dir: FileId, name: &Name) -> Result<()> {
        self.lookup_backing_in(dir, name, |_| Order::Free)
    }

    /// The same for a request that holds the order locks of some files.
    pub(crate) fn lookup_backing_in(
        &self,
        dir: FileId,
        name: &Name,
        order: impl FnOnce(FileId) -> Order,
    ) -> Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        if !backing.may_hold(dir)? {
            return Ok(());
        }
        match self.known(dir, name)? {
            Some((file, inode)) => {
                let order = order(file);
                if self.in_same_dir(dir, || self.refresh_one(backing, file, &inode, order))? {
                    self.find_in_backing(backing, dir, name)?;
                }
                self.merge_dir(backing, file, &inode, (dir, name))
            }
            None => self.find_in_backing(backing, dir, name).map(drop),
        }
    }

    /// Adds the first name of a path that is in the back end and not in the buffer; false if there is none.
    pub(crate) fn lookup_backing_on_path(&self, who: &Identity, dir: FileId, path: &[u8]) -> Result<bool> {
        let Some(backing) = &self.backing else { return Ok(false) };
        let names = self.store.names();
        let mut at = dir;
        for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            if part == b".." {
                at = names.inode(at)?.parent().unwrap_or(FileId::ROOT);
                continue;
            }
            let name = Name::new(part)?;
            match self.look_up(who, at, &name) {
                Ok((file, inode)) if inode.kind() == FileKind::Directory => {
                    self.merge_dir(backing, file, &inode, (at, &name))?;
                    at = file;
                }
                Ok(_) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return self.find_in_backing(backing, at, &name);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Compares the file at the end of a path with the back end; true if its name or attributes may have changed.
    pub(crate) fn follow_up(
        &self,
        who: &Identity,
        (dir, path): (FileId, &[u8]),
        (file, kind): (FileId, FileKind),
    ) -> Result<bool> {
        let Some(backing) = &self.backing else { return Ok(false) };
        let was_known = file == FileId::ROOT || backing.knows(file)?;
        if was_known {
            self.refresh(file)?;
        }
        if kind == FileKind::Directory {
            self.join_last(who, dir, path)?;
        }
        Ok(was_known || backing.knows(file)?)
    }

    /// The last directory of a path is merged with one of the same name that has appeared in the back end.
    fn join_last(&self, who: &Identity, dir: FileId, path: &[u8]) -> Result<()> {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let Ok(name) = Name::new(&path[start..end]) else { return Ok(()) };
        match self.store.names().walk(who, dir, &path[..start], true)? {
            Walked::Found(above, _) => self.lookup_backing(above, &name),
            Walked::Link { .. } | Walked::At { .. } | Walked::Elsewhere { .. } => Ok(()),
        }
    }

    /// Refreshes a file from the back end, and its parent directories if they were not refreshed recently: rights
    /// revoked there are revoked in the buffer, and files removed or replaced there are removed or replaced in the
    /// buffer.
    pub(crate) fn refresh(&self, file: FileId) -> Result<()> {
        self.refresh_in(file, Order::Free)
    }

    pub(crate) fn refresh_in(&self, file: FileId, order: Order) -> Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        if file == FileId::ROOT {
            return self.follow_root();
        }
        // The walk to the root also visits the file itself.
        self.refresh_above_in(file, order)?;
        match self.store.names().inode(file) {
            Ok(inode) => match self.refresh_one(backing, file, &inode, order) {
                // Its directory was replaced within the moment for which it counts as refreshed.
                Err(error) if error.kind() == ErrorKind::Stale => self.refresh_path(file, order, true),
                done => done.map(drop),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Refreshes a file and its parent directories, unless they were refreshed recently.
    pub(crate) fn refresh_above(&self, file: FileId) -> Result<()> {
        self.refresh_above_in(file, Order::Free)
    }

    fn refresh_above_in(&self, file: FileId, order: Order) -> Result<()> {
        match self.refresh_path(file, order, false) {
            Err(error) if error.kind() == ErrorKind::Stale => self.refresh_path(file, order, true),
            done => done,
        }
    }

    /// Refreshes a file and its parent directories from the root on: every directory is looked up in the one that was
    /// just seen. Those that were refreshed a moment ago are left out, unless `all` is set.
    fn refresh_path(&self, file: FileId, order: Order, all: bool) -> Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let (mut path, mut at) = (Vec::new(), file);
        while let Some(record) = backing.record(at)? {
            path.push(at);
            match record.home {
                Home::Entry { dir, .. } => at = dir,
                Home::Private => break,
            }
        }
        for at in path.into_iter().rev() {
            if (all || !backing.was_just_seen(at))
                && let Ok(inode) = self.store.names().inode(at)
            {
                self.refresh_one(backing, at, &inode, order)?;
            }
        }
        Ok(())
    }

    /// Runs `look`, which uses a directory in the back end. If the directory was replaced since it was last refreshed,
    /// its rights may have changed with it: it is refreshed, and `look` runs once more.
    fn in_same_dir<T>(&self, dir: FileId, look: impl Fn() -> Result<T>) -> Result<T> {
        match look() {
            Err(error) if error.kind() == ErrorKind::Stale => {
                self.refresh_path(dir, Order::Free, true)?;
                look()
            }
            done => done,
        }
    }

    /// Adds all entries of a directory in the back end, and removes those that are gone from there.
    pub(crate) fn survey(&self, dir: FileId) -> Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let list = || {
            let _tree = backing.lock_tree();
            let mut there = HashSet::new();
            let Some(path) = backing.path(dir)? else { return Ok(None) };
            let it = Slot::any(&path).seen(backing.serial_of_dir(dir)?);
            let mut show = |name: Name| {
                // One name too many is enough to detect the overflow.
                if there.len() <= MOST_NAMES && !is_private(dir, &name) {
                    there.insert(name);
                }
            };
            backing.ask(|backend| backend.list_of(it, &mut show)).map(|()| Some(there))
        };
        let mut there = match self.in_same_dir(dir, list) {
            Ok(Some(there)) => there,
            Ok(None) => return Ok(()),
            // Removed meanwhile, or never a directory in the back end.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                return self.refresh(dir);
            }
            Err(error) => return Err(error),
        };
        if there.len() > MOST_NAMES {
            let text =
                format!("directory {dir} has more than {MOST_NAMES} entries in the back end: list it there");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        self.visit(dir, |name, file| {
            if !there.remove(&name)
                && backing.record(file)?.is_some_and(|record| record.lives_at(dir, &name))
                && let Ok(inode) = self.store.names().inode(file)
            {
                self.in_same_dir(dir, || self.refresh_one(backing, file, &inode, Order::Free))?;
            }
            Ok(())
        })?;
        for name in there {
            self.find_in_backing(backing, dir, &name)?;
        }
        Ok(())
    }

    pub(super) fn visit(&self, dir: FileId, mut visit: impl FnMut(Name, FileId) -> Result<()>) -> Result<()> {
        let mut cookie = Some(0);
        while let Some(from) = cookie {
            let (entries, next) = self.store.names().read_dir(&Identity::root(), dir, from, MAX_LISTED)?;
            entries.into_iter().try_for_each(|entry| visit(entry.name, entry.file))?;
            cookie = next;
        }
        Ok(())
    }

    /// Looks a name up in the buffer. A server with a back end has all files itself.
    fn look_up(&self, who: &Identity, dir: FileId, name: &Name) -> Result<(FileId, Inode)> {
        match self.store.names().lookup(who, dir, name)? {
            Named::Here(file, inode) => Ok((file, *inode)),
            Named::Away(file, _) => Err(Error::new(
                ErrorKind::Io,
                format!("file {file} is on another server, which a server with a back end cannot reach"),
            )),
        }
    }

    pub(super) fn known(&self, dir: FileId, name: &Name) -> Result<Option<(FileId, Inode)>> {
        match self.look_up(&Identity::root(), dir, name) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks up a name in the back end that is not in the buffer; true if it exists.
    fn find_in_backing(&self, backing: &Backing, dir: FileId, name: &Name) -> Result<bool> {
        if is_private(dir, name) {
            return Ok(false);
        }
        let Some(found) = self.look_in_backing(backing, dir, name)? else { return Ok(false) };
        let (arrival, size) = (self.arrival((dir, name), &found)?, found.version.size);
        let with = |file: FileId| {
            let mut batch = match found.kind {
                FileKind::File => self.store.data().found(file, size)?,
                _ => Batch::default(),
            };
            backing.put_record(file, Home::Entry { dir, name: name.clone() }, &found, &mut batch);
            if found.kind == FileKind::Directory {
                self.join_state.found_in_backing(file, &mut batch);
            }
            Ok(batch)
        };
        let brought = self.store.names().bring(dir, name, arrival, self.store.data().now(), with);
        match brought.map_err(Error::from) {
            Ok(_) => Ok(true),
            // Another request found it at the same time, or created one in the buffer.
            Err(error) if error.kind() == ErrorKind::Exists => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The entry of this name in a directory in the back end.
    fn look_in_backing(&self, backing: &Backing, dir: FileId, name: &Name) -> Result<Option<Found>> {
        self.in_same_dir(dir, || {
            let _tree = backing.lock_tree();
            backing.spot(dir, name)?.map(|at| backing.look(&at)).transpose().map(Option::flatten)
        })
    }

    /// Merges a directory of the buffer with one of the same name that has appeared in the back end.
    pub(super) fn merge_dir(
        &self,
        backing: &Backing,
        file: FileId,
        inode: &Inode,
        (dir, name): (FileId, &Name),
    ) -> Result<()> {
        if inode.kind() != FileKind::Directory || is_private(dir, name) || backing.record(file)?.is_some() {
            return Ok(());
        }
        let found = self.look_in_backing(backing, dir, name)?;
        let Some(found) = found.filter(|found| may_adopt(inode, found)) else { return Ok(()) };
        let joined = self.store.names().hold(file, |_| {
            // It may have been renamed or removed meanwhile.
            if backing.record(file)?.is_some() || !self.store.names().leads(dir, name, file)? {
                return Ok(());
            }
            let mut batch = Batch::default();
            backing.put_record(file, Home::Entry { dir, name: name.clone() }, &found, &mut batch);
            self.store.meta().commit(batch)
        });
        joined.map_err(Error::from)
    }

    fn arrival(&self, (dir, name): (FileId, &Name), found: &Found) -> Result<Arrival> {
        let body = match found.kind {
            FileKind::File => {
                let striping = match found.version.size == 0 && !self.life.is_alone() {
                    true => self.store.names().dir(dir).map_err(Error::from)?.striping,
                    false => None,
                };
                // An empty file may have been created to set its layout, so it is striped as its directory says. A file
                // with bytes is not: all its holders would have to be informed.
                let (layout, incarnations) = match striping {
                    Some(striping) => self.homes.laid_out(striping, (dir, name)),
                    None => (Layout::whole(self.own, STRIPE), vec![self.store.incarnation()]),
                };
                Body::File { layout, incarnations, extent: Extent::default() }
            }
            FileKind::Directory => Body::Directory { epoch: 0, name: Some(name.clone()), striping: None },
            FileKind::Symlink => Body::Symlink { target: found.target.clone() },
            FileKind::Special(special) => Body::Special { special },
        };
        let (owner, mtime) = ((found.uid, found.gid), found.version.mtime);
        Ok(Arrival { body, mode: found.mode, owner, atime: found.atime, mtime, ctime: found.ctime })
    }

    /// Compares a record with the back end; true if the file was removed there.
    pub(super) fn refresh_one(
        &self,
        backing: &Backing,
        file: FileId,
        inode: &Inode,
        order: Order,
    ) -> Result<bool> {
        let Some(record) = backing.record(file)? else { return Ok(false) };
        // The drain's own writes change the file all the time.
        if backing.mark(file).is_some() {
            return Ok(false);
        }
        let Home::Entry { dir, name } = &record.home else { return Ok(false) };
        match backing.find(file)? {
            Some((_, found)) if is_same_thing(inode, &record, &found) => {
                let seen = Record::of(record.home.clone(), &found);
                if seen != record {
                    self.take_change(backing, file, &record, &found, order)?;
                }
                Ok(false)
            }
            _ if self.restore_aside(backing, file, &record)? => Ok(false),
            _ => self.remove_vanished(backing, file, inode, (*dir, name)),
        }
    }

    /// Restores a file that an interrupted rename left in the server's own directory.
    fn restore_aside(&self, backing: &Backing, file: FileId, record: &Record) -> Result<bool> {
        let aside = [private_dir(), private_name(file)];
        let lies_aside = |backing: &Backing| -> Result<bool> {
            let found = backing.ask(|backend| backend.find(&aside))?;
            Ok(found.is_some_and(|found| found.version.serial == record.version.serial))
        };
        if !lies_aside(backing)? {
            return Ok(false);
        }
        let brought = self.store.names().hold(file, |_| {
            let _tree = backing.lock_tree();
            if backing.record(file)?.as_ref() != Some(record) || !lies_aside(backing)? {
                return Ok(false);
            }
            let Some(at) = backing.spot_of(file)? else { return Ok(false) };
            let it = Slot::any(&aside).seen(record.version.serial);
            match backing.look(&at)? {
                None => backing.ask(|backend| backend.rename_of(it, at.slot(), Target::Nothing)),
                Some(_) => Ok(false),
            }
        });
        brought.map_err(Error::from)
    }

    /// Takes over a change made in the back end.
    fn take_change(
        &self,
        backing: &Backing,
        file: FileId,
        record: &Record,
        found: &Found,
        order: Order,
    ) -> Result<()> {
        let changed = found.version != record.version && found.kind == FileKind::File;
        let shared = changed && self.homes.is_shared(file);
        let _guard = match (shared, order) {
            (true, Order::Free) => match self.striped.await_order(file)? {
                // The order lock is held for long: the change is taken over later.
                None => return Ok(()),
                guard => guard,
            },
            _ => None,
        };
        let _size_lock = backing.lock_size(file);
        self.take_over(backing, file, record, found, shared)
    }

    fn take_over(
        &self,
        backing: &Backing,
        file: FileId,
        record: &Record,
        found: &Found,
        shared: bool,
    ) -> Result<()> {
        // A version seen during a truncation, a rename or the begin of a drain is not reliable; `hold` excludes these.
        let held = |act: &mut dyn FnMut() -> Result<()>| -> Result<bool> {
            let held =
                self.store.names().hold(file, |_| match self.is_still_so(backing, file, record, found)? {
                    true => act().map(|()| true),
                    false => Ok(false),
                });
            held.map_err(Error::from)
        };
        let mut change = Change::default();
        if (found.mode, found.uid, found.gid) != (record.mode, record.uid, record.gid) {
            (change.mode, change.uid, change.gid) = (Some(found.mode), Some(found.uid), Some(found.gid));
            if found.kind == FileKind::Symlink {
                change.mode = None;
            }
        }
        let differs = found.version != record.version;
        let (is_file, size) = (found.kind == FileKind::File, found.version.size);
        let mut taken = Ok(());
        if shared {
            match held(&mut || Ok(()))?.then(|| self.striped.renew_shared(file, size)) {
                None => return Ok(()),
                Some(renewed) => taken = renewed,
            }
        }
        let (now, root) = (self.store.data().now(), Identity::root());
        let noted = held(&mut || {
            if differs && is_file && !shared {
                taken = self.store.data().found_anew(file, size, Batch::default());
            }
            let mut known = found.clone();
            match std::mem::replace(&mut taken, Ok(())) {
                Ok(()) if differs => change.mtime = Some(SetTime::To(found.version.mtime)),
                Ok(()) => {}
                // Changed on both sides: the change in the back end is neither taken over nor read.
                Err(error) if error.kind() == ErrorKind::Stale => known.version = record.version,
                Err(error) => return Err(error),
            }
            let mut batch = Batch::default();
            backing.put_record(file, record.home.clone(), &known, &mut batch);
            self.store.meta().commit(batch)
        })?;
        if !noted {
            return Ok(());
        }
        match self.store.names().set_attr(&root, file, &change, now).map_err(Error::from) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether record and back end are as they were a moment ago, and the file is not being drained.
    fn is_still_so(&self, backing: &Backing, file: FileId, record: &Record, found: &Found) -> Result<bool> {
        if backing.record(file)?.as_ref() != Some(record) || backing.mark(file).is_some() {
            return Ok(false);
        }
        let now = backing.find(file)?.map(|(_, now)| Record::of(record.home.clone(), &now));
        Ok(now == Some(Record::of(record.home.clone(), found)))
    }

    /// A file is gone from the back end. Removes it, unless it was changed in the buffer: then its buffered bytes stay.
    fn remove_vanished(
        &self,
        backing: &Backing,
        file: FileId,
        inode: &Inode,
        (dir, name): (FileId, &Name),
    ) -> Result<bool> {
        let (names, root, now) = (self.store.names(), Identity::root(), self.store.data().now());
        let forget = |unlinked: &Unlinked, mut batch: Batch| {
            // The name may lead to another file by now, or the file may have reappeared.
            if unlinked.file != file || !self.has_vanished(backing, unlinked, (dir, name))? {
                return Err(ErrorKind::NotFound.into());
            }
            batch.remove(record::key(file));
            self.store.meta().commit(batch)
        };
        let gone = match inode.kind() {
            FileKind::File if !self.is_written_back_by_all(file)? => return Ok(false),
            FileKind::Directory => {
                self.remove_vanished_below(backing, file)?;
                names.remove_dir_via(&root, dir, name, now, forget)
            }
            _ => names.unlink_via(&root, dir, name, now, forget),
        };
        match gone.map_err(Error::from) {
            Ok(unlinked) => {
                if unlinked.fate == Fate::Orphaned {
                    self.grace.orphaned(&self.opens, unlinked.file);
                }
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotEmpty => {
                // It contains files of the buffer: from now on the directory is only in the buffer.
                let mut batch = Batch::default();
                batch.remove(record::key(file));
                self.store.meta().commit(batch)?;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether a file that is about to lose its name is gone from the back end and has no bytes that are only in the
    /// buffer.
    fn has_vanished(
        &self,
        backing: &Backing,
        Unlinked { file, inode, .. }: &Unlinked,
        (dir, name): (FileId, &Name),
    ) -> Result<bool> {
        let Some(record) = backing.record(*file)?.filter(|record| record.lives_at(dir, name)) else {
            return Ok(false);
        };
        if backing.mark(*file).is_some() {
            return Ok(false);
        }
        // The bytes of other holders were checked before.
        if inode.kind() == FileKind::File && !self.is_local_part_written_back(*file)? {
            return Ok(false);
        }
        let is_gone = match backing.find(*file) {
            Ok(found) => found.is_none_or(|(_, found)| !is_same_thing(inode, &record, &found)),
            // It went with its directory, which was replaced.
            Err(error) if error.kind() == ErrorKind::Stale => true,
            Err(error) => return Err(error),
        };
        if is_gone {
            // Not if its file system was unmounted before the look.
            let _tree = backing.lock_tree();
            backing.path(*file)?;
        }
        Ok(is_gone)
    }

    fn remove_vanished_below(&self, backing: &Backing, dir: FileId) -> Result<()> {
        self.visit(dir, |name, file| {
            if backing.record(file)?.is_some_and(|record| record.lives_at(dir, &name))
                && let Ok(inode) = self.store.names().inode(file)
            {
                self.remove_vanished(backing, file, &inode, (dir, &name))?;
            }
            Ok(())
        })
    }
}

/// Whether the object in the back end is the recorded one, possibly changed, or another one with the same rights that has
/// replaced it. With other rights it is not: programs that have the old one open, or files that wait for the drain
/// in it, were not permitted by the new one.
fn is_same_thing(inode: &Inode, record: &Record, found: &Found) -> bool {
    match &inode.body {
        Body::Symlink { target } => found.kind == FileKind::Symlink && *target == found.target,
        _ if record.version.serial != found.version.serial && can_chown() => {
            let (then, now) = ((record.mode, record.uid, record.gid), (found.mode, found.uid, found.gid));
            found.kind == inode.kind() && then == now
        }
        _ => found.kind == inode.kind(),
    }
}
