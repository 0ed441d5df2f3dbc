//! Random operations in both worlds, the real one and the model, compared after every step.

use crate::faults::{Faults, Pause};
use crate::found;
use crate::op::{Answer, Op, Seen, perform};
use crate::tree::{Body, NodeId, Tree};
use forebay_client::blocking::{Client, File};
use forebay_client::{Listing, OpenOptions};
use forebay_dice::{Dice, pattern};
use forebay_model::{Error, ErrorKind, Gid, Identity, Striping, Time, Uid};
use forebay_wire::{RenameMode, XattrMode};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Files of the drivers have no set-id bits: a write takes them away before it commits, and a kill in between leaves a
/// third state that no model of whole operations knows. They have tests of their own.
const PLAIN: u16 = 0o1777;
const MODES: [u16; 12] =
    [0o777, 0o777, 0o755, 0o700, 0o1777, 0o2775, 0o000, 0o644, 0o600, 0o666, 0o770, 0o640];
const GROUPS: [u32; 4] = [0, 6100, 6200, 6300];
const LARGEST: u64 = 1 << 20;
const MOST_OPEN: usize = 8;
/// Steps that are told if the test fails, and how much of each.
const REMEMBERED: usize = 60;
const LONGEST_LINE: usize = 300;

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It was done, in both worlds.
    Done,
    /// It was refused, in both worlds.
    Refused,
    /// The server died over it, or the back end failed; what is there is one of the two possibilities.
    Unknown,
}

struct Handle {
    file: File,
    node: NodeId,
    options: OpenOptions,
    path: String,
}

/// One client, or several used in turns, and the model of what is below its base.
pub struct Driver {
    clients: Vec<Client>,
    base: String,
    tree: Tree,
    dice: Dice,
    handles: Vec<Handle>,
    mix: Mix,
    faults: Faults,
    room: Room,
    /// The last steps, told if the test fails.
    last: VecDeque<String>,
}

/// How much room there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    Enough,
    /// So little that a write may be told that there is none, and then nothing of it is there.
    Little,
}

/// What a driver does most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mix {
    All,
    /// Makes, moves, links and removes names.
    Names,
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> Identity {
    Identity { uid: Uid(uid), gid: Gid(gid), groups: groups.iter().copied().map(Gid).collect() }
}

/// Those who act.
fn people() -> [Identity; 4] {
    [Identity::root(), user(6001, 6100, &[6200]), user(6002, 6100, &[]), user(6003, 6300, &[6200])]
}

impl Driver {
    /// Starts below a directory that does not exist yet: `/x`, or the root itself: ``.
    #[must_use]
    pub fn new(clients: Vec<Client>, base: &str, dice: Dice) -> Driver {
        let root = Identity::root();
        let attr = clients[0].as_identity(root.clone()).stat("/").expect("there is a root");
        let mut tree = Tree::new(attr.uid.0, attr.gid.0, attr.mode);
        if !base.is_empty() {
            let op = Op::Mkdir { path: base.to_owned(), mode: 0o777 };
            perform(&clients[0].as_identity(root.clone()), &op).expect("the base is new");
            tree.apply(&root, &op).expect("the base is new");
        }
        Driver {
            clients,
            base: base.to_owned(),
            tree,
            dice,
            handles: Vec::new(),
            mix: Mix::All,
            faults: Faults::default(),
            room: Room::Enough,
            last: VecDeque::new(),
        }
    }

    /// The same, but mostly making, moving, linking and removing names.
    #[must_use]
    pub fn of_names(mut self) -> Driver {
        self.mix = Mix::Names;
        self
    }

    /// The same where a write may be told that there is no room.
    #[must_use]
    pub fn in_little_room(mut self) -> Driver {
        self.room = Room::Little;
        self
    }

    /// The same before directories that fail as long as none of these files exists.
    #[must_use]
    pub fn amid_faults(mut self, calm: Vec<PathBuf>) -> Driver {
        self.faults = Faults::begin(calm);
        self
    }

    /// Nothing fails behind as long as this is held.
    pub(crate) fn pause(&self) -> Pause {
        self.faults.pause()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.clients[0]
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// What somebody else changes, and whose chance decides how.
    pub(crate) fn others(&mut self) -> (&mut Tree, &mut Dice) {
        (&mut self.tree, &mut self.dice)
    }

    /// Closes everything.
    pub fn close_all(&mut self) {
        for handle in self.handles.drain(..) {
            handle.file.close().expect("an open file can be closed");
        }
    }

    pub(crate) fn has_open(&self, node: NodeId) -> bool {
        self.handles.iter().any(|handle| handle.node == node)
    }

    /// Whether nobody knows what came of a call that failed.
    fn is_unknown(&self, error: &Error) -> bool {
        let lacks_room = self.room == Room::Little && error.kind() == ErrorKind::NoSpace;
        error.kind() == ErrorKind::Unreachable || lacks_room || self.faults.explain(error)
    }

    fn note(&mut self, who: &Identity, op: &Op, real: &Result<(Answer, Option<File>), Error>) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        let answer = real.as_ref().map(|(answer, _)| answer).map_err(Error::to_string);
        let mut line = format!("user {} {op:?} → {answer:?}", who.uid);
        line.truncate(line.floor_char_boundary(LONGEST_LINE));
        self.last.push_back(line);
    }

    /// Lays the files of some directory out in another way, which nobody may notice.
    pub fn restripe(&mut self) {
        let path = self.path();
        let stripings = [
            None,
            Some(Striping { width: 0, stripe: 64 << 10 }),
            Some(Striping { width: 2, stripe: 128 << 10 }),
            Some(Striping { width: 1, stripe: 1 << 20 }),
        ];
        let client = self.clients[0].as_identity(Identity::root());
        let laid_out = client.set_layout(&path, *self.dice.pick(&stripings));
        if laid_out.as_ref().is_err_and(|error| self.faults.explain(error)) {
            return;
        }
        let is_dir = self.tree.leads_to_directory(&path);
        assert_eq!(laid_out.is_ok(), is_dir, "layout of {path}: {laid_out:?}");
    }

    /// Starts at the root, with a tree of files in the directory behind that the server has not seen yet.
    #[must_use]
    pub fn before(clients: Vec<Client>, behind: &Path, dice: Dice) -> Driver {
        let mut driver = Driver::new(clients, "", dice);
        found::find(&mut driver.dice, behind, &mut driver.tree);
        driver
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.dice.below(3);
        let mut path = self.base.clone();
        for level in 0..depth {
            // Only inside of the base, and a path ends in a name.
            if level > 0 && level + 1 < depth && self.dice.one_in(8) {
                path.push_str(if self.dice.one_in(2) { "/.." } else { "/." });
            } else {
                path.push('/');
                path.push_str(self.dice.pick::<&str>(&NAMES));
            }
        }
        path
    }

    fn target(&mut self) -> String {
        match self.dice.below(4) {
            0 => self.path(),
            1 => format!("{}/{}", self.dice.pick(&NAMES), self.dice.pick(&NAMES)),
            _ => (*self.dice.pick(&NAMES)).to_owned(),
        }
    }

    fn options(&mut self) -> OpenOptions {
        let create = OpenOptions { truncate: false, ..OpenOptions::CREATE };
        let append = OpenOptions { read: true, ..OpenOptions::APPEND };
        let options = [
            OpenOptions::READ,
            OpenOptions::WRITE,
            create,
            OpenOptions::CREATE,
            OpenOptions::CREATE_NEW,
            append,
        ];
        OpenOptions { mode: *self.dice.pick(&MODES) & PLAIN, ..*self.dice.pick(&options) }
    }

    fn op(&mut self) -> Op {
        let path = self.path();
        let mode = *self.dice.pick(&MODES);
        let name = (*self.dice.pick(&["user.x", "user.y"])).to_owned();
        let choice = match self.mix {
            Mix::All => self.dice.below(34),
            Mix::Names => self.dice.below(17),
        };
        match choice {
            0..4 => Op::Mkdir { path, mode },
            4..6 => Op::Symlink { target: self.target(), path },
            6..8 => Op::Link { file: path, to: self.path() },
            8..11 => Op::Unlink { path },
            11..13 => Op::Rmdir { path },
            13..17 => {
                let modes =
                    [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                Op::Rename { from: path, to: self.path(), mode: *self.dice.pick(&modes) }
            }
            17..19 => {
                let mode = if self.tree.leads_to_directory(&path) { mode } else { mode & PLAIN };
                Op::Chmod { path, mode }
            }
            19 => {
                let uid = self.dice.one_in(2).then(|| Uid(*self.dice.pick(&[0, 6001, 6002, 6003])));
                Op::Chown { path, uid, gid: Some(Gid(*self.dice.pick(&GROUPS))) }
            }
            20 => Op::Utimens { path, time: Time { secs: self.dice.below(1000) as i64 - 500, nanos: 17 } },
            21 => Op::Truncate { path, size: self.dice.size(LARGEST) },
            22..24 => {
                let modes = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
                let value = pattern(self.dice.next(), self.dice.size(5000) as usize);
                Op::SetXattr { path, name, value, mode: *self.dice.pick(&modes) }
            }
            24 => Op::GetXattr { path, name },
            25 => Op::RemoveXattr { path, name },
            26 => Op::ListXattr { path },
            27..29 => Op::List { path },
            29 => Op::Stat { path },
            30 => Op::Lstat { path },
            31 => Op::ReadLink { path },
            _ => Op::Open { path, options: self.options() },
        }
    }

    /// One step in both worlds. Panics where they differ.
    pub fn step(&mut self) -> Step {
        match self.dice.below(10) {
            0..4 if !self.handles.is_empty() && self.mix == Mix::All => self.use_handle(),
            4 if self.handles.len() < MOST_OPEN => {
                let op = Op::Open { path: self.path(), options: self.options() };
                self.go(&op)
            }
            _ => {
                let op = self.op();
                self.go(&op)
            }
        }
    }

    fn go(&mut self, op: &Op) -> Step {
        let people = people();
        let who = if self.dice.one_in(3) { &people[0] } else { self.dice.pick(&people) };
        let client = self.dice.pick(&self.clients).as_identity(who.clone());
        let real = perform(&client, op);
        self.note(who, op, &real);
        if real.as_ref().is_err_and(|error| self.is_unknown(error)) {
            self.settle(&[&|tree| drop(tree.apply(who, op))]);
            return Step::Unknown;
        }
        let expected = self.tree.apply(who, op);
        match (real, expected) {
            (Ok((answer, file)), Ok((foreseen, node))) => {
                assert_eq!(answer, foreseen, "user {} {op:?}", who.uid);
                if let (Some(file), Some(node), Op::Open { path, options }) = (file, node, op)
                    && self.handles.len() < MOST_OPEN
                    && !self.tree.is_dir(node)
                {
                    self.handles.push(Handle { file, node, options: *options, path: path.clone() });
                }
                Step::Done
            }
            (Err(error), Err(kind)) => {
                assert_eq!(error.kind(), kind, "user {} {op:?}: {error}", who.uid);
                Step::Refused
            }
            (Ok((answer, _)), Err(kind)) => panic!("user {} {op:?}: {answer:?} instead of {kind:?}", who.uid),
            (Err(error), Ok((answer, _))) => {
                panic!("user {} {op:?}: {error} ({:?}) instead of {answer:?}", who.uid, error.kind())
            }
        }
    }

    /// Takes as the truth what is there: the call was not carried out, or in one of these ways.
    fn settle(&mut self, ways: &[&dyn Fn(&mut Tree)]) {
        let Err(why) = self.compare() else { return };
        let before = self.tree.clone();
        let mut others = Vec::new();
        for apply in ways {
            self.tree = before.clone();
            apply(&mut self.tree);
            match self.compare() {
                Ok(()) => return,
                Err(other) => others.push(other),
            }
        }
        panic!("neither before the call ({why}) nor after it ({others:?})\n{before:#?}");
    }

    fn use_handle(&mut self) -> Step {
        let index = self.dice.below(self.handles.len() as u64) as usize;
        let offset = self.dice.size(LARGEST);
        let choice = self.dice.below(10);
        if choice == 0 {
            let handle = self.handles.swap_remove(index);
            handle.file.close().expect("an open file can be closed");
            return Step::Done;
        }
        if choice < 4 {
            return self.read(index, offset);
        }
        let Handle { file, node, options, path } = &self.handles[index];
        let data = pattern(self.dice.next(), self.dice.size(LARGEST - offset) as usize);
        let (node, writes, only_appends) =
            (*node, options.write || options.append, options.append && !options.write);
        let size = self.tree.bytes(node).len() as u64;
        let mut change: Option<Change> = None;
        let done = match choice {
            4 => {
                change = Some(Change::Cut(offset));
                file.truncate(offset)
            }
            5 => {
                let len = 1 + self.dice.size(LARGEST);
                change = Some(Change::Punch(offset, len));
                file.punch(offset, len)
            }
            6 => file.sync(),
            7 if size < 2 * LARGEST && !data.is_empty() => {
                let appended = file.append(&data);
                if let Ok(at) = appended {
                    assert_eq!(at, size, "appended to {path}");
                }
                change = Some(Change::Append(size, data));
                appended.map(drop)
            }
            7 => Ok(()),
            _ => {
                let written = file.pwrite(offset, &data);
                let refused = only_appends.then_some(ErrorKind::BadHandle);
                assert_eq!(written.as_ref().err().map(Error::kind).filter(|_| only_appends), refused);
                if !only_appends && !data.is_empty() {
                    change = Some(Change::Put(offset, data));
                }
                if only_appends { Ok(()) } else { written }
            }
        };
        self.judge(node, writes, change, done)
    }

    fn judge(&mut self, node: NodeId, writes: bool, change: Option<Change>, done: Result<(), Error>) -> Step {
        match (done, change) {
            (Err(error), Some(change)) if self.is_unknown(&error) => {
                let partly = match &change {
                    // Some of it may be there, from the beginning on.
                    Change::Append(size, data) => {
                        let there = self.length(node).saturating_sub(*size) as usize;
                        Change::Append(*size, data[..data.len().min(there)].to_vec())
                    }
                    other => other.clone(),
                };
                self.settle(&[&|tree| change.clone().apply(tree.bytes_mut(node)), &|tree| {
                    partly.clone().apply(tree.bytes_mut(node));
                }]);
                Step::Unknown
            }
            (Err(error), Some(_)) if !writes => {
                assert_eq!(error.kind(), ErrorKind::BadHandle, "{error}");
                Step::Refused
            }
            (Err(error), None) if self.faults.explain(&error) => Step::Unknown,
            (Err(error), change) => panic!("{change:?}: {error}"),
            (Ok(()), Some(change)) => {
                assert!(writes, "{change:?} through a file that is open for reading");
                change.apply(self.tree.bytes_mut(node));
                Step::Done
            }
            (Ok(()), None) => Step::Done,
        }
    }

    /// How long an open file really is.
    fn length(&self, node: NodeId) -> u64 {
        let handle = self.handles.iter().find(|handle| handle.node == node).expect("it is open");
        let _pause = self.pause();
        handle.file.stat().expect("an open file has attributes").size
    }

    fn read(&mut self, index: usize, offset: u64) -> Step {
        let Handle { file, node, path, .. } = &self.handles[index];
        let bytes = self.tree.bytes(*node);
        let mut back = vec![0xaa; self.dice.size(LARGEST) as usize];
        let count = match file.pread(offset, &mut back) {
            Err(error) if self.faults.explain(&error) => return Step::Unknown,
            read => read.expect("an open file can be read"),
        };
        let start = (offset as usize).min(bytes.len());
        let expected = &bytes[start..bytes.len().min(start + back.len())];
        assert!(&back[..count] == expected, "{} bytes of {path} at {offset}", back.len());
        Step::Done
    }

    /// Compares everything: every name, attribute and byte.
    pub fn check(&self) {
        self.compare().unwrap_or_else(|why| panic!("the whole tree: {why}"));
    }

    fn compare(&self) -> Result<(), String> {
        let _pause = self.pause();
        let root = self.clients[0].as_identity(Identity::root());
        let base = self.tree.find_base(&self.base);
        self.compare_below(&root, &self.base, base)?;
        for Handle { file, node, path, .. } in &self.handles {
            let attr = file.stat().map_err(|error| format!("{path}, open: {error}"))?;
            same(&format!("{path}, open"), &Seen::from(&attr), &self.tree.seen(*node))?;
            self.compare_bytes(file, path, *node)?;
        }
        Ok(())
    }

    fn compare_below(&self, root: &Client, path: &str, id: NodeId) -> Result<(), String> {
        let failed = |error: Error| format!("{path}: {error}");
        let shown = if path.is_empty() { "/" } else { path };
        let node = self.tree.node(id);
        let attr = root.lstat(shown).map_err(failed)?;
        same(shown, &Seen::from(&attr), &self.tree.seen(id))?;
        if let Some(time) = node.mtime
            && matches!(node.body, Body::File(_))
        {
            same(&format!("time of {path}"), &attr.mtime, &time)?;
        }
        match &node.body {
            Body::Link(target) => {
                return same(path, &root.read_link(path).map_err(failed)?, &target.clone().into_bytes());
            }
            Body::File(_) => {
                let file = root.open(path, OpenOptions::READ).map_err(failed)?;
                self.compare_bytes(&file, path, id)?;
            }
            Body::Dir { entries, .. } => {
                let listed = root.read_dir(shown, Listing::Names).map_err(failed)?;
                let listed = listed.map(|entry| entry.map(|entry| entry.name.to_string()));
                let mut listed = listed.collect::<Result<Vec<_>, _>>().map_err(failed)?;
                listed.sort();
                same(path, &listed, &entries.keys().cloned().collect())?;
                for (name, child) in entries {
                    self.compare_below(root, &format!("{path}/{name}"), *child)?;
                }
            }
        }
        for (name, value) in &node.xattrs {
            same(path, &root.get_xattr(shown, name).map_err(failed)?, value)?;
        }
        same(path, &root.list_xattr(shown).map_err(failed)?.len(), &node.xattrs.len())
    }

    fn compare_bytes(&self, file: &File, path: &str, id: NodeId) -> Result<(), String> {
        let bytes = self.tree.bytes(id);
        let mut back = vec![0xaa; bytes.len() + 1];
        match file.pread(0, &mut back) {
            // One that is open for writing only.
            Err(error) if error.kind() == ErrorKind::BadHandle => Ok(()),
            Err(error) => Err(format!("{path}: {error}")),
            Ok(count) if back[..count] == *bytes => Ok(()),
            Ok(count) => {
                let at = back.iter().zip(bytes).position(|(one, other)| one != other);
                Err(format!("{path}: {count} of {} bytes, the first difference at {at:?}", bytes.len()))
            }
        }
    }
}

impl Drop for Driver {
    #[expect(clippy::print_stderr, reason = "a failing test tells how it came there")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.last.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

impl Tree {
    fn find_base(&self, base: &str) -> NodeId {
        self.walk(&Identity::root(), crate::tree::ROOT, base, false, false).expect("the base is there")
    }
}

/// What happens to the bytes of an open file.
#[derive(Clone, Debug)]
enum Change {
    Cut(u64),
    Punch(u64, u64),
    Put(u64, Vec<u8>),
    Append(u64, Vec<u8>),
}

impl Change {
    fn apply(self, bytes: &mut Vec<u8>) {
        match self {
            Change::Cut(size) => bytes.resize(size as usize, 0),
            Change::Punch(offset, len) => {
                let end = bytes.len().min((offset + len) as usize);
                bytes[(offset as usize).min(end)..end].fill(0);
            }
            Change::Put(offset, data) | Change::Append(offset, data) => {
                let (start, end) = (offset as usize, offset as usize + data.len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].copy_from_slice(&data);
            }
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, real: &T, expected: &T) -> Result<(), String> {
    if real == expected { Ok(()) } else { Err(format!("{what}: {real:?} instead of {expected:?}")) }
}
