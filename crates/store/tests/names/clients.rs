//! The operations of a client of several servers, and the comparison of the results with the model.

use crate::cluster::Cluster;
use crate::common::layout;
use crate::model::{Answer, Content, How, Model, Op};
use forebay_model::{Error, FileId, FileKind, Identity, Incarnation, Name, Result, ServerId, Stamp};
use forebay_store::{
    Attempt, Kv, Names, Obstacle, Op as Deed, RenameMode, Share, Stopped, Timeline, Unlinked, Walked,
    XattrMode,
};
use std::collections::{BTreeMap, BTreeSet};

impl Cluster {
    fn home(&self, dir: FileId, name: &Name) -> ServerId {
        self.members.home(dir, name)
    }

    fn at_authority<T>(&self, file: FileId, now: Stamp, deed: impl Fn(&Names) -> Attempt<T>) -> Result<T> {
        self.attempt(self.members.authority(file), now, deed)
    }

    /// Tries the operation on the home server, then as a task on several servers if needed.
    fn carry<T>(
        &self,
        (dir, name): (FileId, &Name),
        who: &Identity,
        deed: &Deed,
        now: Stamp,
        alone: impl Fn(&Names) -> Attempt<T>,
        read: impl Fn(T) -> Option<FileId>,
    ) -> Result<Option<FileId>> {
        let home = self.home(dir, name);
        let done = self.attempt(home, now, |names| match alone(names) {
            Err(Stopped::Obstacle(Obstacle::SeveralShards)) => Ok(None),
            done => done.map(Some),
        })?;
        match done {
            Some(done) => Ok(read(done)),
            None => Ok(self.carry_out(home, who, deed, now)?.unlinked),
        }
    }

    pub(crate) fn perform(&self, who: &Identity, op: &Op, now: Stamp) -> Result<Answer> {
        Ok(match op {
            Op::Create { dir, name, mode } => {
                let incarnations = || vec![Incarnation(1)];
                let deed = |names: &Names| {
                    names.create_file(who, *dir, name, *mode, layout(), incarnations(), now, |_| Ok(()))
                };
                Answer::Made(self.attempt(self.home(*dir, name), now, deed)?.0)
            }
            Op::MakeDir { dir, name, mode } => {
                let deed = |names: &Names| names.make_dir(who, *dir, name, *mode, now);
                Answer::Made(self.attempt(self.home(*dir, name), now, deed)?.0)
            }
            Op::Symlink { dir, name, target } => {
                let deed = |names: &Names| names.symlink(who, *dir, name, target, now);
                Answer::Made(self.attempt(self.home(*dir, name), now, deed)?.0)
            }
            Op::Link { file, dir, name } => {
                let deed = Deed::Link { file: *file, dir: *dir, name: name.clone() };
                let alone = |names: &Names| names.link(who, *file, *dir, name, now);
                self.carry((*dir, name), who, &deed, now, alone, |_| None)?;
                Answer::Done
            }
            Op::Unlink { dir, name } => {
                let deed = Deed::Unlink { dir: *dir, name: name.clone() };
                let alone = |names: &Names| names.unlink(who, *dir, name, now);
                self.lost(self.carry((*dir, name), who, &deed, now, alone, |lost| Some(lost.file))?)
            }
            Op::RemoveDir { dir, name } => {
                let deed = Deed::RemoveDir { dir: *dir, name: name.clone() };
                let alone = |names: &Names| names.remove_dir(who, *dir, name, now);
                self.lost(self.carry((*dir, name), who, &deed, now, alone, |lost| Some(lost.file))?)
            }
            Op::Rename { dir, name, to_dir, to_name, how } => {
                let mode = match how {
                    How::Replace => RenameMode::Replace,
                    How::NoReplace => RenameMode::NoReplace,
                    How::Exchange => RenameMode::Exchange,
                };
                let (to_dir, to_name) = (*to_dir, to_name.clone());
                let deed =
                    Deed::Rename { dir: *dir, name: name.clone(), to_dir, to_name: to_name.clone(), mode };
                let alone = |names: &Names| names.rename(who, *dir, name, to_dir, &to_name, mode, now);
                let read = |lost: Option<Unlinked>| lost.map(|lost| lost.file);
                self.lost(self.carry((*dir, name), who, &deed, now, alone, read)?)
            }
            Op::Walk { dir, parts, follow } => self.walk(who, *dir, parts, *follow, now)?,
            Op::List { dir } => Answer::Entries(self.list(who, *dir, now)?.into_iter().collect()),
            other => self.by_id(who, other, now)?,
        })
    }

    /// Operations that identify a file by its id. The server first checks that it is reachable, and that no intent may
    /// change its names.
    fn by_id(&self, who: &Identity, op: &Op, now: Stamp) -> Result<Answer> {
        match op {
            Op::SetAttr { file, .. }
            | Op::Open { file, .. }
            | Op::SetXattr { file, .. }
            | Op::GetXattr { file, .. }
            | Op::RemoveXattr { file, .. } => {
                self.at_authority(*file, now, |names| names.settled(*file)).map(drop)?;
            }
            _ => {}
        }
        match op {
            Op::SetAttr { file, change } => {
                self.at_authority(*file, now, |names| names.set_attr(who, *file, change, now)).map(drop)?;
            }
            Op::Open { file, access } => {
                let deed = |names: &Names| Ok(names.check_open(who, *file, *access)?);
                self.at_authority(*file, now, deed).map(drop)?;
            }
            Op::Reach { file } => self.at_authority(*file, now, |names| names.reach(who, *file))?,
            Op::SetXattr { file, name, value } => {
                let deed =
                    |names: &Names| Ok(names.set_xattr(who, *file, name, value, XattrMode::Any, now)?);
                self.at_authority(*file, now, deed)?;
            }
            Op::GetXattr { file, name } => {
                let deed = |names: &Names| Ok(names.get_xattr(who, *file, name)?);
                return self.at_authority(*file, now, deed).map(Answer::Value);
            }
            Op::RemoveXattr { file, name } => {
                self.at_authority(*file, now, |names| Ok(names.remove_xattr(who, *file, name, now)?))?;
            }
            Op::Reap { file } => {
                let kv = self.kv(self.members.authority(*file));
                let deed = |names: &Names| Ok(names.reap(*file, |batch| kv.commit(batch))?);
                self.at_authority(*file, now, deed)?;
            }
            other => panic!("{other:?} names no file by its id"),
        }
        Ok(Answer::Done)
    }

    fn lost(&self, file: Option<FileId>) -> Answer {
        Answer::Lost(file.map(|file| {
            let inode = self.names(self.members.authority(file)).and_then(|names| names.inode(file));
            (file, inode.is_ok_and(|inode| !inode.parents.is_empty()))
        }))
    }

    fn list(&self, who: &Identity, dir: FileId, now: Stamp) -> Result<BTreeMap<Name, FileId>> {
        let mut all = BTreeMap::new();
        for server in self.members.servers() {
            let mut cookie = Some(0);
            while let Some(at) = cookie {
                let (entries, next) = self.attempt(server, now, |names| names.read_dir(who, dir, at, 2))?;
                all.extend(entries.into_iter().map(|entry| (entry.name, entry.file)));
                cookie = next;
            }
        }
        Ok(all)
    }

    fn walk(
        &self,
        who: &Identity,
        dir: FileId,
        parts: &[String],
        follow: bool,
        now: Stamp,
    ) -> Result<Answer> {
        let (mut at, mut rest) = (dir, parts.join("/").into_bytes());
        loop {
            let first = rest.split(|&byte| byte == b'/').next().unwrap_or_default();
            let server = match Name::new(first) {
                Ok(name) => self.home(at, &name),
                Err(_) => self.members.authority(at),
            };
            match self.attempt(server, now, |names| names.walk(who, at, &rest, follow))? {
                Walked::Found(file, _) => return Ok(Answer::At(file)),
                Walked::Link { dir, target, rest } => {
                    return Ok(Answer::Detour { dir, target, rest: String::from_utf8(rest).expect("text") });
                }
                Walked::Elsewhere { dir, rest: left } => {
                    assert!(server != self.members.authority(dir) || left.len() <= rest.len());
                    (at, rest) = (dir, left);
                }
                Walked::At { dir, file, rest } => {
                    let inode = self.at_authority(file, now, |names| names.settled(file))?;
                    let follows = follow || !rest.is_empty();
                    if inode.kind() == FileKind::Symlink && follows {
                        let target = self.at_authority(file, now, |names| Ok(names.read_link(file)?))?;
                        let rest = String::from_utf8(rest).expect("text");
                        return Ok(Answer::Detour { dir, target, rest });
                    }
                    return Ok(Answer::At(file));
                }
            }
        }
    }

    /// Compares the final state of all servers with the model.
    pub(crate) fn compare(&self, model: &Model, now: Stamp) -> Result<(), String> {
        let all: Vec<_> = self.members.servers().map(|server| self.names(server).expect("it runs")).collect();
        let count: u64 = all.iter().map(|names| names.count()).sum();
        if count != model.nodes.len() as u64 {
            return Err(format!("{count} inodes instead of {}", model.nodes.len()));
        }
        let nameless =
            |&id: &FileId| matches!(model.nodes[&id].content, Content::File) && model.names(id) == 0;
        let orphans: BTreeSet<_> = model.nodes.keys().copied().filter(nameless).collect();
        let found: BTreeSet<_> = all.iter().flat_map(|names| names.orphans().expect("readable")).collect();
        if found != orphans {
            return Err(format!("orphans {found:?} instead of {orphans:?}"));
        }
        self.view(model, now)
    }

    /// Compares the visible state with the model.
    pub(crate) fn view(&self, model: &Model, now: Stamp) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        let root = Identity::root();
        for (&id, node) in &model.nodes {
            let inode = self.at_authority(id, now, |names| names.settled(id)).map_err(text)?;
            let mut share = Share::default();
            for server in self.members.servers() {
                share = share.and(self.attempt(server, now, |names| names.settled_share(id)).map_err(text)?);
            }
            let attr = inode.attr(id, &share.into(), &Timeline::default());
            let real =
                (attr.mode, attr.uid.0, attr.gid.0, attr.links as usize, attr.atime, attr.mtime, attr.ctime);
            let expected =
                (node.mode, node.uid, node.gid, model.links(id), node.atime, node.mtime, node.ctime);
            if real != expected {
                return Err(format!("inode {id} is {real:?} instead of {expected:?}"));
            }
            let listed =
                self.at_authority(id, now, |names| Ok(names.list_xattrs(&root, id)?)).map_err(text)?;
            if !listed.iter().eq(node.xattrs.keys()) {
                return Err(format!("inode {id} has the attributes {listed:?}"));
            }
            match &node.content {
                Content::Dir { entries, .. } => {
                    let real = self.list(&root, id, now).map_err(text)?;
                    if real != *entries {
                        return Err(format!("directory {id} holds {real:?} instead of {entries:?}"));
                    }
                }
                Content::File | Content::Link(_) => {}
            }
        }
        Ok(())
    }
}
