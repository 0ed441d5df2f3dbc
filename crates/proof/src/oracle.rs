//! The expected effect and answer of each operation.

use crate::op::{Answer, Op};
use crate::tree::{Body, Checked, Node, NodeId, READ, ROOT, SEARCH, Tree, WRITE, is_member};
use forebay_client::OpenOptions;
use forebay_model::{ErrorKind, Identity};
use forebay_wire::{RenameMode, XattrMode};
use std::collections::BTreeMap;
use std::sync::Arc;

const SET_GID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
/// How many symbolic links opening a path follows in the last component.
const TRIES: usize = 41;

impl Tree {
    /// Applies `op` as `who`. Returns the answer, and the file that was opened.
    pub fn apply(&mut self, who: &Identity, op: &Op) -> Result<(Answer, Option<NodeId>), ErrorKind> {
        if let Op::Open { path, options } = op {
            let file = self.open(who, path, *options)?;
            return Ok((Answer::Seen(self.seen(file)), Some(file)));
        }
        self.change(who, op).map(|answer| (answer, None))
    }

    /// Whether a path leads to a directory, ignoring permissions.
    pub fn leads_to_directory(&self, path: &str) -> bool {
        self.walk(&Identity::root(), ROOT, path, true, false).is_ok_and(|id| self.is_dir(id))
    }

    fn change(&mut self, who: &Identity, op: &Op) -> Checked<Answer> {
        match op {
            Op::Mkdir { path, mode } => {
                let (dir, name) = self.place(who, ROOT, path)?;
                let body = Body::Dir { parent: dir, entries: BTreeMap::new() };
                self.make(who, dir, &name, mode & 0o1777, body).map(|id| Answer::Seen(self.seen(id)))
            }
            Op::Symlink { target, path } => {
                let (dir, name) = self.place(who, ROOT, path)?;
                let made = self.make(who, dir, &name, 0o777, Body::Link(target.clone()))?;
                Ok(Answer::Seen(self.seen(made)))
            }
            Op::Link { file, to } => self.link(who, file, to),
            Op::Unlink { path } => self.remove(who, path, false),
            Op::Rmdir { path } => self.remove(who, path, true),
            Op::Rename { from, to, mode } => {
                let from = self.place(who, ROOT, from)?;
                let to = self.place(who, ROOT, to)?;
                self.rename(who, from, to, *mode)
            }
            Op::Truncate { path, size } => {
                let id = self.walk(who, ROOT, path, true, false)?;
                self.may_open(who, id, false, true)?;
                self.bytes_mut(id).resize(*size as usize, 0);
                Ok(Answer::Done)
            }
            Op::Chmod { .. } | Op::Chown { .. } | Op::Utimens { .. } => self.set_attr(who, op),
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::RemoveXattr { .. } | Op::ListXattr { .. } => {
                self.xattr(who, op)
            }
            _ => self.look(who, op),
        }
    }

    fn look(&self, who: &Identity, op: &Op) -> Checked<Answer> {
        match op {
            Op::List { path } => {
                let dir = self.walk(who, ROOT, path, true, false)?;
                let entries = self.entries(dir)?;
                self.need(who, dir, READ)?;
                let entry = |(name, &id): (&String, &NodeId)| (name.clone(), self.seen(id).kind);
                Ok(Answer::Entries(entries.iter().map(entry).collect()))
            }
            Op::Stat { path } => {
                self.walk(who, ROOT, path, true, false).map(|id| Answer::Seen(self.seen(id)))
            }
            Op::Lstat { path } => {
                self.walk(who, ROOT, path, false, false).map(|id| Answer::Seen(self.seen(id)))
            }
            Op::ReadLink { path } => match &self.nodes[self.walk(who, ROOT, path, false, false)?].body {
                Body::Link(target) => Ok(Answer::Bytes(target.clone().into_bytes())),
                _ => Err(ErrorKind::Invalid),
            },
            _ => panic!("{op:?} is handled elsewhere"),
        }
    }

    fn open(&mut self, who: &Identity, path: &str, options: OpenOptions) -> Checked<NodeId> {
        let writes = options.write || options.append;
        if !options.create && !options.create_new {
            let id = self.walk(who, ROOT, path, true, false)?;
            self.may_open(who, id, options.read, writes)?;
            return Ok(self.opened(id, options));
        }
        let (mut from, mut path) = (ROOT, path.to_owned());
        for _ in 0..TRIES {
            let (dir, name) = self.place(who, from, &path)?;
            let entries = self.entries(dir)?;
            self.need(who, dir, SEARCH)?;
            let Some(&id) = entries.get(&name) else {
                return self.make(who, dir, &name, options.mode & 0o7777, Body::File(Arc::default()));
            };
            if options.create_new {
                return Err(ErrorKind::Exists);
            }
            if let Body::Link(target) = &self.nodes[id].body {
                from = if target.starts_with('/') { ROOT } else { dir };
                path = target.clone();
                continue;
            }
            self.may_open(who, id, options.read, writes)?;
            return Ok(self.opened(id, options));
        }
        Err(ErrorKind::TooManyLinks)
    }

    fn opened(&mut self, id: NodeId, options: OpenOptions) -> NodeId {
        if options.truncate && !self.is_dir(id) {
            self.bytes_mut(id).clear();
        }
        id
    }

    fn may_open(&self, who: &Identity, id: NodeId, read: bool, write: bool) -> Checked<()> {
        if self.is_dir(id) && write {
            return Err(ErrorKind::IsDirectory);
        }
        let bits = if read { READ } else { 0 } | if write { WRITE } else { 0 };
        self.need(who, id, bits)
    }

    /// Fails unless the name is free and may be created.
    fn vacant(&self, who: &Identity, dir: NodeId, name: &str) -> Checked<()> {
        let entries = self.entries(dir)?;
        self.need(who, dir, SEARCH)?;
        if entries.contains_key(name) {
            return Err(ErrorKind::Exists);
        }
        self.need(who, dir, WRITE)
    }

    fn make(&mut self, who: &Identity, dir: NodeId, name: &str, mode: u16, body: Body) -> Checked<NodeId> {
        self.vacant(who, dir, name)?;
        let (mut mode, mut gid) = (mode, who.gid.0);
        let above = &self.nodes[dir];
        if above.mode & SET_GID != 0 {
            gid = above.gid;
            match body {
                Body::Dir { .. } => mode |= SET_GID,
                _ if !who.is_root() && !is_member(who, gid) => mode &= !SET_GID,
                _ => {}
            }
        }
        let id = self.nodes.len();
        self.nodes.push(Node { mode, uid: who.uid.0, gid, xattrs: BTreeMap::new(), mtime: None, body });
        self.entries_mut(dir).insert(name.to_owned(), id);
        Ok(id)
    }

    fn link(&mut self, who: &Identity, file: &str, to: &str) -> Checked<Answer> {
        let id = self.walk(who, ROOT, file, false, false)?;
        let (dir, name) = self.place(who, ROOT, to)?;
        self.vacant(who, dir, &name)?;
        if self.is_dir(id) {
            return Err(ErrorKind::NotPermitted);
        }
        self.entries_mut(dir).insert(name, id);
        Ok(Answer::Seen(self.seen(id)))
    }

    /// Fails unless a name may be removed.
    fn may_take(&self, who: &Identity, dir: NodeId, id: NodeId) -> Checked<()> {
        self.need(who, dir, WRITE | SEARCH)?;
        let sticky = self.nodes[dir].mode & STICKY != 0;
        let free = !sticky || self.owns(who, dir) || self.owns(who, id);
        if free { Ok(()) } else { Err(ErrorKind::NotPermitted) }
    }

    fn find(&self, who: &Identity, dir: NodeId, name: &str) -> Checked<Option<NodeId>> {
        let entries = self.entries(dir)?;
        self.need(who, dir, SEARCH)?;
        Ok(entries.get(name).copied())
    }

    fn remove(&mut self, who: &Identity, path: &str, directory: bool) -> Checked<Answer> {
        let (dir, name) = self.place(who, ROOT, path)?;
        let id = self.find(who, dir, &name)?.ok_or(ErrorKind::NotFound)?;
        self.may_take(who, dir, id)?;
        match (directory, self.is_dir(id)) {
            (true, false) => return Err(ErrorKind::NotDirectory),
            (false, true) => return Err(ErrorKind::IsDirectory),
            (true, true) if !self.entries(id)?.is_empty() => return Err(ErrorKind::NotEmpty),
            _ => {}
        }
        self.entries_mut(dir).remove(&name);
        Ok(Answer::Done)
    }

    fn rename(
        &mut self,
        who: &Identity,
        (from, old): (NodeId, String),
        (to, new): (NodeId, String),
        mode: RenameMode,
    ) -> Checked<Answer> {
        self.find(who, from, &old)?;
        let target = self.find(who, to, &new)?;
        let source = self.find(who, from, &old)?.ok_or(ErrorKind::NotFound)?;
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(ErrorKind::Exists),
            (None, RenameMode::Exchange) => return Err(ErrorKind::NotFound),
            _ => {}
        }
        if self.is_dir(source) && self.is_above(source, to) {
            return Err(ErrorKind::Invalid);
        }
        if target.is_some_and(|target| self.is_dir(target) && self.is_above(target, from)) {
            let swaps = mode == RenameMode::Exchange;
            return Err(if swaps { ErrorKind::Invalid } else { ErrorKind::NotEmpty });
        }
        if target == Some(source) {
            return Ok(Answer::Done);
        }
        self.may_rename(who, (from, source), (to, target), mode)?;
        self.entries_mut(from).remove(&old);
        self.put(to, new, source);
        if let (Some(target), RenameMode::Exchange) = (target, mode) {
            self.put(from, old, target);
        }
        Ok(Answer::Done)
    }

    fn may_rename(
        &self,
        who: &Identity,
        (from, source): (NodeId, NodeId),
        (to, target): (NodeId, Option<NodeId>),
        mode: RenameMode,
    ) -> Checked<()> {
        let swaps = mode == RenameMode::Exchange;
        self.may_take(who, from, source)?;
        match target {
            None => self.need(who, to, WRITE | SEARCH)?,
            Some(target) => {
                self.may_take(who, to, target)?;
                match (self.is_dir(source), self.is_dir(target)) {
                    _ if swaps => {}
                    (true, false) => return Err(ErrorKind::NotDirectory),
                    (false, true) => return Err(ErrorKind::IsDirectory),
                    _ => {}
                }
            }
        }
        if from != to {
            // A directory that gets another parent is changed itself.
            for moved in [Some(source), target.filter(|_| swaps)].into_iter().flatten() {
                if self.is_dir(moved) {
                    self.need(who, moved, WRITE)?;
                }
            }
        }
        match target {
            Some(target) if !swaps && self.is_dir(target) && !self.entries(target)?.is_empty() => {
                Err(ErrorKind::NotEmpty)
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, dir: NodeId, name: String, id: NodeId) {
        self.entries_mut(dir).insert(name, id);
        if let Body::Dir { parent, .. } = &mut self.nodes[id].body {
            *parent = dir;
        }
    }

    fn set_attr(&mut self, who: &Identity, op: &Op) -> Checked<Answer> {
        let (Op::Chmod { path, .. } | Op::Chown { path, .. } | Op::Utimens { path, .. }) = op else {
            panic!("{op:?} is handled elsewhere");
        };
        let id = self.walk(who, ROOT, path, true, false)?;
        let (owns, is_dir) = (self.owns(who, id), self.is_dir(id));
        let node = &mut self.nodes[id];
        match op {
            Op::Chmod { .. } | Op::Utimens { .. } if !owns => return Err(ErrorKind::NotPermitted),
            Op::Chmod { mode, .. } => {
                let member = who.is_root() || is_member(who, node.gid);
                node.mode = if member { *mode } else { mode & !SET_GID };
            }
            Op::Utimens { time, .. } => node.mtime = Some(*time),
            Op::Chown { uid, gid, .. } => {
                let gives = uid.is_some_and(|uid| uid.0 != node.uid || !owns);
                let joins = gid.is_some_and(|gid| !owns || (gid.0 != node.gid && !is_member(who, gid.0)));
                if !who.is_root() && (gives || joins) {
                    return Err(ErrorKind::NotPermitted);
                }
                node.uid = uid.map_or(node.uid, |uid| uid.0);
                node.gid = gid.map_or(node.gid, |gid| gid.0);
                if !is_dir && (uid.is_some() || gid.is_some()) {
                    node.mode &= !0o4000;
                    if node.mode & 0o010 != 0 || !(who.is_root() || is_member(who, node.gid)) {
                        node.mode &= !SET_GID;
                    }
                }
            }
            _ => {}
        }
        Ok(Answer::Seen(self.seen(id)))
    }

    fn xattr(&mut self, who: &Identity, op: &Op) -> Checked<Answer> {
        let (Op::SetXattr { path, .. }
        | Op::GetXattr { path, .. }
        | Op::RemoveXattr { path, .. }
        | Op::ListXattr { path }) = op
        else {
            panic!("{op:?} is handled elsewhere");
        };
        let id = self.walk(who, ROOT, path, true, false)?;
        match op {
            Op::GetXattr { .. } => self.need(who, id, READ)?,
            Op::ListXattr { .. } => {}
            _ if self.is_dir(id) && self.nodes[id].mode & STICKY != 0 && !self.owns(who, id) => {
                return Err(ErrorKind::NotPermitted);
            }
            _ => self.need(who, id, WRITE)?,
        }
        let xattrs = &mut self.nodes[id].xattrs;
        match op {
            Op::GetXattr { name, .. } => {
                xattrs.get(name).cloned().map(Answer::Bytes).ok_or(ErrorKind::NoAttribute)
            }
            Op::RemoveXattr { name, .. } => {
                xattrs.remove(name).map(|_| Answer::Done).ok_or(ErrorKind::NoAttribute)
            }
            Op::SetXattr { name, value, mode, .. } => {
                match (mode, xattrs.contains_key(name)) {
                    (XattrMode::Create, true) => return Err(ErrorKind::Exists),
                    (XattrMode::Replace, false) => return Err(ErrorKind::NoAttribute),
                    _ => xattrs.insert(name.clone(), value.clone()),
                };
                Ok(Answer::Done)
            }
            _ => Ok(Answer::Names(xattrs.keys().cloned().collect())),
        }
    }
}
