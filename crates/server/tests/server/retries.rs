//! The drain retries failed files by itself, and a file counts as drained only after it succeeded.

use crate::drain::{PATIENCE, ROOT, before, clean, create, drain, path, report, until};
use crate::raw::{World, name, pattern};
use forebay_backend::{Backend, Dir, Fault, Faulty, Memory};
use forebay_model::FileKind;
use forebay_server::Draining;
use forebay_wire::{At, DrainCall, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Drains everything at once.
fn eager() -> Draining {
    Draining { age: Duration::from_millis(1), ..Draining::default() }
}

#[test]
fn failed_files_are_retried_without_a_request() {
    for call in ["create", "make_dir", "symlink", "set_attr"] {
        let (memory, failed) = (Memory::default(), AtomicU32::new(0));
        // The call fails three times and then succeeds.
        let faulty = Faulty::new(memory.clone(), move |asked| {
            (asked == call && failed.fetch_add(1, Ordering::Relaxed) < 3).then_some(Fault::Before)
        });
        let world = before(Arc::new(faulty), eager());
        let (mut control, mut data) = (world.control(), world.data());
        control.make_dir(ROOT, "dir", 0o751);
        create(&mut control, ROOT, "empty");
        let full = create(&mut control, ROOT, "full");
        data.write(full, At::Offset(0), &pattern(1, 5000)).unwrap();
        let target = b"full".to_vec();
        control.call(Request::Symlink { dir: ROOT, name: name("link"), target }).unwrap();
        let attributes = |text: &str| {
            let found = memory.find(&path(text)).unwrap();
            found.map(|found| (found.kind, if found.kind == FileKind::Symlink { 0 } else { found.mode }))
        };
        until(call, || {
            attributes("dir") == Some((FileKind::Directory, 0o751))
                && attributes("empty") == Some((FileKind::File, 0o644))
                && attributes("full") == Some((FileKind::File, 0o644))
                && attributes("link") == Some((FileKind::Symlink, 0))
                && memory.bytes(&path("full")).is_some_and(|bytes| bytes == pattern(1, 5000))
        });
        until("no file is failing", || {
            report(&mut control, DrainCall::Look { ticket: None }).status.failing.is_empty()
        });
    }
}

#[test]
fn directory_that_cannot_be_created_is_not_drained() {
    let (memory, broken) = (Memory::default(), Arc::new(AtomicBool::new(true)));
    let fails = broken.clone();
    let faulty = Faulty::new(memory.clone(), move |asked| {
        (asked == "make_dir" && fails.load(Ordering::Relaxed)).then_some(Fault::Before)
    });
    let world = before(Arc::new(faulty), Draining { age: PATIENCE, ..Draining::default() });
    let mut control = world.control();
    control.make_dir(ROOT, "dir", 0o755);
    let failed = drain(&mut control, None);
    assert_eq!(failed.ticket.unwrap().failed, 1, "{failed:?}");
    broken.store(false, Ordering::Relaxed);
    clean(&drain(&mut control, None));
    assert!(memory.find(&path("dir")).unwrap().is_some());
}

#[test]
fn nothing_drains_by_itself_outside_the_configured_hours() {
    let memory = Memory::default();
    let hour = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600 % 24;
    let hours = format!("{:02}:00-{:02}:00", (hour + 3) % 24, (hour + 4) % 24).parse().unwrap();
    let world = before(Arc::new(memory.clone()), Draining { hours: Some(hours), ..eager() });
    let fill = |world: &World| {
        let mut control = world.control();
        control.make_dir(ROOT, "dir", 0o755);
        let file = create(&mut control, ROOT, "file");
        world.data().write(file, At::Offset(0), b"bytes").unwrap();
        control
    };
    let mut control = fill(&world);
    // A drain that ignored its hours would be as fast as one without hours that begins later.
    let other = Memory::default();
    let without_hours = before(Arc::new(other.clone()), eager());
    drop(fill(&without_hours));
    let drained = || [path("file"), path("dir")].iter().all(|path| other.find(path).unwrap().is_some());
    until("the drain without hours", drained);
    assert_eq!((memory.find(&path("file")).unwrap(), memory.find(&path("dir")).unwrap()), (None, None));
    clean(&drain(&mut control, None));
    assert!(
        memory.bytes(&path("file")).unwrap() == b"bytes",
        "an explicit request drains outside of the hours"
    );
}

#[test]
fn file_removed_while_it_drains_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let (reached, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (at_sync, may_sync) = (reached.clone(), go.clone());
    let slow = Faulty::new(Dir::open(dir.path()).unwrap(), move |asked| {
        if asked == "sync" {
            at_sync.store(true, Ordering::Relaxed);
            until("sync may continue", || may_sync.load(Ordering::Relaxed));
        }
        None
    });
    let world: World = before(Arc::new(slow), Draining { age: PATIENCE, ..Draining::default() });
    let (mut control, mut data) = (world.control(), world.data());
    let file = create(&mut control, ROOT, "file");
    data.write(file, At::Offset(0), b"bytes").unwrap();
    control.call(Request::Close { token: file }).unwrap();
    let begun =
        report(&mut control, DrainCall::Begin { file: None, order: None, last: false }).ticket.unwrap();
    until("the file is written", || reached.load(Ordering::Relaxed));
    control.call(Request::Unlink { dir: ROOT, name: name("file") }).unwrap();
    go.store(true, Ordering::Relaxed);
    until("the drain is done", || {
        report(&mut control, DrainCall::Look { ticket: Some(begun.id) }).ticket.unwrap().done
    });
    let end = report(&mut control, DrainCall::Look { ticket: Some(begun.id) });
    clean(&end);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
