//! Walking from a directory up to the root.

use super::{Attempt, DirCopy, MAX_TRIES, Names, Stopped, check_access, damaged, no_file};
use forebay_model::{Access, ErrorKind, FileId, FileKind, Identity, Name};

impl Names {
    /// Fails unless `who` could reach this file by a path: by one of its names, with search permission on every
    /// directory from the root down. For requests that identify a file on this server, or any directory, by its id
    /// alone.
    pub fn reach(&self, who: &Identity, file: FileId) -> Attempt<()> {
        if !self.is_here(file) {
            return self.reach_directory(who, file);
        }
        let inode = self.settled(file)?;
        if inode.kind() == FileKind::Directory {
            return self.reach_directory(who, file);
        }
        let mut refusal = no_file(file);
        for &dir in &inode.parents {
            let reached = self.dir(dir).and_then(|copy| Ok(check_access(who, dir, &copy, Access::EXECUTE)?));
            match reached.and_then(|()| self.reach_directory(who, dir)) {
                Err(Stopped::Failed(error)) => refusal = error,
                reached => return reached,
            }
        }
        Err(refusal.into())
    }

    /// Whether a path from the root still leads to a directory, and `who` may search all directories above it.
    pub fn leads_to(&self, who: &Identity, path: &[Name], dir: FileId) -> Attempt<bool> {
        let mut left = path;
        let mut leads = true;
        let mut expect = |name: Option<&Name>| {
            let (last, before) = match left.split_last() {
                Some((last, before)) => (Some(last), before),
                None => (None, left),
            };
            leads &= last == name;
            left = before;
            leads
        };
        let copy = match self.settled_dir(dir) {
            Err(Stopped::Failed(error))
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) =>
            {
                return Ok(false);
            }
            copy => copy?,
        };
        if !expect(copy.name.as_ref()) {
            return Ok(false);
        }
        // A missing search permission matters only if the path is still correct; the topmost one is reported.
        let mut refusal = None;
        self.climb(dir, |id, copy| {
            let goes_on = expect(copy.name.as_ref());
            if goes_on && let Err(error) = check_access(who, id, copy, Access::EXECUTE) {
                refusal = Some(error);
            }
            Ok(goes_on)
        })?;
        match refusal {
            _ if !leads || !left.is_empty() => Ok(false),
            Some(error) => Err(error.into()),
            None => Ok(true),
        }
    }

    fn reach_directory(&self, who: &Identity, dir: FileId) -> Attempt<()> {
        if who.is_root() && self.is_here(dir) {
            return Ok(());
        }
        if who.is_root() {
            return self.dir(dir).map(drop);
        }
        self.climb(dir, |id, copy| Ok(check_access(who, id, copy, Access::EXECUTE).map(|()| true)?))
    }

    /// Whether directory `inner` is `outer` or somewhere below it.
    pub(super) fn is_within(&self, inner: FileId, outer: FileId) -> Attempt<bool> {
        let mut found = inner == outer;
        self.climb(inner, |id, _| {
            found |= id == outer;
            Ok(!found)
        })?;
        Ok(found)
    }

    /// A directory, once no intent has it locked.
    pub(super) fn settled_dir(&self, id: FileId) -> Attempt<DirCopy> {
        self.holds.file_is_free(id)?;
        self.dir(id)
    }

    /// Visits the directories above `id` up to the root, until `visit` breaks. Starts again if a directory moves and
    /// its former parent is removed meanwhile.
    pub(super) fn climb(
        &self,
        id: FileId,
        mut visit: impl FnMut(FileId, &DirCopy) -> Attempt<bool>,
    ) -> Attempt<()> {
        let (mut at, mut copy) = (id, self.settled_dir(id)?);
        let (mut steps, mut tries, mut mark) = (0_u64, 0, None);
        while at != FileId::ROOT {
            let above = copy.parent;
            // A directory visited before appears again: a loop, unless a directory moved meanwhile.
            let next = match mark == Some(above) {
                true => None,
                false => unless_gone(self.settled_dir(above))?,
            };
            if next.is_none() {
                (steps, tries, mark) = (0, tries + 1, None);
                if tries > MAX_TRIES {
                    return Err(damaged(format!("directory {id} is not below the root")).into());
                }
                (at, copy) = (id, self.settled_dir(id)?);
                continue;
            }
            (at, copy) = next.map_or((at, copy), |copy| (above, copy));
            steps += 1;
            if steps.is_power_of_two() {
                mark = Some(at);
            }
            if !visit(at, &copy)? {
                break;
            }
        }
        Ok(())
    }
}

fn unless_gone(found: Attempt<DirCopy>) -> Attempt<Option<DirCopy>> {
    match found {
        Err(Stopped::Failed(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}
