//! Moving names.

use super::edit::Edit;
use super::key::Target;
use super::remove::{Unlinked, is_directory, may_take, not_directory};
use super::{Inode, MAX_TRIES, Names, contended, damaged, demand, no_entry, taken};
use forebay_model::{Access, Error, ErrorKind, FileId, FileKind, Identity, Name, RenameMode, Result, Stamp};
use std::sync::PoisonError;

/// A name in a directory.
#[derive(Clone, Copy)]
struct Place<'a> {
    dir: FileId,
    name: &'a Name,
}

/// One end of a move, once everything is locked.
struct Moves<'a> {
    from: Place<'a>,
    to: Place<'a>,
    source: Target,
    target: Option<Target>,
    mode: RenameMode,
}

impl Names {
    /// Moves a name, and says what it replaced, if anything.
    #[expect(clippy::too_many_arguments, reason = "two places, who, how and when")]
    pub fn rename(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        to_dir: FileId,
        to_name: &Name,
        mode: RenameMode,
        now: Stamp,
    ) -> Result<Option<Unlinked>> {
        let (from, to) = (Place { dir, name }, Place { dir: to_dir, name: to_name });
        for _ in 0..MAX_TRIES {
            let seen = (self.entry(dir, name)?, self.entry(to_dir, to_name)?);
            let is_dir =
                |target: Option<Target>| target.is_some_and(|target| target.kind == FileKind::Directory);
            let _tree = (dir != to_dir && (is_dir(seen.0) || is_dir(seen.1)))
                .then(|| self.tree.lock().unwrap_or_else(PoisonError::into_inner));
            let ids = [Some(dir), Some(to_dir), seen.0.map(|t| t.file), seen.1.map(|t| t.file)];
            let _held = self.locks.hold(&ids.into_iter().flatten().collect::<Vec<_>>());
            let mut edit = self.edit();
            demand(who, dir, edit.directory(dir)?, Access::EXECUTE)?;
            demand(who, to_dir, edit.directory(to_dir)?, Access::EXECUTE)?;
            let found = (self.entry(dir, name)?, self.entry(to_dir, to_name)?);
            if found != seen {
                continue;
            }
            let moves = match (found.0, found.1, mode) {
                (None, ..) => return Err(no_entry(dir, name)),
                (_, None, RenameMode::Exchange) => return Err(no_entry(to_dir, to_name)),
                (_, Some(_), RenameMode::NoReplace) => return Err(taken(to_dir, to_name)),
                (Some(source), target, mode) => Moves { from, to, source, target, mode },
            };
            self.demand_no_loop(&moves)?;
            // Two names of one file, or one name twice: POSIX wants that nothing happens.
            if moves.target.is_some_and(|target| target.file == moves.source.file) {
                return Ok(None);
            }
            moves.demand_permission(who, &mut edit)?;
            let replaced = self.carry_out(&mut edit, &moves, now)?;
            edit.commit()?;
            return Ok(replaced);
        }
        Err(contended(dir, name))
    }

    fn carry_out(&self, edit: &mut Edit<'_>, moves: &Moves<'_>, now: Stamp) -> Result<Option<Unlinked>> {
        let Moves { from, to, source, target, mode } = *moves;
        edit.inode(from.dir)?.entries_changed(now);
        edit.inode(to.dir)?.entries_changed(now);
        let mut replaced = None;
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                shift(edit, target, to.dir, from.dir, now)?;
                edit.put_entry(from.dir, from.name, target);
            }
            (_, target) => {
                if let Some(target) = target {
                    replaced = Some(self.drop_name(edit, to.dir, target, now)?);
                }
                edit.remove_entry(from.dir, from.name);
            }
        }
        shift(edit, source, from.dir, to.dir, now)?;
        edit.put_entry(to.dir, to.name, source);
        Ok(replaced)
    }

    /// Fails if a directory would end up in itself. The caller holds the tree lock.
    fn demand_no_loop(&self, moves: &Moves<'_>) -> Result<()> {
        if moves.from.dir == moves.to.dir {
            return Ok(());
        }
        if moves.source.kind == FileKind::Directory && self.is_within(moves.to.dir, moves.source.file)? {
            return Err(into_itself(moves.from));
        }
        match moves.target {
            Some(target)
                if target.kind == FileKind::Directory && self.is_within(moves.from.dir, target.file)? =>
            {
                Err(match moves.mode {
                    RenameMode::Exchange => into_itself(moves.to),
                    _ => Error::new(
                        ErrorKind::NotEmpty,
                        format!("{:?} in directory {} is not empty", moves.to.name, moves.to.dir),
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether directory `inner` is `outer` or somewhere below it.
    fn is_within(&self, inner: FileId, outer: FileId) -> Result<bool> {
        let mut found = inner == outer;
        self.climb(inner, |id, _| {
            found |= id == outer;
            Ok(!found)
        })?;
        Ok(found)
    }

    /// Shows the directories above `id`, one after the other up to the root, until `visit` says no. Starts again
    /// when a directory moves and its former parent goes meanwhile.
    pub(super) fn climb(
        &self,
        id: FileId,
        mut visit: impl FnMut(FileId, &Inode) -> Result<bool>,
    ) -> Result<()> {
        let mut inode = self.directory(id)?;
        let (mut at, mut steps, mut tries) = (id, 0, 0);
        while at != FileId::ROOT {
            let above = inode.parent().ok_or_else(|| damaged(format!("directory {at} has no parent")))?;
            // More steps than there are directories: they lead in a circle.
            if steps > self.count() || tries > MAX_TRIES {
                return Err(damaged(format!("directory {id} is not below the root")));
            }
            (at, inode) = match self.find_inode(above)? {
                Some(inode) => (above, inode),
                None => {
                    (steps, tries) = (0, tries + 1);
                    (at, inode) = (id, self.directory(id)?);
                    continue;
                }
            };
            steps += 1;
            if !visit(at, &inode)? {
                break;
            }
        }
        Ok(())
    }
}

impl Moves<'_> {
    fn demand_permission(&self, who: &Identity, edit: &mut Edit<'_>) -> Result<()> {
        let (from, to) = (edit.inode(self.from.dir)?.clone(), edit.inode(self.to.dir)?.clone());
        let source = edit.inode(self.source.file)?.clone();
        may_take(who, self.from.dir, &from, self.from.name, &source)?;
        let target = match self.target {
            Some(target) => Some((target, edit.inode(target.file)?.clone())),
            None => None,
        };
        match &target {
            None => demand(who, self.to.dir, &to, Access::ENTRIES)?,
            Some((target, inode)) => {
                may_take(who, self.to.dir, &to, self.to.name, inode)?;
                self.demand_alike(*target)?;
            }
        }
        // A directory that changes its parent is itself written: its ".." changes.
        if self.from.dir != self.to.dir {
            if self.source.kind == FileKind::Directory {
                demand(who, self.source.file, &source, Access::WRITE)?;
            }
            if let Some((target, inode)) = &target
                && self.mode == RenameMode::Exchange
                && target.kind == FileKind::Directory
            {
                demand(who, target.file, inode, Access::WRITE)?;
            }
        }
        Ok(())
    }

    /// A directory replaces only a directory, anything else only something that is none.
    fn demand_alike(&self, target: Target) -> Result<()> {
        let is_dir = |target: Target| target.kind == FileKind::Directory;
        match (self.mode, is_dir(self.source), is_dir(target)) {
            (RenameMode::Exchange, ..) => Ok(()),
            (_, true, false) => Err(not_directory(self.to.dir, self.to.name)),
            (_, false, true) => Err(is_directory(self.to.dir, self.to.name)),
            _ => Ok(()),
        }
    }
}

/// Lets a file know that one of its names went to another directory, and the directories too.
fn shift(edit: &mut Edit<'_>, target: Target, from: FileId, to: FileId, now: Stamp) -> Result<()> {
    let inode = edit.inode(target.file)?;
    inode.changed(now);
    if from == to {
        return Ok(());
    }
    inode.leave(target.file, from)?;
    inode.parents.push(to);
    if target.kind == FileKind::Directory {
        inode.new_epoch();
        edit.inode(from)?.count_subdir(from, -1)?;
        edit.inode(to)?.count_subdir(to, 1)?;
    }
    Ok(())
}

fn into_itself(place: Place<'_>) -> Error {
    let text = format!("{:?} in directory {} cannot be moved into itself", place.name, place.dir);
    Error::new(ErrorKind::Invalid, text)
}
