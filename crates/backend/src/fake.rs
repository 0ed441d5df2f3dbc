//! A back end in memory, for tests: a flat map from places to attributes, and a switch that makes it refuse.

use crate::{Backend, Place};
use forebay_model::{Attr, Error, ErrorKind, FileId, FileKind, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A back end in memory.
#[derive(Debug, Default)]
pub struct Fake {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<(FileId, Vec<u8>), Attr>,
    refuses: bool,
}

fn key(place: Place<'_>) -> (FileId, Vec<u8>) {
    (place.dir, place.path.to_vec())
}

impl Fake {
    /// Puts something there.
    pub fn put(&self, place: Place<'_>, attr: Attr) {
        self.lock().entries.insert(key(place), attr);
    }

    /// Whether something is there.
    pub fn has(&self, place: Place<'_>) -> bool {
        self.lock().entries.contains_key(&key(place))
    }

    /// From now on, every call fails (or no longer fails).
    pub fn refuse(&self, refuses: bool) {
        self.lock().refuses = refuses;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn working(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        match state.refuses {
            true => Err(Error::new(ErrorKind::Io, "the back end refuses everything: tell it to stop that")),
            false => Ok(state),
        }
    }

    fn remove(&self, place: Place<'_>, directory: bool) -> Result<bool> {
        let mut state = self.working()?;
        let kind = state.entries.get(&key(place)).map(|attr| attr.kind == FileKind::Directory);
        match kind {
            None => Ok(false),
            Some(is) if is == directory => Ok(state.entries.remove(&key(place)).is_some()),
            Some(true) => Err(ErrorKind::IsDirectory.into()),
            Some(false) => Err(ErrorKind::NotDirectory.into()),
        }
    }
}

impl Backend for Fake {
    fn exists(&self) -> bool {
        true
    }

    fn find(&self, place: Place<'_>) -> Result<Option<Attr>> {
        Ok(self.working()?.entries.get(&key(place)).cloned())
    }

    fn unlink(&self, place: Place<'_>) -> Result<bool> {
        self.remove(place, false)
    }

    fn remove_dir(&self, place: Place<'_>) -> Result<bool> {
        self.remove(place, true)
    }

    fn rename(&self, from: Place<'_>, to: Place<'_>) -> Result<bool> {
        let mut state = self.working()?;
        let Some(attr) = state.entries.remove(&key(from)) else { return Ok(false) };
        state.entries.insert(key(to), attr);
        Ok(true)
    }

    fn truncate(&self, file: FileId, size: u64) -> Result<bool> {
        let mut state = self.working()?;
        let mut found = false;
        for attr in state.entries.values_mut().filter(|attr| attr.id == file) {
            (attr.size, found) = (size, true);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nothing;
    use forebay_model::{Gid, Time, Uid};

    fn attr(id: u64, kind: FileKind) -> Attr {
        let (mode, links, uid, gid) = (0o644, 1, Uid(7), Gid(7));
        let time = Time::default();
        Attr {
            id: FileId(id),
            kind,
            mode,
            links,
            uid,
            gid,
            size: 9,
            buffered: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    fn at(path: &[u8]) -> Place<'_> {
        Place { dir: FileId::ROOT, path }
    }

    #[test]
    fn it_finds_moves_and_removes_what_was_put() {
        let fake = Fake::default();
        fake.put(at(b"a"), attr(70, FileKind::File));
        fake.put(at(b"d"), attr(71, FileKind::Directory));
        assert_eq!(fake.find(at(b"a")).unwrap().map(|attr| attr.id), Some(FileId(70)));
        assert!(!fake.rename(at(b"x"), at(b"y")).unwrap());
        assert!(fake.rename(at(b"a"), at(b"b")).unwrap());
        assert!(fake.truncate(FileId(70), 3).unwrap());
        assert_eq!(fake.find(at(b"b")).unwrap().map(|attr| attr.size), Some(3));
        assert_eq!(fake.unlink(at(b"d")).unwrap_err().kind(), ErrorKind::IsDirectory);
        assert_eq!(fake.remove_dir(at(b"b")).unwrap_err().kind(), ErrorKind::NotDirectory);
        assert!(fake.unlink(at(b"b")).unwrap() && fake.remove_dir(at(b"d")).unwrap());
        assert!(!fake.has(at(b"b")));
        fake.refuse(true);
        assert_eq!(fake.find(at(b"b")).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn nothing_has_nothing() {
        assert!(!Nothing.exists());
        assert_eq!(Nothing.find(at(b"a")).unwrap(), None);
        assert!(!Nothing.unlink(at(b"a")).unwrap());
        assert!(!Nothing.truncate(FileId(3), 0).unwrap());
    }
}
