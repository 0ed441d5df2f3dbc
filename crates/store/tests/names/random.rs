//! Random operations by several users, compared with the model after every step.

use crate::common::{ROOT, SERVER, layout, open, open_root, user};
use crate::model::{Answer, Content, How, Model, Op, Outcome};
use forebay_model::{
    Access, Bytes, Change, FileId, FileKind, Gid, Identity, Incarnation, Name, SetTime, Stamp, Time, Uid,
};
use forebay_store::{FjallKv, Kv, MemoryKv, Names, RenameMode, Timeline, Unlinked, Walked, XattrMode};
use forebay_testkit::{Rng, rounds, seed};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const MODES: [u16; 9] = [0o777, 0o755, 0o700, 0o1777, 0o2775, 0o000, 0o644, 0o6755, 0o770];
const GROUPS: [u32; 4] = [0, 100, 200, 300];

fn people() -> [Identity; 4] {
    [Identity::root(), user(10, 100, &[200]), user(11, 100, &[]), user(12, 300, &[200])]
}

/// Generates random operations.
pub(crate) struct Author {
    pub(crate) random: Rng,
    /// Every id ever allocated, including removed files.
    pub(crate) known: Vec<FileId>,
}

impl Author {
    pub(crate) fn new(seed: u64) -> Author {
        Author { random: Rng::new(seed), known: vec![ROOT] }
    }

    /// Usually an existing file.
    fn any(&mut self, model: &Model) -> FileId {
        match self.random.one_in(6) {
            true => *self.random.pick(&self.known),
            false => *self.random.pick(&model.nodes.keys().copied().collect::<Vec<_>>()),
        }
    }

    /// Usually a directory.
    fn dir(&mut self, model: &Model) -> FileId {
        let dirs: Vec<_> = model.nodes.keys().copied().filter(|&id| model.is_dir(id)).collect();
        if self.random.one_in(12) { self.any(model) } else { *self.random.pick(&dirs) }
    }

    fn name(&mut self) -> Name {
        Name::new(*self.random.pick(&NAMES)).expect("good")
    }

    fn mode(&mut self) -> u16 {
        *self.random.pick(&MODES)
    }

    fn time(&mut self) -> Option<SetTime> {
        match self.random.below(3) {
            0 => None,
            1 => Some(SetTime::Now),
            _ => Some(SetTime::To(Time { secs: self.random.below(1000) as i64 - 500, nanos: 17 })),
        }
    }

    fn change(&mut self) -> Change {
        let mut change = Change::default();
        match self.random.below(5) {
            0 => change.uid = Some(Uid(*self.random.pick(&[0, 10, 11, 12]))),
            1 => change.gid = Some(Gid(*self.random.pick(&GROUPS))),
            2 => (change.atime, change.mtime) = (self.time(), self.time()),
            _ => change.mode = Some(self.mode()),
        }
        if self.random.one_in(5) {
            change.mode = Some(self.mode());
        }
        change
    }

    fn xattr(&mut self) -> Name {
        Name::new(*self.random.pick(&["user.x", "user.y"])).expect("good")
    }

    pub(crate) fn who(&mut self) -> Identity {
        let people = people();
        if self.random.one_in(3) { people[0].clone() } else { self.random.pick(&people).clone() }
    }

    pub(crate) fn op(&mut self, model: &Model) -> Op {
        let (dir, name) = (self.dir(model), self.name());
        match self.random.below(28) {
            0..=3 => Op::Create { dir, name, mode: self.mode() },
            4..=6 => Op::MakeDir { dir, name, mode: self.mode() },
            7 => Op::Symlink { dir, name, target: b"a/b".to_vec() },
            8..=9 => Op::Link { file: self.any(model), dir, name },
            10..=11 => Op::Unlink { dir, name },
            12..=13 => Op::RemoveDir { dir, name },
            14..=18 => {
                let how = *self.random.pick(&[How::Replace, How::Replace, How::NoReplace, How::Exchange]);
                Op::Rename { dir, name, to_dir: self.dir(model), to_name: self.name(), how }
            }
            19..=20 => match self.any(model) {
                // With a closed root, no other operation would succeed.
                ROOT => Op::List { dir },
                file => Op::SetAttr { file, change: self.change() },
            },
            21 => {
                let access = [Access::READ, Access::WRITE, Access::BOTH, Access::EXECUTE];
                Op::Open { file: self.any(model), access: *self.random.pick(&access) }
            }
            22 => Op::Reach { file: self.any(model) },
            23 => Op::List { dir },
            24 => {
                let words = ["a", "b", "c", "d", ".", ".."];
                let parts = (0..self.random.below(5)).map(|_| self.random.pick(&words).to_string()).collect();
                Op::Walk { dir, parts, follow: self.random.one_in(2) }
            }
            25 => Op::SetXattr {
                file: self.any(model),
                name: self.xattr(),
                value: vec![self.random.next() as u8],
            },
            26 if self.random.one_in(2) => Op::GetXattr { file: self.any(model), name: self.xattr() },
            26 => Op::RemoveXattr { file: self.any(model), name: self.xattr() },
            _ => Op::Reap { file: self.any(model) },
        }
    }
}

fn lost(unlinked: Option<Unlinked>) -> Answer {
    Answer::Lost(unlinked.map(|unlinked| (unlinked.file, unlinked.fate == forebay_store::Fate::Named)))
}

fn perform(names: &Names, kv: &dyn Kv, who: &Identity, op: &Op, now: Stamp) -> forebay_model::Result<Answer> {
    Ok(match op {
        Op::Create { dir, name, mode } => {
            let (incarnations, before) = (vec![Incarnation(1)], |_| Ok(()));
            Answer::Made(names.create_file(who, *dir, name, *mode, layout(), incarnations, now, before)?.0)
        }
        Op::MakeDir { dir, name, mode } => Answer::Made(names.make_dir(who, *dir, name, *mode, now)?.0),
        Op::Symlink { dir, name, target } => Answer::Made(names.symlink(who, *dir, name, target, now)?.0),
        Op::Link { file, dir, name } => names.link(who, *file, *dir, name, now).map(|_| Answer::Done)?,
        Op::Unlink { dir, name } => lost(Some(names.unlink(who, *dir, name, now)?)),
        Op::RemoveDir { dir, name } => lost(Some(names.remove_dir(who, *dir, name, now)?)),
        Op::Rename { dir, name, to_dir, to_name, how } => {
            let mode = match how {
                How::Replace => RenameMode::Replace,
                How::NoReplace => RenameMode::NoReplace,
                How::Exchange => RenameMode::Exchange,
            };
            lost(names.rename(who, *dir, name, *to_dir, to_name, mode, now)?)
        }
        Op::SetAttr { file, change } => names.set_attr(who, *file, change, now).map(|_| Answer::Done)?,
        Op::Open { file, access } => names.check_open(who, *file, *access).map(|_| Answer::Done)?,
        Op::Reach { file } => names.reach(who, *file).map(|()| Answer::Done)?,
        Op::List { dir } => {
            let (mut all, mut cookie) = (BTreeMap::new(), Some(0));
            while let Some(at) = cookie {
                let (entries, next) = names.read_dir(who, *dir, at, 2)?;
                all.extend(entries.into_iter().map(|entry| (entry.name, entry.file)));
                cookie = next;
            }
            Answer::Entries(all.into_iter().collect())
        }
        Op::Walk { dir, parts, follow } => {
            match names.walk(who, *dir, parts.join("/").as_bytes(), *follow)? {
                Walked::Found(id, _) => Answer::At(id),
                Walked::Link { dir, target, rest } => {
                    Answer::Detour { dir, target, rest: String::from_utf8(rest).expect("we wrote text") }
                }
                away => panic!("single server expected: {away:?}"),
            }
        }
        Op::SetXattr { file, name, value } => {
            names.set_xattr(who, *file, name, value, XattrMode::Any, now).map(|()| Answer::Done)?
        }
        Op::GetXattr { file, name } => Answer::Value(names.get_xattr(who, *file, name)?),
        Op::RemoveXattr { file, name } => names.remove_xattr(who, *file, name, now).map(|()| Answer::Done)?,
        Op::Reap { file } => names.reap(*file, |batch| kv.commit(batch)).map(|()| Answer::Done)?,
    })
}

/// Performs one operation on the namespace and the model; returns its result, or the difference.
pub(crate) fn step(
    names: &Names,
    kv: &dyn Kv,
    model: &mut Model,
    author: &mut Author,
    now: Stamp,
) -> Result<Outcome, String> {
    let (who, op) = (author.who(), author.op(model));
    let real = perform(names, kv, &who, &op, now);
    let got = real.as_ref().err().map(ToString::to_string);
    let real = real.map_err(|error| error.kind());
    let made = match real {
        Ok(Answer::Made(id)) => id,
        _ => FileId(u64::MAX),
    };
    let expected = model.apply(&who, &op, now, made);
    if made != FileId(u64::MAX) {
        author.known.push(made);
    }
    match real == expected {
        true => Ok(real),
        false => Err(format!("user {} {op:?}: got {real:?} ({got:?}), expected {expected:?}", who.uid)),
    }
}

/// Compares every inode and every entry.
pub(crate) fn compare(names: &Names, model: &Model) -> Result<(), String> {
    let root = Identity::root();
    if names.count() != model.nodes.len() as u64 {
        return Err(format!("{} inodes instead of {}", names.count(), model.nodes.len()));
    }
    let mut orphans = Vec::new();
    for (&id, node) in &model.nodes {
        let inode = names.inode(id).map_err(|error| error.to_string())?;
        let facts = names.share(id).map_err(|error| error.to_string())?.into();
        let attr = inode.attr(id, &facts, &Timeline::default());
        let real =
            (attr.mode, attr.uid.0, attr.gid.0, attr.links as usize, attr.atime, attr.mtime, attr.ctime);
        let expected = (node.mode, node.uid, node.gid, model.links(id), node.atime, node.mtime, node.ctime);
        if real != expected {
            return Err(format!("inode {id} is {real:?} instead of {expected:?}"));
        }
        let listed = names.list_xattrs(&root, id).map_err(|error| error.to_string())?;
        if !listed.iter().eq(node.xattrs.keys()) {
            return Err(format!("inode {id} has the attributes {listed:?}"));
        }
        match &node.content {
            Content::Dir { entries, .. } => compare_entries(names, model, id, entries)?,
            Content::Link(target) => {
                if names.read_link(id).as_ref() != Ok(target) {
                    return Err(format!("link {id} has another target"));
                }
            }
            Content::File if model.names(id) == 0 => orphans.push(id),
            Content::File => {}
        }
    }
    let found = names.orphans().map_err(|error| error.to_string())?;
    if found == orphans { Ok(()) } else { Err(format!("orphans {found:?} instead of {orphans:?}")) }
}

fn compare_entries(
    names: &Names,
    model: &Model,
    dir: FileId,
    entries: &BTreeMap<Name, FileId>,
) -> Result<(), String> {
    let (listed, _) = names.read_dir(&Identity::root(), dir, 0, 100).map_err(|error| format!("{error:?}"))?;
    let real: BTreeMap<_, _> = listed.iter().map(|entry| (entry.name.clone(), entry.file)).collect();
    if real != *entries {
        return Err(format!("directory {dir} holds {real:?} instead of {entries:?}"));
    }
    for entry in listed {
        let kind = match model.nodes[&entry.file].content {
            Content::Dir { .. } => FileKind::Directory,
            Content::Link(_) => FileKind::Symlink,
            Content::File => FileKind::File,
        };
        if kind != entry.kind {
            return Err(format!("entry {:?} of {dir} has the kind {:?}", entry.name, entry.kind));
        }
    }
    Ok(())
}

fn complain(seed: u64, number: u64, problem: &str) -> ! {
    panic!("FOREBAY_SEED={seed}, step {number}: {problem}");
}

#[test]
fn random_operations_match_the_model() {
    let base = seed();
    let (steps, mut tried, mut succeeded) = (600, 0, 0);
    for round in rounds(24) {
        tried += steps;
        let seed = base.wrapping_add(round);
        let kv = Arc::new(MemoryKv::new());
        Names::format(&*kv, SERVER, Some(open_root()), Stamp(1)).expect("an empty store");
        let (names, mut model, mut author) =
            (open(kv.clone()), Model::new(0o777, Stamp(1)), Author::new(seed));
        for number in 1..=steps {
            let now = Stamp(number * 1_000_000_007);
            let got = step(&names, &*kv, &mut model, &mut author, now)
                .unwrap_or_else(|problem| complain(base, number, &format!("round {round}: {problem}")));
            succeeded += u64::from(got.is_ok());
            compare(&names, &model)
                .unwrap_or_else(|problem| complain(base, number, &format!("round {round}: {problem}")));
        }
        assert_eq!(forebay_store::check(&*kv), Vec::<String>::new(), "FOREBAY_SEED={base}, round {round}");
    }
    assert!(succeeded > tried / 5, "FOREBAY_SEED={base}: only {succeeded} operations succeeded");
}

fn disk(dir: &Path) -> Arc<FjallKv> {
    Arc::new(FjallKv::open(dir, Bytes::mib(8)).expect("a sound store"))
}

#[test]
fn random_operations_survive_restarts_on_disk() {
    let base = seed();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut kv = Arc::new(FjallKv::create(dir.path(), Bytes::mib(8)).expect("a new store"));
    Names::format(&*kv, SERVER, Some(open_root()), Stamp(1)).expect("an empty store");
    let (mut names, mut model, mut author) =
        (open(kv.clone()), Model::new(0o777, Stamp(1)), Author::new(base));
    for number in 1..=1500 {
        let now = Stamp(number * 1_000_000_007);
        let got = step(&names, &*kv, &mut model, &mut author, now);
        got.map(drop).unwrap_or_else(|problem| complain(base, number, &problem));
        if author.random.one_in(60) {
            drop(names);
            drop(kv);
            kv = disk(dir.path());
            names = open(kv.clone());
            compare(&names, &model).unwrap_or_else(|problem| complain(base, number, &problem));
        }
        if author.random.one_in(20) {
            kv.sync().expect("the disk works");
            compare(&names, &model).unwrap_or_else(|problem| complain(base, number, &problem));
        }
    }
    assert_eq!(forebay_store::check(&*kv), Vec::<String>::new(), "FOREBAY_SEED={base}");
}
