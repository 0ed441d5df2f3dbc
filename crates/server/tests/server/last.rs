//! The last drain of a buffer brings further names and extended attributes out too, though that fails now and then.

use crate::drain::{PATIENCE, ROOT, before, clean, create, drain, drain_with, until};
use crate::raw::{Raw, World, name};
use forebay_backend::{Dir, Fault, Faulty};
use forebay_model::{Change, FileId, SetTime, Time};
use forebay_server::Draining;
use forebay_wire::{At, DrainCall, DrainReport, Request, XattrMode};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

fn drain_last(raw: &mut Raw) -> DrainReport {
    drain_with(raw, DrainCall::Begin { file: None, order: None, last: true })
}

/// A server before a directory in which the next so many of such calls fail.
fn failing(call: &'static str, fault: Fault) -> (World, TempDir, Arc<AtomicU32>) {
    let (dir, left) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU32::new(0)));
    let fails = left.clone();
    let faulty = Faulty::new(Dir::open(dir.path()).unwrap(), move |asked| {
        let one_less = |left: u32| left.checked_sub(1);
        let is_one =
            asked == call && fails.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        is_one.then_some(fault)
    });
    (before(Arc::new(faulty), Draining { age: PATIENCE, ..Draining::default() }), dir, left)
}

fn link(control: &mut Raw, file: FileId, dir: FileId, text: &str) {
    control.call(Request::Link { file, dir, name: name(text) }).unwrap();
}

fn set_time(control: &mut Raw, file: FileId, secs: i64) {
    let mtime = Some(SetTime::To(Time { secs, nanos: 5 }));
    control.call(Request::SetAttr { file, change: Change { mtime, ..Change::default() } }).unwrap();
}

fn attribute(path: &Path) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let len = rustix::fs::getxattr(path, "user.x", &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

#[test]
fn names_and_attributes_that_failed_are_there_when_it_was_tried_again() {
    let all = [
        ("link", Fault::Before),
        ("link", Fault::After),
        ("set_xattr", Fault::Before),
        ("set_xattr", Fault::After),
    ];
    // Once, and until whoever waits for it is told.
    for (call, fault, times) in all.into_iter().flat_map(|(call, fault)| [(call, fault, 1), (call, fault, 9)])
    {
        let (world, behind, left) = failing(call, fault);
        let mut control = world.control();
        let (one, other) = (control.make_dir(ROOT, "one", 0o755), control.make_dir(ROOT, "other", 0o755));
        let token = create(&mut control, one, "f");
        world.data().write(token, At::Offset(0), b"linked").unwrap();
        let set = (name("user.x"), b"value".to_vec(), XattrMode::Any);
        let set = Request::SetXattr { file: token.file, name: set.0, value: set.1, mode: set.2 };
        control.call(set).unwrap();
        for (dir, text) in [(one, "g"), (other, "f"), (other, "g"), (ROOT, "f")] {
            link(&mut control, token.file, dir, text);
        }
        for (file, secs) in [(token.file, 1_000), (one, 2_000), (other, 3_000)] {
            set_time(&mut control, file, secs);
        }
        clean(&drain(&mut control, None));
        left.store(times, Ordering::Relaxed);
        let told = drain_last(&mut control);
        left.store(0, Ordering::Relaxed);
        until("it is tried again", || drain_last(&mut control).ticket.unwrap().failed == 0);
        let done = drain_last(&mut control);
        clean(&done);
        let place = |text: &str| behind.path().join(text);
        let first = place("one/f").metadata().unwrap();
        assert_eq!((first.nlink(), first.mtime()), (5, 1_000), "{call} {fault:?} {times}: {told:?}");
        for text in ["one/g", "other/f", "other/g", "f"] {
            assert_eq!(place(text).metadata().unwrap().ino(), first.ino(), "{call} {fault:?} {times} {text}");
        }
        for (text, secs) in [("one", 2_000), ("other", 3_000)] {
            let found = place(text).metadata().unwrap().mtime();
            assert_eq!(found, secs, "time of {text}, {call} {fault:?} {times}");
        }
        // Not every file system takes them, and then it is said.
        let kept = attribute(&place("one/f"));
        assert_eq!(
            kept.is_none(),
            done.status.notes.iter().any(|note| note.contains("attributes")),
            "{done:?}"
        );
        assert!(kept.is_none_or(|value| value == b"value"), "{call} {fault:?} {times}");
    }
}

#[test]
fn a_further_name_that_somebody_else_uses_behind_is_told_and_left_alone() {
    let (world, behind, _) = failing("", Fault::Before);
    let mut control = world.control();
    let token = create(&mut control, ROOT, "f");
    world.data().write(token, At::Offset(0), b"mine").unwrap();
    clean(&drain(&mut control, None));
    link(&mut control, token.file, ROOT, "g");
    let theirs = behind.path().join("g");
    std::fs::write(&theirs, b"theirs").unwrap();
    let told = drain_last(&mut control);
    assert_eq!(told.ticket.unwrap().failed, 1, "{told:?}");
    let why = &told.status.failing[0].why;
    assert!(why.contains("has another /g by now"), "{why}");
    assert_eq!(std::fs::read(&theirs).unwrap(), b"theirs");
    std::fs::remove_file(&theirs).unwrap();
    clean(&drain_last(&mut control));
    assert_eq!(theirs.metadata().unwrap().ino(), behind.path().join("f").metadata().unwrap().ino());
}
