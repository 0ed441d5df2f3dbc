//! A bucket of an object store that speaks S3.
//!
//! A finished file is one object whose key is its path; a directory is an empty object whose key ends in a slash, or just
//! the keys below it; a symbolic link is an object with what it says. A file that is being written is its object *and*
//! private ones in `.forebay-parts/ID/`, each a write (`NUMBER-OFFSET-LENGTH`) or a cut (`NUMBER-SIZE-cut`), in the order of
//! their numbers. When the last writer lets go, the store puts them together into one object by copying, and they are
//! removed; if that fails they stay, the file is read from them all the same, and the next who looks tries again. So a
//! file passes through that is larger than any buffer, and a crash leaves nothing that is not found again.
//!
//! Renaming is copying and removing, of a directory key by key: others can see it half done. One server at a time may
//! write to a bucket.

mod compose;
mod facts;
mod object;
mod overlay;
mod store;

use crate::{Backend, Creation, Found, Layout, Object, Path, shown};
use compose::compose;
use forebay_model::{Error, ErrorKind, FileKind, Gid, MAX_PATH, Name, Result, Span, Time, Uid};
use object::{Bytes, File, S3Object};
use overlay::{Overlay, Piece, Source};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use store::{Head, Meta, Store};

pub use store::Access;

/// Where private objects are.
const PARTS: &str = ".forebay-parts/";
/// Longest key that a store takes.
const LONGEST: usize = 1024;
/// Most keys in a page of a listing.
const PAGE: usize = 1000;
/// The largest object that is copied at once.
const AT_ONCE: u64 = 5 << 30;

/// A bucket.
pub struct S3 {
    inner: Arc<Inner>,
}

/// What all open files share.
struct Inner {
    store: Store,
    /// Files that are open, or were not put together yet, by number.
    files: Mutex<HashMap<u64, Arc<Mutex<File>>>>,
    /// The last number that was given to a change: the time of it, or more.
    last: AtomicU64,
}

/// What a path leads to.
struct There {
    key: String,
    head: Head,
    found: Found,
}

impl S3 {
    /// A bucket, by its name.
    pub fn open(bucket: &str, access: &Access) -> Result<S3> {
        let store = Store::open(bucket, access)?;
        store.demand()?;
        let inner = Inner { store, files: Mutex::default(), last: AtomicU64::new(0) };
        inner.find_leftovers()?;
        Ok(S3 { inner: Arc::new(inner) })
    }
}

impl Inner {
    /// A number for a change, later than all before.
    fn next(&self) -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let later = |last: u64| now.max(last + 1);
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(later(last)));
        later(before.unwrap_or_else(|last| last))
    }

    /// Files that were being written when an earlier server ended.
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
        self.files.lock().unwrap_or_else(PoisonError::into_inner).extend(files);
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

    /// The file with a number, if it is being written.
    fn written(&self, id: u64) -> Option<Arc<Mutex<File>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The file of an object, as one that is being used.
    fn used(&self, there: &There) -> Arc<Mutex<File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let file = files.entry(facts::id(&there.head)).or_default().clone();
        drop(files);
        let mut state = file.lock().unwrap_or_else(PoisonError::into_inner);
        state.meet(&there.key, there.head.size);
        state.users += 1;
        drop(state);
        file
    }

    /// What is at a path. Whoever looks at a file that was left half written has it put together.
    fn look(&self, path: Path<'_>) -> Result<Option<There>> {
        let key = key(path)?;
        if path.is_empty() || key.starts_with(PARTS) || format!("{key}/") == PARTS {
            return Ok(None);
        }
        if let Some(head) = self.store.head(&key)? {
            return self.look_at(key, head).map(Some);
        }
        let dir = format!("{key}/");
        let head = match self.store.head(&dir)? {
            Some(head) => head,
            None if self.store.list(&dir, false, 1, None)?.keys.is_empty() => return Ok(None),
            // Nobody made it, but there is something in it.
            None => {
                Head { size: 0, etag: dir.clone(), modified: Time { secs: 0, nanos: 0 }, meta: Meta::new() }
            }
        };
        let found = facts::found(&head, true);
        Ok(Some(There { key: dir, head, found }))
    }

    fn look_at(&self, key: String, head: Head) -> Result<There> {
        let id = facts::id(&head);
        let mut found = facts::found(&head, false);
        if let Some(file) = self.written(id) {
            let mut state = file.lock().unwrap_or_else(PoisonError::into_inner);
            state.meet(&key, head.size);
            if state.users == 0 && self.finish(id, &mut state).is_ok() {
                drop(state);
                self.forget(id);
                return match self.store.head(&key)? {
                    Some(head) => Ok(There { found: facts::found(&head, false), key, head }),
                    None => Err(Error::from(ErrorKind::Stale)),
                };
            }
            state.show(&mut found.version);
        }
        if found.kind == FileKind::Symlink {
            found.target = vec![0; head.size.min(MAX_PATH as u64) as usize];
            self.store.get(&key, 0, &mut found.target)?;
        }
        Ok(There { key, head, found })
    }

    /// Puts a file together.
    fn finish(&self, id: u64, state: &mut File) -> Result<()> {
        let Some(overlay) = &state.overlay else { return Ok(()) };
        let head = self.store.head(&state.key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?;
        let mut meta = head.meta.clone();
        let found = facts::found(&head, false);
        let mut version = found.version;
        state.show(&mut version);
        facts::set(&mut meta, &head, (found.uid, found.gid), found.mode, version.mtime);
        let pieces: Vec<Piece> = overlay.pieces(Span::new(0, overlay.size())).collect();
        let base = state.key.clone();
        let log = &state.log;
        let name = |source: Source| match source {
            Source::Part(number) => log
                .iter()
                .find(|bytes| bytes.number == number)
                .map_or_else(String::new, |bytes| Inner::part(id) + &bytes.name()),
            Source::Base | Source::Zero => base.clone(),
        };
        compose(&self.store, &state.key, &meta, &pieces, &name)?;
        self.remove_parts(id, state)
    }

    /// Removes private objects, the first first: whatever is left of them changes nothing that is not so already.
    fn remove_parts(&self, id: u64, state: &mut File) -> Result<()> {
        state.log.sort_unstable_by_key(|bytes| bytes.number);
        while let Some(first) = state.log.first() {
            self.store.delete(&(Inner::part(id) + &first.name()))?;
            state.log.remove(0);
        }
        state.overlay = None;
        Ok(())
    }

    fn forget(&self, id: u64) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |file: &Arc<Mutex<File>>| {
            let state = file.lock().unwrap_or_else(PoisonError::into_inner);
            state.users == 0 && state.log.is_empty()
        };
        if files.get(&id).is_some_and(idle) {
            files.remove(&id);
        }
    }

    /// A file that was removed or replaced takes its private objects with it.
    fn drop_file(&self, id: u64) -> Result<()> {
        let Some(file) = self.written(id) else { return Ok(()) };
        let mut state = file.lock().unwrap_or_else(PoisonError::into_inner);
        state.gone = true;
        self.remove_parts(id, &mut state)?;
        drop(state);
        self.forget(id);
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

    /// Copies an object of any size, with what is written down with it.
    fn copy(&self, from: &str, to: &str, size: u64, meta: &Meta) -> Result<()> {
        if size <= AT_ONCE {
            return self.store.copy(from, to, Some(meta));
        }
        let whole = Piece { span: Span::new(0, size), source: Source::Base, from: 0 };
        compose(&self.store, to, meta, &[whole], &|_| from.to_owned())
    }

    fn move_file(&self, from: &There, to: &str) -> Result<()> {
        let id = facts::id(&from.head);
        let mut meta = from.head.meta.clone();
        meta.insert("forebay-id".to_owned(), format!("{id:016x}"));
        self.copy(&from.key, to, from.head.size, &meta)?;
        if let Some(file) = self.written(id) {
            file.lock().unwrap_or_else(PoisonError::into_inner).key = to.to_owned();
        }
        self.store.delete(&from.key)
    }

    fn move_dir(&self, from: &str, to: &str) -> Result<()> {
        let mut keys = Vec::new();
        self.each_key(from, &mut |key| {
            keys.push(key.to_owned());
            Ok(())
        })?;
        for key in keys {
            let head = self.store.head(&key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?;
            let found = facts::found(&head, key.ends_with('/'));
            let there = There { key: key.clone(), head, found };
            self.move_file(&there, &(to.to_owned() + &key[from.len()..]))?;
        }
        Ok(())
    }

    /// What stands in the way of a rename, if it may be replaced.
    fn replaced(&self, from: &There, to: Path<'_>) -> Result<Option<There>> {
        let Some(there) = self.look(to)? else { return Ok(None) };
        match (from.found.kind == FileKind::Directory, there.found.kind == FileKind::Directory) {
            (true, false) => Err(failed(to, ErrorKind::NotDirectory)),
            (false, true) => Err(failed(to, ErrorKind::IsDirectory)),
            (true, true) if !self.is_empty_dir(&there.key)? => Err(failed(to, ErrorKind::NotEmpty)),
            _ => Ok(Some(there)),
        }
    }
}

impl Backend for S3 {
    fn name(&self) -> String {
        self.inner.store.name().to_owned()
    }

    fn find(&self, path: Path<'_>) -> Result<Option<Found>> {
        match key(path) {
            // What it cannot hold it does not have.
            Err(_) => Ok(None),
            Ok(_) => Ok(self.inner.look(path)?.map(|there| there.found)),
        }
    }

    fn list(&self, dir: Path<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        let prefix = match self.inner.look(dir)? {
            _ if dir.is_empty() => String::new(),
            Some(there) if there.found.kind == FileKind::Directory => there.key,
            Some(_) => return Err(failed(dir, ErrorKind::NotDirectory)),
            None => return Err(failed(dir, ErrorKind::NotFound)),
        };
        let mut after = None;
        loop {
            let page = self.inner.store.list(&prefix, true, PAGE, after.as_deref())?;
            let names = page.keys.iter().chain(page.prefixes.iter().filter(|key| *key != PARTS));
            for key in names {
                // What cannot be a name here is the directory itself, or has two slashes.
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
        match self.inner.look(file)? {
            Some(there) if there.found.kind == FileKind::File => {
                Ok(Box::new(S3Object::new(self.inner.clone(), &there)))
            }
            Some(_) => Err(failed(file, ErrorKind::Invalid)),
            None => Err(failed(file, ErrorKind::NotFound)),
        }
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

    fn create(&self, file: Path<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        self.inner.demand_free(file)?;
        let number = self.inner.next();
        let meta = facts::meta(FileKind::File, creation.owner, creation.mode, number, facts::moment(number));
        self.inner.store.put(&key(file)?, &[], &meta)?;
        self.open(file)
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.open(file)
    }

    fn symlink(&self, path: Path<'_>, target: &[u8]) -> Result<()> {
        self.inner.demand_free(path)?;
        let number = self.inner.next();
        let me = (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
        let meta = facts::meta(FileKind::Symlink, me, 0o777, number, facts::moment(number));
        self.inner.store.put(&key(path)?, target, &meta)
    }

    fn set_attr(&self, path: Path<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        let there = self.inner.look(path)?.ok_or_else(|| failed(path, ErrorKind::NotFound))?;
        if there.found.kind == FileKind::Directory {
            let meta = facts::meta(FileKind::Directory, owner, mode, facts::id(&there.head), mtime);
            return self.inner.store.put(&there.key, &[], &meta);
        }
        let mode = if there.found.kind == FileKind::Symlink { 0o777 } else { mode };
        let mut meta = there.head.meta.clone();
        facts::set(&mut meta, &there.head, owner, mode, mtime);
        self.inner.copy(&there.key, &there.key, there.head.size, &meta)?;
        if let Some(file) = self.inner.written(facts::id(&there.head)) {
            file.lock().unwrap_or_else(PoisonError::into_inner).mtime = Some(mtime);
        }
        Ok(())
    }

    fn make_dir(&self, dir: Path<'_>, owner: (Uid, Gid), mode: u16) -> Result<()> {
        self.inner.demand_parent(dir)?;
        match self.inner.look(dir)?.map(|there| there.found.kind) {
            Some(FileKind::Directory) => return Ok(()),
            Some(_) => return Err(failed(dir, ErrorKind::Exists)),
            None => {}
        }
        let number = self.inner.next();
        let meta = facts::meta(FileKind::Directory, owner, mode, number, facts::moment(number));
        self.inner.store.put(&(key(dir)? + "/"), &[], &meta)
    }

    fn unlink(&self, path: Path<'_>) -> Result<bool> {
        let Some(there) = self.inner.look(path)? else { return Ok(false) };
        if there.found.kind == FileKind::Directory {
            return Err(failed(path, ErrorKind::IsDirectory));
        }
        self.inner.store.delete(&there.key)?;
        self.inner.drop_file(facts::id(&there.head))?;
        Ok(true)
    }

    fn remove_dir(&self, dir: Path<'_>) -> Result<bool> {
        let Some(there) = self.inner.look(dir)? else { return Ok(false) };
        match there.found.kind {
            FileKind::Directory if !self.inner.is_empty_dir(&there.key)? => {
                Err(failed(dir, ErrorKind::NotEmpty))
            }
            FileKind::Directory => self.inner.store.delete(&there.key).map(|()| true),
            _ => Err(failed(dir, ErrorKind::NotDirectory)),
        }
    }

    fn rename(&self, from: Path<'_>, to: Path<'_>) -> Result<bool> {
        let Some(there) = self.inner.look(from)? else { return Ok(false) };
        if from == to {
            return Ok(true);
        }
        self.inner.demand_parent(to)?;
        if to.starts_with(from) {
            return Err(failed(to, ErrorKind::Invalid));
        }
        let replaced = self.inner.replaced(&there, to)?;
        match there.found.kind {
            FileKind::Directory => self.inner.move_dir(&there.key, &(key(to)? + "/"))?,
            _ => self.inner.move_file(&there, &key(to)?)?,
        }
        replaced.map_or(Ok(true), |old| self.inner.drop_file(facts::id(&old.head)).map(|()| true))
    }

    fn truncate(&self, file: Path<'_>, size: u64) -> Result<bool> {
        let Some(there) = self.inner.look(file)? else { return Ok(false) };
        match there.found.kind {
            FileKind::File => S3Object::new(self.inner.clone(), &there).cut(size).map(|()| true),
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
                "{} cannot be in an object store: keys are UTF-8 of at most {LONGEST} bytes",
                shown(path)
            );
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

fn failed(path: Path<'_>, kind: ErrorKind) -> Error {
    Error::new(kind, format!("{}: {kind}", shown(path)))
}
