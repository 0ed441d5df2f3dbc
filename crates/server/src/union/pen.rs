//! Writing to what is claimed behind, and letting go of it.

use super::change::changed_behind;
use super::record::{self, Record};
use super::{Extras, Home, Union, gone_behind};
use crate::service::Service;
use forebay_backend::{Found, Object};
use forebay_model::{Error, ErrorKind, FileId, FileKind, Name, Result, Span, Time};
use forebay_store::{Batch, Inode};

/// How many zeros are written at once.
const ZEROS: usize = 1 << 20;

/// A file behind that is being written.
pub(crate) struct Pen {
    pub(crate) object: Box<dyn Object>,
    /// How long the file behind is, at least.
    pub(crate) grown: u64,
}

impl Service {
    /// Opens a claimed file to be written, as long as it is here. Nothing if it has no name any more.
    pub(crate) fn pen(&self, union: &Union, file: FileId) -> Result<Option<Pen>> {
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
            let grown = match self.ways.are_open() {
                // What is not written yet is to stay blank, so that it can be written past the buffer.
                true => {
                    self.ways.lanes.begin(file, version.size);
                    u64::MAX
                }
                false => self.grow(union, file, &path, version.size)?,
            };
            Ok(Some(Pen { object, grown }))
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
        self.store.data().hollow(file, Span::new(there, size), Batch::default())?;
        Ok(size)
    }

    /// The end of a claim: what is behind gets its length, zeros, owner, mode and time, and is seen anew.
    /// For the last time, it also gets what only some back ends hold.
    pub(crate) fn conclude(&self, union: &Union, file: FileId, last: bool) -> Result<Extras> {
        let _length = union.length(file);
        let mut extras = Extras::default();
        let _quiet = self.ways.lanes.quiet(file);
        if union.claimed(file).is_none() {
            self.ways.lanes.forget(file);
            return Ok(extras);
        }
        self.ways.settle(file)?;
        let held = self.store.names().hold(file, |inode| {
            let _still = union.still();
            let record = union.record(file)?;
            let (Some(inode), Some(record), Some(path)) = (inode, record, union.path(file)?) else {
                let mut batch = Batch::default();
                Union::end_claim(file, &mut batch);
                return union.kv.commit(batch);
            };
            let found = union.ask(|backend| backend.find(&path))?.ok_or_else(|| gone_behind(file))?;
            if found.kind != inode.kind()
                || (record.version.serial != 0 && found.version.serial != record.version.serial)
            {
                return Err(changed_behind(file));
            }
            let named = record.home != Home::Private;
            if named && inode.kind() == FileKind::File {
                self.level(union, file, &path, &found)?;
            }
            if named && last {
                self.add_extras(union, file, inode, &path, &mut extras)?;
            }
            if named {
                self.dress(union, file, inode, &path)?;
            }
            self.see_again(union, file, &record, &path)
        });
        held.map_err(Error::from)?;
        union.unclaim(file);
        self.ways.lanes.forget(file);
        Ok(extras)
    }

    /// Gives a file behind the length that it has here, and zeros where it has zeros here.
    fn level(&self, union: &Union, file: FileId, path: &[Name], found: &Found) -> Result<()> {
        let (data, there) = (self.store.data(), found.version.size);
        let size = data.facts(file)?.size;
        if there > size && !union.ask(|backend| backend.truncate(path, size))? {
            return Err(gone_behind(file));
        }
        self.grow(union, file, path, there)?;
        let holes = self.ways.lanes.soiled(file, data.holes(file, there)?);
        if !holes.is_empty() {
            union.ask(|backend| {
                let object = backend.open_to_write(path)?;
                let zeros = vec![0; ZEROS];
                for hole in holes {
                    let mut at = hole.start;
                    while at < hole.end {
                        let some = (hole.end - at).min(ZEROS as u64) as usize;
                        object.write_at(at, &[&zeros[..some]])?;
                        at += some as u64;
                    }
                }
                object.sync()
            })?;
        }
        Ok(())
    }

    fn dress(&self, union: &Union, file: FileId, inode: &Inode, path: &[Name]) -> Result<()> {
        let mtime = self.mtime(file, inode)?;
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
            FileKind::File => self.store.data().facts(file)?,
            FileKind::Directory => self.store.names().share(file)?.into(),
            FileKind::Symlink | FileKind::Special(_) => forebay_store::Facts::default(),
        };
        Ok(inode.attr(file, &facts).mtime)
    }

    /// Whether something is behind as it is here.
    pub(crate) fn is_behind(&self, union: &Union, file: FileId, inode: &Inode) -> Result<bool> {
        let Some(record) = union.record(file)?.filter(|_| union.claimed(file).is_none()) else {
            return Ok(false);
        };
        if inode.kind() == FileKind::File && !self.store.data().is_as_behind(file)? {
            return Ok(false);
        }
        // Whoever is not root can give nothing away.
        let gives = rustix::process::geteuid().is_root();
        let owned = !gives || (record.uid, record.gid) == (inode.uid, inode.gid);
        let mode = inode.kind() == FileKind::Symlink || record.mode == inode.mode;
        Ok(owned && mode && record.version.mtime == self.mtime(file, inode)?)
    }

    /// Writes down what is behind now, together with the end of the claim.
    fn see_again(&self, union: &Union, file: FileId, record: &Record, path: &[Name]) -> Result<()> {
        let found = union.ask(|backend| backend.find(path))?.ok_or_else(|| gone_behind(file))?;
        let mut batch = Batch::default();
        batch.put(record::key(file), Record::of(record.home.clone(), &found).encode());
        Union::end_claim(file, &mut batch);
        if found.kind != FileKind::File || record.home == Home::Private {
            return union.kv.commit(batch);
        }
        let data = self.store.data();
        data.hollow(file, Span::new(0, found.version.size), batch)
    }
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
