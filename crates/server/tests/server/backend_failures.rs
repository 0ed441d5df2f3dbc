//! Back ends in trouble: full, read-only, unable to store a name, slow. Nothing is lost, and the status names the file,
//! its owner and the cause.

use crate::drain::{PATIENCE, ROOT, before, clean, create, drain, open, path, report, until};
use crate::proxy;
use crate::raw::{ALICE, Raw, World, name, pattern};
use crate::store::Bucket;
use forebay_backend::{Backend, Dir, Fault, Faulty, Memory, S3, Stripes};
use forebay_model::{Bytes, ErrorKind, FileId};
use forebay_server::{Draining, Server};
use forebay_wire::{At, DrainCall, DrainReport, RenameMode, Request, Token};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A mounted tmpfs of limited size.
struct Small {
    dir: TempDir,
}

impl Small {
    /// A file system with the given number of bytes; `None`, with a note, if mounting is not permitted.
    fn new(bytes: usize) -> Option<Small> {
        let small = Small { dir: tempfile::tempdir().expect("a directory") };
        let options = format!("size={bytes},mode=1777");
        match mount(&["-t", "tmpfs", "-o", &options, "forebay-test"], small.dir.path()) {
            true => Some(small),
            false => {
                forebay_testkit::skip("a back end that is really full", "mounting is not permitted");
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
        // It may never have been mounted.
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).output();
    }
}

fn mount(options: &[&str], at: &Path) -> bool {
    Command::new("mount").args(options).arg(at).output().is_ok_and(|output| output.status.success())
}

fn lazy() -> Draining {
    Draining { age: PATIENCE, threshold: 99, ..Draining::default() }
}

/// A directory that every user may write to.
fn open_dir() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).expect("a mode");
    dir
}

/// A file of Alice in the root.
fn written(world: &World, text: &str, bytes: &[u8]) -> Token {
    let token = world.control().acting(ALICE).create(ROOT, text, 0o640);
    let mut data = world.data().acting(ALICE);
    for (number, piece) in bytes.chunks(MIB).enumerate() {
        data.write(token, At::Offset((number * MIB) as u64), piece).expect("buffer space");
    }
    token
}

/// Path, user and cause of the only failing file.
fn only_failure(report: &DrainReport) -> (&str, u32, &str) {
    assert!(report.ticket.is_some_and(|ticket| ticket.failed == 1), "{report:?}");
    let failing = report.status.failing.first().expect("a failing file");
    (failing.path.as_str(), failing.user.0, failing.why.as_str())
}

fn drains_cleanly(control: &mut Raw) {
    until("the drain is retried", || drain(control, None).ticket.is_some_and(|ticket| ticket.failed == 0));
    clean(&drain(control, None));
}

#[test]
fn full_back_end_reports_the_file_and_drains_it_later() {
    let Some(small) = Small::new(3 * MIB) else { return };
    let backend = Arc::new(Dir::open(small.path()).unwrap());
    let world = before(backend.clone(), lazy());
    let mut control = world.control();
    let bytes = pattern(7, 6 * MIB);
    let token = written(&world, "big", &bytes);
    let failed = drain(&mut control, None);
    let (what, user, why) = only_failure(&failed);
    assert_eq!((what, user), ("/big", ALICE), "{failed:?}");
    assert!(why.contains("No space left") && why.contains(&small.path()), "{why}");
    for (number, piece) in bytes.chunks(MIB).enumerate() {
        let back = world.data().acting(ALICE).read(token, (number * MIB) as u64, 1 << 20).unwrap();
        assert!(back == piece, "nothing is lost");
    }
    small.change("size=32m");
    drains_cleanly(&mut control);
    let found = backend.find(&path("big")).unwrap().expect("drained file");
    assert_eq!((found.version.size, found.mode, found.uid.0), (6 << 20, 0o640, ALICE));
    assert!(std::fs::read(format!("{}/big", small.path())).unwrap() == bytes);
}

#[test]
fn read_only_back_end_is_reported_and_retried() {
    let Some(small) = Small::new(16 * MIB) else { return };
    let world = before(Arc::new(Dir::open(small.path()).unwrap()), lazy());
    let mut control = world.control();
    let bytes = pattern(8, MIB);
    let token = written(&world, "f", &bytes);
    small.change("ro");
    let failed = drain(&mut control, None);
    let (what, user, why) = only_failure(&failed);
    assert_eq!((what, user), ("/f", ALICE), "{failed:?}");
    assert!(why.contains("Read-only file system"), "{why}");
    assert!(world.data().acting(ALICE).read(token, 0, 1 << 20).unwrap() == bytes, "nothing is lost");
    small.change("rw");
    drains_cleanly(&mut control);
    assert!(std::fs::read(format!("{}/f", small.path())).unwrap() == bytes);
}

#[test]
fn full_target_keeps_its_files_buffered_and_gets_no_new_ones() {
    let Some(small) = Small::new(2 * MIB) else { return };
    let large = open_dir();
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
    // One or two: files created after the first failure are placed on the other target.
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
    drains_cleanly(&mut control);
    for (file, bytes) in files.iter().chain([&more, &more]).enumerate() {
        let mut back = vec![0; bytes.len() + 1];
        let count = backend.open(&path(&format!("f{file}"))).unwrap().read_at(0, &mut back).unwrap();
        assert!(back[..count] == bytes[..], "f{file}");
    }
}

/// The requested file is drained, while the given number of others still fail.
fn clean_but_for(report: &DrainReport, others: usize) {
    assert!(report.ticket.is_some_and(|ticket| ticket.failed == 0), "{report:?}");
    assert_eq!(report.status.failing.len(), others, "{report:?}");
}

#[test]
fn exceeded_quota_is_reported_with_path_and_user() {
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
    let (what, user, why) = only_failure(&failed);
    assert_eq!((what, user), ("/mine", ALICE), "{failed:?}");
    assert!(why.contains("target memory") && why.contains("Disk quota exceeded"), "{why}");
    broken.store(false, Ordering::Relaxed);
    drains_cleanly(&mut control);
    assert!(memory.bytes(&path("mine")).unwrap() == bytes);
}

#[test]
fn names_too_long_for_the_back_end_do_not_block_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let world = before(Arc::new(Dir::open(dir.path()).unwrap()), lazy());
    let (mut control, mut data) = (world.control(), world.data());
    // Longer than any path that the kernel accepts, although each name is valid.
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
    let failing = failing.unwrap_or_else(|| panic!("the failure is not reported: {failed:?}"));
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

/// The same ratio as 2 GiB through 256 MiB, into a bucket of a real object store: drained data is read from the parts
/// while the file is open, and the object is assembled once, at the close, even if the store fails at first.
#[test]
fn burst_larger_than_the_buffer_drains_into_a_bucket() {
    let Some(bucket) = Bucket::new() else { return };
    let (whole, fails) = (128 * MIB, AtomicBool::new(true));
    let copied = Arc::new(AtomicUsize::new(0));
    let count = copied.clone();
    let access = proxy::before(bucket.access(), move |method, key, headers| {
        let bytes = if method == "PUT" && key == "burst" { put(headers, whole) } else { 0 };
        count.fetch_add(bytes, Ordering::Relaxed);
        None
    });
    let store = Faulty::new(S3::open("bucket", &access).unwrap(), move |call| {
        (call == "gather" && fails.swap(false, Ordering::Relaxed)).then_some(Fault::Before)
    });
    let world = before(Arc::new(store), Draining { threshold: 0, age: PATIENCE, ..Draining::default() });
    assert_eq!(8 * world.config.capacity.0 as usize, whole);
    let (mut control, mut data) = (world.control(), world.data());
    let token = create(&mut control, ROOT, "burst");
    for number in 0..whole / MIB {
        let bytes = pattern(number as u64, MIB);
        loop {
            match data.write(token, At::Offset((number * MIB) as u64), &bytes) {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                written => break assert!(written.is_ok(), "{written:?}"),
            }
        }
    }
    let freed = |control: &mut Raw| report(control, DrainCall::Look { ticket: None }).status.freed;
    until("everything drains while the file is open", || freed(&mut control) == whole as u64);
    assert_eq!(
        (bucket.ask("GET", "burst", b"").1.len(), bucket.parts() > 0),
        (0, true),
        "only parts, no object yet"
    );
    assert!(data.read(token, MIB as u64, 1 << 20).unwrap() == pattern(1, MIB), "read from the parts");
    control.call(Request::Close { token }).unwrap();
    until("the object is assembled at the close", || bucket.parts() == 0);
    let there = bucket.ask("GET", "burst", b"").1;
    assert_eq!(there.len(), whole);
    for (number, piece) in there.chunks(MIB).enumerate() {
        assert!(piece == pattern(number as u64, MIB), "piece {number}");
    }
    let copied = copied.load(Ordering::Relaxed);
    assert!(copied <= 2 * whole, "{copied} bytes were copied for {whole}");
    let (found, here) =
        (bucket.open().find(&path("burst")).unwrap().unwrap(), control.walk("burst").unwrap());
    assert_eq!((found.mode, found.version.mtime), (here.mode, here.mtime));
    let read = open(&mut control, "burst");
    assert!(data.read(read, MIB as u64, 1 << 20).unwrap() == pattern(1, MIB), "read through the server");
}

/// Number of object bytes that a request creates: uploaded, or copied by the store (the whole object without a range).
fn put(headers: &str, whole: usize) -> usize {
    let headers = headers.to_ascii_lowercase();
    let value = |name: &str| {
        let (_, rest) = headers.split_once(&format!("\n{name}: "))?;
        rest.lines().next()
    };
    let range =
        value("x-amz-copy-source-range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let ends =
        range.and_then(|(first, last)| Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?)));
    match (ends, value("x-amz-copy-source"), value("content-length")) {
        (Some((first, last)), _, _) => last + 1 - first,
        (None, Some(_), _) => whole,
        (None, None, sent) => sent.and_then(|sent| sent.parse().ok()).unwrap_or(0),
    }
}

#[test]
fn files_created_despite_an_error_do_not_reappear() {
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
            assert!(left.contains(&text.as_str()), "{what}: {text} is still in the back end");
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
fn bare_mount_point_is_not_accepted_as_the_back_end() {
    let dir = tempfile::tempdir().unwrap();
    let (point, disk) = (dir.path().join("point"), dir.path().join("disk"));
    let one = dir.path().join("one");
    let make_open = |path: &Path| {
        std::fs::create_dir(path).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o1777)).unwrap();
    };
    make_open(&one);
    let open: [&dyn Fn() -> Arc<dyn Backend>; 2] = [&|| Arc::new(Dir::open(&point).unwrap()), &|| {
        Arc::new(Stripes::open([&one, &point].map(|path| path.to_str().unwrap())).unwrap())
    }];
    for open in open {
        make_open(&point);
        let mut world = before(open(), lazy());
        written(&world, "f", b"bytes");
        clean(&drain(&mut world.control(), None));
        world.stop();
        // The file system is no longer mounted there.
        std::fs::rename(&point, &disk).unwrap();
        std::fs::create_dir(&point).unwrap();
        let refused = Server::start_before(world.config.clone(), open()).err().expect("start refused");
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
