//! A bucket of an S3-compatible object store.
//!
//! A finished file is one object whose key is its path. A directory is an empty object whose key ends in a
//! slash, or just the keys below it. A symbolic link is an object that contains its target. A file that is
//! being written is its object plus private objects in `.forebay-parts/ID/`, each a write
//! (`NUMBER-OFFSET-LENGTH`) or a truncation (`NUMBER-SIZE-cut`), in the order of their numbers. When the last
//! writer closes the file, the store composes them into one object by copying, and removes them. If that
//! fails they stay, reads combine them, and the next lookup retries. So a file can be larger than any buffer,
//! and a crash loses nothing.
//!
//! An object records the last change it contains. So a private object that was not removed, or that arrives
//! after its write was reported as failed, is never taken for a new change.
//!
//! A rename is a copy and a removal, for a directory key by key: other clients can see it half done. Only one
//! server at a time may write to a bucket.

mod compose;
mod metadata;
mod object;
mod overlay;
mod rename;
mod store;

use crate::{Backend, Creation, Found, Layout, Object, Path, Seen, Slot, Target, shown};
use compose::compose;
use forebay_model::{Error, ErrorKind, FileKind, Gid, MAX_PATH, Name, Result, Span, Time, Uid};
use object::{Bytes, File, S3Object, Use};
use overlay::{Overlay, Piece, Source};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{Head, Meta, Store};

pub use store::Access;

/// Prefix of private objects.
const PARTS: &str = ".forebay-parts/";
/// Longest key of a store.
const LONGEST: usize = 1024;
/// Most keys in a page of a listing.
const PAGE: usize = 1000;
/// Most pieces that are composed at once.
const FEW: usize = 500;
/// Largest object that is copied in one request.
const AT_ONCE: u64 = 5 << 30;

/// A bucket.
pub struct S3 {
    inner: Arc<Inner>,
}

/// State shared by all open files.
struct Inner {
    store: Store,
    /// Files that are open or not yet composed, by id.
    files: Mutex<HashMap<u64, Arc<Mutex<File>>>>,
    /// The number of the last change: its time, or more.
    last: AtomicU64,
}

/// An entry that was looked up.
struct There {
    head: Head,
    found: Found,
}

impl There {
    fn new(head: Head) -> There {
        There { found: metadata::found(&head, head.key.ends_with('/')), head }
    }

    fn id(&self) -> u64 {
        metadata::id(&self.head)
    }
}

impl S3 {
    /// Opens a bucket by its name.
    pub fn open(bucket: &str, access: &Access) -> Result<S3> {
        let store = Store::open(bucket, access)?;
        store.demand()?;
        let inner = Inner { store, files: Mutex::default(), last: AtomicU64::new(0) };
        inner.find_leftovers()?;
        Ok(S3 { inner: Arc::new(inner) })
    }

    fn open_for(&self, file: Path<'_>, what_for: Use) -> Result<Box<dyn Object>> {
        match self.inner.look(file)? {
            Some(there) if there.found.kind == FileKind::File => {
                Ok(Box::new(S3Object::new(self.inner.clone(), &there, what_for)?))
            }
            Some(_) => Err(failed(file, ErrorKind::Invalid)),
            None => Err(failed(file, ErrorKind::NotFound)),
        }
    }
}

impl Inner {
    /// A new change number, larger than all before.
    fn next(&self) -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let later = |last: u64| now.max(last + 1);
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(later(last)));
        later(before.unwrap_or_else(|last| last))
    }

    /// Finds files that were being written when an earlier server ended.
    fn find_leftovers(&self) -> Result<()> {
        let mut logs: HashMap<u64, Vec<Bytes>> = HashMap::new();
        self.each_key(PARTS, &mut |key| {
            if let Some((id, bytes)) = Bytes::parse(key) {
                self.last.fetch_max(bytes.number, Ordering::Relaxed);
                logs.entry(id).or_default().push(bytes);
            }
            Ok(())
        })?;
        let files = logs.into_iter().map(|(id, log)| (id, Arc::new(Mutex::new(File::left(log)))));
        self.files.lock().extend(files);
        Ok(())
    }

    fn each_key(&self, prefix: &str, act: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.store.list(prefix, false, PAGE, after.as_deref())?;
            page.keys.iter().try_for_each(|key| act(key))?;
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    fn part(id: u64) -> String {
        format!("{PARTS}{id:016x}/")
    }

    /// The file of an object, if it is being written.
    fn written(&self, head: &Head) -> Option<Arc<Mutex<File>>> {
        let files = self.files.lock();
        let file = files.get(&metadata::id(head)).cloned();
        drop(files);
        file.filter(|file| file.lock().is_at(&head.key))
    }

    /// The file of an object, registered as in use.
    fn used(&self, there: &There, what_for: Use) -> Result<Arc<Mutex<File>>> {
        // Whatever the clock returns, a new change is later than those in the object.
        self.last.fetch_max(metadata::upto(&there.head), Ordering::Relaxed);
        loop {
            let mut files = self.files.lock();
            let file = files.entry(there.id()).or_default().clone();
            drop(files);
            let mut state = file.lock();
            if state.forgotten {
                continue;
            }
            if !state.is_at(&there.head.key) {
                let text =
                    format!("{} is a leftover copy from a failed rename of {}", there.head.key, state.key);
                return Err(Error::new(ErrorKind::Busy, text));
            }
            state.attach_object(&there.head);
            *state.count(what_for) += 1;
            drop(state);
            return Ok(file);
        }
    }

    /// Looks up a path. Composes a file that was left half written.
    fn look(&self, path: Path<'_>) -> Result<Option<There>> {
        let key = key(path)?;
        if path.is_empty() || key.starts_with(PARTS) || format!("{key}/") == PARTS {
            return Ok(None);
        }
        if let Some(head) = self.store.head(&key)? {
            return self.look_at(head).map(Some);
        }
        let dir = format!("{key}/");
        let head = match self.store.head(&dir)? {
            Some(head) => head,
            None if self.store.list(&dir, false, 1, None)?.keys.is_empty() => return Ok(None),
            // The directory was never created, but has entries.
            None => Head {
                key: dir,
                size: 0,
                etag: String::new(),
                modified: Time { secs: 0, nanos: 0 },
                meta: Meta::new(),
            },
        };
        Ok(Some(There::new(head)))
    }

    /// Looks up a path; fails if the entry is not the one the caller saw.
    fn look_for(&self, it: Seen<'_>) -> Result<Option<There>> {
        let there = self.look(it.path)?;
        there.iter().try_for_each(|there| it.demand(there.found.version.serial))?;
        Ok(there)
    }

    fn look_at(&self, head: Head) -> Result<There> {
        let mut there = There::new(head);
        if let Some(file) = self.written(&there.head) {
            let mut state = file.lock();
            state.attach_object(&there.head);
            if state.writers == 0 && self.finish(there.id(), &mut state).is_ok() {
                drop(state);
                self.forget(there.id());
                let head = self.store.head(&there.head.key)?;
                return head.map(There::new).ok_or_else(|| Error::from(ErrorKind::Stale));
            }
            state.show(&mut there.found.version);
        }
        if there.found.kind == FileKind::Symlink {
            there.found.target = vec![0; there.head.size.min(MAX_PATH as u64) as usize];
            self.store.get(&there.head.key, 0, &mut there.found.target)?;
        }
        Ok(there)
    }

    /// Composes a file.
    fn finish(&self, id: u64, state: &mut File) -> Result<()> {
        if state.overlay.is_some() {
            let head = self.store.head(&state.key)?.filter(|head| metadata::id(head) == id);
            let head = head.ok_or_else(|| Error::from(ErrorKind::Stale))?;
            let mut meta = head.meta.clone();
            let found = metadata::found(&head, false);
            let mut version = found.version;
            state.show(&mut version);
            metadata::set(&mut meta, &head, (found.uid, found.gid), found.mode, version.mtime);
            let pieces = self.few_pieces(id, state)?;
            metadata::set_upto(&mut meta, self.next());
            compose(&self.store, &state.key, &meta, &pieces, &|source| state.source(id, source))?;
            state.mark_composed();
        }
        self.remove_parts(id, state)
    }

    /// The pieces to compose a file from. If there are too many, composes some of them into private objects
    /// first.
    fn few_pieces(&self, id: u64, state: &mut File) -> Result<Vec<Piece>> {
        let mut pieces = state.pieces();
        while pieces.len() > FEW {
            for some in pieces.chunks(FEW).filter(|some| some.len() > 1) {
                let span = Span::new(some[0].span.start, some[some.len() - 1].span.end);
                let bytes = Bytes::written(self.next(), span);
                let key = Inner::part(id) + &bytes.name();
                let done = compose(&self.store, &key, &Meta::new(), some, &|source| state.source(id, source));
                match done {
                    Ok(()) => state.apply(bytes),
                    // It may have been written all the same.
                    Err(_) => state.spent.push(bytes),
                }
                done?;
            }
            pieces = state.pieces();
        }
        Ok(pieces)
    }

    /// Removes private objects that no longer count.
    fn remove_parts(&self, id: u64, state: &mut File) -> Result<()> {
        while let Some(last) = state.spent.last() {
            self.store.delete(&(Inner::part(id) + &last.name()))?;
            state.spent.pop();
        }
        Ok(())
    }

    fn forget(&self, id: u64) {
        let mut files = self.files.lock();
        let Some(file) = files.get(&id).cloned() else { return };
        let mut state = file.lock();
        if state.is_unused() && state.log.is_empty() && state.spent.is_empty() {
            // Another thread may have found it already and wait for its lock.
            state.forgotten = true;
            files.remove(&id);
        }
    }

    /// Removes the private objects of a file that was removed or replaced.
    fn drop_file(&self, there: &There) -> Result<()> {
        let Some(file) = self.written(&there.head) else { return Ok(()) };
        let mut state = file.lock();
        state.gone = true;
        state.mark_composed();
        self.remove_parts(there.id(), &mut state)?;
        drop(state);
        self.forget(there.id());
        Ok(())
    }

    fn demand_parent(&self, path: Path<'_>) -> Result<()> {
        match path.split_last() {
            None => Err(failed(path, ErrorKind::Exists)),
            Some((_, [])) => Ok(()),
            Some((_, dir)) => match self.look(dir)?.map(|there| there.found.kind) {
                Some(FileKind::Directory) => Ok(()),
                Some(_) => Err(failed(path, ErrorKind::NotDirectory)),
                None => Err(failed(path, ErrorKind::NotFound)),
            },
        }
    }

    fn demand_free(&self, path: Path<'_>) -> Result<()> {
        self.demand_parent(path)?;
        if self.look(path)?.is_some() { Err(failed(path, ErrorKind::Exists)) } else { Ok(()) }
    }

    fn is_empty_dir(&self, key: &str) -> Result<bool> {
        Ok(self.store.list(key, false, 2, None)?.keys.iter().all(|other| other == key))
    }

    /// Copies an object of any size, with its metadata.
    fn copy(&self, from: &Head, to: &str, meta: &Meta) -> Result<()> {
        if from.size <= AT_ONCE {
            return self.store.copy(&from.key, to, Some(meta));
        }
        let whole = Piece { span: Span::new(0, from.size), source: Source::Base, from: 0 };
        compose(&self.store, to, meta, &[whole], &|_| Ok(from.key.clone()))
    }
}

impl Backend for S3 {
    fn name(&self) -> String {
        self.inner.store.name().to_owned()
    }

    fn find_at(&self, at: Slot<'_>) -> Result<Option<Found>> {
        let path = at.path;
        match key(path) {
            // A path without a valid key cannot exist in the bucket.
            Err(_) => Ok(None),
            Ok(_) => Ok(self.inner.look(path)?.map(|there| there.found)),
        }
    }

    fn list_of(&self, it: Seen<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        let dir = it.path;
        let prefix = match self.inner.look(dir)? {
            _ if dir.is_empty() => String::new(),
            Some(there) if there.found.kind == FileKind::Directory => there.head.key,
            Some(_) => return Err(failed(dir, ErrorKind::NotDirectory)),
            None => return Err(failed(dir, ErrorKind::NotFound)),
        };
        let mut after = None;
        loop {
            let page = self.inner.store.list(&prefix, true, PAGE, after.as_deref())?;
            let names = page.keys.iter().chain(page.prefixes.iter().filter(|key| *key != PARTS));
            for key in names {
                // Only the directory itself and keys with two slashes are not valid names.
                if let Ok(name) = Name::new(key[prefix.len()..].trim_end_matches('/').as_bytes()) {
                    show(name);
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.open_for(file, Use::Read)
    }

    fn gathers(&self) -> bool {
        true
    }

    fn targets(&self) -> Vec<String> {
        vec![self.name()]
    }

    fn layout(&self, file: Path<'_>) -> Result<Layout> {
        match self.inner.look(file)? {
            Some(_) => Ok(Layout { targets: vec![0], stripe: u64::MAX }),
            None => Err(failed(file, ErrorKind::NotFound)),
        }
    }

    fn create_at(&self, at: Slot<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        let file = at.path;
        self.inner.demand_free(file)?;
        let (key, number) = (key(file)?, self.inner.next());
        let (at, mtime) = ((key.as_str(), number), metadata::moment(number));
        let meta = metadata::meta(FileKind::File, at, creation.owner, creation.mode, mtime);
        self.inner.store.put(&key, &[], &meta)?;
        self.open_to_write(file)
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.open_for(file, Use::Write)
    }

    fn symlink_at(&self, at: Slot<'_>, target: &[u8]) -> Result<()> {
        let path = at.path;
        self.inner.demand_free(path)?;
        let (key, number) = (key(path)?, self.inner.next());
        let me = (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
        let meta = metadata::meta(FileKind::Symlink, (&key, number), me, 0o777, metadata::moment(number));
        self.inner.store.put(&key, target, &meta)
    }

    fn set_attr_of(&self, it: Seen<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        let there = self.inner.look_for(it)?.ok_or_else(|| failed(it.path, ErrorKind::NotFound))?;
        if there.found.kind == FileKind::Directory {
            let at = (there.head.key.as_str(), there.id());
            let meta = metadata::meta(FileKind::Directory, at, owner, mode, mtime);
            return self.inner.store.put(&there.head.key, &[], &meta);
        }
        let mode = if there.found.kind == FileKind::Symlink { 0o777 } else { mode };
        let mut meta = there.head.meta.clone();
        metadata::set(&mut meta, &there.head, owner, mode, mtime);
        if meta != there.head.meta {
            self.inner.copy(&there.head, &there.head.key, &meta)?;
        }
        if let Some(file) = self.inner.written(&there.head) {
            file.lock().mtime = Some(mtime);
        }
        Ok(())
    }

    fn make_dir_at(&self, at: Slot<'_>, owner: (Uid, Gid), mode: u16) -> Result<Option<u64>> {
        let dir = at.path;
        self.inner.demand_parent(dir)?;
        match self.inner.look(dir)?.map(|there| there.found.kind) {
            Some(FileKind::Directory) => return Ok(None),
            Some(_) => return Err(failed(dir, ErrorKind::Exists)),
            None => {}
        }
        let (key, number) = (key(dir)? + "/", self.inner.next());
        let meta = metadata::meta(FileKind::Directory, (&key, number), owner, mode, metadata::moment(number));
        self.inner.store.put(&key, &[], &meta)?;
        Ok(Some(number))
    }

    fn unlink_of(&self, it: Seen<'_>) -> Result<bool> {
        let Some(there) = self.inner.look_for(it)? else { return Ok(false) };
        if there.found.kind == FileKind::Directory {
            return Err(failed(it.path, ErrorKind::IsDirectory));
        }
        self.inner.store.delete(&there.head.key)?;
        self.inner.drop_file(&there)?;
        Ok(true)
    }

    fn remove_dir_of(&self, dir: Seen<'_>) -> Result<bool> {
        let Some(there) = self.inner.look_for(dir)? else { return Ok(false) };
        match there.found.kind {
            FileKind::Directory if !self.inner.is_empty_dir(&there.head.key)? => {
                Err(failed(dir.path, ErrorKind::NotEmpty))
            }
            FileKind::Directory => self.inner.store.delete(&there.head.key).map(|()| true),
            _ => Err(failed(dir.path, ErrorKind::NotDirectory)),
        }
    }

    fn rename_of(&self, it: Seen<'_>, slot: Slot<'_>, target: Target) -> Result<bool> {
        let Some(there) = self.inner.look_for(it)? else { return Ok(false) };
        let (from, to) = (it.path, slot.path);
        if from == to {
            return Ok(true);
        }
        self.inner.demand_parent(to)?;
        if to.starts_with(from) {
            return Err(failed(to, ErrorKind::Invalid));
        }
        let replaced = self.inner.replaced(&there, to)?;
        target.demand(to, replaced.as_ref().map(|replaced| replaced.found.version.serial))?;
        match there.found.kind {
            FileKind::Directory => self.inner.move_dir(&there, &(key(to)? + "/"), replaced.as_ref())?,
            _ => self.inner.move_file(&there, &key(to)?, replaced.as_ref())?,
        }
        Ok(true)
    }

    fn truncate_of(&self, it: Seen<'_>, size: u64) -> Result<bool> {
        let Some(there) = self.inner.look_for(it)? else { return Ok(false) };
        let file = it.path;
        match there.found.kind {
            FileKind::File => S3Object::new(self.inner.clone(), &there, Use::Write)?.cut(size).map(|()| true),
            FileKind::Directory => Err(failed(file, ErrorKind::IsDirectory)),
            _ => Err(failed(file, ErrorKind::Invalid)),
        }
    }
}

/// The key of a path, if it has one.
fn key(path: Path<'_>) -> Result<String> {
    let names = path.iter().map(|name| std::str::from_utf8(name.as_bytes()).ok());
    let names: Option<Vec<&str>> = names.collect();
    match names.map(|names| names.join("/")) {
        Some(key) if key.len() < LONGEST => Ok(key),
        _ => {
            let text = format!(
                "{} is not a valid object key: keys are UTF-8 of at most {LONGEST} bytes",
                shown(path)
            );
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

fn failed(path: Path<'_>, kind: ErrorKind) -> Error {
    Error::new(kind, format!("{}: {kind}", shown(path)))
}
