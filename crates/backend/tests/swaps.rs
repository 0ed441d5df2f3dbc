//! A user with write permission for a back-end directory swaps entries there while a call is at work, between its check
//! and its use of a name. What another user owns stays as it is, and none of it is shown.
//!
//! The calls are those of the trait `Backend` that take a path: one that is not attacked here fails a test.

use forebay_backend::{Backend, Creation, Layout, Object, Seen, Slot, Target};
use forebay_model::{Gid, Name, Time, Uid};
use forebay_testkit::{become_user, is_root, skip};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const ALICE: (Uid, Gid) = (Uid(4001), Gid(4001));
const BOB: (Uid, Gid) = (Uid(4002), Gid(4002));
const SECRET: &[u8] = b"what only Bob may read";
const ALICES: &[u8] = b"hers";

/// The name that the calls are about, and the one that Bob's entry has in turn with it.
const NAME: &str = "d/f";
const OTHER: &str = "d/g";
/// Where calls put an entry.
const TO: &str = "d/to";
/// Another link to Bob's file, out of Alice's reach.
const KEPT: &str = "bob/kept";

/// What is swapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Swapped {
    Files,
    Directories,
    /// Directories, while the calls are about entries in them.
    Parents,
}

/// A call: its name in the trait, and what is swapped meanwhile.
type Call = (&'static str, Swapped, fn(&Stage, It));

/// Alice's entry, as a server saw it before it was swapped.
#[derive(Clone, Copy)]
struct It {
    serial: u64,
    /// Of her file in it, if it is a directory whose entries the call is about.
    inner: u64,
    parent: u64,
}

const CALLS: [Call; 19] = [
    ("find_at", Swapped::Parents, |stage, it| {
        for name in ["d/f/hers", "d/f/bobs"] {
            let path = path(name);
            let found = stage.backend.find_at(Slot { path: &path, dir: it.serial });
            assert!(found.ok().flatten().is_none_or(|found| found.uid == ALICE.0), "shows {name}");
        }
    }),
    ("list_of", Swapped::Parents, |stage, it| {
        let mut names = Vec::new();
        let dir = Seen { path: &path(NAME), serial: it.serial, dir: 0 };
        let _ = stage.backend.list_of(dir, &mut |name| names.push(name));
        assert!(!names.iter().any(|name| name.as_bytes() == b"bobs"), "lists Bob's directory");
    }),
    ("open", Swapped::Files, |stage, it| {
        stage.backend.open(&path(NAME)).into_iter().for_each(|object| check_shown(&*object, it.serial));
    }),
    ("open", Swapped::Parents, |stage, it| {
        stage.backend.open(&path("d/f/hers")).into_iter().for_each(|object| check_shown(&*object, it.inner));
    }),
    ("layout", Swapped::Files, |stage, _| drop(stage.backend.layout(&path(NAME)))),
    ("create_at", Swapped::Parents, |stage, it| {
        let creation = Creation { owner: ALICE, mode: 0o666, stripes: None };
        drop(stage.backend.create_at(Slot { path: &path("d/f/new"), dir: it.serial }, &creation));
    }),
    ("create_on_at", Swapped::Parents, |stage, it| {
        let creation = Creation { owner: ALICE, mode: 0o666, stripes: None };
        let layout = Layout { targets: vec![0], stripe: 1 << 20 };
        let slot = Slot { path: &path("d/f/new"), dir: it.serial };
        drop(stage.backend.create_on_at(slot, &creation, &layout));
    }),
    ("open_to_write", Swapped::Files, |stage, it| {
        let opened = stage.backend.open_to_write(&path(NAME)).ok();
        // As the server does: writes only to the file that it saw.
        let own = opened.filter(|object| object.version().is_ok_and(|version| version.serial == it.serial));
        own.into_iter().for_each(|object| object.write_at(0, &[ALICES]).unwrap());
    }),
    ("symlink_at", Swapped::Parents, |stage, it| {
        drop(stage.backend.symlink_at(Slot { path: &path("d/f/new"), dir: it.serial }, b"/etc"));
    }),
    ("set_attr_of", Swapped::Files, set_attr),
    ("set_attr_of", Swapped::Directories, set_attr),
    ("make_dir_at", Swapped::Parents, |stage, it| {
        drop(stage.backend.make_dir_at(Slot { path: &path("d/f/new"), dir: it.serial }, ALICE, 0o777));
    }),
    ("unlink_of", Swapped::Files, |stage, it| drop(stage.backend.unlink_of(it.seen(&path(NAME))))),
    ("unlink_of", Swapped::Parents, |stage, it| {
        drop(stage.backend.unlink_of(Seen { path: &path("d/f/hers"), serial: it.inner, dir: it.serial }));
    }),
    ("remove_dir_of", Swapped::Directories, |stage, it| {
        drop(stage.backend.remove_dir_of(it.seen(&path(NAME))));
    }),
    ("rename_of", Swapped::Files, |stage, it| {
        let to = path(TO);
        let to = Slot { path: &to, dir: it.parent };
        drop(stage.backend.rename_of(it.seen(&path(NAME)), to, Target::Nothing));
    }),
    ("truncate_of", Swapped::Files, |stage, it| drop(stage.backend.truncate_of(it.seen(&path(NAME)), 2))),
    ("link_of", Swapped::Files, |stage, it| {
        let to = path(TO);
        drop(stage.backend.link_of(it.seen(&path(NAME)), Slot { path: &to, dir: it.parent }));
    }),
    ("set_xattr_of", Swapped::Files, |stage, it| {
        let name = Name::new("user.of-alice").unwrap();
        drop(stage.backend.set_xattr_of(it.seen(&path(NAME)), &name, b"x"));
    }),
];

fn set_attr(stage: &Stage, it: It) {
    let mtime = Time { secs: 7, nanos: 0 };
    drop(stage.backend.set_attr_of(it.seen(&path(NAME)), ALICE, 0o777, mtime));
}

/// A file that is the one that was seen shows nothing but its bytes.
fn check_shown(object: &dyn Object, seen: u64) {
    if object.version().is_ok_and(|version| version.serial == seen) {
        let mut bytes = vec![0; 100];
        let count = object.read_at(0, &mut bytes).unwrap_or(0);
        assert!(ALICES.starts_with(&bytes[..count]), "shows {:?}", String::from_utf8_lossy(&bytes[..count]));
    }
}

fn path(text: &str) -> Vec<Name> {
    text.split('/').map(|part| Name::new(part).unwrap()).collect()
}

impl It {
    fn seen(self, path: &[Name]) -> Seen<'_> {
        Seen { path, serial: self.serial, dir: self.parent }
    }
}

/// A directory that Alice may write to, with an entry of hers and one of Bob's.
struct Stage {
    dir: TempDir,
    backend: Arc<dyn Backend>,
    swapped: Swapped,
    /// Held while nothing may be swapped.
    still: Mutex<()>,
    swaps: AtomicU64,
}

impl Stage {
    fn new(kind: &str, swapped: Swapped) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let backend = forebay_backend::open(&format!("{kind}:{}", dir.path().display())).unwrap();
        backend.make_dir(&path("d"), ALICE, 0o777).unwrap();
        backend.make_dir(&path("bob"), BOB, 0o700).unwrap();
        let stage = Stage { dir, backend, swapped, still: Mutex::default(), swaps: AtomicU64::new(0) };
        stage.make(OTHER, BOB);
        if swapped == Swapped::Files {
            fs::hard_link(stage.at(OTHER), stage.at(KEPT)).unwrap();
        }
        stage
    }

    fn at(&self, text: &str) -> PathBuf {
        self.dir.path().join(text)
    }

    /// Makes an entry of a user; Bob's is private.
    fn make(&self, text: &str, owner: (Uid, Gid)) {
        let mode = if owner == BOB { 0o700 } else { 0o755 };
        match self.swapped {
            Swapped::Files => self.file(text, owner),
            Swapped::Directories | Swapped::Parents => {
                self.backend.make_dir(&path(text), owner, mode).unwrap();
            }
        }
        if owner == BOB && self.swapped != Swapped::Files {
            self.file(&format!("{text}/bobs"), BOB);
        }
    }

    fn file(&self, text: &str, owner: (Uid, Gid)) {
        let (mode, bytes) = if owner == BOB { (0o600, SECRET) } else { (0o644, ALICES) };
        let creation = Creation { owner, mode, stripes: None };
        self.backend.create(&path(text), &creation).unwrap().write_at(0, &[bytes]).unwrap();
    }

    /// Where an entry of this user is now.
    fn place_of(&self, owner: (Uid, Gid)) -> Option<&'static str> {
        let is_theirs =
            |place: &&str| self.at(place).symlink_metadata().is_ok_and(|meta| meta.uid() == owner.0.0);
        [NAME, OTHER, TO, KEPT].into_iter().find(is_theirs)
    }

    /// Everything about Bob's entry but its number of links and its names, which Alice may change.
    fn state(&self) -> Vec<String> {
        let _still = self.still.lock().unwrap();
        let look = |place: &PathBuf| {
            let meta = place.symlink_metadata().unwrap();
            let attributes = rustix::fs::listxattr(place, &mut [0_u8; 1000]).unwrap_or(0);
            let times = (meta.mtime(), meta.mtime_nsec());
            format!("{} {} {:o} {} {times:?} {attributes}", meta.uid(), meta.gid(), meta.mode(), meta.size())
        };
        let place = self.at(self.place_of(BOB).expect("Bob's entry is there"));
        let mut all = vec![look(&place)];
        if self.swapped != Swapped::Files {
            all.extend(fs::read_dir(&place).unwrap().map(|entry| look(&entry.unwrap().path())));
        }
        all
    }

    /// Puts an entry of each user under the two names, and returns Alice's as a server sees it.
    fn prepare(&self) -> It {
        let _still = self.still.lock().unwrap();
        let _ = fs::remove_file(self.at("d/f/new"));
        let _ = fs::remove_file(self.at("d/g/new"));
        let _ = fs::remove_dir(self.at("d/f/new"));
        let _ = fs::remove_dir(self.at("d/g/new"));
        match self.place_of(BOB) {
            // A second link to it, or the entry itself.
            Some(TO) => fs::rename(self.at(TO), self.at(self.free())).unwrap(),
            Some(KEPT) => fs::hard_link(self.at(KEPT), self.at(self.free())).unwrap(),
            _ => {}
        }
        let _ = fs::remove_file(self.at(TO));
        let place = self.place_of(ALICE).unwrap_or_else(|| {
            let free = self.free();
            self.make(free, ALICE);
            free
        });
        let serial = |text: &str| self.backend.find(&path(text)).unwrap().map(|found| found.version.serial);
        let inner = format!("{place}/hers");
        if self.swapped == Swapped::Parents && serial(&inner).is_none() {
            self.file(&inner, ALICE);
        }
        let own = serial(place).unwrap();
        It { serial: own, inner: serial(&inner).unwrap_or(own), parent: serial("d").unwrap() }
    }

    fn free(&self) -> &'static str {
        let is_free = |place: &&str| self.at(place).symlink_metadata().is_err();
        [NAME, OTHER].into_iter().find(is_free).expect("a free name")
    }

    /// Exchanges both entries all the time, as Alice.
    fn swap(&self, stop: &AtomicBool) {
        become_user(ALICE.0.0);
        let (one, other) = (self.at(NAME), self.at(OTHER));
        while !stop.load(Ordering::Relaxed) {
            let _still = self.still.lock().unwrap();
            // Fails while one of both is gone.
            if renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_ok() {
                self.swaps.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Upper limit for the first swap.
const PATIENCE: Duration = Duration::from_secs(60);

/// For how long each call is attacked.
fn span() -> Duration {
    let soak = std::env::var("FOREBAY_SOAK_SECONDS").ok().and_then(|text| text.parse::<u32>().ok());
    soak.map_or(Duration::from_millis(150), |seconds| {
        Duration::from_secs(seconds.into()) / 2 / CALLS.len() as u32
    })
}

#[test]
fn random_swaps_during_any_call_change_and_show_nothing_of_another_user() {
    let test = "random_swaps_during_any_call_change_and_show_nothing_of_another_user";
    if !is_root() {
        return skip(test, "only root can make files of another user");
    }
    for kind in ["dir", "stripes"] {
        for (call, swapped, make) in CALLS {
            let stage = Stage::new(kind, swapped);
            stage.prepare();
            let (before, stop) = (stage.state(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let swapping = scope.spawn(|| stage.swap(&stop));
                let begin = Instant::now();
                let attacked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    // On a busy machine the other thread may get no turn for a while.
                    let none_yet = || stage.swaps.load(Ordering::Relaxed) == 0 && begin.elapsed() < PATIENCE;
                    while begin.elapsed() < span() || none_yet() {
                        let it = stage.prepare();
                        make(&stage, it);
                        assert_eq!(stage.state(), before, "{kind}: {call}, {swapped:?} swapped");
                    }
                }));
                stop.store(true, Ordering::Relaxed);
                swapping.join().unwrap();
                assert!(stage.swaps.load(Ordering::Relaxed) > 0, "{kind}: {call}: nothing was swapped");
                attacked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
        }
    }
}

/// The calls of the trait that take a path and are not wrappers of another one.
fn calls_with_a_path() -> BTreeSet<&'static str> {
    let source = include_str!("../src/lib.rs");
    let (_, within) = source.split_once("pub trait Backend").expect("the trait");
    let (within, _) = within.split_once("\n}\n").expect("its end");
    let calls = within.split("\n    fn ").skip(1).filter(|call| {
        let head = call.split([';', '{']).next().unwrap_or_default();
        let takes = ["Path<", "Slot<", "Seen<"].iter().any(|kind| head.contains(kind));
        takes && !call.contains("::any(")
    });
    calls.map(|call| call.split('(').next().expect("a name")).collect()
}

#[test]
fn every_call_with_a_path_is_attacked() {
    let attacked: BTreeSet<&str> = CALLS.iter().map(|(call, ..)| *call).collect();
    assert_eq!(attacked, calls_with_a_path());
}
