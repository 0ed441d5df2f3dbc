//! Meeting what is behind: on a miss, in a listing, and again whenever it may have changed.

use super::record::{self, Home, Record};
use super::{Union, is_private, private_dir, private_name};
use crate::service::Service;
use forebay_backend::Found;
use forebay_model::{Change, Error, ErrorKind, FileId, FileKind, Identity, Layout, Name, Result, SetTime};
use forebay_store::{
    Arrival, Batch, Body, Extent, Fate, Found as Named, Inode, MAX_LISTED, Unlinked, Walked,
};
use std::collections::HashSet;

/// Bytes in a stripe; with one server, a formality.
const STRIPE: u64 = 4 << 20;
/// Most names in a directory behind: they are all in memory while it is listed.
const MOST_NAMES: usize = 1 << 22;

/// Whether whoever looks at a file keeps others from changing the order of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Free,
    Kept,
}

impl Service {
    /// Makes sure that a name leads to what is behind, if anything is: to be called before the name is used.
    pub(crate) fn meet(&self, dir: FileId, name: &Name) -> Result<()> {
        self.meet_in(dir, name, Order::Free)
    }

    pub(crate) fn meet_in(&self, dir: FileId, name: &Name, order: Order) -> Result<()> {
        let Some(union) = &self.union else { return Ok(()) };
        match self.known(dir, name)? {
            Some((file, inode)) => {
                if self.look_again(union, file, &inode, order)? {
                    self.find_new(union, dir, name)?;
                }
                self.join(union, file, &inode, (dir, name))
            }
            None => self.find_new(union, dir, name).map(drop),
        }
    }

    /// Brings in the first name of a path that the buffer does not know and the back end does; false if there is none.
    pub(crate) fn meet_on_path(&self, who: &Identity, dir: FileId, path: &[u8]) -> Result<bool> {
        let Some(union) = &self.union else { return Ok(false) };
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
                    self.join(union, file, &inode, (at, &name))?;
                    at = file;
                }
                Ok(_) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::NotFound => return self.find_new(union, at, &name),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// A path leads to a directory here: one that has come to be behind under the same name is the same.
    pub(crate) fn join_last(&self, who: &Identity, dir: FileId, path: &[u8]) -> Result<()> {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let Ok(name) = Name::new(&path[start..end]) else { return Ok(()) };
        match self.store.names().walk(who, dir, &path[..start], true)? {
            Walked::Found(above, _) => self.meet(above, &name),
            Walked::Link { .. } | Walked::At { .. } | Walked::Elsewhere { .. } => Ok(()),
        }
    }

    /// Looks at a file behind again, and at the directories above it if that was some time ago: whoever lost rights
    /// there has lost them here, and what was removed or replaced there is removed or replaced here.
    pub(crate) fn refresh(&self, file: FileId) -> Result<()> {
        self.refresh_in(file, Order::Free)
    }

    pub(crate) fn refresh_in(&self, file: FileId, order: Order) -> Result<()> {
        let Some(union) = &self.union else { return Ok(()) };
        // What is above it are directories, but the first is the file itself.
        self.refresh_above_in(file, order)?;
        match self.store.names().inode(file) {
            Ok(inode) => self.look_again(union, file, &inode, order).map(drop),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Looks at a file and the directories above it again, each if that was some time ago.
    pub(crate) fn refresh_above(&self, file: FileId) -> Result<()> {
        self.refresh_above_in(file, Order::Free)
    }

    fn refresh_above_in(&self, file: FileId, order: Order) -> Result<()> {
        let Some(union) = &self.union else { return Ok(()) };
        let mut at = file;
        while let Some(record) = union.record(at)? {
            if !union.was_just_seen(at)
                && let Ok(inode) = self.store.names().inode(at)
            {
                self.look_again(union, at, &inode, order)?;
            }
            match record.home {
                Home::Entry { dir, .. } => at = dir,
                Home::Private => break,
            }
        }
        Ok(())
    }

    /// Brings everything in a directory behind in, and forgets what has gone from there.
    pub(crate) fn survey(&self, dir: FileId) -> Result<()> {
        let Some(union) = &self.union else { return Ok(()) };
        let mut there = HashSet::new();
        let listed = {
            let _still = union.still();
            let Some(path) = union.path(dir)? else { return Ok(()) };
            let mut show = |name: Name| {
                // One too many is enough to know that there are too many.
                if there.len() <= MOST_NAMES && !is_private(dir, &name) {
                    there.insert(name);
                }
            };
            union.ask(|backend| backend.list(&path, &mut show))
        };
        match listed {
            Ok(()) => {}
            // Gone meanwhile, or never more than a name here.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                return self.refresh(dir);
            }
            Err(error) => return Err(error),
        }
        if there.len() > MOST_NAMES {
            let text = format!("directory {dir} has more than {MOST_NAMES} entries behind: list it there");
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        self.visit(dir, |name, file| {
            if !there.remove(&name)
                && union.record(file)?.is_some_and(|record| record.lives_at(dir, &name))
                && let Ok(inode) = self.store.names().inode(file)
            {
                self.look_again(union, file, &inode, Order::Free)?;
            }
            Ok(())
        })?;
        for name in there {
            self.find_new(union, dir, &name)?;
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

    /// What has a name here. In front of a back end a server is alone, and everything is its own.
    fn look_up(&self, who: &Identity, dir: FileId, name: &Name) -> Result<(FileId, Inode)> {
        match self.store.names().lookup(who, dir, name)? {
            Named::Here(file, inode) => Ok((file, *inode)),
            Named::Away(file, _) => Err(Error::new(
                ErrorKind::Io,
                format!("file {file} is on another server, beyond the back end"),
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

    /// Looks for a name behind that is not known here; true if it is there.
    fn find_new(&self, union: &Union, dir: FileId, name: &Name) -> Result<bool> {
        if is_private(dir, name) {
            return Ok(false);
        }
        let found = {
            let _still = union.still();
            let Some(mut path) = union.path(dir)? else { return Ok(false) };
            path.push(name.clone());
            union.ask(|backend| backend.find(&path))?
        };
        let Some(found) = found else { return Ok(false) };
        let (arrival, size) = (self.arrival((dir, name), &found)?, found.version.size);
        let with = |file: FileId| {
            let mut batch = match found.kind {
                FileKind::File => self.store.data().found(file, size)?,
                _ => Batch::default(),
            };
            let home = Home::Entry { dir, name: name.clone() };
            batch.put(record::key(file), Record::of(home, &found).encode());
            Ok(batch)
        };
        let brought = self.store.names().bring(dir, name, arrival, self.store.data().now(), with);
        match brought.map_err(Error::from) {
            Ok(_) => Ok(true),
            // Somebody else met it at the same time, or made one here.
            Err(error) if error.kind() == ErrorKind::Exists => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// A directory of ours and one that has come to be behind under the same name are one.
    fn join(&self, union: &Union, file: FileId, inode: &Inode, (dir, name): (FileId, &Name)) -> Result<()> {
        if inode.kind() != FileKind::Directory || is_private(dir, name) || union.record(file)?.is_some() {
            return Ok(());
        }
        let found = {
            let _still = union.still();
            let Some(mut path) = union.path(dir)? else { return Ok(()) };
            path.push(name.clone());
            union.ask(|backend| backend.find(&path))?
        };
        let Some(found) = found.filter(|found| found.kind == FileKind::Directory) else { return Ok(()) };
        let joined = self.store.names().hold(file, |_| {
            // It may have another name by now, or none.
            if union.record(file)?.is_some() || !self.store.names().leads(dir, name, file)? {
                return Ok(());
            }
            let home = Home::Entry { dir, name: name.clone() };
            let mut batch = Batch::default();
            batch.put(record::key(file), Record::of(home, &found).encode());
            self.store.meta().commit(batch)
        });
        joined.map_err(Error::from)
    }

    fn arrival(&self, (dir, name): (FileId, &Name), found: &Found) -> Result<Arrival> {
        let body = match found.kind {
            FileKind::File => {
                let striping = match found.version.size == 0 && !self.is_alone() {
                    true => self.store.names().dir(dir).map_err(Error::from)?.striping,
                    false => None,
                };
                // Whoever makes an empty file to have it laid out behind wants it laid out here as well. One with bytes
                // would have to be made known to all who are to hold some.
                let (layout, incarnations) = match striping {
                    Some(striping) => self.laid_out(striping, (dir, name)),
                    None => (Layout::whole(self.config.server, STRIPE), vec![self.store.incarnation()]),
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

    /// Compares what is known of something with what is behind; true if it is not there any more.
    fn look_again(&self, union: &Union, file: FileId, inode: &Inode, order: Order) -> Result<bool> {
        let Some(record) = union.record(file)? else { return Ok(false) };
        // What the drain is writing to changes behind all the time.
        if union.claimed(file).is_some() {
            return Ok(false);
        }
        let Home::Entry { dir, name } = &record.home else { return Ok(false) };
        match union.find(file)? {
            Some((_, found)) if is_same_thing(inode, &found) => {
                let seen = Record::of(record.home.clone(), &found);
                if seen != record {
                    self.renew(union, file, &record, &found, order)?;
                }
                Ok(false)
            }
            _ if self.bring_back(union, file, &record)? => Ok(false),
            _ => self.vanish(union, file, inode, (*dir, name)),
        }
    }

    /// A rename that failed half way may have left something in the server's own directory: it gets its place again.
    fn bring_back(&self, union: &Union, file: FileId, record: &Record) -> Result<bool> {
        let aside = [private_dir(), private_name(file)];
        let lies_aside = |union: &Union| -> Result<bool> {
            let found = union.ask(|backend| backend.find(&aside))?;
            Ok(found.is_some_and(|found| found.version.serial == record.version.serial))
        };
        if !lies_aside(union)? {
            return Ok(false);
        }
        let brought = self.store.names().hold(file, |_| {
            let _still = union.still();
            if union.record(file)?.as_ref() != Some(record) || !lies_aside(union)? {
                return Ok(false);
            }
            let Some(path) = union.path(file)? else { return Ok(false) };
            union.ask(|backend| match backend.find(&path)? {
                None => backend.rename(&aside, &path),
                Some(_) => Ok(false),
            })
        });
        brought.map_err(Error::from)
    }

    /// Takes over what changed behind.
    fn renew(&self, union: &Union, file: FileId, record: &Record, found: &Found, order: Order) -> Result<()> {
        let changed = found.version != record.version && found.kind == FileKind::File;
        let shared = changed && self.is_shared(file);
        let _guard = match (shared, order) {
            (true, Order::Free) => match self.await_order(file)? {
                // Whoever changes it for so long sees it later.
                None => return Ok(()),
                guard => guard,
            },
            _ => None,
        };
        let _length = union.length(file);
        self.take_over(union, file, record, found, shared)
    }

    fn take_over(
        &self,
        union: &Union,
        file: FileId,
        record: &Record,
        found: &Found,
        shared: bool,
    ) -> Result<()> {
        // What was seen while somebody cut it, moved it or began to drain it says nothing; while this is held nobody does.
        let held = |act: &mut dyn FnMut() -> Result<()>| -> Result<bool> {
            let held =
                self.store.names().hold(file, |_| match self.is_still_so(union, file, record, found)? {
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
            match held(&mut || Ok(()))?.then(|| self.renew_shared(file, size)) {
                None => return Ok(()),
                Some(renewed) => taken = renewed,
            }
        }
        let (now, root) = (self.store.data().now(), Identity::root());
        let noted = held(&mut || {
            if differs && is_file && !shared {
                taken = self.store.data().found_anew(file, size, Batch::default());
            }
            let mut known = Record::of(record.home.clone(), found);
            match std::mem::replace(&mut taken, Ok(())) {
                Ok(()) if differs => change.mtime = Some(SetTime::To(found.version.mtime)),
                Ok(()) => {}
                // Changed on both sides: what is behind is not taken, and not read either.
                Err(error) if error.kind() == ErrorKind::Stale => known.version = record.version,
                Err(error) => return Err(error),
            }
            let mut batch = Batch::default();
            batch.put(record::key(file), known.encode());
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

    /// Whether something is known and to be found behind as it was a moment ago, and nobody is draining it.
    fn is_still_so(&self, union: &Union, file: FileId, record: &Record, found: &Found) -> Result<bool> {
        if union.record(file)?.as_ref() != Some(record) || union.claimed(file).is_some() {
            return Ok(false);
        }
        let now = union.find(file)?.map(|(_, now)| Record::of(record.home.clone(), &now));
        Ok(now == Some(Record::of(record.home.clone(), found)))
    }

    /// Something is behind no more. Forgets it, unless it was changed here: then it stays, as far as it is here.
    fn vanish(
        &self,
        union: &Union,
        file: FileId,
        inode: &Inode,
        (dir, name): (FileId, &Name),
    ) -> Result<bool> {
        let (names, root, now) = (self.store.names(), Identity::root(), self.store.data().now());
        let forget = |unlinked: &Unlinked, mut batch: Batch| {
            // The name may lead to another file by now, or this one be there again.
            if unlinked.file != file || !self.has_vanished(union, unlinked, (dir, name))? {
                return Err(ErrorKind::NotFound.into());
            }
            batch.remove(record::key(file));
            self.store.meta().commit(batch)
        };
        let gone = match inode.kind() {
            FileKind::File if !self.has_no_news_anywhere(file)? => return Ok(false),
            FileKind::Directory => {
                self.vanish_below(union, file)?;
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
                // It holds something of ours: from now on it is a directory of ours.
                let mut batch = Batch::default();
                batch.remove(record::key(file));
                self.store.meta().commit(batch)?;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether something that is about to lose its name is behind no more, under that name, and has nothing that is only here.
    fn has_vanished(
        &self,
        union: &Union,
        Unlinked { file, inode, .. }: &Unlinked,
        (dir, name): (FileId, &Name),
    ) -> Result<bool> {
        let lives_there = union.record(*file)?.is_some_and(|record| record.lives_at(dir, name));
        if !lives_there || union.claimed(*file).is_some() {
            return Ok(false);
        }
        // What others hold of it was asked before.
        if inode.kind() == FileKind::File && !self.has_no_news_here(*file)? {
            return Ok(false);
        }
        Ok(union.find(*file)?.is_none_or(|(_, found)| !is_same_thing(inode, &found)))
    }

    fn vanish_below(&self, union: &Union, dir: FileId) -> Result<()> {
        self.visit(dir, |name, file| {
            if union.record(file)?.is_some_and(|record| record.lives_at(dir, &name))
                && let Ok(inode) = self.store.names().inode(file)
            {
                self.vanish(union, file, &inode, (dir, &name))?;
            }
            Ok(())
        })
    }
}

/// Whether what is behind is what was met, however it may have changed.
fn is_same_thing(inode: &Inode, found: &Found) -> bool {
    match &inode.body {
        Body::Symlink { target } => found.kind == FileKind::Symlink && *target == found.target,
        _ => found.kind == inode.kind(),
    }
}
