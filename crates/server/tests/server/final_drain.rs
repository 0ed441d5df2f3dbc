//! The final drain of a buffer also creates further hard links and extended attributes in the back end, despite
//! failures.

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

/// A server with a back-end directory in which the given number of `call`s fail.
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
fn failed_links_and_xattrs_are_stored_by_a_retry() {
    let all = [
        ("link", Fault::Before),
        ("link", Fault::After),
        ("set_xattr", Fault::Before),
        ("set_xattr", Fault::After),
    ];
    // One failure is retried; nine are reported to the client.
    for (call, fault, times) in all.into_iter().flat_map(|(call, fault)| [(call, fault, 1), (call, fault, 9)])
    {
        let (world, backing, left) = failing(call, fault);
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
        let reported = drain_last(&mut control);
        left.store(0, Ordering::Relaxed);
        until("the drain is retried", || drain_last(&mut control).ticket.unwrap().failed == 0);
        let done = drain_last(&mut control);
        clean(&done);
        let place = |text: &str| backing.path().join(text);
        let first = place("one/f").metadata().unwrap();
        assert_eq!((first.nlink(), first.mtime()), (5, 1_000), "{call} {fault:?} {times}: {reported:?}");
        for text in ["one/g", "other/f", "other/g", "f"] {
            assert_eq!(place(text).metadata().unwrap().ino(), first.ino(), "{call} {fault:?} {times} {text}");
        }
        for (text, secs) in [("one", 2_000), ("other", 3_000)] {
            let found = place(text).metadata().unwrap().mtime();
            assert_eq!(found, secs, "time of {text}, {call} {fault:?} {times}");
        }
        // Not every file system stores extended attributes; the drain notes the loss.
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
fn hard_link_over_a_foreign_file_fails_and_keeps_that_file() {
    let (world, backing, _) = failing("", Fault::Before);
    let mut control = world.control();
    let token = create(&mut control, ROOT, "f");
    world.data().write(token, At::Offset(0), b"mine").unwrap();
    clean(&drain(&mut control, None));
    link(&mut control, token.file, ROOT, "g");
    let theirs = backing.path().join("g");
    std::fs::write(&theirs, b"theirs").unwrap();
    let reported = drain_last(&mut control);
    assert_eq!(reported.ticket.unwrap().failed, 1, "{reported:?}");
    let why = &reported.status.failing[0].why;
    assert!(why.contains("has another /g by now"), "{why}");
    assert_eq!(std::fs::read(&theirs).unwrap(), b"theirs");
    std::fs::remove_file(&theirs).unwrap();
    clean(&drain_last(&mut control));
    assert_eq!(theirs.metadata().unwrap().ino(), backing.path().join("f").metadata().unwrap().ino());
}
