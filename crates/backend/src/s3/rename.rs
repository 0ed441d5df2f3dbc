//! Rename by copy and removal.
//!
//! A rename that returns an error has changed nothing, as far as the store allows the rollback. A rename that
//! a dying server left half done completes when it is requested again: a directory loses its own object last,
//! and until then the object of the new directory has the same id, which marks the rename in progress.

use super::store::Head;
use super::{Inner, Path, There, failed, metadata};
use forebay_model::{Error, ErrorKind, FileKind, Result};

impl Inner {
    /// The entry that a rename would replace, if that is allowed.
    pub(super) fn replaced(&self, from: &There, to: Path<'_>) -> Result<Option<There>> {
        let Some(there) = self.look(to)? else { return Ok(None) };
        let is_under_way = there.id() == from.id();
        match (from.found.kind == FileKind::Directory, there.found.kind == FileKind::Directory) {
            (true, false) => Err(failed(to, ErrorKind::NotDirectory)),
            (false, true) => Err(failed(to, ErrorKind::IsDirectory)),
            (true, true) if !is_under_way && !self.is_empty_dir(&there.head.key)? => {
                Err(failed(to, ErrorKind::NotEmpty))
            }
            _ => Ok(Some(there)),
        }
    }

    pub(super) fn move_file(&self, from: &There, to: &str, replaced: Option<&There>) -> Result<()> {
        let file = self.written(&from.head);
        // Lock the file, so that it is not composed while both copies exist.
        let mut state = file.as_ref().map(|file| file.lock());
        let head = match &state {
            Some(_) => self.store.head(&from.head.key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?,
            None => from.head.clone(),
        };
        self.copy_over(&head, to, replaced.is_some())?;
        let removed = self.take_away(&head.key, to, replaced.is_some());
        if let (Ok(()), Some(state)) = (&removed, &mut state) {
            to.clone_into(&mut state.key);
        }
        drop(state);
        match replaced {
            Some(old) if old.id() != from.id() => removed.and(self.drop_file(old)),
            _ => removed,
        }
    }

    /// Copies an object. A copy that was reported as failed but exists counts.
    fn copy_over(&self, from: &Head, to: &str, replaces: bool) -> Result<()> {
        let mut meta = from.meta.clone();
        metadata::set_id(&mut meta, to, metadata::id(from));
        let Err(error) = self.copy(from, to, &meta) else { return Ok(()) };
        match self.store.head(to) {
            Ok(Some(there)) if there.size == from.size && there.meta == meta => Ok(()),
            Ok(_) => Err(error),
            Err(_) => {
                // The copy may exist. A replaced object may also still be the old one.
                let _ = if replaces { Ok(()) } else { self.store.delete(to) };
                Err(error)
            }
        }
    }

    /// Removes the source of a copy; if that fails, removes the copy.
    fn take_away(&self, from: &str, to: &str, replaces: bool) -> Result<()> {
        let Err(error) = self.remove(from) else { return Ok(()) };
        match self.store.head(from) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) if !replaces => {
                // If this fails as well, both objects remain.
                let _ = self.remove(to);
            }
            // The copy may be the only object left.
            _ => {}
        }
        Err(error)
    }

    /// Removes an object, with one retry: the first attempt may have succeeded.
    fn remove(&self, key: &str) -> Result<()> {
        self.store.delete(key).or_else(|_| self.store.delete(key))
    }

    pub(super) fn move_dir(&self, from: &There, to: &str, replaced: Option<&There>) -> Result<()> {
        let mut keys = Vec::new();
        self.each_key(&from.head.key, &mut |key| {
            keys.push(key[from.head.key.len()..].to_owned());
            Ok(())
        })?;
        keys.retain(|key| !key.is_empty());
        let mut meta = from.head.meta.clone();
        metadata::set_id(&mut meta, to, from.id());
        let is_under_way = replaced.is_some_and(|there| there.id() == from.id());
        let mut moved = 0;
        let done = self.store.put(to, &[], &meta).and_then(|()| {
            for key in &keys {
                let there = self.at(&(from.head.key.clone() + key))?;
                let goal = to.to_owned() + key;
                let old = if is_under_way { self.store.head(&goal)?.map(There::new) } else { None };
                if old.as_ref().is_some_and(|old| old.id() != there.id()) {
                    let text = format!("{goal} already exists: cannot rename {}", there.head.key);
                    return Err(Error::new(ErrorKind::NotEmpty, text));
                }
                self.move_file(&there, &goal, old.as_ref())?;
                moved += 1;
            }
            self.remove(&from.head.key)
        });
        if done.is_err() {
            // Report the first error; a rollback that fails leaves the rename in progress.
            let _ = self.move_back(&from.head.key, to, &keys[..moved], replaced);
        }
        done
    }

    fn move_back(&self, from: &str, to: &str, keys: &[String], replaced: Option<&There>) -> Result<()> {
        for key in keys {
            self.move_file(&self.at(&(to.to_owned() + key))?, &(from.to_owned() + key), None)?;
        }
        match replaced {
            Some(old) => self.store.put(to, &[], &old.head.meta),
            None => self.remove(to),
        }
    }

    fn at(&self, key: &str) -> Result<There> {
        let head = self.store.head(key)?.ok_or_else(|| Error::from(ErrorKind::Stale))?;
        Ok(There::new(head))
    }
}
