//! Changes of names and sizes, made in the buffer and in the back end.

use super::BackingLayer;
use super::create::Within;
use super::intent::{Intent, Step, Then};
use super::record::{self, BackingSpot, Home, Record};
use super::{Backing, missing_in_backing};
use forebay_backend::Target;
use forebay_model::{Error, ErrorKind, FileId, FileKind, Identity, Name, Result};
use forebay_store::{Attempt, Batch, Fate, RenameMode, Renamed, Unlinked};

/// What a change means for the back end: steps to perform there, and records that change with it.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    records: Batch,
    /// Directories with new writeback marks, in which something is created.
    dirs: Vec<FileId>,
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct Spot<'a> {
    pub(crate) dir: FileId,
    pub(crate) name: &'a Name,
}

impl BackingLayer {
    /// Removes a name in the buffer and the back end.
    pub(crate) fn unlink_both(&self, who: &Identity, spot: Spot<'_>, is_dir: bool) -> Attempt<Unlinked> {
        let (names, now) = (self.store.names(), self.store.data().now());
        let Spot { dir, name } = spot;
        let Some(backing) = &self.backing else {
            let removed = match is_dir {
                true => names.remove_dir(who, dir, name, now),
                false if self.life.is_alone() => return self.unlink_alone(who, spot),
                false => names.unlink(who, dir, name, now),
            };
            return removed;
        };
        self.lookup_backing(dir, name)?;
        if is_dir && let Some((file, _)) = self.known(dir, name)? {
            self.survey(file)?;
        }
        let (mut plan, mut reaped) = (Plan::default(), false);
        let via = |unlinked: &Unlinked, batch: Batch| {
            let tree = backing.lock_tree();
            self.plan_unlink(backing, &mut plan, spot, unlinked)?;
            let left = plan.steps.is_empty() && !backing.knows(unlinked.file)?;
            reaped = left && self.begin_reap(unlinked);
            if !reaped {
                return self.carry_out(backing, &mut plan, batch);
            }
            drop(tree);
            self.reap_now(unlinked.file, batch, std::mem::take(&mut plan.records))
        };
        let unlinked = match is_dir {
            true => names.remove_dir_via(who, dir, name, now, via),
            false => names.unlink_via(who, dir, name, now, via),
        };
        // Directories with new writeback marks have to be finalized even if the change failed.
        backing.touched(&plan.dirs);
        let mut unlinked = unlinked?;
        if reaped {
            unlinked.fate = Fate::Gone;
        }
        if unlinked.fate == Fate::Gone {
            backing.drop_mark(unlinked.file);
        }
        Ok(unlinked)
    }

    /// Removes a name on a single server without a back end; also the file, if this was its last name and it is not
    /// open.
    fn unlink_alone(&self, who: &Identity, Spot { dir, name }: Spot<'_>) -> Attempt<Unlinked> {
        let (names, data) = (self.store.names(), self.store.data());
        let mut reaped = false;
        let mut unlinked = names.unlink_via(who, dir, name, data.now(), |unlinked, batch| {
            reaped = self.begin_reap(unlinked);
            match reaped {
                true => self.reap_now(unlinked.file, batch, Batch::default()),
                false => self.store.meta().commit(batch),
            }
        })?;
        if reaped {
            unlinked.fate = Fate::Gone;
        }
        Ok(unlinked)
    }

    /// Whether a file can be removed together with its last name: it is not open, and no other server has bytes of it.
    /// [`BackingLayer::reap_now`] must follow.
    fn begin_reap(&self, unlinked: &Unlinked) -> bool {
        unlinked.fate == Fate::Orphaned
            && self.life.is_alone()
            && self.grace.is_over_for(unlinked.file)
            && self.opens.reap_at_once(unlinked.file)
    }

    /// Removes a file together with its last name, which `batch` removes, and with its other records.
    fn reap_now(&self, file: FileId, batch: Batch, records: Batch) -> Result<()> {
        let (names, data) = (self.store.names(), self.store.data());
        let done = names.reap_with(file, batch, |mut batch| {
            batch.append(records);
            data.delete(file, batch)
        });
        self.opens.reaped(file);
        done
    }

    /// Renames in the buffer and the back end.
    pub(crate) fn rename_both(
        &self,
        who: &Identity,
        from: Spot<'_>,
        to: Spot<'_>,
        mode: RenameMode,
    ) -> Attempt<Option<Unlinked>> {
        let (names, now) = (self.store.names(), self.store.data().now());
        let Some(backing) = &self.backing else {
            return names.rename(who, from.dir, from.name, to.dir, to.name, mode, now);
        };
        self.lookup_backing(from.dir, from.name)?;
        self.lookup_backing(to.dir, to.name)?;
        if let Some((file, inode)) = self.known(to.dir, to.name)?
            && inode.kind() == FileKind::Directory
        {
            self.survey(file)?;
        }
        let mut plan = Plan::default();
        let via = |renamed: &Renamed, batch: Batch| {
            let kinds = [Some(renamed.source), renamed.target].into_iter().flatten().map(|(_, kind)| kind);
            let moves_tree = kinds.into_iter().any(|kind| kind == FileKind::Directory);
            let _exclusive = moves_tree.then(|| backing.lock_tree_exclusive());
            let _tree = (!moves_tree).then(|| backing.lock_tree());
            self.plan_rename(backing, &mut plan, from, to, renamed)?;
            self.carry_out(backing, &mut plan, batch)
        };
        let renamed = names.rename_via(who, from.dir, from.name, to.dir, to.name, mode, now, via);
        backing.touched(&plan.dirs);
        renamed
    }

    /// Truncates a file in the buffer and the back end.
    pub(crate) fn cut_both(&self, file: FileId, size: u64) -> Attempt<()> {
        let data = self.store.data();
        let Some(backing) = &self.backing else { return Ok(data.truncate(file, size, Batch::default())?) };
        let _size_lock = backing.lock_size(file);
        if backing.record(file)?.is_none() {
            return Ok(data.truncate(file, size, Batch::default())?);
        }
        // A write under way would arrive after the truncation.
        let _quiet = self.writers.range_locks.quiesce(file);
        // The file is not renamed meanwhile either.
        self.store.names().hold(file, |_| {
            let _tree = backing.lock_tree();
            self.cut_buffer_and_backing(backing, file, size)
        })?;
        self.writers.clear_failed_direct(file);
        Ok(())
    }

    /// The same for a file in the back end that is neither renamed nor written there meanwhile.
    fn cut_buffer_and_backing(&self, backing: &Backing, file: FileId, size: u64) -> Result<()> {
        let (data, marked) = (self.store.data(), backing.mark(file).is_some());
        let record = backing.record(file)?.filter(|record| marked || record.version.size > size);
        let (Some(record), Some(at)) = (record, backing.spot_of(file)?) else {
            return data.truncate(file, size, Batch::default());
        };
        match backing.look(&at)? {
            // The drain is writing to it: the record does not tell its size.
            Some(found) if marked && found.version.serial == record.version.serial => {
                if found.version.size <= size {
                    return data.truncate(file, size, Batch::default());
                }
            }
            Some(found) if found.version == record.version => {}
            Some(_) => return Err(changed_in_backing(file)),
            None => return Err(missing_in_backing(file)),
        }
        let steps = vec![Step::Truncate { at, size, serial: record.version.serial }];
        let then = Then::Cut { file, size, record };
        let intent = Intent { steps, then: then.clone() };
        backing.carry_out(data.now(), &intent, |end| self.finish(backing, then, end))?;
        if let Err(error) = self.writers.cut_direct(file, size) {
            tracing::warn!(%file, %error, "cannot truncate the direct writes of a file; it is no longer written directly");
        }
        Ok(())
    }

    /// Finishes changes in the back end that an earlier run of the server began.
    pub(crate) fn resume_backing(&self) -> Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        backing.check_identity()?;
        self.follow_root()?;
        backing.load_marks()?;
        backing.load_mounts()?;
        self.writers.recover_direct()?;
        backing.resume(|then, end| self.finish(backing, then, end))?;
        self.remove_incomplete(backing)
    }

    fn carry_out(&self, backing: &Backing, plan: &mut Plan, mut batch: Batch) -> Result<()> {
        batch.append(std::mem::take(&mut plan.records));
        if plan.steps.is_empty() {
            return backing.kv.commit(batch);
        }
        let then = Then::Commit(batch);
        let intent = Intent { steps: std::mem::take(&mut plan.steps), then: then.clone() };
        backing.carry_out(self.store.data().now(), &intent, |end| self.finish(backing, then, end))
    }

    /// Completes a change: makes it in the buffer, together with the end of its intent.
    fn finish(&self, backing: &Backing, then: Then, end: Batch) -> Result<()> {
        match then {
            Then::Commit(mut batch) => {
                batch.append(end);
                backing.kv.commit(batch)
            }
            Then::Cut { file, size, record } => {
                let mut batch = end;
                let at = backing.spot_of(file)?;
                match at.map(|at| backing.look(&at)).transpose() {
                    Ok(Some(Some(found))) if found.version.serial == record.version.serial => {
                        batch.put(record::key(file), Record { version: found.version, ..record }.encode());
                    }
                    Ok(_) => {}
                    // It was truncated and its version is unknown: until the next refresh only its serial number
                    // counts.
                    Err(error) => {
                        tracing::warn!(%file, %error, "truncated a file in the back end, but could not read its version; it is refreshed later");
                        backing.set_mark(file)?;
                        backing.finish_later(file);
                    }
                }
                self.store.data().truncate(file, size, batch)
            }
        }
    }

    /// Plans the steps in the back end for a file that loses a name.
    fn plan_unlink(
        &self,
        backing: &Backing,
        plan: &mut Plan,
        spot: Spot<'_>,
        unlinked: &Unlinked,
    ) -> Result<()> {
        let file = unlinked.file;
        let Some(record) = backing.record(file)?.filter(|record| record.lives_at(spot.dir, spot.name)) else {
            if unlinked.fate != Fate::Named && backing.mark(file).is_some() {
                Backing::end_mark(file, &mut plan.records);
            }
            return self.plan_remove_incomplete(backing, plan, spot, file);
        };
        let Some(at) = backing.spot_of(file)? else {
            plan.records.remove(record::key(file));
            return Ok(());
        };
        let serial = record.version.serial;
        let open =
            || self.opens.is_held(file) || (self.grace.lasts() && file < self.store.names().first_id());
        match unlinked.fate {
            Fate::Gone if unlinked.inode.kind() == FileKind::Directory => {
                plan.steps.push(Step::RemoveDir { at, serial });
                plan.records.remove(record::key(file));
                Backing::end_mark(file, &mut plan.records);
            }
            Fate::Orphaned if open() => {
                // Clients that have it open continue to read it.
                let to = backing.private_spot(file)?;
                plan.steps.push(Step::Rename { from: at, to, serial, target: Target::Any });
                plan.records.put(record::key(file), Record { home: Home::Private, ..record }.encode());
            }
            Fate::Gone | Fate::Orphaned => {
                plan.steps.push(Step::Unlink { at, serial });
                plan.records.remove(record::key(file));
                Backing::end_mark(file, &mut plan.records);
            }
            // Its other names are only in the buffer: one of them becomes its name in the back end.
            Fate::Named => {
                let other = self.other_name(&unlinked.inode.parents, file, spot)?;
                let (dir, name) = other.ok_or_else(|| missing_in_backing(file))?;
                let to = Spot { dir, name: &name };
                self.plan_move(backing, plan, (file, record), at, to, Target::Nothing)?;
            }
        }
        Ok(())
    }

    /// An incompletely created file is removed with its name; otherwise it would reappear.
    fn plan_remove_incomplete(
        &self,
        backing: &Backing,
        plan: &mut Plan,
        spot: Spot<'_>,
        file: FileId,
    ) -> Result<()> {
        if let Some((at, found)) = self.find_incomplete(backing, file, spot)? {
            let serial = found.version.serial;
            plan.steps.push(match found.kind {
                FileKind::Directory => Step::RemoveDir { at, serial },
                _ => Step::Unlink { at, serial },
            });
        }
        Ok(())
    }

    fn other_name(&self, dirs: &[FileId], file: FileId, not: Spot<'_>) -> Result<Option<(FileId, Name)>> {
        let mut names = self.names_in_all(dirs, file)?.into_iter();
        Ok(names.find(|(dir, name)| *dir != not.dir || name != not.name))
    }

    /// The names of a file in these directories.
    pub(super) fn names_in_all(&self, dirs: &[FileId], file: FileId) -> Result<Vec<(FileId, Name)>> {
        let mut all = Vec::new();
        for &dir in dirs {
            all.extend(self.store.names().names_in(dir, file)?.into_iter().map(|name| (dir, name)));
        }
        Ok(all)
    }

    fn plan_rename(
        &self,
        backing: &Backing,
        plan: &mut Plan,
        from: Spot<'_>,
        to: Spot<'_>,
        renamed: &Renamed,
    ) -> Result<()> {
        let in_backing = |file: FileId, spot: Spot<'_>| -> Result<Option<(Record, BackingSpot)>> {
            let record = backing.record(file)?.filter(|record| record.lives_at(spot.dir, spot.name));
            Ok(record.zip(backing.spot_of(file)?))
        };
        let source = in_backing(renamed.source.0, from)?;
        let mut over = Target::Nothing;
        if let Some(replaced) = &renamed.replaced {
            self.plan_unlink(backing, plan, to, replaced)?;
            // The rename replaces the existing file in one step.
            if source.is_some() {
                plan.steps.retain(|step| match step {
                    Step::Unlink { serial, .. } | Step::RemoveDir { serial, .. } => {
                        over = Target::Entry(*serial);
                        false
                    }
                    Step::Rename { .. } | Step::Truncate { .. } => true,
                });
            }
        }
        // A directory that has appeared in the back end was merged before.
        self.plan_remove_incomplete(backing, plan, from, renamed.source.0)?;
        let target = match (&renamed.replaced, renamed.target) {
            (None, Some(target)) => {
                self.plan_remove_incomplete(backing, plan, to, target.0)?;
                in_backing(target.0, to)?.map(|(record, at)| (target.0, record, at))
            }
            _ => None,
        };
        match (source, target) {
            (None, None) => {}
            (Some((record, at)), None) => {
                self.plan_move(backing, plan, (renamed.source.0, record), at, to, over)?;
            }
            (None, Some((file, record, at))) => {
                self.plan_move(backing, plan, (file, record), at, from, Target::Nothing)?;
            }
            (Some((one, one_at)), Some((other_file, other, other_at))) => {
                let between = backing.private_spot(other_file)?;
                let (aside, serial) = (between.clone(), other.version.serial);
                plan.steps.push(Step::Rename { from: other_at, to: aside, serial, target: Target::Any });
                self.plan_move(backing, plan, (renamed.source.0, one), one_at, to, Target::Nothing)?;
                self.plan_move(backing, plan, (other_file, other), between, from, Target::Nothing)?;
            }
        }
        Ok(())
    }

    /// Plans a rename in the back end, and creates the directories it needs.
    fn plan_move(
        &self,
        backing: &Backing,
        plan: &mut Plan,
        (file, record): (FileId, Record),
        from: BackingSpot,
        to: Spot<'_>,
        target: Target,
    ) -> Result<()> {
        let Within { mut path, serial: dir } = self.backing_dirs(backing, to.dir, &mut plan.dirs)?;
        path.push(to.name.clone());
        let (serial, to_spot) = (record.version.serial, BackingSpot { path, dir });
        plan.steps.push(Step::Rename { from, to: to_spot, serial, target });
        let home = Home::Entry { dir: to.dir, name: to.name.clone() };
        plan.records.put(record::key(file), Record { home, ..record }.encode());
        Ok(())
    }
}

pub(crate) fn changed_in_backing(file: FileId) -> Error {
    let text = format!(
        "file {file} was changed in the back end and in the buffer: copy what you need of both, and remove one"
    );
    Error::new(ErrorKind::Io, text)
}
