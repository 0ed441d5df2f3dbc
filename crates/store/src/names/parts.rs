//! What one server does for an intent: checked when it is prepared, done when it is finished.

use super::edit::Edit;
use super::make::demand_linkable;
use super::remove::{Fate, lose_name, sticky};
use super::talk::{InodePart, Part};
use super::{Attempt, Inode, Names, Obstacle, Stopped, demand, is_owner, no_file};
use forebay_model::{Access, Error, FileId, FileKind, Identity, Result, Stamp};

/// That an inode may be written is asked so many places behind that its name may be taken.
pub(super) const WRITES: usize = 4;

/// Why a part cannot be prepared.
pub(super) enum Refusal {
    /// It cannot be, and this is its place in the whole.
    Refused(usize, Error),
    /// Something has to be done first, or all be tried again.
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
    /// Whose stripe guards it.
    pub(super) fn guard(&self) -> FileId {
        match self {
            Part::Entry { dir, .. } | Part::Seal(dir) => *dir,
            Part::Inode(part) => part.file,
        }
    }
}

impl Names {
    /// Fails unless a part can be done. The caller holds its stripe, and nobody has it locked. Returns an inode that
    /// gains a name, as it will be.
    pub(super) fn check_part(
        &self,
        who: &Identity,
        now: Stamp,
        place: usize,
        part: &Part,
    ) -> Result<Option<(FileId, Inode)>, Refusal> {
        match part {
            Part::Entry { dir, name, was, becomes } => {
                self.demand_home(*dir, name)?;
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
                refuse(place, self.demand_empty(*dir).map_err(Stopped::from))?;
                // Nobody makes an entry in it any more, and when it is gone nobody must take it for being there.
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
            // The name that leads to it went meanwhile.
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
            let allowed = demand(who, file, &inode, Access::WRITE);
            refuse(place + WRITES, allowed.map_err(Stopped::from))?;
        }
        if inode.kind() == FileKind::Directory && joins.is_some() {
            self.copies.demand_none_lent(file)?;
        }
        if leaves.is_some() {
            return Ok(None);
        }
        refuse(place, demand_linkable(file, &inode).map_err(Stopped::from))?;
        let mut after = inode;
        after.parents.extend(joins);
        after.changed(now);
        Ok(Some((file, after)))
    }

    /// Does a part. Returns a file that has no name left and may be open.
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
                // It may have been asked for again since it was sealed.
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

/// Gives a failure its place; obstacles have none.
fn refuse(place: usize, checked: Attempt<()>) -> Result<(), Refusal> {
    match checked {
        Err(Stopped::Failed(error)) if !is_ours(&error) => Err(Refusal::Refused(place, error)),
        checked => Ok(checked?),
    }
}

/// Whether an error says something of this store and not of the part.
fn is_ours(error: &Error) -> bool {
    use forebay_model::ErrorKind::{BadStore, Io, NoSpace};
    matches!(error.kind(), BadStore | Io | NoSpace)
}

fn again() -> Refusal {
    Refusal::Stopped(Obstacle::Busy.into())
}
