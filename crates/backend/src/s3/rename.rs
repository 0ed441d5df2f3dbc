//! Renaming, where a store can only copy and remove.
//!
//! A rename that is told to have failed has changed nothing, as far as the store lets it be taken back. One that a dying
//! server left half done is done when it is asked for again: a directory loses its own object last, and until then the
//! object of the new one says, with the same number, that it is on its way there.

use super::store::Head;
use super::{Inner, Path, There, facts, failed};
use forebay_model::{Error, ErrorKind, FileKind, Result};
use std::sync::PoisonError;

impl Inner {
    /// What stands in the way of a rename, if it may be replaced.
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
        // Nobody puts it together while it is here and there.
        let mut state = file.as_ref().map(|file| file.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// Makes a copy. One that was told to have failed and is there counts.
    fn copy_over(&self, from: &Head, to: &str, replaces: bool) -> Result<()> {
        let mut meta = from.meta.clone();
        facts::claim(&mut meta, to, facts::id(from));
        let Err(error) = self.copy(from, to, &meta) else { return Ok(()) };
        match self.store.head(to) {
            Ok(Some(there)) if there.size == from.size && there.meta == meta => Ok(()),
            Ok(_) => Err(error),
            Err(_) => {
                // It may be there. What was there before may still be, too.
                let _ = if replaces { Ok(()) } else { self.store.delete(to) };
                Err(error)
            }
        }
    }

    /// Removes what was copied; where that cannot be done, the copy goes.
    fn take_away(&self, from: &str, to: &str, replaces: bool) -> Result<()> {
        let Err(error) = self.remove(from) else { return Ok(()) };
        match self.store.head(from) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) if !replaces => {
                // If this fails, too, there are two of them.
                let _ = self.remove(to);
            }
            // The copy may be all there is.
            _ => {}
        }
        Err(error)
    }

    /// Removes an object, at the second attempt if need be: the first may have been the one that was done.
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
        facts::claim(&mut meta, to, from.id());
        let is_under_way = replaced.is_some_and(|there| there.id() == from.id());
        let mut moved = 0;
        let done = self.store.put(to, &[], &meta).and_then(|()| {
            for key in &keys {
                let there = self.at(&(from.head.key.clone() + key))?;
                let goal = to.to_owned() + key;
                let old = if is_under_way { self.store.head(&goal)?.map(There::new) } else { None };
                if old.as_ref().is_some_and(|old| old.id() != there.id()) {
                    let text = format!("{goal} is in the way of {}", there.head.key);
                    return Err(Error::new(ErrorKind::NotEmpty, text));
                }
                self.move_file(&there, &goal, old.as_ref())?;
                moved += 1;
            }
            self.remove(&from.head.key)
        });
        if done.is_err() {
            // It is the first failure that is told; what cannot be taken back is on its way still.
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
