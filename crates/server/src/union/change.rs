//! Changes of names and lengths, done behind as well.

use super::intent::{Intent, Step, Then};
use super::record::{self, Home, Record};
use super::{Union, gone_behind, private_dir, private_name};
use crate::service::{Caller, Service};
use crate::several::Stop;
use forebay_model::{Error, ErrorKind, FileId, FileKind, Gid, Name, Result, Uid};
use forebay_store::{Attempt, Batch, Fate, RenameMode, Renamed, Unlinked};

/// What a change here means behind: things to do there, and records that change with it.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    records: Batch,
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct Spot<'a> {
    pub(crate) dir: FileId,
    pub(crate) name: &'a Name,
}

impl Service {
    /// Removes a name, here and behind.
    pub(crate) fn unlink_both(
        &self,
        caller: &Caller,
        spot: Spot<'_>,
        is_dir: bool,
    ) -> Result<Unlinked, Stop> {
        let (names, now) = (self.store.names(), self.store.data().now());
        let Spot { dir, name } = spot;
        let Some(union) = &self.union else {
            let removed = match is_dir {
                true => names.remove_dir(&caller.who, dir, name, now),
                false if self.is_alone() => return Ok(self.unlink_alone(caller, spot)?),
                false => names.unlink(&caller.who, dir, name, now),
            };
            return Ok(removed?);
        };
        self.meet(dir, name)?;
        if is_dir && let Some((file, _)) = self.known(dir, name)? {
            self.survey(file)?;
        }
        let via = |unlinked: &Unlinked, batch: Batch| {
            let _still = union.still();
            let mut plan = Plan::default();
            self.plan_leaving(union, &mut plan, spot, unlinked)?;
            self.carry_out(union, plan, batch)
        };
        let unlinked = match is_dir {
            true => names.remove_dir_via(&caller.who, dir, name, now, via),
            false => names.unlink_via(&caller.who, dir, name, now, via),
        }?;
        if unlinked.fate == Fate::Gone {
            union.unclaim(unlinked.file);
        }
        Ok(unlinked)
    }

    /// Removes a name where nobody else has a say in it; a file that it was the last of, and that is open nowhere, with it.
    fn unlink_alone(&self, caller: &Caller, Spot { dir, name }: Spot<'_>) -> Attempt<Unlinked> {
        let (names, data) = (self.store.names(), self.store.data());
        let mut buried = false;
        let mut unlinked = names.unlink_via(&caller.who, dir, name, data.now(), |unlinked, batch| {
            let file = unlinked.file;
            buried = unlinked.fate == Fate::Orphaned
                && self.grace.is_over_for(file)
                && self.opens.bury_at_once(file);
            if !buried {
                return self.store.meta().commit(batch);
            }
            let done = names.bury_with(file, batch, |batch| data.delete(file, batch));
            self.opens.buried(file);
            done
        })?;
        if buried {
            unlinked.fate = Fate::Gone;
        }
        Ok(unlinked)
    }

    /// Moves a name, here and behind.
    pub(crate) fn rename_both(
        &self,
        caller: &Caller,
        from: Spot<'_>,
        to: Spot<'_>,
        mode: RenameMode,
    ) -> Result<Option<Unlinked>, Stop> {
        let (names, now) = (self.store.names(), self.store.data().now());
        let Some(union) = &self.union else {
            return Ok(names.rename(&caller.who, from.dir, from.name, to.dir, to.name, mode, now)?);
        };
        self.meet(from.dir, from.name)?;
        self.meet(to.dir, to.name)?;
        if let Some((file, inode)) = self.known(to.dir, to.name)?
            && inode.kind() == FileKind::Directory
        {
            self.survey(file)?;
        }
        let via = |renamed: &Renamed, batch: Batch| {
            let kinds = [Some(renamed.source), renamed.target].into_iter().flatten().map(|(_, kind)| kind);
            let moves_tree = kinds.into_iter().any(|kind| kind == FileKind::Directory);
            let _moving = moves_tree.then(|| union.moving());
            let _still = (!moves_tree).then(|| union.still());
            let plan = self.plan_rename(union, from, to, renamed)?;
            self.carry_out(union, plan, batch)
        };
        Ok(names.rename_via(&caller.who, from.dir, from.name, to.dir, to.name, mode, now, via)?)
    }

    /// Sets the length of a file, here and behind.
    pub(crate) fn cut_both(&self, file: FileId, size: u64) -> Result<(), Stop> {
        let data = self.store.data();
        let Some(union) = &self.union else { return Ok(data.truncate(file, size, Batch::default())?) };
        let _length = union.length(file);
        if union.record(file)?.is_none() {
            return Ok(data.truncate(file, size, Batch::default())?);
        }
        // What is being written there would come after the cut.
        let _quiet = self.ways.lanes.quiet(file);
        // Nor does it get another name meanwhile.
        self.store.names().hold(file, |_| {
            let _still = union.still();
            self.cut_here_and_behind(union, file, size)
        })?;
        self.mend_past(file);
        Ok(())
    }

    /// The same for a file that is behind and neither moves nor is written to there.
    fn cut_here_and_behind(&self, union: &Union, file: FileId, size: u64) -> Result<()> {
        let (data, claimed) = (self.store.data(), union.claimed(file).is_some());
        let record = union.record(file)?.filter(|record| claimed || record.version.size > size);
        let (Some(record), Some(path)) = (record, union.path(file)?) else {
            return data.truncate(file, size, Batch::default());
        };
        match union.ask(|backend| backend.find(&path))? {
            // The drain is writing to it: how long it is there is not known from before.
            Some(found) if claimed && found.version.serial == record.version.serial => {
                if found.version.size <= size {
                    return data.truncate(file, size, Batch::default());
                }
            }
            Some(found) if found.version == record.version => {}
            Some(_) => return Err(changed_behind(file)),
            None => return Err(gone_behind(file)),
        }
        let steps = vec![Step::Truncate { path, size, serial: record.version.serial }];
        let then = Then::Cut { file, size, record };
        let intent = Intent { steps, then: then.clone() };
        union.carry_out(data.now(), &intent, |end| self.finish(union, then, end))?;
        if let Err(error) = self.cut_past(file, size) {
            tracing::warn!(%file, %error, "a file that was cut behind is written past the buffer no more");
        }
        Ok(())
    }

    /// Finishes what an earlier life of the server began behind.
    pub(crate) fn resume_behind(&self) -> Result<()> {
        let Some(union) = &self.union else { return Ok(()) };
        union.recognise()?;
        union.load_claims()?;
        self.take_up_past()?;
        union.resume(|then, end| self.finish(union, then, end))?;
        self.unmake(union)
    }

    fn carry_out(&self, union: &Union, plan: Plan, mut batch: Batch) -> Result<()> {
        batch.append(plan.records);
        if plan.steps.is_empty() {
            return union.kv.commit(batch);
        }
        let then = Then::Commit(batch);
        let intent = Intent { steps: plan.steps, then: then.clone() };
        union.carry_out(self.store.data().now(), &intent, |end| self.finish(union, then, end))
    }

    /// The end of a change: what was done behind happens here too, together with the end of its intent.
    fn finish(&self, union: &Union, then: Then, end: Batch) -> Result<()> {
        match then {
            Then::Commit(mut batch) => {
                batch.append(end);
                union.kv.commit(batch)
            }
            Then::Cut { file, size, record } => {
                let mut batch = end;
                let path = union.path(file)?;
                match path.map(|path| union.ask(|backend| backend.find(&path))).transpose() {
                    Ok(Some(Some(found))) if found.version.serial == record.version.serial => {
                        batch.put(record::key(file), Record { version: found.version, ..record }.encode());
                    }
                    Ok(_) => {}
                    // It was cut, and cannot be looked at: until it is seen again it is known by its serial number alone.
                    Err(error) => {
                        tracing::warn!(%file, %error, "a file that was cut behind is looked at again later");
                        union.claim(file)?;
                        self.drain.iter().for_each(|engine| engine.finish_later(file));
                    }
                }
                self.store.data().truncate(file, size, batch)
            }
        }
    }

    /// What it means behind that a file loses a name.
    fn plan_leaving(&self, union: &Union, plan: &mut Plan, spot: Spot<'_>, leaves: &Unlinked) -> Result<()> {
        let file = leaves.file;
        let Some(record) = union.record(file)?.filter(|record| record.lives_at(spot.dir, spot.name)) else {
            if leaves.fate != Fate::Named && union.claimed(file).is_some() {
                Union::end_claim(file, &mut plan.records);
            }
            return self.plan_unmaking(union, plan, spot, file);
        };
        let Some(path) = union.path(file)? else {
            plan.records.remove(record::key(file));
            return Ok(());
        };
        let serial = record.version.serial;
        let open =
            || self.opens.is_held(file) || (self.grace.lasts() && file < self.store.names().first_id());
        match leaves.fate {
            Fate::Gone if leaves.inode.kind() == FileKind::Directory => {
                plan.steps.push(Step::RemoveDir { path, serial });
                plan.records.remove(record::key(file));
                Union::end_claim(file, &mut plan.records);
            }
            Fate::Orphaned if open() => {
                // Whoever has it open goes on reading.
                let owner =
                    (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
                plan.steps.push(Step::MakeDir { path: vec![private_dir()], owner, mode: 0o700 });
                let to = vec![private_dir(), private_name(file)];
                plan.steps.push(Step::Rename { from: path, to, serial });
                plan.records.put(record::key(file), Record { home: Home::Private, ..record }.encode());
            }
            Fate::Gone | Fate::Orphaned => {
                plan.steps.push(Step::Unlink { path, serial });
                plan.records.remove(record::key(file));
                Union::end_claim(file, &mut plan.records);
            }
            // Its other names are only known here: one of them becomes its name behind.
            Fate::Named => {
                let other = self.other_name(&leaves.inode.parents, file, spot)?;
                let (dir, name) = other.ok_or_else(|| gone_behind(file))?;
                let to = Spot { dir, name: &name };
                self.plan_move(union, plan, (file, record), path, to)?;
            }
        }
        Ok(())
    }

    /// What was begun to be made behind under a name that it loses goes with the name: otherwise it would come back.
    fn plan_unmaking(&self, union: &Union, plan: &mut Plan, spot: Spot<'_>, file: FileId) -> Result<()> {
        if let Some((path, found)) = self.begun(union, file, spot)? {
            let serial = found.version.serial;
            plan.steps.push(match found.kind {
                FileKind::Directory => Step::RemoveDir { path, serial },
                _ => Step::Unlink { path, serial },
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

    fn plan_rename(&self, union: &Union, from: Spot<'_>, to: Spot<'_>, renamed: &Renamed) -> Result<Plan> {
        let mut plan = Plan::default();
        let behind = |file: FileId, spot: Spot<'_>| -> Result<Option<(Record, Vec<Name>)>> {
            let record = union.record(file)?.filter(|record| record.lives_at(spot.dir, spot.name));
            Ok(record.zip(union.path(file)?))
        };
        let source = behind(renamed.source.0, from)?;
        if let Some(replaced) = &renamed.replaced {
            self.plan_leaving(union, &mut plan, to, replaced)?;
            // A rename takes the place of what is there in one step.
            if source.is_some() {
                plan.steps.retain(|step| !matches!(step, Step::Unlink { .. } | Step::RemoveDir { .. }));
            }
        }
        // A directory of ours that has come to be behind was met before.
        let is_dir = |(_, kind): (FileId, FileKind)| kind == FileKind::Directory;
        if !is_dir(renamed.source) {
            self.plan_unmaking(union, &mut plan, from, renamed.source.0)?;
        }
        let target = match (&renamed.replaced, renamed.target) {
            (None, Some(target)) => {
                if !is_dir(target) {
                    self.plan_unmaking(union, &mut plan, to, target.0)?;
                }
                behind(target.0, to)?.map(|(record, path)| (target.0, record, path))
            }
            _ => None,
        };
        match (source, target) {
            (None, None) => {}
            (Some((record, path)), None) => {
                self.plan_move(union, &mut plan, (renamed.source.0, record), path, to)?;
            }
            (None, Some((file, record, path))) => {
                self.plan_move(union, &mut plan, (file, record), path, from)?;
            }
            (Some((one, one_path)), Some((other_file, other, other_path))) => {
                let between = vec![private_dir(), private_name(other_file)];
                let owner =
                    (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
                plan.steps.push(Step::MakeDir { path: vec![private_dir()], owner, mode: 0o700 });
                let serial = other.version.serial;
                plan.steps.push(Step::Rename { from: other_path, to: between.clone(), serial });
                self.plan_move(union, &mut plan, (renamed.source.0, one), one_path, to)?;
                self.plan_move(union, &mut plan, (other_file, other), between, from)?;
            }
        }
        Ok(plan)
    }

    /// Moves something behind, and makes the directories there that it needs.
    fn plan_move(
        &self,
        union: &Union,
        plan: &mut Plan,
        (file, record): (FileId, Record),
        from: Vec<Name>,
        to: Spot<'_>,
    ) -> Result<()> {
        let mut path = self.plan_dirs(union, plan, to.dir)?;
        path.push(to.name.clone());
        plan.steps.push(Step::Rename { from, to: path, serial: record.version.serial });
        let home = Home::Entry { dir: to.dir, name: to.name.clone() };
        plan.records.put(record::key(file), Record { home, ..record }.encode());
        Ok(())
    }

    /// The path of a directory behind; it and those above it are made if they are not there.
    fn plan_dirs(&self, union: &Union, plan: &mut Plan, dir: FileId) -> Result<Vec<Name>> {
        if let Some(path) = union.path(dir)? {
            return Ok(path);
        }
        let inode = self.store.names().inode(dir)?;
        let above = inode.parent().ok_or_else(|| gone_behind(dir))?;
        let mut path = self.plan_dirs(union, plan, above)?;
        let name =
            self.store.names().names_in(above, dir)?.into_iter().next().ok_or_else(|| gone_behind(dir))?;
        path.push(name.clone());
        let (owner, mode) = ((inode.uid, inode.gid), inode.mode);
        plan.steps.push(Step::MakeDir { path: path.clone(), owner, mode });
        let home = Home::Entry { dir: above, name };
        // Its version is looked at when it is next met.
        let version = forebay_backend::Version { size: 0, mtime: inode.mtime, serial: 0 };
        let record = Record { home, version, mode, uid: inode.uid, gid: inode.gid };
        plan.records.put(record::key(dir), record.encode());
        Ok(path)
    }
}

pub(crate) fn changed_behind(file: FileId) -> Error {
    let text = format!(
        "file {file} was changed in the back end, and here too: copy what you need of both, and remove one"
    );
    Error::new(ErrorKind::Io, text)
}
