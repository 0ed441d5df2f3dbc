//! A user with write permission in a back-end directory swaps in a file of another user at the worst moment: that file
//! stays unchanged, whatever a server that runs as root is about to do under that name.

use crate::drain::{ROOT, clean, drain, drain_with};
use crate::raw::{ALICE, BOB, Raw, World, name};
use forebay_backend::{Dir, Fault, Faulty};
use forebay_model::FileId;
use forebay_server::Draining;
use forebay_wire::{At, DrainCall, Request, XattrMode};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A call of the back end, and the file that replaces another one just before it.
type Swap = Option<(&'static str, PathBuf, PathBuf)>;

struct Stage {
    world: World,
    dir: TempDir,
    swap: Arc<Mutex<Swap>>,
}

fn stage() -> Option<Stage> {
    if !forebay_testkit::is_root() {
        forebay_testkit::skip("swapped", "only root can create a file of another user");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let swap: Arc<Mutex<Swap>> = Arc::default();
    let armed = swap.clone();
    let choose = move |call: &str| -> Option<Fault> {
        let mut armed = armed.lock().unwrap();
        if armed.as_ref().is_some_and(|(moment, ..)| *moment == call)
            && let Some((_, from, to)) = armed.take()
        {
            let aside = to.with_extension("aside");
            // The target may not exist yet.
            let _ = fs::rename(&to, &aside);
            fs::rename(&from, &to).unwrap();
        }
        None
    };
    let backend = Faulty::new(Dir::open(dir.path()).unwrap(), choose);
    let draining = Draining { threshold: 99, ..Draining::default() };
    let world = World::before_with(Arc::new(backend), |config| config.drain = draining);
    Some(Stage { world, dir, swap })
}

/// Everything that only Bob may change.
#[derive(PartialEq, Eq, Debug)]
struct State {
    owner: (u32, u32),
    mode: u32,
    times: (i64, i64),
    links: u64,
    /// The length and the first bytes.
    bytes: (usize, String),
    names: Vec<PathBuf>,
    attributes: usize,
}

fn state(path: &Path) -> State {
    let meta = fs::symlink_metadata(path).unwrap();
    let bytes = if meta.is_dir() { Vec::new() } else { fs::read(path).unwrap() };
    let names =
        fs::read_dir(path).map(|list| list.map(|entry| entry.unwrap().path().file_name().unwrap().into()));
    State {
        owner: (meta.uid(), meta.gid()),
        mode: meta.mode(),
        times: (meta.mtime(), meta.mtime_nsec()),
        links: if meta.is_dir() { 0 } else { meta.nlink() },
        bytes: (bytes.len(), String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned()),
        names: names.map_or(Vec::new(), Iterator::collect),
        attributes: rustix::fs::listxattr(path, &mut [0_u8; 4096]).unwrap_or(0),
    }
}

impl Stage {
    fn path(&self, text: &str) -> PathBuf {
        self.dir.path().join(text)
    }

    /// A file of Bob that takes the given place at this call.
    fn bobs_file(&self, moment: &'static str, place: &str) -> State {
        let theirs = self.path("theirs");
        fs::write(&theirs, b"what only Bob may read").unwrap();
        self.arm(&theirs, 0o600, moment, place)
    }

    /// A directory of Bob with a file.
    fn bobs_dir(&self, moment: &'static str, place: &str) -> State {
        let theirs = self.path("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("inner"), b"his").unwrap();
        self.arm(&theirs, 0o700, moment, place)
    }

    fn arm(&self, theirs: &Path, mode: u32, moment: &'static str, place: &str) -> State {
        chown(theirs, Some(BOB), Some(BOB)).unwrap();
        fs::set_permissions(theirs, PermissionsExt::from_mode(mode)).unwrap();
        let state = state(theirs);
        *self.swap.lock().unwrap() = Some((moment, theirs.to_owned(), self.path(place)));
        state
    }

    /// Whether the swap has happened, that is, the call was made.
    fn is_swapped(&self) -> bool {
        self.swap.lock().unwrap().is_none()
    }

    fn alice(&self) -> Raw {
        self.world.control().acting(ALICE)
    }

    /// A file of Alice with buffered bytes.
    fn alices_file(&self, dir: FileId, text: &str) -> forebay_wire::Token {
        let token = self.alice().create(dir, text, 0o644);
        self.world.data().acting(ALICE).write(token, At::Offset(0), &[7; 50_000]).unwrap();
        token
    }
}

#[test]
fn drain_does_not_change_a_file_that_was_swapped_in() {
    for moment in [
        "create",
        "open_to_write",
        "truncate",
        "write",
        "sync",
        "set_attr",
        "set_xattr",
        "link",
        "layout",
        "version",
    ] {
        let Some(stage) = stage() else { return };
        let token = stage.alices_file(ROOT, "f");
        let mut root = stage.world.control();
        let (attribute, mode) = (name("user.kind"), XattrMode::Any);
        root.call(Request::SetXattr { file: token.file, name: attribute, value: b"x".to_vec(), mode })
            .unwrap();
        root.call(Request::Link { file: token.file, dir: ROOT, name: name("second") }).unwrap();
        let before = stage.bobs_file(moment, "f");
        drain_with(&mut root, DrainCall::Begin { file: None, order: None, last: true });
        assert!(stage.is_swapped(), "{moment} was not called");
        assert_eq!(state(&stage.path("f")), before, "at {moment}");
    }
}

#[test]
fn drain_does_not_change_a_directory_that_was_swapped_in() {
    for moment in ["make_dir", "set_attr", "find"] {
        let Some(stage) = stage() else { return };
        let mut root = stage.world.control();
        let dir = stage.alice().make_dir(ROOT, "d", 0o755);
        let before = stage.bobs_dir(moment, "d");
        drain(&mut root, Some(dir));
        assert!(stage.is_swapped(), "{moment} was not called");
        assert_eq!(state(&stage.path("d")), before, "at {moment}");
    }
}

#[test]
fn foreign_directory_in_the_back_end_is_neither_adopted_nor_filled() {
    let Some(stage) = stage() else { return };
    let mut root = stage.world.control();
    let dir = stage.alice().make_dir(ROOT, "d", 0o755);
    stage.alices_file(dir, "planted");
    let before = stage.bobs_dir("never", "d");
    fs::rename(stage.path("theirs"), stage.path("d")).unwrap();
    for _ in 0..2 {
        let report = drain(&mut root, None);
        assert!(report.status.failing.iter().any(|failing| failing.why.contains("another /d")), "{report:?}");
        assert_eq!(state(&stage.path("d")), before);
        assert!(root.walk("d/planted").is_ok(), "kept in the buffer");
    }
    // When the foreign directory is gone, everything drains.
    fs::rename(stage.path("d"), stage.path("theirs")).unwrap();
    clean(&drain(&mut root, None));
    assert_eq!(state(&stage.path("theirs")), before);
    assert_eq!(state(&stage.path("d/planted")).owner, (ALICE, ALICE));
    // Nor one that replaces the drained directory.
    stage.alices_file(dir, "more");
    fs::rename(stage.path("d"), stage.path("d.aside")).unwrap();
    fs::rename(stage.path("theirs"), stage.path("d")).unwrap();
    let report = drain(&mut root, None);
    assert!(!report.status.failing.is_empty(), "{report:?}");
    assert_eq!(state(&stage.path("d")), before);
}

#[test]
fn nothing_is_created_in_a_directory_that_was_swapped_in() {
    for moment in ["create", "make_dir", "symlink", "link", "find"] {
        let Some(stage) = stage() else { return };
        let (mut root, mut alice) = (stage.world.control(), stage.alice());
        let dir = alice.make_dir(ROOT, "d", 0o755);
        clean(&drain(&mut root, None));
        let file = stage.alices_file(dir, "planted").file;
        alice.make_dir(dir, "inner.planted", 0o755);
        alice.call(Request::Symlink { dir, name: name("link.planted"), target: b"x".to_vec() }).unwrap();
        alice.call(Request::Link { file, dir, name: name("second.planted") }).unwrap();
        let before = stage.bobs_dir(moment, "d");
        drain_with(&mut root, DrainCall::Begin { file: None, order: None, last: true });
        assert!(stage.is_swapped(), "{moment} was not called");
        assert_eq!(state(&stage.path("d")), before, "at {moment}");
    }
}

#[test]
fn requests_do_not_change_a_file_that_was_swapped_in() {
    type MakeRequest = fn(FileId) -> Request;
    let requests: [(&str, MakeRequest); 3] = [
        ("unlink", |_| Request::Unlink { dir: ROOT, name: name("f") }),
        ("rename", |_| Request::Rename {
            dir: ROOT,
            name: name("f"),
            to_dir: ROOT,
            to_name: name("g"),
            mode: forebay_wire::RenameMode::Replace,
        }),
        ("truncate", |file| Request::TruncateFile { file, size: 3 }),
    ];
    for (moment, request) in requests {
        let Some(stage) = stage() else { return };
        let token = stage.alices_file(ROOT, "f");
        clean(&drain(&mut stage.world.control(), None));
        stage.alice().call(Request::Close { token }).unwrap();
        let before = stage.bobs_file(moment, "f");
        // The reply does not matter: the original file is gone.
        let _ = stage.alice().call(request(token.file));
        assert!(stage.is_swapped(), "{moment} was not called");
        assert_eq!(state(&stage.path("f")), before, "at {moment}");
    }
}
