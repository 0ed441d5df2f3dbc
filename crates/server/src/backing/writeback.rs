//! Writes to files with writeback marks in the back end, and finalizes them.

use super::BackingLayer;
use super::mutate::changed_in_backing;
use super::record::Record;
use super::{Backing, Extras, Home, can_chown, missing_in_backing};
use forebay_backend::{Found, Object, Seen, Slot, Version};
use forebay_model::{Error, ErrorKind, FileId, FileKind, Name, Result, Span, Time};
use forebay_store::{Batch, Body, Extent, Facts, Inode};
use forebay_wire::Place;

/// An open file in the back end that is being written.
pub(crate) struct BackingWriter {
    pub(crate) object: Box<dyn Object>,
    /// The minimum size of the file in the back end.
    pub(crate) grown: u64,
}

/// How far `finalize` goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Size and attributes in the back end match.
    Attrs,
    /// The version is recorded and the writeback mark ends.
    Mark { last: bool },
}

impl BackingLayer {
    /// Opens a file with a writeback mark for writing, and extends it to its size. `None` if it has no name any more.
    pub(crate) fn writer(&self, backing: &Backing, file: FileId) -> Result<Option<BackingWriter>> {
        self.with_marked(backing, file, |path, object, version| {
            backing.keep(file, &path)?;
            let grown = match self.writers.route.are_open() || self.writers.range_locks.is_open(file) {
                // Unwritten ranges stay unallocated, so that direct writers can write them.
                true => {
                    self.writers.range_locks.begin(file, version.size);
                    u64::MAX
                }
                false => self.grow(backing, file, seen(&path, version), version.size)?,
            };
            Ok(BackingWriter { object, grown })
        })
    }

    /// Runs `with` on a file with a writeback mark while no other thread moves or truncates it. `None` if it has no
    /// name any more.
    fn with_marked<T>(
        &self,
        backing: &Backing,
        file: FileId,
        with: impl FnOnce(Vec<Name>, Box<dyn Object>, Version) -> Result<T>,
    ) -> Result<Option<T>> {
        let _size_lock = backing.lock_size(file);
        let held = self.store.names().hold(file, |inode| {
            let Some(inode) = inode.filter(|inode| !inode.parents.is_empty()) else { return Ok(None) };
            let _tree = backing.lock_tree();
            let Some(record) = backing.record(file)? else { return Ok(None) };
            let path = backing.path(file)?.ok_or_else(|| missing_in_backing(file))?;
            let object = open(backing, &path, inode, &record)?;
            let version = backing.ask(|_| object.version())?;
            if version.serial != record.version.serial {
                return Err(changed_in_backing(file));
            }
            with(path, object, version).map(Some)
        });
        held.map_err(Error::from)
    }

    /// Extends a file in the back end to its size in the buffer; the new range is zero.
    fn grow(&self, backing: &Backing, file: FileId, it: Seen<'_>, there: u64) -> Result<u64> {
        let size = self.store.data().facts(file)?.size;
        if size <= there {
            return Ok(there);
        }
        if !backing.ask(|backend| backend.truncate_of(it, size))? {
            return Err(missing_in_backing(file));
        }
        self.store.data().hollow(file, &[Span::new(there, size)], Batch::default())?;
        Ok(size)
    }

    /// Extends a striped file in the back end to at least `size`; returns its place and size there. `None` if it has no
    /// name any more.
    pub(crate) fn grow_shared(
        &self,
        backing: &Backing,
        file: FileId,
        size: u64,
    ) -> Result<Option<(Place, u64)>> {
        self.measured(backing, file, |it, there| match size > there {
            true => backing.ask(|backend| backend.truncate_of(it, size)).map(|_| size),
            false => Ok(there),
        })
    }

    /// Truncates a striped file in the back end, if it is there.
    pub(crate) fn shorten(&self, backing: &Backing, file: FileId, size: u64) -> Result<()> {
        let cut = self.measured(backing, file, |it, there| match size < there {
            true => backing.ask(|backend| backend.truncate_of(it, size)).map(|_| size),
            false => Ok(there),
        });
        cut.map(drop)
    }

    fn measured(
        &self,
        backing: &Backing,
        file: FileId,
        length: impl FnOnce(Seen<'_>, u64) -> Result<u64>,
    ) -> Result<Option<(Place, u64)>> {
        self.with_marked(backing, file, |path, _, version| {
            let length = length(seen(&path, version), version.size)?;
            Ok((Place { path, serial: version.serial }, length))
        })
    }

    /// Ends a writeback mark: sets size, zeros, owner, mode and time in the back end, and records the new version. With
    /// `last`, also stores what only some back ends support. For a striped file, `shared` holds the facts of all
    /// holders.
    pub(crate) fn finalize(
        &self,
        backing: &Backing,
        file: FileId,
        last: bool,
        shared: Option<Facts>,
    ) -> Result<Extras> {
        if backing.is_held_open(file) {
            // Attributes are set before the file is assembled, which would otherwise copy it again; and no name is
            // locked while it is assembled.
            self.finalize_up_to(backing, file, End::Attrs, shared)?;
            backing.gather(file)?;
        }
        self.finalize_up_to(backing, file, End::Mark { last }, shared)
    }

    fn finalize_up_to(
        &self,
        backing: &Backing,
        file: FileId,
        end: End,
        shared: Option<Facts>,
    ) -> Result<Extras> {
        let _size_lock = backing.lock_size(file);
        let mut extras = Extras::default();
        let _quiet = self.writers.range_locks.quiesce(file);
        if backing.mark(file).is_none() {
            self.writers.forget_direct(file);
            return Ok(extras);
        }
        self.writers.sync_direct_until_done(file)?;
        let mut ended = None;
        let held = self.store.names().hold(file, |inode| {
            let _tree = backing.lock_tree();
            let is_dir = inode.is_some_and(|inode| inode.kind() == FileKind::Directory);
            let _finishing = is_dir.then(|| (backing.lock_creation(file), backing.lock_finishing(file)));
            self.finalize_held(backing, (file, inode), end, shared, &mut extras)?;
            // While the file is locked: the next worker must not take this mark for one that lasts.
            if end != End::Attrs {
                ended = backing.take_mark(file);
            }
            Ok(())
        });
        backing.release_mark(ended);
        // Directories with new writeback marks have to be finalized even if something failed.
        backing.touched(&extras.dirs);
        held.map_err(Error::from)?;
        if end == End::Attrs {
            return Ok(extras);
        }
        self.writers.forget_direct(file);
        Ok(extras)
    }

    /// Finalizes a file whose names are locked.
    fn finalize_held(
        &self,
        backing: &Backing,
        (file, inode): (FileId, Option<&Inode>),
        end: End,
        shared: Option<Facts>,
        extras: &mut Extras,
    ) -> Result<()> {
        let record = backing.record(file)?;
        let (Some(inode), Some(record), Some(path)) = (inode, record, backing.path(file)?) else {
            inode.map_or(Ok(()), |inode| self.remove_incomplete_file(backing, file, inode))?;
            let mut batch = Batch::default();
            Backing::end_mark(file, &mut batch);
            return backing.kv.commit(batch);
        };
        let Some(found) = backing.spot_of(file)?.map(|at| backing.look(&at)).transpose()?.flatten() else {
            return self.accept_removal(backing, file, inode);
        };
        if found.kind != inode.kind() || !is_recorded_object(&record, &found) {
            return Err(changed_in_backing(file));
        }
        let it = seen(&path, found.version);
        let named = record.home != Home::Private;
        let mut zeros = Vec::new();
        match &shared {
            Some(facts) if named && found.version.size != facts.size => {
                backing.ask(|backend| backend.truncate_of(it, facts.size))?;
            }
            None if named && inode.kind() == FileKind::File => {
                zeros = self.match_size(backing, file, it, found.version.size)?;
            }
            _ => {}
        }
        if shared.is_none() && self.writers.is_left_over(file) {
            backing.ask(|backend| backend.open(&path)?.sync())?;
        }
        if named && end == (End::Mark { last: true }) {
            self.add_extras(backing, file, inode, it, extras)?;
        }
        if named {
            self.set_attrs(backing, (file, inode), it, shared)?;
        }
        match end {
            End::Attrs => self.store.data().hollow(file, &zeros, Batch::default()),
            End::Mark { .. } => self.record_version(backing, file, &record, it, &zeros),
        }
    }

    /// Whether a file with a name is in the back end; false if its creation failed.
    pub(crate) fn is_made(&self, backing: &Backing, file: FileId) -> bool {
        let named = self.store.names().inode(file).is_ok_and(|inode| !inode.parents.is_empty());
        !named || backing.knows(file) == Ok(true)
    }

    /// Another program removed the file during writeback: if no bytes are only in the buffer, the removal is taken
    /// over.
    fn accept_removal(&self, backing: &Backing, file: FileId, inode: &Inode) -> Result<()> {
        if inode.kind() == FileKind::File && !self.is_written_back(file, inode)? {
            return Err(missing_in_backing(file));
        }
        let mut batch = Batch::default();
        Backing::end_mark(file, &mut batch);
        backing.kv.commit(batch)
    }

    /// Gives a file in the back end its size, and zeros where it has holes. Returns the holes: ranges punched later are
    /// not zero there.
    fn match_size(&self, backing: &Backing, file: FileId, it: Seen<'_>, there: u64) -> Result<Vec<Span>> {
        let data = self.store.data();
        let size = data.facts(file)?.size;
        if there > size && !backing.ask(|backend| backend.truncate_of(it, size))? {
            return Err(missing_in_backing(file));
        }
        self.grow(backing, file, it, there)?;
        let holes = data.holes(file, there)?;
        let nonzero_ranges = self.writers.range_locks.nonzero_ranges(file, holes.clone());
        if !nonzero_ranges.is_empty() {
            backing.ask(|backend| {
                let object = backend.open_to_write(it.path)?;
                if object.version()?.serial != it.serial {
                    return Err(changed_in_backing(file));
                }
                nonzero_ranges.into_iter().try_for_each(|hole| object.zero(hole))?;
                object.sync()
            })?;
        }
        Ok(holes)
    }

    fn set_attrs(
        &self,
        backing: &Backing,
        (file, inode): (FileId, &Inode),
        it: Seen<'_>,
        shared: Option<Facts>,
    ) -> Result<()> {
        let mtime = match shared {
            Some(facts) => inode.attr(file, &facts, self.store.data().times()).mtime,
            None => self.mtime(file, inode)?,
        };
        let owner = (inode.uid, inode.gid);
        let set = backing.ask(|backend| backend.set_attr_of(it, owner, inode.mode, mtime));
        match set {
            // A server that does not run as root serves its own user only.
            Err(error) if matches!(error.kind(), ErrorKind::AccessDenied | ErrorKind::NotPermitted) => {
                tracing::warn!(%error, "drained a file, but could not set its attributes");
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
        Ok(inode.attr(file, &facts, self.store.data().times()).mtime)
    }

    /// Facts of a file, including those last reported by other holders.
    fn noted_facts(&self, file: FileId, inode: &Inode) -> Result<Facts> {
        let mut facts = self.store.data().facts(file)?;
        if let Body::File { extent, .. } = &inode.body {
            facts.touched = facts.touched.max(extent.touched);
        }
        Ok(facts)
    }

    /// Whether no bytes of a file are only in the buffers of servers.
    pub(super) fn is_written_back(&self, file: FileId, inode: &Inode) -> Result<bool> {
        match (&inode.body, self.homes.is_shared(file)) {
            (Body::File { extent, .. }, true) => {
                let stable =
                    *extent == Extent::default() || (!extent.is_open() && extent.elsewhere == Some(0));
                Ok(stable && self.store.data().backlog(file)?.is_none())
            }
            _ => self.store.data().matches_backing(file),
        }
    }

    /// Whether no bytes of a file are only in the buffer of this server.
    pub(super) fn is_local_part_written_back(&self, file: FileId) -> Result<bool> {
        match self.homes.is_shared(file) {
            true => Ok(self.store.data().backlog(file)?.is_none()),
            false => self.store.data().matches_backing(file),
        }
    }

    /// The same for all servers: queries those whose state is not recorded.
    pub(super) fn is_written_back_by_all(&self, file: FileId) -> Result<bool> {
        if !self.is_local_part_written_back(file)? {
            return Ok(false);
        }
        match self.striped.held_by_others(file) {
            Ok(held) => Ok(held.buffered == 0),
            Err(error) => {
                tracing::debug!(%file, %error, "cannot find out whether all of a file is in the back end");
                Ok(false)
            }
        }
    }

    /// Whether a file in the back end matches the buffer.
    pub(crate) fn is_in_backing(&self, backing: &Backing, file: FileId, inode: &Inode) -> Result<bool> {
        let Some(record) = backing.record(file)?.filter(|_| backing.mark(file).is_none()) else {
            return Ok(false);
        };
        if inode.kind() == FileKind::File && !self.is_written_back(file, inode)? {
            return Ok(false);
        }
        Ok(attrs_match(&record, inode, self.mtime(file, inode)?))
    }

    /// The same for a striped file, by querying all holders.
    pub(crate) fn is_in_backing_by_all(&self, backing: &Backing, file: FileId) -> Result<bool> {
        let Some(record) = backing.record(file)?.filter(|_| backing.mark(file).is_none()) else {
            return Ok(false);
        };
        let inode = self.store.names().inode(file)?;
        if !self.is_local_part_written_back(file)? {
            return Ok(false);
        }
        let Ok(held) = self.striped.held_by_others(file) else { return Ok(false) };
        let mut facts = self.noted_facts(file, &inode)?;
        facts.touched = facts.touched.max(held.touched);
        Ok(held.buffered == 0
            && attrs_match(&record, &inode, inode.attr(file, &facts, self.store.data().times()).mtime))
    }

    /// Records the version in the back end, together with the end of the writeback mark.
    fn record_version(
        &self,
        backing: &Backing,
        file: FileId,
        record: &Record,
        it: Seen<'_>,
        zeros: &[Span],
    ) -> Result<()> {
        let found = backing.ask(|backend| backend.find(it.path))?.ok_or_else(|| missing_in_backing(file))?;
        // A store without serial numbers assigns one when attributes are set.
        if it.serial != 0 && found.version.serial != it.serial {
            return Err(changed_in_backing(file));
        }
        let mut batch = Batch::default();
        backing.put_record(file, record.home.clone(), &found, &mut batch);
        Backing::end_mark(file, &mut batch);
        match zeros {
            [] => backing.kv.commit(batch),
            _ => self.store.data().hollow(file, zeros, batch),
        }
    }
}

fn seen(path: &[Name], version: Version) -> Seen<'_> {
    Slot::any(path).seen(version.serial)
}

/// Whether the object in the back end is the one that was created or found there. Of a directory that a rename created,
/// only the owner is known.
fn is_recorded_object(record: &Record, found: &Found) -> bool {
    match record.version.serial {
        0 => !can_chown() || record.uid == found.uid,
        serial => serial == found.version.serial,
    }
}

/// Whether the file in the back end has the right owner, mode and time.
fn attrs_match(record: &Record, inode: &Inode, mtime: Time) -> bool {
    let owned = !can_chown() || (record.uid, record.gid) == (inode.uid, inode.gid);
    // A file that could not be given to its owner has no set-id bits.
    let bits = if (record.uid, record.gid) == (inode.uid, inode.gid) { 0o7777 } else { 0o1777 };
    let mode = inode.kind() == FileKind::Symlink || record.mode & bits == inode.mode & bits;
    owned && mode && record.version.mtime == mtime
}

/// Opens a file for writing; makes a file writable that is read-only for its owner.
fn open(backing: &Backing, path: &[Name], inode: &Inode, record: &Record) -> Result<Box<dyn Object>> {
    backing.ask(|backend| match backend.open_to_write(path) {
        Err(error) if error.kind() == ErrorKind::AccessDenied => {
            backend.set_attr_of(
                seen(path, record.version),
                (inode.uid, inode.gid),
                inode.mode & 0o777 | 0o600,
                record.version.mtime,
            )?;
            backend.open_to_write(path)
        }
        opened => opened,
    })
}
