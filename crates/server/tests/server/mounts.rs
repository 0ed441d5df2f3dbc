//! A file system mounted below the back end's root disappears: names stay, and nothing is written to the bare mount
//! point.

use crate::drain::{ROOT, before, clean, drain};
use crate::raw::{ALICE, name};
use forebay_backend::{Dir, Faulty};
use forebay_model::{Access, Error, ErrorKind};
use forebay_server::Draining;
use forebay_wire::{At, IfExists, Request};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

fn run(program: &str, args: &[&str], at: &Path) -> bool {
    Command::new(program).args(args).arg(at).output().is_ok_and(|output| output.status.success())
}

/// A directory with a mount point, and the directory that is mounted on it.
struct Mounted {
    dir: TempDir,
    disk: TempDir,
}

impl Mounted {
    fn new() -> Option<Mounted> {
        let open = || {
            let dir = tempfile::tempdir().unwrap();
            fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
            dir
        };
        let mounted = Mounted { dir: open(), disk: open() };
        fs::create_dir(mounted.point()).unwrap();
        if !mounted.mount() {
            forebay_testkit::skip("a mount that goes away", "mounting is not permitted");
            return None;
        }
        Some(mounted)
    }

    fn point(&self) -> PathBuf {
        self.dir.path().join("sub")
    }

    fn mount(&self) -> bool {
        run("mount", &["--bind", self.disk.path().to_str().unwrap()], &self.point())
    }

    fn unmount(&self) {
        assert!(run("umount", &["-l"], &self.point()), "unmounted");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It may be unmounted already.
        let _ = run("umount", &["-l"], &self.point());
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn mount_below_the_back_end_root_that_goes_away_is_an_error() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.disk.path().join("deep")).unwrap();
    fs::write(mounted.disk.path().join("deep/old"), b"old").unwrap();
    let draining = Draining { threshold: 99, ..Draining::default() };
    let mut world = before(Arc::new(Dir::open(mounted.dir.path()).unwrap()), draining);
    let mut root = world.control();
    let deep = root.walk("sub/deep").unwrap().id;
    let old = root.walk("sub/deep/old").unwrap().id;
    let sub = root.walk("sub").unwrap().id;
    let pending = world.control().acting(ALICE).create(sub, "pending", 0o644);
    world.data().acting(ALICE).write(pending, At::Offset(0), b"new").unwrap();

    mounted.unmount();
    let gone = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("mounted at /sub"), "{error}");
    };
    for is_new in [false, true] {
        let mut root = world.control();
        gone(root.walk("sub/deep/old").unwrap_err());
        gone(root.walk("sub/never-seen").unwrap_err());
        gone(root.call(Request::ReadDir { dir: sub, cookie: 0, limit: 9, plus: false }).unwrap_err());
        gone(root.call(Request::ReadDir { dir: deep, cookie: 0, limit: 9, plus: false }).unwrap_err());
        gone(root.call(Request::Open { file: old, access: Access::READ, truncate: false }).unwrap_err());
        gone(root.call(Request::Unlink { dir: deep, name: name("old") }).unwrap_err());
        let (access, if_exists) = (Access::BOTH, IfExists::Refuse);
        let create = Request::Create { dir: sub, name: name("f"), mode: 0o644, access, if_exists };
        gone(root.call(create).unwrap_err());
        let report = drain(&mut root, None);
        let found = report.status.failing.iter().find(|failing| failing.path == "/sub/pending");
        assert!(found.is_some_and(|failing| failing.why.contains("mounted at /sub")), "{report:?}");
        assert_eq!(names(&mounted.point()), [""; 0], "nothing is on the bare mount point");
        // Files outside of the mount are served.
        world.control().acting(ALICE).create(ROOT, &format!("beside.{is_new}"), 0o644);
        if !is_new {
            world.restart();
        }
    }
    // Another file system on the same mount point does not count as the old one.
    if run("mount", &["-t", "tmpfs", "-o", "size=1m", "forebay-test"], &mounted.point()) {
        gone(world.control().walk("sub/deep/old").unwrap_err());
        mounted.unmount();
    }

    assert!(mounted.mount());
    let mut root = world.control();
    assert_eq!(root.walk("sub/deep/old").unwrap().id, old, "the same file is back");
    clean(&drain(&mut root, None));
    assert_eq!(fs::read(mounted.disk.path().join("pending")).unwrap(), b"new");
    assert_eq!(names(mounted.disk.path()), ["deep", "pending"]);
}

/// The path of the file is known, then the file system goes away, then the file is removed.
#[test]
fn unlink_during_an_unmount_removes_nothing() {
    for (below, file) in [("sub", "sub/old"), ("sub/deep", "sub/deep/old")] {
        let Some(mounted) = Mounted::new() else { return };
        fs::create_dir(mounted.disk.path().join("deep")).unwrap();
        fs::write(mounted.disk.path().join(file.strip_prefix("sub/").unwrap()), b"old").unwrap();
        let (dir, mounted) = (mounted.dir.path().to_owned(), Arc::new(Mutex::new(mounted)));
        let (going, armed) = (mounted.clone(), Arc::new(AtomicBool::new(false)));
        let goes = armed.clone();
        let backend = Faulty::new(Dir::open(&dir).unwrap(), move |call| {
            if call == "unlink" && goes.swap(false, Ordering::Relaxed) {
                going.lock().unwrap().unmount();
            }
            None
        });
        let world = before(Arc::new(backend), Draining { threshold: 99, ..Draining::default() });
        let mut root = world.control();
        let (dir, old) = (root.walk(below).unwrap().id, root.walk(file).unwrap().id);
        armed.store(true, Ordering::Relaxed);
        let unlinked = root.call(Request::Unlink { dir, name: name("old") });
        assert!(!armed.load(Ordering::Relaxed), "the back end was asked");
        assert!(unlinked.is_err(), "{file} was removed from a file system that is not mounted");
        let mounted = mounted.lock().unwrap();
        assert!(mounted.mount());
        assert_eq!(root.walk(file).unwrap().id, old);
        root.call(Request::Unlink { dir, name: name("old") }).unwrap();
        assert_eq!(names(mounted.disk.path()), ["deep"]);
        assert_eq!(names(&mounted.disk.path().join("deep")), [""; 0]);
    }
}
