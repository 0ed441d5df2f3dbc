//! Renaming.

use super::edit::Edit;
use super::key::Target;
use super::remove::{Unlinked, is_directory, may_take, not_directory};
use super::{Attempt, DirCopy, MAX_TRIES, Names, Obstacle, check_access, contended, no_entry, taken};
use crate::meta::Batch;
use forebay_model::{Access, Error, ErrorKind, FileId, FileKind, Identity, Name, RenameMode, Result, Stamp};

/// The result of a rename.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// The moved file.
    pub source: (FileId, FileKind),
    /// The previous target of the new name.
    pub target: Option<(FileId, FileKind)>,
    /// What happened to the previous target, unless both were exchanged.
    pub replaced: Option<Unlinked>,
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) dir: FileId,
    pub(super) name: &'a Name,
}

/// Source and target of a rename, with their current files.
pub(super) struct Moves<'a> {
    pub(super) from: Place<'a>,
    pub(super) to: Place<'a>,
    pub(super) source: Target,
    pub(super) target: Option<Target>,
    pub(super) mode: RenameMode,
}

impl Names {
    /// Renames an entry and returns what it replaced.
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
    ) -> Attempt<Option<Unlinked>> {
        self.rename_via(who, dir, name, to_dir, to_name, mode, now, |_, batch| self.kv.commit(batch))
    }

    /// Like [`Names::rename`], but committed by `via`, which may do work first. Both names are locked meanwhile; if
    /// `via` fails, nothing has changed.
    #[expect(clippy::too_many_arguments, reason = "two places, who, how and when")]
    pub fn rename_via(
        &self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        to_dir: FileId,
        to_name: &Name,
        mode: RenameMode,
        now: Stamp,
        mut via: impl FnMut(&Renamed, Batch) -> Result<()>,
    ) -> Attempt<Option<Unlinked>> {
        self.check_home(dir, name)?;
        if self.home(to_dir, to_name) != self.server() {
            return Err(Obstacle::SeveralShards.into());
        }
        let (from, to) = (Place { dir, name }, Place { dir: to_dir, name: to_name });
        for _ in 0..MAX_TRIES {
            let seen = (self.entry(dir, name)?, self.entry(to_dir, to_name)?);
            let is_dir =
                |target: Option<Target>| target.is_some_and(|target| target.kind == FileKind::Directory);
            let _tree = (dir != to_dir && (is_dir(seen.0) || is_dir(seen.1))).then(|| self.tree.lock());
            let ids = [Some(dir), Some(to_dir), seen.0.map(|t| t.file), seen.1.map(|t| t.file)];
            let _held = self.locks.hold(&ids.into_iter().flatten().collect::<Vec<_>>());
            let dirs = (self.searched(who, dir)?, self.searched(who, to_dir)?);
            self.holds.entry_is_free(dir, name)?;
            self.holds.entry_is_free(to_dir, to_name)?;
            let found = (self.entry(dir, name)?, self.entry(to_dir, to_name)?);
            if found != seen {
                continue;
            }
            let moves = Moves::new(from, to, found, mode)?;
            let ends = [Some(moves.source), moves.target];
            if ends.into_iter().flatten().any(|target| self.concerns_others(target)) {
                return Err(Obstacle::SeveralShards.into());
            }
            self.check_no_loop(&moves)?;
            // Two names of one file, or the same name twice: POSIX requires that nothing happens.
            if moves.is_nothing() {
                return Ok(None);
            }
            ends.into_iter().flatten().try_for_each(|target| self.holds.file_is_free(target.file))?;
            let mut edit = self.edit();
            moves.check_permission(who, (&dirs.0, &dirs.1), &mut edit)?;
            let replaced = self.carry_out(&mut edit, &moves, now)?;
            let source = (moves.source.file, moves.source.kind);
            let renamed =
                Renamed { source, target: moves.target.map(|target| (target.file, target.kind)), replaced };
            edit.commit_via(|batch| via(&renamed, batch))?;
            return Ok(renamed.replaced);
        }
        Err(contended(dir, name).into())
    }

    /// A directory that `who` may search.
    pub(super) fn searched(&self, who: &Identity, dir: FileId) -> Attempt<DirCopy> {
        let copy = self.dir(dir)?;
        check_access(who, dir, &copy, Access::EXECUTE)?;
        Ok(copy)
    }

    fn carry_out(&self, edit: &mut Edit<'_>, moves: &Moves<'_>, now: Stamp) -> Result<Option<Unlinked>> {
        let Moves { from, to, source, target, mode } = *moves;
        let mut replaced = None;
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                shift(edit, target, to, from, now)?;
                edit.put_entry(from.dir, from.name, target);
            }
            (_, target) => {
                if let Some(target) = target {
                    replaced = Some(self.drop_name(edit, to.dir, target, now)?);
                }
                edit.remove_entry(from.dir, from.name);
            }
        }
        shift(edit, source, from, to, now)?;
        edit.put_entry(to.dir, to.name, source);
        Ok(replaced)
    }

    /// Fails if a directory would become its own descendant. The caller holds the tree lock.
    pub(super) fn check_no_loop(&self, moves: &Moves<'_>) -> Attempt<()> {
        if moves.from.dir == moves.to.dir {
            return Ok(());
        }
        if moves.source.kind == FileKind::Directory && self.is_within(moves.to.dir, moves.source.file)? {
            return Err(into_itself(moves.from).into());
        }
        match moves.target {
            Some(target)
                if target.kind == FileKind::Directory && self.is_within(moves.from.dir, target.file)? =>
            {
                Err(match moves.mode {
                    RenameMode::Exchange => into_itself(moves.to),
                    _ => Error::new(
                        ErrorKind::NotEmpty,
                        format!("{} in directory {} is not empty", moves.to.name.quoted(), moves.to.dir),
                    ),
                }
                .into())
            }
            _ => Ok(()),
        }
    }
}

impl<'a> Moves<'a> {
    /// The moves, if the files at both ends allow them.
    pub(super) fn new(
        from: Place<'a>,
        to: Place<'a>,
        (source, target): (Option<Target>, Option<Target>),
        mode: RenameMode,
    ) -> Result<Moves<'a>> {
        match (source, target, mode) {
            (None, ..) => Err(no_entry(from.dir, from.name)),
            (_, None, RenameMode::Exchange) => Err(no_entry(to.dir, to.name)),
            (_, Some(_), RenameMode::NoReplace) => Err(taken(to.dir, to.name)),
            (Some(source), target, mode) => Ok(Moves { from, to, source, target, mode }),
        }
    }

    /// Whether both names lead to the same file.
    pub(super) fn is_nothing(&self) -> bool {
        self.target.is_some_and(|target| target.file == self.source.file)
    }

    fn check_permission(
        &self,
        who: &Identity,
        (from, to): (&DirCopy, &DirCopy),
        edit: &mut Edit<'_>,
    ) -> Result<()> {
        let source = edit.inode(self.source.file)?.clone();
        may_take(who, self.from.dir, from, self.from.name, &source)?;
        let target = match self.target {
            Some(target) => Some((target, edit.inode(target.file)?.clone())),
            None => None,
        };
        match &target {
            None => check_access(who, self.to.dir, to, Access::ENTRIES)?,
            Some((target, inode)) => {
                may_take(who, self.to.dir, to, self.to.name, inode)?;
                self.check_alike(*target)?;
            }
        }
        // Moving a directory to another parent writes to it, because its ".." changes.
        if self.from.dir != self.to.dir {
            if self.source.kind == FileKind::Directory {
                check_access(who, self.source.file, &source, Access::WRITE)?;
            }
            if let Some((target, inode)) = &target
                && self.mode == RenameMode::Exchange
                && target.kind == FileKind::Directory
            {
                check_access(who, target.file, inode, Access::WRITE)?;
            }
        }
        Ok(())
    }

    /// A directory replaces only a directory, any other file only a file that is not a directory.
    pub(super) fn check_alike(&self, target: Target) -> Result<()> {
        let is_dir = |target: Target| target.kind == FileKind::Directory;
        match (self.mode, is_dir(self.source), is_dir(target)) {
            (RenameMode::Exchange, ..) => Ok(()),
            (_, true, false) => Err(not_directory(self.to.dir, self.to.name)),
            (_, false, true) => Err(is_directory(self.to.dir, self.to.name)),
            _ => Ok(()),
        }
    }
}

/// Updates a file and both directories after one of its names moved.
fn shift(edit: &mut Edit<'_>, target: Target, from: Place<'_>, to: Place<'_>, now: Stamp) -> Result<()> {
    let moved = from.dir != to.dir;
    let by = i32::from(moved && target.kind == FileKind::Directory);
    edit.entries_changed(from.dir, -by, now)?;
    edit.entries_changed(to.dir, by, now)?;
    let inode = edit.inode(target.file)?;
    inode.changed(now);
    inode.call(to.name);
    if moved {
        inode.leave(target.file, from.dir)?;
        inode.parents.push(to.dir);
    }
    Ok(())
}

fn into_itself(place: Place<'_>) -> Error {
    let text = format!("{} in directory {} cannot be moved into itself", place.name.quoted(), place.dir);
    Error::new(ErrorKind::Invalid, text)
}
