//! Writing to what is claimed behind, and letting go of it.

use super::change::changed_behind;
use super::record::{self, Record};
use super::{Extras, Home, Union, gone_behind};
use crate::service::Service;
use forebay_backend::{Found, Object, Version};
use forebay_model::{Error, ErrorKind, FileId, FileKind, Name, Result, Span, Time};
use forebay_store::{Batch, Body, Extent, Facts, Inode};
use forebay_wire::Place;

/// A file behind that is being written.
pub(crate) struct Pen {
    pub(crate) object: Box<dyn Object>,
    /// How long the file behind is, at least.
    pub(crate) grown: u64,
}

/// How far a claim is brought to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// What is behind is as it is here.
    Looks,
    /// It is seen anew, and nobody claims it.
    Claim { last: bool },
}

impl Service {
    /// Opens a claimed file to be written, as long as it is here. Nothing if it has no name any more.
    pub(crate) fn pen(&self, union: &Union, file: FileId) -> Result<Option<Pen>> {
        self.with_claimed(union, file, |path, object, version| {
            union.keep(file, &path)?;
            let grown = match self.ways.are_open() || self.ways.lanes.is_open(file) {
                // What is not written yet is to stay blank, so that it can be written past the buffer.
                true => {
                    self.ways.lanes.begin(file, version.size);
                    u64::MAX
                }
                false => self.grow(union, file, &path, version.size)?,
            };
            Ok(Pen { object, grown })
        })
    }

    /// Does something with a claimed file behind, while nobody moves or cuts it. Nothing if it has no name any more.
    fn with_claimed<T>(
        &self,
        union: &Union,
        file: FileId,
        with: impl FnOnce(Vec<Name>, Box<dyn Object>, Version) -> Result<T>,
    ) -> Result<Option<T>> {
        let _length = union.length(file);
        let held = self.store.names().hold(file, |inode| {
            let Some(inode) = inode.filter(|inode| !inode.parents.is_empty()) else { return Ok(None) };
            let _still = union.still();
            let Some(record) = union.record(file)? else { return Ok(None) };
            let path = union.path(file)?.ok_or_else(|| gone_behind(file))?;
            let object = open(union, &path, inode, &record)?;
            let version = union.ask(|_| object.version())?;
            if version.serial != record.version.serial {
                return Err(changed_behind(file));
            }
            with(path, object, version).map(Some)
        });
        held.map_err(Error::from)
    }

    /// Makes a file behind as long as it is here: what is new there is zero.
    fn grow(&self, union: &Union, file: FileId, path: &[Name], there: u64) -> Result<u64> {
        let size = self.store.data().facts(file)?.size;
        if size <= there {
            return Ok(there);
        }
        if !union.ask(|backend| backend.truncate(path, size))? {
            return Err(gone_behind(file));
        }
        self.store.data().hollow(file, &[Span::new(there, size)], Batch::default())?;
        Ok(size)
    }

    /// Where a claimed file is behind that several servers write to, and how long it is there: so long at least. Nothing if
    /// it has no name any more.
    pub(crate) fn grow_shared(&self, union: &Union, file: FileId, size: u64) -> Result<Option<(Place, u64)>> {
        self.measured(union, file, |path, there| match size > there {
            true => union.ask(|backend| backend.truncate(path, size)).map(|_| size),
            false => Ok(there),
        })
    }

    /// Cuts a file behind that several servers write to, if it is behind.
    pub(crate) fn shorten(&self, union: &Union, file: FileId, size: u64) -> Result<()> {
        let cut = self.measured(union, file, |path, there| match size < there {
            true => union.ask(|backend| backend.truncate(path, size)).map(|_| size),
            false => Ok(there),
        });
        cut.map(drop)
    }

    fn measured(
        &self,
        union: &Union,
        file: FileId,
        length: impl FnOnce(&[Name], u64) -> Result<u64>,
    ) -> Result<Option<(Place, u64)>> {
        self.with_claimed(union, file, |path, _, version| {
            let length = length(&path, version.size)?;
            Ok((Place { path, serial: version.serial }, length))
        })
    }

    /// The end of a claim: what is behind gets its length, zeros, owner, mode and time, and is seen anew.
    /// For the last time, it also gets what only some back ends hold. Of a file that several servers hold it has to be
    /// said what they know of it.
    pub(crate) fn conclude(
        &self,
        union: &Union,
        file: FileId,
        last: bool,
        shared: Option<Facts>,
    ) -> Result<Extras> {
        if union.is_kept(file) {
            // What it looks like is told before it is put together, since that takes a copy as well afterwards; and no
            // name is locked for as long as it takes.
            self.conclude_up_to(union, file, End::Looks, shared)?;
            union.gather(file)?;
        }
        self.conclude_up_to(union, file, End::Claim { last }, shared)
    }

    fn conclude_up_to(&self, union: &Union, file: FileId, end: End, shared: Option<Facts>) -> Result<Extras> {
        let _length = union.length(file);
        let mut extras = Extras::default();
        let _quiet = self.ways.lanes.quiet(file);
        if union.claimed(file).is_none() {
            self.forget_past(file);
            return Ok(extras);
        }
        self.settle_past(file)?;
        let held = self.store.names().hold(file, |inode| {
            let _still = union.still();
            let record = union.record(file)?;
            let (Some(inode), Some(record), Some(path)) = (inode, record, union.path(file)?) else {
                inode.map_or(Ok(()), |inode| self.unmake_begun(union, file, inode))?;
                let mut batch = Batch::default();
                Union::end_claim(file, &mut batch);
                return union.kv.commit(batch);
            };
            let Some(found) = union.ask(|backend| backend.find(&path))? else {
                return self.let_vanish(union, file, inode);
            };
            if found.kind != inode.kind()
                || (record.version.serial != 0 && found.version.serial != record.version.serial)
            {
                return Err(changed_behind(file));
            }
            let named = record.home != Home::Private;
            let mut zeros = Vec::new();
            match &shared {
                Some(facts) if named && found.version.size != facts.size => {
                    union.ask(|backend| backend.truncate(&path, facts.size))?;
                }
                None if named && inode.kind() == FileKind::File => {
                    zeros = self.level(union, file, &path, &found)?;
                }
                _ => {}
            }
            if shared.is_none() && self.ways.is_left_over(file) {
                union.ask(|backend| backend.open(&path)?.sync())?;
            }
            if named && end == (End::Claim { last: true }) {
                let place = (path.as_slice(), found.version.serial);
                self.add_extras(union, file, inode, place, &mut extras)?;
            }
            if named {
                self.dress(union, (file, inode), &path, shared)?;
            }
            match end {
                End::Looks => self.store.data().hollow(file, &zeros, Batch::default()),
                End::Claim { .. } => self.see_again(union, file, &record, &path, &zeros),
            }
        });
        // Whether all of it could be done or not: directories that were claimed for it are to be let go of.
        self.drain.iter().for_each(|engine| engine.touched(&extras.dirs));
        held.map_err(Error::from)?;
        if end == End::Looks {
            return Ok(extras);
        }
        union.unclaim(file);
        self.forget_past(file);
        Ok(extras)
    }

    /// Whether something that has a name is behind: what was about to be made there and failed is not.
    pub(crate) fn is_made(&self, union: &Union, file: FileId) -> bool {
        let named = self.store.names().inode(file).is_ok_and(|inode| !inode.parents.is_empty());
        !named || union.knows(file) == Ok(true)
    }

    /// Somebody removed something behind while it was claimed: if nothing of it is only here, it is seen to be gone.
    fn let_vanish(&self, union: &Union, file: FileId, inode: &Inode) -> Result<()> {
        if inode.kind() == FileKind::File && !self.has_no_news(file, inode)? {
            return Err(gone_behind(file));
        }
        let mut batch = Batch::default();
        Union::end_claim(file, &mut batch);
        union.kv.commit(batch)
    }

    /// Gives a file behind the length that it has here, and zeros where it has zeros here.
    /// Says where: what is punched from now on is not zero there.
    fn level(&self, union: &Union, file: FileId, path: &[Name], found: &Found) -> Result<Vec<Span>> {
        let (data, there) = (self.store.data(), found.version.size);
        let size = data.facts(file)?.size;
        if there > size && !union.ask(|backend| backend.truncate(path, size))? {
            return Err(gone_behind(file));
        }
        self.grow(union, file, path, there)?;
        let holes = data.holes(file, there)?;
        let soiled = self.ways.lanes.soiled(file, holes.clone());
        if !soiled.is_empty() {
            union.ask(|backend| {
                let object = backend.open_to_write(path)?;
                soiled.into_iter().try_for_each(|hole| object.zero(hole))?;
                object.sync()
            })?;
        }
        Ok(holes)
    }

    fn dress(
        &self,
        union: &Union,
        (file, inode): (FileId, &Inode),
        path: &[Name],
        shared: Option<Facts>,
    ) -> Result<()> {
        let mtime = match shared {
            Some(facts) => inode.attr(file, &facts).mtime,
            None => self.mtime(file, inode)?,
        };
        let dressed = union.ask(|backend| backend.set_attr(path, (inode.uid, inode.gid), inode.mode, mtime));
        match dressed {
            // Whoever serves without being root serves himself.
            Err(error) if matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::NotPermitted) => {
                tracing::warn!(%error, "something was drained, and does not look as it should");
                Ok(())
            }
            done => done,
        }
    }

    fn mtime(&self, file: FileId, inode: &Inode) -> Result<Time> {
        let facts = match inode.kind() {
            FileKind::File => self.noted_facts(file, inode)?,
            FileKind::Directory => self.store.names().share(file)?.into(),
            FileKind::Symlink | FileKind::Special(_) => Facts::default(),
        };
        Ok(inode.attr(file, &facts).mtime)
    }

    /// What is known of a file's bytes, those that others were last known to hold among them.
    fn noted_facts(&self, file: FileId, inode: &Inode) -> Result<Facts> {
        let mut facts = self.store.data().facts(file)?;
        if let Body::File { extent, .. } = &inode.body {
            facts.touched = facts.touched.max(extent.touched);
        }
        Ok(facts)
    }

    /// Whether nothing of a file's bytes is only in the buffers of servers.
    pub(super) fn has_no_news(&self, file: FileId, inode: &Inode) -> Result<bool> {
        match (&inode.body, self.is_shared(file)) {
            (Body::File { extent, .. }, true) => {
                let settled =
                    *extent == Extent::default() || (!extent.is_open() && extent.elsewhere == Some(0));
                Ok(settled && self.store.data().backlog(file)?.is_none())
            }
            _ => self.store.data().is_as_behind(file),
        }
    }

    /// Whether nothing of a file's bytes is only in the buffer of this server.
    pub(super) fn has_no_news_here(&self, file: FileId) -> Result<bool> {
        match self.is_shared(file) {
            true => Ok(self.store.data().backlog(file)?.is_none()),
            false => self.store.data().is_as_behind(file),
        }
    }

    /// The same for all servers: those are asked of which it is not noted.
    pub(super) fn has_no_news_anywhere(&self, file: FileId) -> Result<bool> {
        if !self.has_no_news_here(file)? {
            return Ok(false);
        }
        match self.held_by_others(file) {
            Ok(held) => Ok(held.buffered == 0),
            Err(error) => {
                tracing::debug!(%file, %error, "nobody says whether all of a file is behind");
                Ok(false)
            }
        }
    }

    /// Whether something is behind as it is here.
    pub(crate) fn is_behind(&self, union: &Union, file: FileId, inode: &Inode) -> Result<bool> {
        let Some(record) = union.record(file)?.filter(|_| union.claimed(file).is_none()) else {
            return Ok(false);
        };
        if inode.kind() == FileKind::File && !self.has_no_news(file, inode)? {
            return Ok(false);
        }
        Ok(looks_so(&record, inode, self.mtime(file, inode)?))
    }

    /// The same for a file of several servers, whatever is noted of it: they are asked.
    pub(crate) fn is_behind_by_all(&self, union: &Union, file: FileId) -> Result<bool> {
        let Some(record) = union.record(file)?.filter(|_| union.claimed(file).is_none()) else {
            return Ok(false);
        };
        let inode = self.store.names().inode(file)?;
        if !self.has_no_news_here(file)? {
            return Ok(false);
        }
        let Ok(held) = self.held_by_others(file) else { return Ok(false) };
        let mut facts = self.noted_facts(file, &inode)?;
        facts.touched = facts.touched.max(held.touched);
        Ok(held.buffered == 0 && looks_so(&record, &inode, inode.attr(file, &facts).mtime))
    }

    /// Writes down what is behind now, together with the end of the claim.
    fn see_again(
        &self,
        union: &Union,
        file: FileId,
        record: &Record,
        path: &[Name],
        zeros: &[Span],
    ) -> Result<()> {
        let found = union.ask(|backend| backend.find(path))?.ok_or_else(|| gone_behind(file))?;
        let mut batch = Batch::default();
        batch.put(record::key(file), Record::of(record.home.clone(), &found).encode());
        Union::end_claim(file, &mut batch);
        match zeros {
            [] => union.kv.commit(batch),
            _ => self.store.data().hollow(file, zeros, batch),
        }
    }
}

/// Whether what is behind has the owner, mode and time that it should have.
fn looks_so(record: &Record, inode: &Inode, mtime: Time) -> bool {
    // Whoever is not root can give nothing away.
    let gives = rustix::process::geteuid().is_root();
    let owned = !gives || (record.uid, record.gid) == (inode.uid, inode.gid);
    let mode = inode.kind() == FileKind::Symlink || record.mode == inode.mode;
    owned && mode && record.version.mtime == mtime
}

/// Opens a file to be written; one that its owner may not write is made one that he may.
fn open(union: &Union, path: &[Name], inode: &Inode, record: &Record) -> Result<Box<dyn Object>> {
    union.ask(|backend| match backend.open_to_write(path) {
        Err(error) if error.kind() == ErrorKind::AccessDenied => {
            backend.set_attr(
                path,
                (inode.uid, inode.gid),
                inode.mode & 0o777 | 0o600,
                record.version.mtime,
            )?;
            backend.open_to_write(path)
        }
        opened => opened,
    })
}
