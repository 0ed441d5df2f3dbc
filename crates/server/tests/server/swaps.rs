//! A user with write permission in a back-end directory swaps entries there at every moment: before each call of the back
//! end during a series of requests and a drain. What others own stays as it is, and none of it is shown.

use crate::drain::{ROOT, drain_with, until};
use crate::raw::{ALICE, BOB, Raw, World, name};
use forebay_backend::{Backend, Dir, Fault, Faulty, Stripes};
use forebay_model::{Access, Change, FileId};
use forebay_server::Draining;
use forebay_testkit::seed;
use forebay_wire::{At, DrainCall, IfExists, RenameMode, Reply, Request, Token, XattrMode};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const SECRET: &[u8] = b"what only Bob may read";
const BOBS_NAME: &str = "name-of-bob";

/// A server before a shared directory, with files of Alice and Bob.
struct Stage {
    world: World,
    dir: TempDir,
    /// Calls until the swap, and what takes which place.
    swap: Arc<Mutex<Option<(u32, PathBuf, PathBuf)>>>,
    backend: Arc<dyn Backend>,
    /// The names of all calls of the back end.
    calls: Arc<Mutex<BTreeSet<String>>>,
}

fn stage(kind: &str) -> Option<Stage> {
    if !forebay_testkit::is_root() {
        forebay_testkit::skip("swaps", "only root can create a file of another user");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let backend = forebay_backend::open(&format!("{kind}:{}", dir.path().display())).unwrap();
    let swap: Arc<Mutex<Option<(u32, PathBuf, PathBuf)>>> = Arc::default();
    let armed = swap.clone();
    let calls: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let made = calls.clone();
    let choose = move |call: &str| -> Option<Fault> {
        made.lock().unwrap().insert(call.to_owned());
        let mut armed = armed.lock().unwrap();
        match armed.take() {
            Some((0, from, to)) => exchange(&from, &to),
            Some((left, from, to)) => *armed = Some((left - 1, from, to)),
            None => {}
        }
        None
    };
    let path = dir.path().to_str().unwrap();
    let served: Arc<dyn Backend> = match kind {
        "dir" => Arc::new(Faulty::new(Dir::open(path).unwrap(), choose)),
        _ => Arc::new(Faulty::new(Stripes::open([path]).unwrap(), choose)),
    };
    let draining = Draining { threshold: 99, ..Draining::default() };
    let world = World::before_with(served, |config| config.drain = draining);
    Some(Stage { world, dir, swap, backend, calls })
}

/// Puts an entry in the place of another one, which may be missing.
fn exchange(from: &Path, to: &Path) {
    let _ = fs::rename(to, to.with_extension("aside"));
    fs::rename(from, to).unwrap();
}

/// Everything about a tree that only its owner may change.
fn state(stage: &Stage, at: &Path) -> Vec<String> {
    let meta = fs::symlink_metadata(at).unwrap();
    let (owner, times) = ((meta.uid(), meta.gid()), (meta.mtime(), meta.mtime_nsec()));
    let mut all = vec![format!("{owner:?} {:o} {times:?}", meta.mode())];
    if meta.is_dir() {
        let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        for path in names {
            all.push(path.file_name().unwrap().to_str().unwrap().to_owned());
            all.extend(state(stage, &path));
        }
        return all;
    }
    let path: Vec<_> =
        at.strip_prefix(stage.dir.path()).unwrap().iter().map(|part| name(part.to_str().unwrap())).collect();
    let mut bytes = vec![0; 100];
    let object = stage.backend.open(&path).unwrap();
    let count = object.read_at(0, &mut bytes).unwrap();
    // Not the number of links: a user who reaches a file may link it.
    all.push(format!("{:?}", String::from_utf8_lossy(&bytes[..count])));
    all
}

impl Stage {
    fn path(&self, text: &str) -> PathBuf {
        self.dir.path().join(text)
    }

    fn acting(&self, uid: u32) -> Raw {
        self.world.control().acting(uid)
    }

    fn drain(&self) {
        drain_with(&mut self.world.control(), DrainCall::Begin { file: None, order: None, last: true });
    }

    fn file(&self, uid: u32, dir: FileId, text: &str, mode: u16, bytes: &[u8]) -> Token {
        let token = self.acting(uid).create(dir, text, mode);
        self.world.data().acting(uid).write(token, At::Offset(0), bytes).unwrap();
        token
    }

    /// Alice's directories with drained files, and Bob's, in which only Bob may do anything.
    fn fill(&self) {
        let mut alice = self.acting(ALICE);
        for text in ["b", "c"] {
            let dir = alice.make_dir(ROOT, text, 0o755);
            for file in ["f", "g", "h"] {
                let token = self.file(ALICE, dir, file, 0o644, b"hers");
                alice.call(Request::Close { token }).unwrap();
            }
            alice.make_dir(dir, "d", 0o755);
        }
        let mut bob = self.acting(BOB);
        let victim = bob.make_dir(ROOT, "victim", 0o700);
        for file in ["f", "g", "new", "moved", BOBS_NAME] {
            let token = self.file(BOB, victim, file, 0o644, SECRET);
            bob.call(Request::Close { token }).unwrap();
        }
        bob.make_dir(victim, "d", 0o755);
        let token = self.file(BOB, ROOT, "private", 0o600, SECRET);
        bob.call(Request::Close { token }).unwrap();
        bob.make_dir(ROOT, "empty", 0o700);
        self.drain();
    }

    fn arm(&self, calls: u32, from: &str, to: &str) {
        *self.swap.lock().unwrap() = Some((calls, self.path(from), self.path(to)));
    }

    /// Where the entry with this number is, below a directory.
    fn find(&self, number: u64, below: &Path) -> Option<PathBuf> {
        let entries = fs::read_dir(below).unwrap().map(|entry| entry.unwrap().path());
        entries.into_iter().find_map(|path| match fs::symlink_metadata(&path).unwrap() {
            meta if meta.ino() == number => Some(path),
            meta if meta.is_dir() => self.find(number, &path),
            _ => None,
        })
    }

    /// Whether the swap has happened.
    fn is_swapped(&self) -> bool {
        self.swap.lock().unwrap().is_none()
    }
}

/// What Alice was shown.
#[derive(Default)]
struct Shown(Vec<String>);

impl Shown {
    fn call(&mut self, raw: &mut Raw, request: Request) -> Option<Reply> {
        let text = format!("{request:?}");
        let reply = raw.call(request).ok();
        self.0.extend(reply.iter().map(|reply| format!("{text}: {reply:?}")));
        reply
    }

    fn walk(&mut self, raw: &mut Raw, path: &str) -> Option<FileId> {
        match self.call(raw, Request::Walk { dir: ROOT, path: path.into(), follow: true }) {
            Some(Reply::Found(attr)) => Some(attr.id),
            _ => None,
        }
    }

    fn read(&mut self, stage: &Stage, raw: &mut Raw, path: &str) {
        let Some(file) = self.walk(raw, path) else { return };
        self.call(raw, Request::GetAttr { file });
        let open = Request::Open { file, access: Access::READ, truncate: false };
        if let Some(Reply::Opened { token, .. }) = self.call(raw, open) {
            self.read_open(stage, token, path);
            self.call(raw, Request::Close { token });
        }
    }

    fn read_open(&mut self, stage: &Stage, token: Token, path: &str) {
        let bytes = stage.world.data().acting(ALICE).read(token, 0, 100).unwrap_or_default();
        self.0.push(format!("read {path}: {}", String::from_utf8_lossy(&bytes)));
    }

    /// Fails if anything of Bob was shown.
    fn check(&self, hidden: &[&str], what: &str) {
        for shown in &self.0 {
            for text in hidden {
                assert!(!shown.contains(text), "{what}: {shown}");
            }
        }
    }
}

type Scene = fn(&Stage, &mut Raw, &mut Shown);

fn lookups(stage: &Stage, raw: &mut Raw, shown: &mut Shown) {
    for text in ["b/f", "b/moved", "b/d"] {
        shown.read(stage, raw, text);
    }
    if let Some(dir) = shown.walk(raw, "b") {
        shown.call(raw, Request::ReadDir { dir, cookie: 0, limit: 99, plus: true });
    }
    shown.read(stage, raw, "b/g");
    shown.read(stage, raw, &format!("b/{BOBS_NAME}"));
}

fn rename(raw: &mut Raw, shown: &mut Shown, from: (FileId, &str), to: (FileId, &str)) {
    let (name, to_name) = (name(from.1), name(to.1));
    let mode = RenameMode::Replace;
    shown.call(raw, Request::Rename { dir: from.0, name, to_dir: to.0, to_name, mode });
}

fn names(stage: &Stage, raw: &mut Raw, shown: &mut Shown) {
    let (Some(b), Some(c)) = (shown.walk(raw, "b"), shown.walk(raw, "c")) else { return };
    rename(raw, shown, (b, "f"), (b, "moved"));
    rename(raw, shown, (c, "f"), (b, "new"));
    rename(raw, shown, (b, "g"), (c, "g"));
    let mode = RenameMode::Exchange;
    shown.call(raw, Request::Rename { dir: b, name: name("h"), to_dir: c, to_name: name("h"), mode });
    if let Some(Reply::Attr(made)) =
        shown.call(raw, Request::MakeDir { dir: b, name: name("made"), mode: 0o755 })
    {
        rename(raw, shown, (c, "g"), (made.id, "f"));
    }
    shown.call(raw, Request::RemoveDir { dir: b, name: name("d") });
    shown.call(raw, Request::Unlink { dir: b, name: name("moved") });
    shown.call(raw, Request::Unlink { dir: c, name: name("h") });
    shown.call(raw, Request::Symlink { dir: b, name: name("l"), target: b"f".to_vec() });
    stage.drain();
}

fn writes(stage: &Stage, raw: &mut Raw, shown: &mut Shown) {
    let Some(b) = shown.walk(raw, "b") else { return };
    let access = Access::BOTH;
    let create =
        Request::Create { dir: b, name: name("new"), mode: 0o666, access, if_exists: IfExists::Open };
    let mut data = stage.world.data().acting(ALICE);
    if let Some(Reply::Opened { token, .. }) = shown.call(raw, create) {
        let _ = data.write(token, At::Offset(0), b"written by Alice");
        shown.read_open(stage, token, "b/new");
    }
    if let Some(file) = shown.walk(raw, "b/f") {
        shown.call(raw, Request::TruncateFile { file, size: 2 });
        let change = Change { mode: Some(0o666), ..Change::default() };
        shown.call(raw, Request::SetAttr { file, change });
        shown.call(raw, Request::Link { file, dir: b, name: name("second") });
        let (value, mode) = (b"hers".to_vec(), XattrMode::Any);
        shown.call(raw, Request::SetXattr { file, name: name("user.kind"), value, mode });
    }
    shown.call(raw, Request::MakeDir { dir: b, name: name("made"), mode: 0o777 });
    let change = Change { mode: Some(0o777), ..Change::default() };
    shown.call(raw, Request::SetAttr { file: b, change });
    stage.drain();
    shown.read(stage, raw, "b/new");
    stage.drain();
}

/// Swaps at every `step`th call of the back end during a scene, beginning with one that depends on the seed. A drain takes
/// seconds where something cannot be drained.
fn sweep(step: u64, kind: &str, scene: Scene, from: &str, to: &str) {
    // Bob's file in Alice's directory may be listed and its attributes shown.
    let hidden = ["what only Bob", BOBS_NAME, "4002"];
    let hidden = if from == "private" { &hidden[..1] } else { &hidden[..2] };
    for calls in ((seed() % step) as u32..).step_by(step as usize) {
        let Some(stage) = stage(kind) else { return };
        stage.fill();
        let before = state(&stage, &stage.path(from));
        // While it is open, no other entry gets its number.
        let held = fs::File::open(stage.path(from)).unwrap();
        let entry = held.metadata().unwrap();
        let mut alice = stage.acting(ALICE);
        stage.arm(calls, from, to);
        let mut shown = Shown::default();
        scene(&stage, &mut alice, &mut shown);
        let what = format!("{kind}: {from} swapped in at {to} before call {calls}");
        if !stage.is_swapped() {
            assert!(calls > 10, "the scene calls the back end {calls} times only");
            return;
        }
        // Alice may move and remove every file in a directory of hers, but she may not remove a directory of Bob's.
        match stage.find(entry.ino(), stage.dir.path()) {
            Some(at) => assert_eq!(state(&stage, &at), before, "{what}"),
            None => assert!(entry.is_file(), "{what}: the directory is gone"),
        }
        shown.check(hidden, &what);
    }
}

#[test]
fn lookups_show_nothing_of_entries_swapped_in_at_any_call() {
    for kind in ["dir", "stripes"] {
        sweep(1, kind, lookups, "victim", "b");
        sweep(1, kind, lookups, "private", "b/f");
    }
}

#[test]
fn renames_and_removals_change_no_directory_swapped_in_at_any_call() {
    for kind in ["dir", "stripes"] {
        sweep(16, kind, names, "victim", "b");
        sweep(16, kind, names, "victim", "c");
    }
}

#[test]
fn renames_and_removals_change_no_entry_swapped_in_at_any_call() {
    for kind in ["dir", "stripes"] {
        sweep(16, kind, names, "empty", "b/made");
        sweep(16, kind, names, "private", "b/f");
        sweep(16, kind, names, "private", "c/h");
    }
    sweep(16, "dir", names, "victim", ".forebay");
}

#[test]
fn writes_and_drains_change_no_directory_swapped_in_at_any_call() {
    for kind in ["dir", "stripes"] {
        sweep(16, kind, writes, "victim", "b");
    }
}

#[test]
fn writes_and_drains_change_no_entry_swapped_in_at_any_call() {
    for kind in ["dir", "stripes"] {
        sweep(16, kind, writes, "private", "b/f");
        sweep(16, kind, writes, "private", "b/new");
    }
    sweep(16, "dir", writes, "victim", "b/made");
    sweep(16, "dir", writes, "empty", "b/made");
}

/// The scenes above are swept over every call of the back end, so a call that none of them makes would escape.
#[test]
fn scenes_make_every_call_of_the_back_end() {
    // Only a bucket is gathered; the attributes of the root are followed all the time.
    let known = include_str!("../../../backend/src/faulty.rs");
    let named = known.split("through(").skip(1).filter_map(|rest| rest.split('"').nth(1));
    let is_name = |call: &&str| call.bytes().all(|letter| letter.is_ascii_lowercase() || letter == b'_');
    let followed = |call: &&str| matches!(*call, "gather" | "root");
    let mut expected: BTreeSet<&str> = named.filter(is_name).filter(|call| !followed(call)).collect();
    expected.insert("write");
    let mut made = BTreeSet::new();
    for scene in [lookups, names, writes] {
        let Some(stage) = stage("dir") else { return };
        stage.fill();
        stage.calls.lock().unwrap().clear();
        scene(&stage, &mut stage.acting(ALICE), &mut Shown::default());
        made.append(&mut stage.calls.lock().unwrap());
    }
    let missing: Vec<&&str> = expected.iter().filter(|call| !made.contains(**call)).collect();
    assert!(expected.len() > 15 && missing.is_empty(), "no scene makes the calls {missing:?}");
}

#[test]
fn open_file_does_not_show_or_change_a_file_of_another_user_that_replaced_it() {
    for kind in ["dir", "stripes"] {
        let Some(stage) = stage(kind) else { return };
        stage.fill();
        let before = state(&stage, &stage.path("private"));
        let (mut alice, mut shown) = (stage.acting(ALICE), Shown::default());
        let file = shown.walk(&mut alice, "b/f").unwrap();
        let open = Request::Open { file, access: Access::BOTH, truncate: false };
        let Some(Reply::Opened { token, .. }) = shown.call(&mut alice, open) else { panic!("not opened") };
        exchange(&stage.path("private"), &stage.path("b/f"));
        shown.call(&mut alice, Request::GetAttr { file });
        shown.walk(&mut alice, "b/f");
        shown.read_open(&stage, token, "b/f");
        let _ = stage.world.data().acting(ALICE).write(token, At::Offset(0), b"changed by Alice");
        shown.call(&mut alice, Request::Truncate { token, size: 3 });
        stage.drain();
        shown.read_open(&stage, token, "b/f");
        assert_eq!(state(&stage, &stage.path("b/f")), before, "{kind}");
        shown.check(&["what only Bob"], kind);
    }
}

#[test]
fn private_directory_swapped_in_for_one_of_the_same_owner_stays_private() {
    let Some(stage) = stage("dir") else { return };
    stage.fill();
    let before = state(&stage, &stage.path("victim"));
    // Bob's directory, open to all, is only in the buffer.
    let mut bob = stage.acting(BOB);
    let open = bob.make_dir(ROOT, "open", 0o777);
    let change = Change { mode: Some(0o777), ..Change::default() };
    bob.call(Request::SetAttr { file: open, change }).unwrap();
    stage.file(ALICE, open, "planted", 0o644, b"hers");
    exchange(&stage.path("victim"), &stage.path("open"));
    let (mut alice, mut shown) = (stage.acting(ALICE), Shown::default());
    shown.read(&stage, &mut alice, "open/f");
    if let Some(dir) = shown.walk(&mut alice, "open") {
        shown.call(&mut alice, Request::ReadDir { dir, cookie: 0, limit: 99, plus: true });
    }
    shown.check(&["what only Bob", BOBS_NAME], "merged");
    stage.drain();
    assert_eq!(state(&stage, &stage.path("open")), before);
}

#[test]
fn file_that_appeared_under_the_new_name_is_not_replaced_by_a_rename() {
    let Some(stage) = stage("dir") else { return };
    stage.fill();
    // A sticky directory of root, where Alice may not remove Bob's files.
    fs::set_permissions(stage.dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    until("the root directory is sticky", || stage.world.control().walk("").unwrap().mode == 0o1777);
    let mut alice = stage.acting(ALICE);
    for calls in 0.. {
        let fresh = stage.path(&format!("fresh{calls}"));
        fs::write(&fresh, SECRET).unwrap();
        chown(&fresh, Some(BOB), Some(BOB)).unwrap();
        let before = state(&stage, &fresh);
        let to = format!("to{calls}");
        let from = format!("from{calls}");
        let token = stage.file(ALICE, ROOT, &from, 0o644, b"hers");
        alice.call(Request::Close { token }).unwrap();
        stage.drain();
        stage.arm(calls, &format!("fresh{calls}"), &to);
        rename(&mut alice, &mut Shown::default(), (ROOT, &from), (ROOT, &to));
        if !stage.is_swapped() {
            break;
        }
        assert_eq!(state(&stage, &stage.path(&to)), before, "call {calls}");
    }
}
