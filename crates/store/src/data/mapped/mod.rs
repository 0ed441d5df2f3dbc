//! Mapped files: processes of this machine that map and share a file share one object, which is the file's content
//! while it exists. Decision 92 describes why, and what happens when a process dies.
//!
//! **Invariant**: within its present ranges an object is never older than the store. A change of the file changes the
//! object first, under the file's lock; stores into mappings reach the store through [`Data::write_back`]. While an
//! object exists, no client writes to the file through a ring or reads it under a lease.

mod adopt;
mod back;
mod object;
mod ranges;
#[cfg(test)]
mod tests;
mod usage;

use super::file::{File, SizeRecord};
use super::index::Source;
use super::{Data, Filled, Piece};
use crate::files::failed;
use crate::meta::{Batch, KeySpace};
use forebay_model::{Error, ErrorKind, FileId, JobId, Result, Span, Uid};
use object::{Object, PAGE};
use parking_lot::Mutex;
use ranges::Ranges;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use usage::{Charge, Full, Usage};
use xxhash_rust::xxh3::xxh3_64;

/// Largest number of separate ranges of one file.
const MOST_RANGES: usize = 1024;
/// An object is filled, compared and written back in pieces of this size.
const PIECE: u64 = 1 << 20;
/// How long a client may take to finish a write that it has begun.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// The process that maps a file for writing: its stores are written back for this user and job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mapper {
    /// The user.
    pub uid: Uid,
    /// The job.
    pub job: JobId,
    /// Whether it may store into the mapping.
    pub write: bool,
}

/// A range that must be filled before it can be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The range.
    pub span: Span,
    /// The change counter of the file at that time.
    changes: u64,
    /// The user who maps it.
    uid: Uid,
}

/// The record of an object in the metadata store, so that the next server process can adopt it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Note {
    boot: u64,
    writer: Mapper,
    present: Vec<Span>,
}

const NOTE_VERSION: u8 = 1;

fn note_key(file: FileId) -> Vec<u8> {
    [KeySpace::MappedFile.prefix(), &file.0.to_be_bytes()].concat()
}

fn object_name(file: FileId) -> String {
    format!("v{:016x}.object", file.0)
}

/// The object of one file and its state. Protected by the file's lock.
pub(super) struct Mapped {
    object: Object,
    /// Ranges whose content is in the object, also beyond the file's end.
    present: Ranges,
    /// Hashes of pages as the store has them. A page with another hash is written back.
    known: BTreeMap<u64, u64>,
    /// Changes of the file since it was mapped.
    changes: u64,
    /// Number of descriptors handed out.
    shared: u64,
    /// Whether a process may have stored bytes that are not written back.
    stored: bool,
    writer: Mapper,
    /// The bytes of it that count against the capacity.
    charge: Charge,
}

/// All objects of a store.
#[derive(Default)]
pub(super) struct Objects {
    files: Mutex<BTreeSet<FileId>>,
    /// Files that are being mapped: their objects stay, although no process has a descriptor yet.
    preparing: Mutex<BTreeMap<FileId, u32>>,
    usage: Mutex<Usage>,
}

impl Objects {
    fn insert(&self, file: FileId) {
        self.files.lock().insert(file);
    }

    fn remove(&self, file: FileId) {
        self.files.lock().remove(&file);
    }

    fn is_prepared(&self, file: FileId) -> bool {
        self.preparing.lock().contains_key(&file)
    }
}

/// Keeps the object of a file while it is being filled, until its descriptor is handed out.
pub struct Preparing<'a> {
    objects: &'a Objects,
    file: FileId,
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        let mut preparing = self.objects.preparing.lock();
        match preparing.get_mut(&self.file) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(preparing.remove(&self.file)),
        }
    }
}

fn page_of(offset: u64) -> u64 {
    offset / PAGE
}

impl Mapped {
    fn new(object: Object, writer: Mapper) -> Mapped {
        Mapped {
            object,
            present: Ranges::default(),
            known: BTreeMap::new(),
            changes: 0,
            shared: 0,
            stored: false,
            writer,
            charge: Charge::default(),
        }
    }

    /// Writes bytes into the object before they are committed; returns the hashes of whole pages that hold after the
    /// commit. The other pages that it touches have no known hash afterwards: their old one may be right for the object
    /// again after the next store, but is wrong for the store.
    fn put(&mut self, size: u64, offset: u64, parts: &mut [Filled]) -> io::Result<Vec<(u64, u64)>> {
        let total: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
        if offset + total > size {
            self.object.resize(size, offset + total)?;
        }
        self.forget(page_of(offset), page_of((offset + total).next_multiple_of(PAGE)));
        let (mut at, mut whole) = (offset, Vec::new());
        for part in parts {
            let bytes = &part.grant.as_mut_slice()[..part.len as usize];
            let span = Span::new(at, at + bytes.len() as u64);
            for range in self.present.within(span) {
                let some = &bytes[(range.start - at) as usize..(range.end - at) as usize];
                self.object.write(range.start, some)?;
                let skipped = range.start.next_multiple_of(PAGE) - range.start;
                let pages = some.get(skipped as usize..).unwrap_or_default().chunks_exact(PAGE as usize);
                let first = page_of(range.start.next_multiple_of(PAGE));
                whole.extend(pages.zip(first..).map(|(page, number)| (number, xxh3_64(page))));
            }
            at = span.end;
        }
        Ok(whole)
    }

    /// Records that these pages are committed to the store.
    pub(super) fn committed(&mut self, whole: &[(u64, u64)]) {
        self.known.extend(whole.iter().copied());
    }

    /// The size of the file has changed.
    fn resized(&mut self, before: u64, size: u64) -> io::Result<()> {
        self.changes += 1;
        self.forget(page_of(before.min(size)), u64::MAX);
        self.object.resize(before, size)
    }

    /// A range of the file has become zeros.
    fn punched(&mut self, span: Span) -> io::Result<()> {
        self.changes += 1;
        self.forget(page_of(span.start), page_of(span.end).saturating_add(1));
        self.object.punch(span)
    }

    /// Drops the hashes of pages that may differ from the store.
    fn forget(&mut self, from: u64, to: u64) {
        let pages: Vec<u64> = self.known.range(from..to).map(|(&page, _)| page).collect();
        for page in pages {
            self.known.remove(&page);
        }
    }
}

impl Data {
    fn object_failed(&self, what: &str, file: FileId, error: &io::Error) -> Error {
        let name = object_name(file);
        let path = self.disk.path(&name).unwrap_or_else(|| PathBuf::from(name));
        failed(what, &path, error)
    }

    /// Files that are mapped.
    #[must_use]
    pub fn mapped(&self) -> Vec<FileId> {
        self.objects.files.lock().iter().copied().collect()
    }

    /// Whether processes may have mapped a file for writing. Stays true until [`Data::end_map`] has ended the mapping.
    #[must_use]
    pub fn is_stored_into(&self, id: FileId) -> bool {
        let state = self.files.resident(id);
        state.is_some_and(|state| state.lock().mapped.as_ref().is_some_and(|mapped| mapped.stored))
    }

    /// Bytes of mapped files that are in memory beside the regions.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.objects.usage.lock().bytes()
    }

    /// Limits what the mapped files of each user take to the given percentage of the capacity, except for root and
    /// `exempt`.
    pub fn bound_mapped(&self, percent: u8, exempt: Uid) {
        self.objects.usage.lock().bound_users(percent, exempt);
    }

    /// Begins to map a file. Its object stays at least until the result is dropped.
    #[must_use]
    pub fn begin_map(&self, id: FileId) -> Preparing<'_> {
        *self.objects.preparing.lock().entry(id).or_default() += 1;
        Preparing { objects: &self.objects, file: id }
    }

    /// Returns a range that must be filled before a range of a file can be mapped, if any. From the first call on, the
    /// file is neither written through rings nor leased.
    pub fn prepare_map(&self, id: FileId, span: Span, mapper: Mapper) -> Result<Option<Missing>> {
        self.stop_rings(id)?;
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        self.consume(id, &mut state)?;
        state.alive()?;
        if self.is_filled(id) {
            return Err(Error::new(ErrorKind::Busy, "a client is writing to the file through shared memory"));
        }
        if state.mapped.is_none() {
            self.make_object(id, &mut state, mapper)?;
        }
        let end = span.end.checked_next_multiple_of(PAGE).ok_or(ErrorKind::TooLarge)?;
        let span = Span::new(span.start / PAGE * PAGE, end);
        let file = &mut *state;
        let Some(mapped) = &mut file.mapped else { return Err(ErrorKind::Io.into()) };
        for missing in mapped.present.missing(span) {
            let Some(missing) = missing.intersect(Span::new(0, file.size.next_multiple_of(PAGE))) else {
                continue;
            };
            // Zeros need not be read.
            let mut extents = file.index.pieces(missing).filter(|extent| extent.source != Source::Zero);
            let first = match file.lost_below <= missing.start {
                true => extents.next().map(|extent| extent.span.start / PAGE * PAGE),
                false => Some(missing.start),
            };
            if let Some(start) = first.map(|start| start.max(missing.start)) {
                mapped.present.add(Span::new(missing.start, start));
                let span = Span::new(start, missing.end.min(start + PIECE));
                return Ok(Some(Missing { span, changes: mapped.changes, uid: mapper.uid }));
            }
        }
        let mut present = mapped.present.clone();
        present.add(span);
        if present.all().len() > MOST_RANGES {
            let text = format!("{MOST_RANGES} separate ranges of the file are mapped already");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        let charge = present.len_below(file.size);
        self.charge(mapped, charge, mapper.uid)?;
        let writer = if mapper.write { mapper } else { mapped.writer };
        self.note_object(id, writer, &present)?;
        (mapped.writer, mapped.present) = (writer, present);
        Ok(None)
    }

    /// Fills a missing range with the content of the file; false if the file has changed meanwhile.
    pub fn fill_map(&self, id: FileId, missing: Missing, bytes: &[u8]) -> Result<bool> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        self.consume(id, &mut state)?;
        let size = state.size;
        let Some(mapped) = state.mapped.as_mut().filter(|mapped| mapped.changes == missing.changes) else {
            return Ok(false);
        };
        let Some(within) = missing.span.intersect(Span::new(0, size)) else { return Ok(false) };
        if bytes.len() as u64 != within.len() {
            return Ok(false);
        }
        let charge = mapped.present.len_below(size) + within.len();
        self.charge(mapped, charge, missing.uid)?;
        for (page, number) in bytes.chunks(PAGE as usize).zip(page_of(within.start)..) {
            if page.iter().any(|&byte| byte != 0) {
                let written = mapped.object.write(number * PAGE, page);
                written.map_err(|error| self.object_failed("fill", id, &error))?;
            }
            mapped.known.insert(number, xxh3_64(page));
        }
        mapped.present.add(missing.span);
        Ok(true)
    }

    /// A descriptor of a mapped file's object, for a process to map any pages of the range; `None` if the range must be
    /// prepared again.
    pub fn share_map(&self, id: FileId, span: Span, write: bool) -> Result<Option<std::fs::File>> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        state.alive()?;
        let Some(mapped) = &mut state.mapped else { return Ok(None) };
        // The note says whether a process may have stored bytes, and must say so before one can.
        if !mapped.present.missing(span).is_empty() || (write && !mapped.writer.write) {
            return Ok(None);
        }
        let shared = mapped.object.share(write);
        let shared = shared.map_err(|error| self.object_failed("share", id, &error))?;
        mapped.shared += 1;
        mapped.stored |= write;
        Ok(Some(shared))
    }

    /// Recalls the slabs of a file's rings, and waits for clients that are in the middle of a write.
    fn stop_rings(&self, id: FileId) -> Result<()> {
        let begin = Instant::now();
        loop {
            self.recall_rings(id)?;
            if !self.is_filled(id) || begin.elapsed() > PATIENCE {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn make_object(&self, id: FileId, state: &mut File, mapper: Mapper) -> Result<()> {
        if self.kv.get(&SizeRecord::key(id))?.is_none() {
            // Otherwise the next server process would take the file for a deleted one.
            self.note_size(id, state, true)?;
            state.size_pending = true;
        }
        let name = object_name(id);
        let path = self.disk.path(&name).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "other processes cannot open the files of this store")
        })?;
        // Noted first: a note that could not be removed earlier must not describe the new object.
        self.note_object(id, mapper, &Ranges::default())?;
        let file = self.disk.create(&name, PAGE)?;
        file.set_len(state.size).map_err(|error| failed("create", &path, &error))?;
        state.index.leases.end();
        state.mapped = Some(Box::new(Mapped::new(Object::new(file, path), mapper)));
        self.objects.insert(id);
        Ok(())
    }

    fn note_object(&self, id: FileId, writer: Mapper, present: &Ranges) -> Result<()> {
        let note = Note { boot: super::rings::boot()?, writer, present: present.all().to_vec() };
        let mut value = vec![NOTE_VERSION];
        value.extend(postcard::to_stdvec(&note).expect("a note can always be encoded"));
        let mut batch = Batch::default();
        batch.put(note_key(id), value);
        self.kv.commit(batch)
    }

    /// Sets how many bytes of an object count against the capacity, new ones for `user`; fails if they do not fit.
    fn charge(&self, mapped: &mut Mapped, bytes: u64, user: Uid) -> Result<()> {
        let capacity = self.capacity();
        let charged = self.objects.usage.lock().set(&mut mapped.charge, bytes, user, capacity);
        charged.map_err(|full| {
            let text = match full {
                Full::All => {
                    format!("mapped files use as much memory as the capacity of the buffer ({capacity} bytes)")
                }
                Full::User => format!(
                    "mapped files of user {user} use as much memory as those of one user may: unmap some, or raise \
                     limits.user_mapped"
                ),
            };
            Error::new(ErrorKind::NoSpace, text)
        })
    }

    /// Writes bytes that are about to be committed into the object of a mapped file, so that its mappings show them.
    pub(super) fn put_mapped(
        &self,
        id: FileId,
        state: &mut File,
        offset: u64,
        parts: &mut [Filled],
    ) -> Result<Vec<(u64, u64)>> {
        let size = state.size;
        let Some(mapped) = &mut state.mapped else { return Ok(Vec::new()) };
        let total: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
        mapped.changes += 1;
        if offset + total > size {
            let (charge, user) = (mapped.present.len_below(offset + total), mapped.writer.uid);
            let charged = self.objects.usage.lock().set(&mut mapped.charge, charge, user, self.capacity());
            // The mapper's own bound must not fail the write of another user.
            if charged == Err(Full::All) {
                self.charge(mapped, charge, user)?;
            }
            mapped.forget(page_of(size), u64::MAX);
        }
        mapped.put(size, offset, parts).map_err(|error| self.object_failed("write to", id, &error))
    }

    /// Applies a truncation or a hole to the object of a mapped file.
    pub(super) fn cut_mapped(&self, id: FileId, state: &mut File, before: u64, hidden: Span) -> Result<()> {
        let size = state.size;
        let Some(mapped) = &mut state.mapped else { return Ok(()) };
        let mut cut = Ok(());
        if let Some(hole) = hidden.intersect(Span::new(0, before.min(size))) {
            cut = mapped.punched(hole);
        }
        if size != before {
            cut = cut.and_then(|()| mapped.resized(before, size));
            let charge = mapped.present.len_below(size);
            // The size is already changed: if it is too much, the next map or write fails.
            let _ = self.charge(mapped, charge, mapped.writer.uid);
        }
        cut.map_err(|error| self.object_failed("truncate", id, &error))
    }

    /// Reads a mapped file: present ranges from the object, the rest from the store.
    pub(super) fn read_mapped(
        &self,
        id: FileId,
        file: &File,
        mapped: &Mapped,
        span: Span,
        pieces: &mut Vec<Piece>,
    ) -> Result<()> {
        let mut at = span.start;
        for range in mapped.present.within(span) {
            self.read_stored(file, Span::new(at, range.start), pieces)?;
            let mut bytes = vec![0; range.len() as usize];
            let read = mapped.object.read(range.start, &mut bytes);
            read.map_err(|error| self.object_failed("read", id, &error))?;
            pieces.push(Piece::Copied(bytes));
            at = range.end;
        }
        self.read_stored(file, Span::new(at, span.end), pieces)
    }

    /// Removes the object: the file is deleted, or the store has all its bytes. Processes that map it keep the memory.
    /// If this fails, the object may still be there.
    pub(super) fn drop_object(&self, id: FileId, state: &mut File) -> Result<()> {
        if state.mapped.is_none() {
            return Ok(());
        }
        // Before the note: the next server process adopts an object that is noted, and would undo every write until
        // then. A note without an object has no effect.
        self.disk.remove(&object_name(id))?;
        if let Some(mut mapped) = state.mapped.take() {
            self.objects.usage.lock().release_all(&mut mapped.charge);
        }
        self.objects.remove(id);
        let mut batch = Batch::default();
        batch.remove(note_key(id));
        self.kv.commit(batch)
    }
}
