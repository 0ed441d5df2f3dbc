//! The part of one server in an intent: checked when it is prepared, carried out when it is finished.

use super::edit::Edit;
use super::make::check_linkable;
use super::messages::{InodePart, Part};
use super::remove::{Fate, lose_name, sticky};
use super::{Attempt, Inode, Names, Obstacle, Stopped, check_access, is_owner, no_file};
use forebay_model::{Access, Error, FileId, FileKind, Identity, Result, Stamp};

/// Distance in the order of checks from the entry check of a part to its inode's write permission check.
pub(super) const WRITES: usize = 4;

/// Why a part cannot be prepared.
pub(super) enum Refusal {
    /// It is refused; with its position in the order of checks.
    Refused(usize, Error),
    /// An obstacle must be resolved, or everything retried.
    Stopped(Stopped),
}

impl From<Stopped> for Refusal {
    fn from(stopped: Stopped) -> Refusal {
        Refusal::Stopped(stopped)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Stopped(error.into())
    }
}

impl Part {
    /// The id whose stripe guards it.
    pub(super) fn guard(&self) -> FileId {
        match self {
            Part::Entry { dir, .. } | Part::Seal(dir) => *dir,
            Part::Inode(part) => part.file,
        }
    }
}

impl Names {
    /// Fails unless a part can be carried out. The caller holds its stripe, and no intent has it locked. Returns the
    /// future state of an inode that gains a name.
    pub(super) fn check_part(
        &self,
        who: &Identity,
        now: Stamp,
        place: usize,
        part: &Part,
    ) -> Result<Option<(FileId, Inode)>, Refusal> {
        match part {
            Part::Entry { dir, name, was, becomes } => {
                self.check_home(*dir, name)?;
                if becomes.is_some() {
                    refuse(place, self.dir(*dir).map(drop))?;
                }
                match self.entry(*dir, name)? == *was {
                    true => Ok(None),
                    false => Err(again()),
                }
            }
            Part::Inode(part) => self.check_inode(who, now, place, part),
            Part::Seal(dir) => {
                refuse(place, self.check_empty(*dir).map_err(Stopped::from))?;
                // No thread creates an entry in it any more, and after its removal no copy of it may be used.
                self.copies.drop_copy(*dir);
                Ok(None)
            }
        }
    }

    fn check_inode(
        &self,
        who: &Identity,
        now: Stamp,
        place: usize,
        part: &InodePart,
    ) -> Result<Option<(FileId, Inode)>, Refusal> {
        let InodePart { file, leaves, joins, .. } = *part;
        let inode = match (self.find_inode(file)?, leaves) {
            (Some(inode), Some(dir)) if inode.parents.contains(&dir) => inode,
            (Some(inode), None) => inode,
            // The name that leads to it was removed meanwhile.
            (_, Some(_)) => return Err(again()),
            (None, None) => return Err(Refusal::Refused(place, no_file(file))),
        };
        if let Some(restriction) = part.sticky
            && !is_owner(who, &inode)
        {
            let refusal = sticky(who, restriction.dir, restriction.uid, &part.name, &inode);
            return Err(Refusal::Refused(place, refusal));
        }
        if part.writes {
            let allowed = check_access(who, file, &inode, Access::WRITE);
            refuse(place + WRITES, allowed.map_err(Stopped::from))?;
        }
        if inode.kind() == FileKind::Directory && joins.is_some() {
            self.copies.check_none_lent(file)?;
        }
        if leaves.is_some() {
            return Ok(None);
        }
        refuse(place, check_linkable(file, &inode).map_err(Stopped::from))?;
        let mut after = inode;
        after.parents.extend(joins);
        after.changed(now);
        Ok(Some((file, after)))
    }

    /// Carries out a part. Returns a file that has no name left and may be open.
    pub(super) fn do_part(&self, edit: &mut Edit<'_>, now: Stamp, part: &Part) -> Result<Option<FileId>> {
        match part {
            Part::Entry { dir, name, was, becomes } => {
                let directories = |target: &Option<super::Target>| {
                    i32::from(target.is_some_and(|target| target.kind == FileKind::Directory))
                };
                edit.entries_changed(*dir, directories(becomes) - directories(was), now)?;
                match becomes {
                    Some(target) => edit.put_entry(*dir, name, *target),
                    None => edit.remove_entry(*dir, name),
                }
            }
            Part::Seal(dir) => {
                edit.drop_share(*dir);
                // A copy may have been requested again since it was sealed.
                self.copies.drop_copy(*dir);
            }
            Part::Inode(InodePart { file, leaves: Some(dir), joins: None, .. }) => {
                let unlinked = lose_name(edit, *file, *dir, now)?;
                return Ok((unlinked.fate == Fate::Orphaned).then_some(*file));
            }
            Part::Inode(InodePart { file, leaves, joins, name, .. }) => {
                let inode = edit.inode(*file)?;
                inode.changed(now);
                inode.call(name);
                if leaves != joins {
                    leaves.iter().try_for_each(|&dir| inode.leave(*file, dir))?;
                    inode.parents.extend(*joins);
                }
            }
        }
        Ok(None)
    }
}

/// Adds its position to a refusal; obstacles have none.
fn refuse(place: usize, checked: Attempt<()>) -> Result<(), Refusal> {
    match checked {
        Err(Stopped::Failed(error)) if !is_ours(&error) => Err(Refusal::Refused(place, error)),
        checked => Ok(checked?),
    }
}

/// Whether an error concerns this store and not the part.
fn is_ours(error: &Error) -> bool {
    use forebay_model::ErrorKind::{BadStore, Io, NoSpace};
    matches!(error.kind(), BadStore | Io | NoSpace)
}

fn again() -> Refusal {
    Refusal::Stopped(Obstacle::Busy.into())
}
