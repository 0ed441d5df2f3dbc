//! The reference model of the namespace: a map of nodes, without store and locks.

use forebay_model::{Access, Change, ErrorKind, FileId, Identity, Name, SetTime, Stamp, Time};
use std::collections::BTreeMap;

pub(crate) const READ: u16 = 4;
pub(crate) const WRITE: u16 = 2;
pub(crate) const SEARCH: u16 = 1;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) xattrs: BTreeMap<Name, Vec<u8>>,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    File,
    Link(Vec<u8>),
    Dir { parent: FileId, entries: BTreeMap<Name, FileId> },
}

/// An operation.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create { dir: FileId, name: Name, mode: u16 },
    MakeDir { dir: FileId, name: Name, mode: u16 },
    Symlink { dir: FileId, name: Name, target: Vec<u8> },
    Link { file: FileId, dir: FileId, name: Name },
    Unlink { dir: FileId, name: Name },
    RemoveDir { dir: FileId, name: Name },
    Rename { dir: FileId, name: Name, to_dir: FileId, to_name: Name, how: How },
    SetAttr { file: FileId, change: Change },
    Open { file: FileId, access: Access },
    Reach { file: FileId },
    List { dir: FileId },
    Walk { dir: FileId, parts: Vec<String>, follow: bool },
    SetXattr { file: FileId, name: Name, value: Vec<u8> },
    GetXattr { file: FileId, name: Name },
    RemoveXattr { file: FileId, name: Name },
    Reap { file: FileId },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    Replace,
    NoReplace,
    Exchange,
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Done,
    Made(FileId),
    /// The file that lost a name, and whether it has others.
    Lost(Option<(FileId, bool)>),
    Value(Vec<u8>),
    Entries(Vec<(Name, FileId)>),
    At(FileId),
    Detour {
        dir: FileId,
        target: Vec<u8>,
        rest: String,
    },
}

pub(crate) type Outcome = Result<Answer, ErrorKind>;

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<FileId, Node>,
}

impl Model {
    pub(crate) fn new(mode: u16, made: Stamp) -> Model {
        let content = Content::Dir { parent: FileId::ROOT, entries: BTreeMap::new() };
        let root = node(&Identity::root(), mode, content, made);
        Model { nodes: BTreeMap::from([(FileId::ROOT, root)]) }
    }

    /// Number of names of a file.
    pub(crate) fn names(&self, file: FileId) -> usize {
        let entries = self.nodes.values().filter_map(|node| match &node.content {
            Content::Dir { entries, .. } => Some(entries),
            _ => None,
        });
        entries.flat_map(BTreeMap::values).filter(|&&target| target == file).count()
    }

    /// The target of a name.
    pub(crate) fn child(&self, dir: FileId, name: &Name) -> Option<FileId> {
        self.entries(dir).ok()?.get(name).copied()
    }

    /// The link count that `stat` should report.
    pub(crate) fn links(&self, file: FileId) -> usize {
        match &self.nodes[&file].content {
            Content::Dir { entries, .. } => 2 + entries.values().filter(|&&child| self.is_dir(child)).count(),
            _ => self.names(file),
        }
    }

    pub(crate) fn is_dir(&self, file: FileId) -> bool {
        matches!(self.nodes.get(&file), Some(Node { content: Content::Dir { .. }, .. }))
    }

    /// Applies the operation as `who`; `made` is the id of a new file.
    pub(crate) fn apply(&mut self, who: &Identity, op: &Op, now: Stamp, made: FileId) -> Outcome {
        let plain = node(who, 0, Content::File, now);
        match op {
            Op::Create { dir, name, mode } => {
                self.make(who, *dir, name, Node { mode: mode & 0o7777, ..plain }, now, made)
            }
            Op::MakeDir { dir, name, mode } => {
                let content = Content::Dir { parent: *dir, entries: BTreeMap::new() };
                self.make(who, *dir, name, Node { mode: mode & 0o1777, content, ..plain }, now, made)
            }
            Op::Symlink { dir, name, target } => {
                let content = Content::Link(target.clone());
                self.make(who, *dir, name, Node { mode: 0o777, content, ..plain }, now, made)
            }
            Op::Link { file, dir, name } => self.link(who, *file, *dir, name, now),
            Op::Unlink { dir, name } => self.remove(who, *dir, name, now, false),
            Op::RemoveDir { dir, name } => self.remove(who, *dir, name, now, true),
            Op::Rename { dir, name, to_dir, to_name, how } => {
                self.rename(who, (*dir, name), (*to_dir, to_name), *how, now)
            }
            Op::SetAttr { file, change } => self.set_attr(who, *file, change, now),
            Op::Open { file, access } => self.open(who, *file, *access),
            Op::Reach { file } => self.reach(who, *file),
            Op::List { dir } => {
                let entries = self.entries(*dir)?;
                self.need(who, *dir, READ)?;
                Ok(Answer::Entries(entries.iter().map(|(name, id)| (name.clone(), *id)).collect()))
            }
            Op::Walk { dir, parts, follow } => self.walk(who, *dir, parts, *follow),
            Op::SetXattr { file, name, value } => self.xattr(who, *file, name, Some(value), now),
            Op::RemoveXattr { file, name } => self.xattr(who, *file, name, None, now),
            Op::GetXattr { file, name } => {
                let node = self.get(*file)?;
                if matches!(node.content, Content::Link(_)) {
                    return Err(ErrorKind::NoAttribute);
                }
                self.need(who, *file, READ)?;
                node.xattrs.get(name).cloned().map(Answer::Value).ok_or(ErrorKind::NoAttribute)
            }
            Op::Reap { file } => {
                match self.nodes.contains_key(file) && self.names(*file) == 0 && *file != FileId::ROOT {
                    true => {
                        self.nodes.remove(file);
                        Ok(Answer::Done)
                    }
                    false => Err(ErrorKind::Invalid),
                }
            }
        }
    }

    fn get(&self, file: FileId) -> Result<&Node, ErrorKind> {
        self.nodes.get(&file).ok_or(ErrorKind::NotFound)
    }

    fn node(&mut self, file: FileId) -> &mut Node {
        self.nodes.get_mut(&file).expect("it was looked up before")
    }

    fn entries(&self, dir: FileId) -> Result<&BTreeMap<Name, FileId>, ErrorKind> {
        match &self.get(dir)?.content {
            Content::Dir { entries, .. } => Ok(entries),
            _ => Err(ErrorKind::NotDirectory),
        }
    }

    fn entries_mut(&mut self, dir: FileId, now: Stamp) -> &mut BTreeMap<Name, FileId> {
        let node = self.node(dir);
        (node.mtime, node.ctime) = (now.into(), now.into());
        match &mut node.content {
            Content::Dir { entries, .. } => entries,
            _ => panic!("it was a directory before"),
        }
    }

    fn need(&self, who: &Identity, file: FileId, bits: u16) -> Result<(), ErrorKind> {
        let node = self.get(file)?;
        let granted = if who.uid.0 == 0 {
            let runs = self.is_dir(file) || node.mode & 0o111 != 0;
            if runs { 7 } else { 6 }
        } else if who.uid.0 == node.uid {
            node.mode >> 6
        } else if is_member(who, node.gid) {
            node.mode >> 3
        } else {
            node.mode
        };
        if bits & !granted == 0 { Ok(()) } else { Err(ErrorKind::AccessDenied) }
    }

    fn free(&self, who: &Identity, dir: FileId, name: &Name) -> Result<(), ErrorKind> {
        let entries = self.entries(dir)?;
        self.need(who, dir, SEARCH)?;
        if entries.contains_key(name) {
            return Err(ErrorKind::Exists);
        }
        self.need(who, dir, WRITE)
    }

    fn make(
        &mut self,
        who: &Identity,
        dir: FileId,
        name: &Name,
        mut node: Node,
        now: Stamp,
        made: FileId,
    ) -> Outcome {
        self.free(who, dir, name)?;
        let parent = &self.nodes[&dir];
        if parent.mode & 0o2000 != 0 {
            node.gid = parent.gid;
            match node.content {
                Content::Dir { .. } => node.mode |= 0o2000,
                _ if who.uid.0 != 0 && !is_member(who, node.gid) => node.mode &= !0o2000,
                _ => {}
            }
        }
        self.nodes.insert(made, node);
        self.entries_mut(dir, now).insert(name.clone(), made);
        Ok(Answer::Made(made))
    }

    fn link(&mut self, who: &Identity, file: FileId, dir: FileId, name: &Name, now: Stamp) -> Outcome {
        self.free(who, dir, name)?;
        self.get(file)?;
        if self.is_dir(file) {
            return Err(ErrorKind::NotPermitted);
        }
        if self.names(file) == 0 {
            return Err(ErrorKind::NotFound);
        }
        self.entries_mut(dir, now).insert(name.clone(), file);
        self.node(file).ctime = now.into();
        Ok(Answer::Done)
    }

    /// Whether `who` may remove a name.
    fn may_take(&self, who: &Identity, dir: FileId, file: FileId) -> Result<(), ErrorKind> {
        self.need(who, dir, WRITE | SEARCH)?;
        let (parent, child) = (&self.nodes[&dir], &self.nodes[&file]);
        let owns = who.uid.0 == 0 || who.uid.0 == parent.uid || who.uid.0 == child.uid;
        if parent.mode & 0o1000 != 0 && !owns { Err(ErrorKind::NotPermitted) } else { Ok(()) }
    }

    fn find(&self, who: &Identity, dir: FileId, name: &Name) -> Result<Option<FileId>, ErrorKind> {
        let entries = self.entries(dir)?;
        self.need(who, dir, SEARCH)?;
        Ok(entries.get(name).copied())
    }

    fn remove(&mut self, who: &Identity, dir: FileId, name: &Name, now: Stamp, want_dir: bool) -> Outcome {
        let file = self.find(who, dir, name)?.ok_or(ErrorKind::NotFound)?;
        self.may_take(who, dir, file)?;
        match (want_dir, self.is_dir(file)) {
            (true, false) => return Err(ErrorKind::NotDirectory),
            (false, true) => return Err(ErrorKind::IsDirectory),
            (true, true) if !self.entries(file)?.is_empty() => return Err(ErrorKind::NotEmpty),
            _ => {}
        }
        self.entries_mut(dir, now).remove(name);
        Ok(Answer::Lost(Some(self.lost_name(file, now))))
    }

    /// Updates or removes a file whose entry was removed.
    fn lost_name(&mut self, file: FileId, now: Stamp) -> (FileId, bool) {
        self.node(file).ctime = now.into();
        let named = self.names(file) > 0;
        if !named && !matches!(self.nodes[&file].content, Content::File) {
            self.nodes.remove(&file);
        }
        (file, named)
    }

    fn is_above(&self, outer: FileId, mut inner: FileId) -> bool {
        loop {
            if inner == outer {
                return true;
            }
            match &self.nodes[&inner].content {
                Content::Dir { parent, .. } if inner != FileId::ROOT => inner = *parent,
                _ => return false,
            }
        }
    }

    fn rename(
        &mut self,
        who: &Identity,
        from: (FileId, &Name),
        to: (FileId, &Name),
        how: How,
        now: Stamp,
    ) -> Outcome {
        for dir in [from.0, to.0] {
            self.entries(dir)?;
            self.need(who, dir, SEARCH)?;
        }
        let source = self.find(who, from.0, from.1)?.ok_or(ErrorKind::NotFound)?;
        let target = self.find(who, to.0, to.1)?;
        match (target, how) {
            (Some(_), How::NoReplace) => return Err(ErrorKind::Exists),
            (None, How::Exchange) => return Err(ErrorKind::NotFound),
            _ => {}
        }
        if self.is_dir(source) && self.is_above(source, to.0) {
            return Err(ErrorKind::Invalid);
        }
        if target.is_some_and(|target| self.is_dir(target) && self.is_above(target, from.0)) {
            return Err(if how == How::Exchange { ErrorKind::Invalid } else { ErrorKind::NotEmpty });
        }
        if target == Some(source) {
            return Ok(Answer::Lost(None));
        }
        self.may_rename(who, (from.0, source), (to.0, target), how)?;
        self.entries_mut(from.0, now).remove(from.1);
        self.entries_mut(to.0, now).insert(to.1.clone(), source);
        self.set_parent(source, to.0, now);
        let lost = match (target, how) {
            (Some(target), How::Exchange) => {
                self.entries_mut(from.0, now).insert(from.1.clone(), target);
                self.set_parent(target, from.0, now);
                None
            }
            (Some(target), _) => Some(self.lost_name(target, now)),
            (None, _) => None,
        };
        Ok(Answer::Lost(lost))
    }

    fn may_rename(
        &self,
        who: &Identity,
        (from, source): (FileId, FileId),
        (to, target): (FileId, Option<FileId>),
        how: How,
    ) -> Result<(), ErrorKind> {
        self.may_take(who, from, source)?;
        match target {
            None => self.need(who, to, WRITE | SEARCH)?,
            Some(target) => {
                self.may_take(who, to, target)?;
                match (self.is_dir(source), self.is_dir(target)) {
                    _ if how == How::Exchange => {}
                    (true, false) => return Err(ErrorKind::NotDirectory),
                    (false, true) => return Err(ErrorKind::IsDirectory),
                    _ => {}
                }
            }
        }
        if from != to {
            let swapped = target.filter(|_| how == How::Exchange);
            for dir in [Some(source), swapped].into_iter().flatten().filter(|&file| self.is_dir(file)) {
                self.need(who, dir, WRITE)?;
            }
        }
        match target {
            Some(target)
                if how != How::Exchange && self.is_dir(target) && !self.entries(target)?.is_empty() =>
            {
                Err(ErrorKind::NotEmpty)
            }
            _ => Ok(()),
        }
    }

    fn set_parent(&mut self, file: FileId, dir: FileId, now: Stamp) {
        let node = self.node(file);
        node.ctime = now.into();
        if let Content::Dir { parent, .. } = &mut node.content {
            *parent = dir;
        }
    }

    fn set_attr(&mut self, who: &Identity, file: FileId, change: &Change, now: Stamp) -> Outcome {
        let node = self.get(file)?.clone();
        let (root, owns) = (who.uid.0 == 0, who.uid.0 == 0 || who.uid.0 == node.uid);
        let mut new = node.clone();
        if let Some(uid) = change.uid {
            let keeps = owns && uid.0 == node.uid;
            if !root && !keeps {
                return Err(ErrorKind::NotPermitted);
            }
            new.uid = uid.0;
        }
        if let Some(gid) = change.gid {
            let knows = gid.0 == node.gid || is_member(who, gid.0);
            if !root && (!owns || !knows) {
                return Err(ErrorKind::NotPermitted);
            }
            new.gid = gid.0;
        }
        let member = root || is_member(who, new.gid);
        if (change.uid.is_some() || change.gid.is_some()) && !self.is_dir(file) {
            let group_runs = node.mode & 0o010 != 0;
            new.mode &= if group_runs || !member { !0o6000 } else { !0o4000 };
        }
        if let Some(mode) = change.mode {
            if matches!(node.content, Content::Link(_)) {
                return Err(ErrorKind::Unsupported);
            }
            if !owns {
                return Err(ErrorKind::NotPermitted);
            }
            new.mode = if member { mode } else { mode & !0o2000 };
        }
        match (change.atime, change.mtime) {
            _ if owns => {}
            (None, None) => {}
            (Some(SetTime::Now), Some(SetTime::Now)) => self.need(who, file, WRITE)?,
            _ => return Err(ErrorKind::NotPermitted),
        }
        let moment = |set, old| match set {
            None => old,
            Some(SetTime::Now) => Time::from(now),
            Some(SetTime::To(time)) => time,
        };
        (new.atime, new.mtime) = (moment(change.atime, new.atime), moment(change.mtime, new.mtime));
        if *change != Change::default() {
            new.ctime = now.into();
            self.nodes.insert(file, new);
        }
        Ok(Answer::Done)
    }

    fn open(&self, who: &Identity, file: FileId, access: Access) -> Outcome {
        let bits = |on: bool, bit: u16| if on { bit } else { 0 };
        match self.get(file)?.content {
            Content::Dir { .. } if access.write => return Err(ErrorKind::IsDirectory),
            Content::Link(_) => return Err(ErrorKind::TooManyLinks),
            _ => {}
        }
        let wanted = bits(access.read, READ) | bits(access.write, WRITE) | bits(access.execute, SEARCH);
        self.need(who, file, wanted).map(|()| Answer::Done)
    }

    fn reach(&self, who: &Identity, file: FileId) -> Outcome {
        self.get(file)?;
        let mut best = Err(ErrorKind::NotFound);
        if file == FileId::ROOT || self.descend(who, FileId::ROOT, file, &mut best) {
            return Ok(Answer::Done);
        }
        best
    }

    /// Searches for a file below a directory, only through directories that `who` may search.
    fn descend(&self, who: &Identity, dir: FileId, file: FileId, best: &mut Outcome) -> bool {
        let Ok(entries) = self.entries(dir) else { return false };
        let may = self.need(who, dir, SEARCH).is_ok();
        entries.values().any(|&child| {
            if !may && (child == file || self.holds(child, file)) {
                *best = Err(ErrorKind::AccessDenied);
            }
            may && (child == file || self.descend(who, child, file, best))
        })
    }

    fn holds(&self, dir: FileId, file: FileId) -> bool {
        self.entries(dir)
            .is_ok_and(|entries| entries.values().any(|&child| child == file || self.holds(child, file)))
    }

    fn walk(&self, who: &Identity, dir: FileId, parts: &[String], follow: bool) -> Outcome {
        self.get(dir)?;
        let mut at = dir;
        for (index, part) in parts.iter().enumerate() {
            let rest = &parts[index + 1..];
            let entries = self.entries(at)?;
            self.need(who, at, SEARCH)?;
            let next = match (part.as_str(), &self.nodes[&at].content) {
                (".", _) => at,
                ("..", Content::Dir { parent, .. }) => *parent,
                (part, _) => *entries.get(&Name::new(part).expect("good")).ok_or(ErrorKind::NotFound)?,
            };
            match &self.nodes[&next].content {
                Content::Link(target) if follow || !rest.is_empty() => {
                    return Ok(Answer::Detour { dir: at, target: target.clone(), rest: rest.join("/") });
                }
                Content::File if !rest.is_empty() => return Err(ErrorKind::NotDirectory),
                _ => at = next,
            }
        }
        Ok(Answer::At(at))
    }

    fn xattr(
        &mut self,
        who: &Identity,
        file: FileId,
        name: &Name,
        value: Option<&Vec<u8>>,
        now: Stamp,
    ) -> Outcome {
        let node = self.get(file)?;
        let owns = who.uid.0 == 0 || who.uid.0 == node.uid;
        match node.content {
            Content::Link(_) => return Err(ErrorKind::NotPermitted),
            Content::Dir { .. } if node.mode & 0o1000 != 0 && !owns => return Err(ErrorKind::NotPermitted),
            _ => self.need(who, file, WRITE)?,
        }
        let xattrs = &mut self.node(file).xattrs;
        match value {
            Some(value) => {
                xattrs.insert(name.clone(), value.clone());
            }
            None => {
                xattrs.remove(name).ok_or(ErrorKind::NoAttribute)?;
            }
        }
        self.node(file).ctime = now.into();
        Ok(Answer::Done)
    }
}

fn is_member(who: &Identity, gid: u32) -> bool {
    who.gid.0 == gid || who.groups.iter().any(|group| group.0 == gid)
}

fn node(who: &Identity, mode: u16, content: Content, now: Stamp) -> Node {
    let time = Time::from(now);
    Node {
        mode,
        uid: who.uid.0,
        gid: who.gid.0,
        atime: time,
        mtime: time,
        ctime: time,
        xattrs: BTreeMap::new(),
        content,
    }
}
