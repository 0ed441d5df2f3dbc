//! Back ends in trouble: full, read-only, too narrow for a name, slow. Nothing is lost, and whoever looks is told what is
//! wrong with whose file.

use crate::drain::{PATIENCE, ROOT, before, clean, create, drain, open, path, until};
use crate::raw::{ALICE, Raw, World, name, pattern};
use crate::store::Bucket;
use forebay_backend::{Backend, Dir, Fault, Faulty, Memory, Stripes};
use forebay_model::{Bytes, ErrorKind, FileId};
use forebay_server::{Draining, Server};
use forebay_wire::{At, DrainReport, RenameMode, Request, Token};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A file system in memory of a size, mounted.
struct Small {
    dir: TempDir,
}

impl Small {
    /// One with so many bytes; nothing, and a note that says so, where nothing can be mounted.
    fn new(bytes: usize) -> Option<Small> {
        let small = Small { dir: tempfile::tempdir().expect("a directory") };
        let options = format!("size={bytes},mode=755");
        match mount(&["-t", "tmpfs", "-o", &options, "forebay-test"], small.dir.path()) {
            true => Some(small),
            false => {
                forebay_dice::skip("a back end that is really full", "nothing can be mounted here");
                None
            }
        }
    }

    fn change(&self, options: &str) {
        assert!(mount(&["-o", &format!("remount,{options}")], self.dir.path()), "remounted: {options}");
    }

    fn path(&self) -> String {
        self.dir.path().display().to_string()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // What was never mounted need not be unmounted.
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).output();
    }
}

fn mount(options: &[&str], at: &Path) -> bool {
    Command::new("mount").args(options).arg(at).output().is_ok_and(|output| output.status.success())
}

fn lazy() -> Draining {
    Draining { age: PATIENCE, threshold: 99, ..Draining::default() }
}

/// Alice's file in the root, which everybody may write to.
fn written(world: &World, text: &str, bytes: &[u8]) -> Token {
    let token = world.control().acting(ALICE).create(ROOT, text, 0o640);
    let mut data = world.data().acting(ALICE);
    for (number, piece) in bytes.chunks(MIB).enumerate() {
        data.write(token, At::Offset((number * MIB) as u64), piece).expect("there is room here");
    }
    token
}

/// What is said of the one thing that does not leave.
fn said(report: &DrainReport) -> (&str, u32, &str) {
    assert!(report.ticket.is_some_and(|ticket| ticket.failed == 1), "{report:?}");
    let failing = report.status.failing.first().expect("something does not leave");
    (failing.path.as_str(), failing.user.0, failing.why.as_str())
}

fn goes_well(control: &mut Raw) {
    until("it is tried again", || drain(control, None).ticket.is_some_and(|ticket| ticket.failed == 0));
    clean(&drain(control, None));
}

#[test]
fn a_back_end_without_room_says_whose_file_does_not_fit_and_takes_it_when_it_has_room() {
    let Some(small) = Small::new(3 * MIB) else { return };
    let backend = Arc::new(Dir::open(small.path()).unwrap());
    let world = before(backend.clone(), lazy());
    let mut control = world.control();
    let bytes = pattern(7, 6 * MIB);
    let token = written(&world, "big", &bytes);
    let failed = drain(&mut control, None);
    let (what, user, why) = said(&failed);
    assert_eq!((what, user), ("/big", ALICE), "{failed:?}");
    assert!(why.contains("No space left") && why.contains(&small.path()), "{why}");
    for (number, piece) in bytes.chunks(MIB).enumerate() {
        let back = world.data().acting(ALICE).read(token, (number * MIB) as u64, 1 << 20).unwrap();
        assert!(back == piece, "nothing is lost");
    }
    small.change("size=32m");
    goes_well(&mut control);
    let found = backend.find(&path("big")).unwrap().expect("it is there");
    assert_eq!((found.version.size, found.mode, found.uid.0), (6 << 20, 0o640, ALICE));
    assert!(std::fs::read(format!("{}/big", small.path())).unwrap() == bytes);
}

#[test]
fn a_back_end_that_nobody_may_write_to_is_told_and_tried_again() {
    let Some(small) = Small::new(16 * MIB) else { return };
    let world = before(Arc::new(Dir::open(small.path()).unwrap()), lazy());
    let mut control = world.control();
    let bytes = pattern(8, MIB);
    let token = written(&world, "f", &bytes);
    small.change("ro");
    let failed = drain(&mut control, None);
    let (what, user, why) = said(&failed);
    assert_eq!((what, user), ("/f", ALICE), "{failed:?}");
    assert!(why.contains("Read-only file system"), "{why}");
    assert!(world.data().acting(ALICE).read(token, 0, 1 << 20).unwrap() == bytes, "nothing is lost");
    small.change("rw");
    goes_well(&mut control);
    assert!(std::fs::read(format!("{}/f", small.path())).unwrap() == bytes);
}

#[test]
fn a_target_that_fills_up_keeps_its_files_here_and_new_ones_go_elsewhere() {
    let Some(small) = Small::new(2 * MIB) else { return };
    let large = tempfile::tempdir().unwrap();
    let dirs = format!("stripes:{},{}", large.path().display(), small.path());
    let backend = forebay_backend::open(&dirs).unwrap();
    let world = World::before_with(backend.clone(), |config| {
        config.drain = lazy();
        config.capacity = Bytes::mib(64);
    });
    let mut control = world.control();
    let files: Vec<Vec<u8>> = (0..4).map(|file| pattern(file, 3 * MIB)).collect();
    for (file, bytes) in files.iter().enumerate() {
        written(&world, &format!("f{file}"), bytes);
    }
    let failed = drain(&mut control, None);
    // One or two: whatever is made after the first has failed lies elsewhere.
    let stay = failed.ticket.expect("a ticket").failed as usize;
    assert!((1..=2).contains(&stay) && failed.status.failing.len() == stay, "{failed:?}");
    for failing in &failed.status.failing {
        assert!(failing.why.contains("No space left") && failing.why.contains(&small.path()), "{failing:?}");
    }
    let more = pattern(9, 3 * MIB);
    for file in 4..6 {
        let token = written(&world, &format!("f{file}"), &more);
        clean_but_for(&drain(&mut control, Some(token.file)), stay);
        assert_eq!(backend.layout(&path(&format!("f{file}"))).unwrap().targets, [0]);
    }
    small.change("size=64m");
    goes_well(&mut control);
    for (file, bytes) in files.iter().chain([&more, &more]).enumerate() {
        let mut back = vec![0; bytes.len() + 1];
        let count = backend.open(&path(&format!("f{file}"))).unwrap().read_at(0, &mut back).unwrap();
        assert!(back[..count] == bytes[..], "f{file}");
    }
}

/// What was asked for is out, though so many others still are not.
fn clean_but_for(report: &DrainReport, others: usize) {
    assert!(report.ticket.is_some_and(|ticket| ticket.failed == 0), "{report:?}");
    assert_eq!(report.status.failing.len(), others, "{report:?}");
}

#[test]
fn a_quota_is_told_with_path_and_user() {
    let (memory, broken) = (Memory::default(), Arc::new(AtomicBool::new(true)));
    let fails = broken.clone();
    let faulty = Faulty::new(memory.clone(), move |call| {
        (call == "write" && fails.load(Ordering::Relaxed)).then_some(Fault::Quota)
    });
    let world = before(Arc::new(faulty), lazy());
    let mut control = world.control();
    let bytes = pattern(3, 300_000);
    written(&world, "mine", &bytes);
    let failed = drain(&mut control, None);
    let (what, user, why) = said(&failed);
    assert_eq!((what, user), ("/mine", ALICE), "{failed:?}");
    assert!(why.contains("target memory") && why.contains("Disk quota exceeded"), "{why}");
    broken.store(false, Ordering::Relaxed);
    goes_well(&mut control);
    assert!(memory.bytes(&path("mine")).unwrap() == bytes);
}

#[test]
fn names_that_the_back_end_cannot_hold_keep_nobody_else_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let world = before(Arc::new(Dir::open(dir.path()).unwrap()), lazy());
    let (mut control, mut data) = (world.control(), world.data());
    // Longer than any path that the kernel takes, though no name is.
    let mut deep: FileId = ROOT;
    for _ in 0..20 {
        deep = control.make_dir(deep, &"d".repeat(250), 0o755);
    }
    let lost = create(&mut control, deep, "unreachable");
    data.write(lost, At::Offset(0), b"kept").unwrap();
    let fine = create(&mut control, ROOT, "fine");
    data.write(fine, At::Offset(0), b"out").unwrap();
    let failed = drain(&mut control, None);
    assert!(failed.ticket.is_some_and(|ticket| ticket.failed > 0), "{failed:?}");
    let failing = failed.status.failing.iter().find(|failing| failing.why.contains("too long"));
    let failing = failing.unwrap_or_else(|| panic!("somebody is told: {failed:?}"));
    assert!(failing.path.contains("ddd"), "{failing:?}");
    assert_eq!(std::fs::read(dir.path().join("fine")).unwrap(), b"out");
    assert_eq!(data.read(lost, 0, 10).unwrap(), b"kept");
    let (from, to, mode) = (name("unreachable"), name("reachable"), RenameMode::Replace);
    control.call(Request::Rename { dir: deep, name: from, to_dir: ROOT, to_name: to, mode }).unwrap();
    clean_of(&drain(&mut control, Some(lost.file)));
    assert_eq!(std::fs::read(dir.path().join("reachable")).unwrap(), b"kept");
}

fn clean_of(report: &DrainReport) {
    assert!(report.ticket.is_some_and(|ticket| ticket.failed + ticket.skipped == 0), "{report:?}");
}

/// As 2 GiB through 256 MiB, into a bucket of a real object store.
#[test]
fn a_burst_larger_than_the_buffer_passes_into_a_bucket() {
    let Some(bucket) = Bucket::new() else { return };
    let world = before(Arc::new(bucket.open()), Draining::default());
    let (mut control, mut data) = (world.control(), world.data());
    let token = create(&mut control, ROOT, "burst");
    let pieces = 3 * world.config.capacity.0 as usize / MIB;
    for number in 0..pieces {
        let bytes = pattern(number as u64, MIB);
        loop {
            match data.write(token, At::Offset((number * MIB) as u64), &bytes) {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                written => break assert!(written.is_ok(), "{written:?}"),
            }
        }
    }
    clean(&drain(&mut control, None));
    let there = bucket.ask("GET", "burst", b"").1;
    assert_eq!((there.len(), bucket.parts()), (pieces * MIB, 0), "one object, and nothing else");
    for (number, piece) in there.chunks(MIB).enumerate() {
        assert!(piece == pattern(number as u64, MIB), "piece {number}");
    }
    let read = open(&mut control, "burst");
    assert!(data.read(read, MIB as u64, 1 << 20).unwrap() == pattern(1, MIB), "through the buffer");
}

#[test]
fn what_was_made_behind_though_it_was_told_to_have_failed_never_comes_back_by_itself() {
    type Act = fn(&mut Raw, FileId);
    let changes: [(&str, &[&str], Act); 4] = [
        ("removed", &[], |control, _| {
            control.call(Request::Unlink { dir: ROOT, name: name("f") }).unwrap();
            control.call(Request::Unlink { dir: ROOT, name: name("l") }).unwrap();
        }),
        ("moved", &["g", "m"], |control, _| {
            rename(control, "f", "g");
            rename(control, "l", "m");
        }),
        ("replaced", &["f"], |control, _| rename(control, "l", "f")),
        ("left one name for another", &["g", "l"], |control, file| {
            control.call(Request::Link { file, dir: ROOT, name: name("g") }).unwrap();
            control.call(Request::Unlink { dir: ROOT, name: name("f") }).unwrap();
        }),
    ];
    for (what, left, change) in changes {
        let (memory, broken) = (Memory::default(), Arc::new(AtomicBool::new(true)));
        let fails = broken.clone();
        let faulty = Faulty::new(memory.clone(), move |call| {
            (matches!(call, "create" | "symlink") && fails.load(Ordering::Relaxed)).then_some(Fault::After)
        });
        let world = before(Arc::new(faulty), lazy());
        let mut control = world.control();
        let token = written(&world, "f", b"bytes");
        control.call(Request::Symlink { dir: ROOT, name: name("l"), target: b"f".to_vec() }).unwrap();
        let failed = drain(&mut control, None);
        assert!(failed.ticket.is_some_and(|ticket| ticket.failed == 2), "{what}: {failed:?}");
        assert!(["f", "l"].iter().all(|text| memory.find(&path(text)).unwrap().is_some()), "{what}");
        change(&mut control, token.file);
        broken.store(false, Ordering::Relaxed);
        let there = |memory: &Memory| {
            let mut names = Vec::new();
            memory.list(&[], &mut |name| names.push(name.to_string())).unwrap();
            names.sort();
            names
        };
        for text in there(&memory) {
            assert!(left.contains(&text.as_str()), "{what}: {text} is still behind");
        }
        let report = drain(&mut control, None);
        assert!(report.ticket.is_some_and(|ticket| ticket.failed == 0), "{what}: {report:?}");
        assert_eq!(there(&memory), left, "{what}");
        for text in ["f", "g", "l", "m"] {
            assert_eq!(control.walk(text).is_ok(), left.contains(&text), "{what}: {text}");
        }
    }
}

#[test]
fn a_directory_on_which_nothing_is_mounted_is_not_taken_for_the_back_end() {
    let dir = tempfile::tempdir().unwrap();
    let (point, disk) = (dir.path().join("point"), dir.path().join("disk"));
    let one = dir.path().join("one");
    std::fs::create_dir(&one).unwrap();
    let open: [&dyn Fn() -> Arc<dyn Backend>; 2] = [&|| Arc::new(Dir::open(&point).unwrap()), &|| {
        Arc::new(Stripes::open([&one, &point].map(|path| path.to_str().unwrap())).unwrap())
    }];
    for open in open {
        std::fs::create_dir(&point).unwrap();
        let mut world = before(open(), lazy());
        written(&world, "f", b"bytes");
        clean(&drain(&mut world.control(), None));
        world.stop();
        // What was mounted there is not any more.
        std::fs::rename(&point, &disk).unwrap();
        std::fs::create_dir(&point).unwrap();
        let refused = Server::start_before(world.config.clone(), open()).err().expect("it does not start");
        assert!(
            refused.to_string().contains("is not the back end that this store stood before"),
            "{refused}"
        );
        std::fs::remove_dir_all(&point).unwrap();
        std::fs::rename(&disk, &point).unwrap();
        world.start();
        assert_eq!(world.control().walk("f").unwrap().size, 5);
        drop(world);
        std::fs::remove_dir_all(&point).unwrap();
    }
}

fn rename(control: &mut Raw, from: &str, to: &str) {
    let (from, to, mode) = (name(from), name(to), RenameMode::Replace);
    control.call(Request::Rename { dir: ROOT, name: from, to_dir: ROOT, to_name: to, mode }).unwrap();
}
