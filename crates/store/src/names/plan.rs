//! Splits an operation into the parts of the servers.

use super::messages::{Carried, InodePart, NameRequest, Op, Part, Sticky};
use super::parts::WRITES;
use super::remove::{check_kind, is_restricted};
use super::rename::{Moves, Place};
use super::{DirCopy, Names, Obstacle, Stopped, Target, check_access, no_entry, no_file, taken};
use forebay_model::{Access, Error, FileId, FileKind, Identity, Name, RenameMode, Result, ServerId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Replies of other servers needed to plan an operation.
#[derive(Default)]
pub(super) struct Known {
    pub(super) entries: HashMap<(FileId, Name), Option<Target>>,
    pub(super) kinds: HashMap<FileId, FileKind>,
}

/// How to carry out an operation.
pub(super) enum Planned {
    /// Another server must coordinate it.
    Forward(ServerId),
    /// With these parts.
    Parts(Box<Plan>),
}

/// Parts, and reasons to refuse them.
#[derive(Default)]
pub(super) struct Plan {
    /// The parts, each with its server and its position in the order of checks.
    pub(super) parts: Vec<(ServerId, usize, Part)>,
    /// Refusals of the coordinator itself, with their positions.
    pub(super) refusals: Vec<(usize, Error)>,
    /// The outcome if the lookups are confirmed.
    pub(super) outcome: Outcome,
}

/// The outcome of an operation.
pub(super) enum Outcome {
    /// The parts are carried out.
    Carried(Carried),
    /// Nothing is changed. The lookups were made at different times, so the parts are locked once to confirm them.
    Unchanged(Result<Carried>),
}

impl Default for Outcome {
    fn default() -> Outcome {
        Outcome::Carried(Carried::default())
    }
}

/// Why there is no plan.
pub(super) enum NoPlan {
    /// It fails, or an obstacle must be resolved.
    Stopped(Stopped),
    /// This request must be sent first.
    Unknown(ServerId, NameRequest),
}

impl<E: Into<Stopped>> From<E> for NoPlan {
    fn from(error: E) -> NoPlan {
        NoPlan::Stopped(error.into())
    }
}

/// The cluster-wide lock on changes of parent directories; its holder may check that a directory does not become its
/// own descendant.
pub(super) struct Moving(Arc<AtomicBool>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

// The order of checks, as in single-server operations.
const SOURCE: usize = 2;
const INTO: usize = 3;
const TARGET: usize = 4;
const ALIKE: usize = 5;
const EMPTY: usize = TARGET + WRITES + 1;

impl Names {
    /// The parts of an operation. `moving` is taken if a directory changes its parent.
    pub(super) fn plan(
        &self,
        who: &Identity,
        op: &Op,
        known: &Known,
        moving: &mut Option<Moving>,
    ) -> Result<Planned, NoPlan> {
        match op {
            Op::Unlink { dir, name } => self.plan_removal(who, (*dir, name), known, false),
            Op::RemoveDir { dir, name } => self.plan_removal(who, (*dir, name), known, true),
            Op::Link { file, dir, name } => self.plan_link(who, *file, (*dir, name), known),
            Op::Rescue { file, dir, name } => self.plan_rescue((*file, *dir), name, known),
            Op::Rename { dir, name, to_dir, to_name, mode } => {
                let (from, to) = (Place { dir: *dir, name }, Place { dir: *to_dir, name: to_name });
                self.plan_rename(who, from, to, *mode, known, moving)
            }
        }
    }

    /// The target of an entry, local or as its home replied.
    pub(super) fn known_entry(
        &self,
        dir: FileId,
        name: &Name,
        known: &Known,
    ) -> Result<Option<Target>, NoPlan> {
        let home = self.home(dir, name);
        if home == self.server() {
            return Ok(self.settled_entry(dir, name)?);
        }
        match known.entries.get(&(dir, name.clone())) {
            Some(target) => Ok(*target),
            None => Err(NoPlan::Unknown(home, NameRequest::Entry(dir, name.clone()))),
        }
    }

    fn plan_removal(
        &self,
        who: &Identity,
        (dir, name): (FileId, &Name),
        known: &Known,
        want_dir: bool,
    ) -> Result<Planned, NoPlan> {
        let parent = self.searched(who, dir)?;
        let target = self.known_entry(dir, name, known)?.ok_or_else(|| no_entry(dir, name))?;
        check_access(who, dir, &parent, Access::ENTRIES)?;
        let mut plan = Plan::default();
        self.add_entry(&mut plan, Place { dir, name }, Some(target), None);
        self.add_inode(
            &mut plan,
            TARGET,
            who,
            (dir, &parent),
            InodePart { leaves: Some(dir), ..InodePart::of(target.file, name) },
        )?;
        plan.refuse(ALIKE, check_kind(dir, name, target, want_dir));
        if target.kind == FileKind::Directory {
            self.add_seals(&mut plan, target.file);
        }
        plan.outcome = Outcome::unlinked(target.file);
        Ok(Planned::Parts(Box::new(plan)))
    }

    fn plan_link(
        &self,
        who: &Identity,
        file: FileId,
        (dir, name): (FileId, &Name),
        known: &Known,
    ) -> Result<Planned, NoPlan> {
        let parent = self.searched(who, dir)?;
        if self.known_entry(dir, name, known)?.is_some() {
            return Err(taken(dir, name).into());
        }
        check_access(who, dir, &parent, Access::ENTRIES)?;
        let authority = self.known_authority(file)?;
        let kind = match known.kinds.get(&file) {
            Some(&kind) => kind,
            None if authority == self.server() => self.inode(file)?.kind(),
            None => return Err(NoPlan::Unknown(authority, NameRequest::Kind(file))),
        };
        let mut plan = Plan::default();
        self.add_entry(&mut plan, Place { dir, name }, None, Some(Target { file, kind }));
        let part = InodePart { joins: Some(dir), ..InodePart::of(file, name) };
        plan.parts.push((authority, TARGET, Part::Inode(part)));
        Ok(Planned::Parts(Box::new(plan)))
    }

    fn plan_rename(
        &self,
        who: &Identity,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
        known: &Known,
        moving: &mut Option<Moving>,
    ) -> Result<Planned, NoPlan> {
        let dirs = (self.searched(who, from.dir)?, self.searched(who, to.dir)?);
        let found =
            (self.known_entry(from.dir, from.name, known)?, self.known_entry(to.dir, to.name, known)?);
        let result = match self.plan_moves(who, (from, to, found, mode), (&dirs.0, &dirs.1), moving) {
            Ok(Some(planned)) => return Ok(planned),
            Ok(None) => Ok(Carried::default()),
            Err(NoPlan::Stopped(Stopped::Failed(error))) => Err(error),
            Err(other) => return Err(other),
        };
        let mut plan = Plan { outcome: Outcome::Unchanged(result), ..Plan::default() };
        self.add_entry(&mut plan, from, found.0, found.0);
        if (from.dir, from.name) != (to.dir, to.name) {
            self.add_entry(&mut plan, to, found.1, found.1);
        }
        Ok(Planned::Parts(Box::new(plan)))
    }

    /// The moves of a rename; `None` if there is nothing to do.
    fn plan_moves(
        &self,
        who: &Identity,
        (from, to, found, mode): (Place<'_>, Place<'_>, (Option<Target>, Option<Target>), RenameMode),
        dirs: (&DirCopy, &DirCopy),
        moving: &mut Option<Moving>,
    ) -> Result<Option<Planned>, NoPlan> {
        let moves = Moves::new(from, to, found, mode)?;
        if moves.changes_parents() {
            match self.coordinator_of_moves() {
                first if first != self.server() => return Ok(Some(Planned::Forward(first))),
                _ => self.take_moving(moving)?,
            }
        }
        self.check_no_loop(&moves)?;
        if moves.is_nothing() {
            return Ok(None);
        }
        check_access(who, from.dir, dirs.0, Access::ENTRIES)?;
        Ok(Some(Planned::Parts(Box::new(self.rename_parts(who, &moves, dirs)?))))
    }

    fn rename_parts(
        &self,
        who: &Identity,
        moves: &Moves<'_>,
        dirs: (&DirCopy, &DirCopy),
    ) -> Result<Plan, NoPlan> {
        let Moves { from, to, source, target, mode } = *moves;
        let is_dir = |target: Target| target.kind == FileKind::Directory;
        let (swapped, moved) = (target.filter(|_| mode == RenameMode::Exchange), from.dir != to.dir);
        let mut plan = Plan::default();
        self.add_entry(&mut plan, from, Some(source), swapped);
        self.add_entry(&mut plan, to, target, Some(source));
        let part = InodePart {
            leaves: Some(from.dir),
            joins: Some(to.dir),
            name: to.name.clone(),
            writes: moved && is_dir(source),
            ..InodePart::of(source.file, from.name)
        };
        self.add_inode(&mut plan, SOURCE, who, (from.dir, dirs.0), part)?;
        plan.refuse(INTO, check_access(who, to.dir, dirs.1, Access::ENTRIES));
        let Some(target) = target else { return Ok(plan) };
        let part = InodePart { leaves: Some(to.dir), ..InodePart::of(target.file, to.name) };
        let part = match swapped {
            Some(_) => InodePart {
                joins: Some(from.dir),
                name: from.name.clone(),
                writes: moved && is_dir(target),
                ..part
            },
            None => part,
        };
        self.add_inode(&mut plan, TARGET, who, (to.dir, dirs.1), part)?;
        plan.refuse(ALIKE, moves.check_alike(target));
        if swapped.is_none() {
            if is_dir(target) {
                self.add_seals(&mut plan, target.file);
            }
            plan.outcome = Outcome::unlinked(target.file);
        }
        Ok(plan)
    }

    pub(super) fn add_entry(
        &self,
        plan: &mut Plan,
        at: Place<'_>,
        was: Option<Target>,
        becomes: Option<Target>,
    ) {
        let part = Part::Entry { dir: at.dir, name: at.name.clone(), was, becomes };
        plan.parts.push((self.home(at.dir, at.name), 0, part));
    }

    /// Adds the change of an inode's names in a directory.
    fn add_inode(
        &self,
        plan: &mut Plan,
        place: usize,
        who: &Identity,
        (dir, parent): (FileId, &DirCopy),
        part: InodePart,
    ) -> Result<(), NoPlan> {
        let sticky = is_restricted(who, parent).then_some(Sticky { dir, uid: parent.uid });
        let authority = self.known_authority(part.file)?;
        plan.parts.push((authority, place, Part::Inode(InodePart { sticky, ..part })));
        Ok(())
    }

    /// A directory to be removed must be empty on all servers.
    fn add_seals(&self, plan: &mut Plan, dir: FileId) {
        plan.parts.extend(self.all_servers().into_iter().map(|server| (server, EMPTY, Part::Seal(dir))));
    }

    fn all_servers(&self) -> Vec<ServerId> {
        match self.around.get() {
            Some(around) => around.members.servers().collect(),
            None => vec![self.server()],
        }
    }

    fn coordinator_of_moves(&self) -> ServerId {
        self.around.get().map_or(self.server(), |around| around.members.first())
    }

    pub(super) fn known_authority(&self, file: FileId) -> Result<ServerId> {
        let authority = self.authority(file);
        let is_member = self.around.get().is_none_or(|around| around.members.contains(authority));
        if is_member { Ok(authority) } else { Err(no_file(file)) }
    }

    fn take_moving(&self, moving: &mut Option<Moving>) -> Result<(), NoPlan> {
        if moving.is_some() {
            return Ok(());
        }
        if self.moving.swap(true, Ordering::SeqCst) {
            return Err(Obstacle::Busy.into());
        }
        *moving = Some(Moving(Arc::clone(&self.moving)));
        Ok(())
    }
}

impl Plan {
    fn refuse(&mut self, place: usize, allowed: Result<()>) {
        self.refusals.extend(allowed.err().map(|error| (place, error)));
    }
}

impl Outcome {
    fn unlinked(file: FileId) -> Outcome {
        Outcome::Carried(Carried { linked: None, unlinked: Some(file) })
    }
}

impl InodePart {
    pub(super) fn of(file: FileId, name: &Name) -> InodePart {
        InodePart { file, leaves: None, joins: None, name: name.clone(), sticky: None, writes: false }
    }
}

impl Moves<'_> {
    /// Whether a directory changes its parent.
    fn changes_parents(&self) -> bool {
        let is_dir = |target: Target| target.kind == FileKind::Directory;
        let swapped = self.target.is_some_and(|target| self.mode == RenameMode::Exchange && is_dir(target));
        self.from.dir != self.to.dir && (is_dir(self.source) || swapped)
    }
}
