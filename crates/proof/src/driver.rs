//! Random operations on the service and on the model, compared after every step.

use crate::faults::{Faults, Pause};
use crate::found;
use crate::op::{Answer, Op, Seen, perform};
use crate::tree::{Body, NodeId, Tree};
use forebay_client::blocking::{Client, File};
use forebay_client::{Listing, OpenOptions};
use forebay_model::{Error, ErrorKind, Gid, Identity, Striping, Time, Uid};
use forebay_testkit::{Rng, pattern};
use forebay_wire::{RenameMode, XattrMode};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Files of the drivers have no set-id bits: a write clears them before it commits, and a kill in between leaves a
/// third state that a model of whole operations does not have. Other tests cover them.
const PLAIN: u16 = 0o1777;
const MODES: [u16; 12] =
    [0o777, 0o777, 0o755, 0o700, 0o1777, 0o2775, 0o000, 0o644, 0o600, 0o666, 0o770, 0o640];
const GROUPS: [u32; 4] = [0, 6100, 6200, 6300];
const LARGEST: u64 = 1 << 20;
const MOST_OPEN: usize = 8;
/// Number of steps that a failing test prints, and the length of each.
const REMEMBERED: usize = 60;
const LONGEST_LINE: usize = 300;

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It succeeded in the service and in the model.
    Done,
    /// It was refused in both.
    Refused,
    /// The server died or the back end failed during the call; the state is the one before or the one after.
    Unknown,
}

struct Handle {
    file: File,
    node: NodeId,
    options: OpenOptions,
    path: String,
}

/// One or several clients, used in turns, and the model of the tree below `base`.
pub struct Driver {
    clients: Vec<Client>,
    base: String,
    tree: Tree,
    rng: Rng,
    handles: Vec<Handle>,
    mix: Mix,
    faults: Faults,
    space: Space,
    /// The last steps, printed if the test fails.
    last: VecDeque<String>,
}

/// How much buffer space there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Space {
    Enough,
    /// So little that a write may fail with `NoSpace`, and then has no effect.
    Little,
}

/// The mix of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mix {
    All,
    /// Mostly creates, renames, links and removes.
    Names,
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> Identity {
    Identity { uid: Uid(uid), gid: Gid(gid), groups: groups.iter().copied().map(Gid).collect() }
}

/// The acting users.
fn users() -> [Identity; 4] {
    [Identity::root(), user(6001, 6100, &[6200]), user(6002, 6100, &[]), user(6003, 6300, &[6200])]
}

impl Driver {
    /// Starts below a directory that does not exist yet (`/x`), or at the root (empty).
    #[must_use]
    pub fn new(clients: Vec<Client>, base: &str, rng: Rng) -> Driver {
        let root = Identity::root();
        let attr = clients[0].as_identity(root.clone()).stat("/").expect("root directory");
        let mut tree = Tree::new(attr.uid.0, attr.gid.0, attr.mode);
        if !base.is_empty() {
            let op = Op::Mkdir { path: base.to_owned(), mode: 0o777 };
            perform(&clients[0].as_identity(root.clone()), &op).expect("new base directory");
            tree.apply(&root, &op).expect("new base directory");
        }
        Driver {
            clients,
            base: base.to_owned(),
            tree,
            rng,
            handles: Vec::new(),
            mix: Mix::All,
            faults: Faults::default(),
            space: Space::Enough,
            last: VecDeque::new(),
        }
    }

    /// Mostly creates, renames, links and removes names.
    #[must_use]
    pub fn of_names(mut self) -> Driver {
        self.mix = Mix::Names;
        self
    }

    /// For a server where a write may fail with `NoSpace`.
    #[must_use]
    pub fn with_little_space(mut self) -> Driver {
        self.space = Space::Little;
        self
    }

    /// For back-end directories with injected faults, which are suspended while these files exist.
    #[must_use]
    pub fn with_faults(mut self, pause_files: Vec<PathBuf>) -> Driver {
        self.faults = Faults::begin(pause_files);
        self
    }

    /// Suspends injected faults while it is held.
    pub(crate) fn pause(&self) -> Pause {
        self.faults.pause()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.clients[0]
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The model and the random numbers, for changes by another process.
    pub(crate) fn others(&mut self) -> (&mut Tree, &mut Rng) {
        (&mut self.tree, &mut self.rng)
    }

    /// Closes all open files.
    pub fn close_all(&mut self) {
        for handle in self.handles.drain(..) {
            handle.file.close().expect("file closed");
        }
    }

    pub(crate) fn has_open(&self, node: NodeId) -> bool {
        self.handles.iter().any(|handle| handle.node == node)
    }

    /// Whether the effect of a failed call is unknown.
    fn is_unknown(&self, error: &Error) -> bool {
        let lacks_space = self.space == Space::Little && error.kind() == ErrorKind::NoSpace;
        error.kind().is_no_answer() || lacks_space || self.faults.explain(error)
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

    /// Changes the layout of a random directory, which must have no visible effect.
    pub fn restripe(&mut self) {
        let path = self.path();
        let stripings = [
            None,
            Some(Striping { width: 0, stripe: 64 << 10 }),
            Some(Striping { width: 2, stripe: 128 << 10 }),
            Some(Striping { width: 1, stripe: 1 << 20 }),
        ];
        let client = self.clients[0].as_identity(Identity::root());
        let laid_out = client.set_layout(&path, *self.rng.pick(&stripings));
        if laid_out.as_ref().is_err_and(|error| self.faults.explain(error)) {
            return;
        }
        let is_dir = self.tree.leads_to_directory(&path);
        assert_eq!(laid_out.is_ok(), is_dir, "layout of {path}: {laid_out:?}");
    }

    /// Starts at the root, with files in the back-end directory that the server has not seen yet.
    #[must_use]
    pub fn with_backend(clients: Vec<Client>, backing_dir: &Path, rng: Rng) -> Driver {
        let mut driver = Driver::new(clients, "", rng);
        found::find(&mut driver.rng, backing_dir, &mut driver.tree);
        driver
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.rng.below(3);
        let mut path = self.base.clone();
        for level in 0..depth {
            // Only inside of the base; a path ends in a name.
            if level > 0 && level + 1 < depth && self.rng.one_in(8) {
                path.push_str(if self.rng.one_in(2) { "/.." } else { "/." });
            } else {
                path.push('/');
                path.push_str(self.rng.pick::<&str>(&NAMES));
            }
        }
        path
    }

    fn target(&mut self) -> String {
        match self.rng.below(4) {
            0 => self.path(),
            1 => format!("{}/{}", self.rng.pick(&NAMES), self.rng.pick(&NAMES)),
            _ => (*self.rng.pick(&NAMES)).to_owned(),
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
        OpenOptions { mode: *self.rng.pick(&MODES) & PLAIN, ..*self.rng.pick(&options) }
    }

    fn op(&mut self) -> Op {
        let path = self.path();
        let mode = *self.rng.pick(&MODES);
        let name = (*self.rng.pick(&["user.x", "user.y"])).to_owned();
        let choice = match self.mix {
            Mix::All => self.rng.below(34),
            Mix::Names => self.rng.below(17),
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
                Op::Rename { from: path, to: self.path(), mode: *self.rng.pick(&modes) }
            }
            17..19 => {
                let mode = if self.tree.leads_to_directory(&path) { mode } else { mode & PLAIN };
                Op::Chmod { path, mode }
            }
            19 => {
                let uid = self.rng.one_in(2).then(|| Uid(*self.rng.pick(&[0, 6001, 6002, 6003])));
                Op::Chown { path, uid, gid: Some(Gid(*self.rng.pick(&GROUPS))) }
            }
            20 => Op::Utimens { path, time: Time { secs: self.rng.below(1000) as i64 - 500, nanos: 17 } },
            21 => Op::Truncate { path, size: self.rng.size(LARGEST) },
            22..24 => {
                let modes = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
                let value = pattern(self.rng.next(), self.rng.size(5000) as usize);
                Op::SetXattr { path, name, value, mode: *self.rng.pick(&modes) }
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

    /// One step on service and model. Panics if they differ.
    pub fn step(&mut self) -> Step {
        match self.rng.below(10) {
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
        let users = users();
        let who = if self.rng.one_in(3) { &users[0] } else { self.rng.pick(&users) };
        let client = self.rng.pick(&self.clients).as_identity(who.clone());
        let real = perform(&client, op);
        self.note(who, op, &real);
        if real.as_ref().is_err_and(|error| self.is_unknown(error)) {
            self.reconcile(&[&|tree| drop(tree.apply(who, op))]);
            return Step::Unknown;
        }
        let expected = self.tree.apply(who, op);
        match (real, expected) {
            (Ok((answer, file)), Ok((predicted, node))) => {
                assert_eq!(answer, predicted, "user {} {op:?}", who.uid);
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

    /// Adopts the state that the service shows: the one before the call, or after one of these outcomes.
    fn reconcile(&mut self, ways: &[&dyn Fn(&mut Tree)]) {
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
        panic!(
            "the state is neither the one before the call ({why}) nor the one after it ({others:?})\n{before:#?}"
        );
    }

    fn use_handle(&mut self) -> Step {
        let index = self.rng.below(self.handles.len() as u64) as usize;
        let offset = self.rng.size(LARGEST);
        let choice = self.rng.below(10);
        if choice == 0 {
            let handle = self.handles.swap_remove(index);
            handle.file.close().expect("file closed");
            return Step::Done;
        }
        if choice < 4 {
            return self.read(index, offset);
        }
        let Handle { file, node, options, path } = &self.handles[index];
        let data = pattern(self.rng.next(), self.rng.size(LARGEST - offset) as usize);
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
                let len = 1 + self.rng.size(LARGEST);
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
                let prefix = match &change {
                    // A prefix of the append may be written.
                    Change::Append(size, data) => {
                        let written = self.length(node).saturating_sub(*size) as usize;
                        Change::Append(*size, data[..data.len().min(written)].to_vec())
                    }
                    other => other.clone(),
                };
                self.reconcile(&[&|tree| change.clone().apply(tree.bytes_mut(node)), &|tree| {
                    prefix.clone().apply(tree.bytes_mut(node));
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

    /// The length of an open file in the service.
    fn length(&self, node: NodeId) -> u64 {
        let handle = self.handles.iter().find(|handle| handle.node == node).expect("open file");
        let _pause = self.pause();
        handle.file.stat().expect("attributes of an open file").size
    }

    fn read(&mut self, index: usize, offset: u64) -> Step {
        let Handle { file, node, path, .. } = &self.handles[index];
        let bytes = self.tree.bytes(*node);
        let mut back = vec![0xaa; self.rng.size(LARGEST) as usize];
        let count = match file.pread(offset, &mut back) {
            Err(error) if self.faults.explain(&error) => return Step::Unknown,
            read => read.expect("read of an open file"),
        };
        let start = (offset as usize).min(bytes.len());
        let expected = &bytes[start..bytes.len().min(start + back.len())];
        assert!(&back[..count] == expected, "{} bytes of {path} at {offset}", back.len());
        Step::Done
    }

    /// Compares every name, attribute and byte.
    pub fn check(&self) {
        self.compare().unwrap_or_else(|why| panic!("the trees differ: {why}"));
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
            // The file is open for writing only.
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
    #[expect(clippy::print_stderr, reason = "a failing test prints its last steps")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.last.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

impl Tree {
    fn find_base(&self, base: &str) -> NodeId {
        self.walk(&Identity::root(), crate::tree::ROOT, base, false, false).expect("base directory")
    }
}

/// A change of the bytes of an open file.
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
