//! Back-end changes that are half done, that take effect although they report an error, or that race with another
//! process: acknowledged data stays, and removed files do not come back.

use crate::bounds::Stall;
use crate::drain::{PATIENCE, ROOT, before, create, drain, open, path, report, until};
use crate::raw::{ALICE, Raw, World, name, refused};
use forebay_backend::{Backend, Dir, Fault, Faulty, Memory};
use forebay_model::{Access, Change, ErrorKind, Gid, SetTime, Time, Uid};
use forebay_server::Draining;
use forebay_wire::{At, DrainCall, RenameMode, Reply, Request, Token};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const OWNER: (Uid, Gid) = (Uid(0), Gid(0));
/// Gives a concurrent call time to run; no result depends on the length.
const A_WHILE: Duration = Duration::from_millis(300);

fn rename(control: &mut Raw, from: &str, to: &str) -> forebay_model::Result<Reply> {
    let (from, to, mode) = (name(from), name(to), RenameMode::Replace);
    control.call(Request::Rename { dir: ROOT, name: from, to_dir: ROOT, to_name: to, mode })
}

fn drained(control: &mut Raw) {
    let report = drain(control, None);
    assert!(report.ticket.is_some_and(|ticket| ticket.failed == 0), "{report:?}");
}

fn read(world: &World, token: Token) -> Vec<u8> {
    world.data().read(token, 0, 100).unwrap()
}

#[test]
fn lookup_during_a_replacing_rename_removes_nothing() {
    let memory = Memory::default();
    memory.put(&path("a"), OWNER, 0o644, b"old");
    let (notify, notified) = mpsc::channel();
    let (notify, removed) = (Mutex::new(Some(notify)), AtomicU32::new(0));
    let acting = Faulty::new(memory.clone(), move |call| match call {
        // `unlink` takes effect and reports an error; at the following `find` the old file is gone and the new one has
        // no name yet.
        "unlink" => {
            removed.store(1, Ordering::Relaxed);
            Some(Fault::After)
        }
        "find" if removed.swap(0, Ordering::Relaxed) == 1 => {
            if let Some(notify) = notify.lock().unwrap().take() {
                notify.send(()).unwrap();
                std::thread::sleep(A_WHILE);
            }
            None
        }
        _ => None,
    });
    let world = before(Arc::new(acting), Draining::default());
    let (mut control, mut reader) = (world.control(), world.control());
    control.walk("a").unwrap();
    let token = create(&mut control, ROOT, "tmp");
    world.data().write(token, At::Offset(0), b"new").unwrap();
    control.call(Request::Close { token }).unwrap();
    let reader = &mut reader;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            notified.recv().unwrap();
            // It may find the old file, the new one, or none.
            let _ = reader.walk("a");
        });
        rename(&mut control, "tmp", "a").unwrap();
    });
    let token = open(&mut control, "a");
    assert_eq!(read(&world, token), b"new");
}

#[test]
fn directory_keeps_its_time_when_a_file_is_created_while_it_is_finalized() {
    const LONG_AGO: Time = Time { secs: 1_000_000_000, nanos: 0 };
    let dir = tempfile::tempdir().unwrap();
    let stall = Arc::new(Stall::default());
    let passing = stall.clone();
    let backend = Faulty::new(Dir::open(dir.path()).unwrap(), move |call| {
        if call == "create" {
            passing.pass();
        }
        None
    });
    let world = before(Arc::new(backend), Draining::default());
    let mut control = world.control();
    let made = control.make_dir(ROOT, "d", 0o755);
    drained(&mut control);
    let token = create(&mut control, made, "f");
    world.data().write(token, At::Offset(0), b"bytes").unwrap();
    control.call(Request::Close { token }).unwrap();
    let change = Change { mtime: Some(SetTime::To(LONG_AGO)), ..Change::default() };
    control.call(Request::SetAttr { file: made, change }).unwrap();
    stall.close(1);
    let begun = report(&mut control, DrainCall::Begin { file: None, order: None, last: false });
    stall.wait_for(1);
    // The file is about to be created; the directory's attributes are restored meanwhile, or have to wait.
    let mtime = || fs::metadata(dir.path().join("d")).unwrap().mtime();
    let begin = Instant::now();
    while mtime() != LONG_AGO.secs && begin.elapsed() < A_WHILE {
        std::thread::yield_now();
    }
    stall.open();
    let ticket = begun.ticket.unwrap().id;
    until("everything is drained", || {
        report(&mut control, DrainCall::Look { ticket: Some(ticket) }).ticket.unwrap().done
    });
    assert_eq!(fs::read(dir.path().join("d/f")).unwrap(), b"bytes");
    assert_eq!(mtime(), LONG_AGO.secs);
}

#[test]
fn truncation_with_a_failed_lookup_is_not_repeated_later() {
    let memory = Memory::default();
    memory.put(&path("f"), OWNER, 0o644, b"0123456789");
    let cut = Arc::new(AtomicU32::new(0));
    let seen = cut.clone();
    let failing = Faulty::new(memory.clone(), move |call| match call {
        "truncate" => {
            seen.store(1, Ordering::Relaxed);
            None
        }
        // The first `find` after the truncation fails.
        "find" if seen.swap(0, Ordering::Relaxed) == 1 => Some(Fault::Before),
        _ => None,
    });
    let mut world = before(Arc::new(failing), Draining::default());
    let mut control = world.control();
    let token = open(&mut control, "f");
    control.call(Request::Truncate { token, size: 2 }).unwrap();
    assert_eq!(read(&world, token), b"01");
    world.data().write(token, At::Offset(2), b"abcdef").unwrap();
    drained(&mut control);
    world.restart();
    let mut control = world.control();
    let token = open(&mut control, "f");
    assert_eq!(read(&world, token), b"01abcdef");
    drained(&mut control);
    assert_eq!(memory.bytes(&path("f")).unwrap(), b"01abcdef");
}

#[test]
fn file_renamed_during_a_truncation_is_truncated_at_its_new_name() {
    let memory = Memory::default();
    memory.put(&path("a"), OWNER, 0o644, b"0123456789");
    let (notify, notified) = mpsc::channel();
    let notify = Mutex::new(Some(notify));
    let acting = Faulty::new(memory.clone(), move |call| {
        if call == "truncate"
            && let Some(notify) = notify.lock().unwrap().take()
        {
            notify.send(()).unwrap();
            std::thread::sleep(A_WHILE);
        }
        None
    });
    let world = before(Arc::new(acting), Draining::default());
    let (mut control, mut other) = (world.control(), world.control());
    let token = open(&mut control, "a");
    let other = &mut other;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            notified.recv().unwrap();
            rename(other, "a", "b").unwrap();
        });
        control.call(Request::Truncate { token, size: 3 }).unwrap();
    });
    assert_eq!(control.walk("b").unwrap().size, 3);
    drained(&mut control);
    assert_eq!(memory.bytes(&path("b")).unwrap(), b"012");
    control.call(Request::Unlink { dir: ROOT, name: name("b") }).unwrap();
    for gone in ["a", "b"] {
        refused(control.walk(gone), ErrorKind::NotFound);
        assert_eq!(memory.find(&path(gone)).unwrap(), None, "{gone}");
    }
}

/// A rename over an open file: the back end first moves the target aside, then renames the source. `fails` is called at
/// every rename, and at every `find` after the second rename, each with its number.
fn renamed_over(
    fails: fn(&str, u32) -> Option<Fault>,
) -> (Memory, World, Token, forebay_model::Result<Reply>) {
    let memory = Memory::default();
    memory.put(&path("from"), OWNER, 0o644, b"source");
    memory.put(&path("to"), OWNER, 0o644, b"target");
    let (renames, lookups) = (AtomicU32::new(0), AtomicU32::new(0));
    let failing = Faulty::new(memory.clone(), move |call| match call {
        "rename" => fails(call, renames.fetch_add(1, Ordering::Relaxed) + 1),
        "find" if renames.load(Ordering::Relaxed) >= 2 => {
            fails(call, lookups.fetch_add(1, Ordering::Relaxed) + 1)
        }
        _ => None,
    });
    let world = before(Arc::new(failing), Draining::default());
    let mut control = world.control();
    let file = control.walk("to").unwrap().id;
    let token = match control.call(Request::Open { file, access: Access::READ, truncate: false }).unwrap() {
        Reply::Opened { token, .. } => token,
        other => panic!("unexpected reply to an open: {other:?}"),
    };
    let renamed = rename(&mut control, "from", "to");
    (memory, world, token, renamed)
}

#[test]
fn half_done_rename_is_undone_later_if_not_at_once() {
    let (memory, world, token, renamed) = renamed_over(|call, number| {
        // The second rename replaces the target; later ones would undo the first.
        (call == "rename" && (2..=14).contains(&number)).then_some(Fault::Before)
    });
    assert!(renamed.is_err());
    assert_eq!(memory.find(&path("to")).unwrap(), None, "the target is moved aside");
    assert!(world.control().walk("to").is_ok(), "the name is still visible");
    assert_eq!(read(&world, token), b"target");
    for (name, bytes) in [("from", b"source"), ("to", b"target")] {
        assert_eq!(memory.bytes(&path(name)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn rename_of_unknown_outcome_destroys_nothing() {
    let (memory, world, _token, renamed) = renamed_over(|call, number| match call {
        "rename" => (number == 2).then_some(Fault::After),
        _ => (number <= 12).then_some(Fault::Before),
    });
    assert!(renamed.is_err(), "the outcome is unknown");
    assert_eq!(memory.bytes(&path("to")).unwrap(), b"source", "the rename took effect");
    let mut control = world.control();
    let token = open(&mut control, "to");
    assert_eq!(read(&world, token), b"source");
    refused(control.walk("from"), ErrorKind::NotFound);
}

#[test]
fn half_done_exchange_is_undone_despite_repeated_failures() {
    let memory = Memory::default();
    memory.put(&path("a"), OWNER, 0o644, b"one");
    memory.put(&path("b"), OWNER, 0o644, b"other");
    let renames = AtomicU32::new(0);
    // The third rename would finish the exchange; the next ones undo the second, and then the first.
    let failing = Faulty::new(memory.clone(), move |call| match call {
        "rename" => match renames.fetch_add(1, Ordering::Relaxed) + 1 {
            3 | 4 => Some(Fault::Before),
            5 => Some(Fault::After),
            _ => None,
        },
        _ => None,
    });
    let world = before(Arc::new(failing), Draining::default());
    let mut control = world.control();
    let (from, to, mode) = (name("a"), name("b"), RenameMode::Exchange);
    let exchange = Request::Rename { dir: ROOT, name: from, to_dir: ROOT, to_name: to, mode };
    assert!(control.call(exchange.clone()).is_err());
    for (text, bytes) in [("a", &b"one"[..]), ("b", b"other")] {
        assert_eq!(memory.bytes(&path(text)).unwrap(), bytes, "{text}");
        let token = open(&mut control, text);
        assert_eq!(read(&world, token), bytes, "{text}");
    }
    control.call(exchange).unwrap();
    assert_eq!(memory.bytes(&path("a")).unwrap(), b"other");
}

#[test]
fn directory_created_despite_an_error_gets_its_attributes() {
    for fault in [Fault::Before, Fault::After] {
        let (memory, tries) = (Memory::default(), AtomicU32::new(0));
        let failing = Faulty::new(memory.clone(), move |call| match call {
            "make_dir" => (tries.fetch_add(1, Ordering::Relaxed) == 0).then_some(fault),
            _ => None,
        });
        let world =
            before(Arc::new(failing), Draining { age: PATIENCE, threshold: 99, ..Draining::default() });
        let mut control = world.control();
        let dir = control.make_dir(ROOT, "d", 0o551);
        let token = create(&mut control, dir, "f");
        world.data().write(token, At::Offset(0), b"bytes").unwrap();
        let report = drain(&mut control, Some(token.file));
        assert!(report.ticket.is_some_and(|ticket| ticket.failed == 0), "{report:?}");
        assert_eq!(memory.bytes(&path("d/f")).unwrap(), b"bytes", "{fault:?}");
        let (found, here) = (memory.find(&path("d")).unwrap().unwrap(), control.walk("d").unwrap());
        assert_eq!((found.mode, found.version.mtime), (0o551, here.mtime), "{fault:?}");
    }
}

#[test]
fn directory_with_a_failed_lookup_does_not_count_as_drained() {
    let (memory, armed) = (Memory::default(), Arc::new(AtomicBool::new(false)));
    let fails = armed.clone();
    let failing = Faulty::new(memory.clone(), move |call| {
        (call == "find" && fails.swap(false, Ordering::Relaxed)).then_some(Fault::Before)
    });
    let world = before(Arc::new(failing), Draining { age: PATIENCE, threshold: 99, ..Draining::default() });
    let mut control = world.control();
    let dir = control.make_dir(ROOT, "d", 0o755);
    drained(&mut control);
    let change = Change { mode: Some(0o711), ..Change::default() };
    control.call(Request::SetAttr { file: dir, change }).unwrap();
    armed.store(true, Ordering::Relaxed);
    drained(&mut control);
    assert!(!armed.load(Ordering::Relaxed), "the failing lookup happened");
    assert_eq!(memory.find(&path("d")).unwrap().unwrap().mode, 0o711);
}

#[test]
fn empty_foreign_file_created_at_the_same_time_is_kept() {
    for call in ["create", "symlink"] {
        let memory = Memory::default();
        let (theirs, first) = (memory.clone(), AtomicBool::new(true));
        // The drain has just looked the name up and found nothing.
        let acting = Faulty::new(memory.clone(), move |asked| {
            if asked == call && first.swap(false, Ordering::Relaxed) {
                match call {
                    "create" => theirs.put(&path("f"), OWNER, 0o644, b""),
                    _ => theirs.put_link(&path("f"), b"theirs"),
                }
            }
            None
        });
        let world = before(Arc::new(acting), Draining::default());
        let mut control = world.control();
        match call {
            "create" => drop(create(&mut control, ROOT, "f")),
            _ => {
                let link = Request::Symlink { dir: ROOT, name: name("f"), target: b"mine".to_vec() };
                control.call(link).unwrap();
            }
        }
        let report = drain(&mut control, None);
        assert_eq!(report.ticket.unwrap().failed, 1, "{call}: {report:?}");
        let why = &report.status.failing[0].why;
        assert!(why.contains("has another /f by now"), "{call}: {why}");
        let found = memory.find(&path("f")).unwrap().expect("the name is still visible");
        assert_eq!(found.target, if call == "create" { b"".as_slice() } else { b"theirs" });
        assert!(memory.unlink(&path("f")).unwrap());
        until("the drain is retried", || drain(&mut control, None).ticket.unwrap().failed == 0);
        assert_eq!(
            memory.find(&path("f")).unwrap().unwrap().target,
            if call == "create" { b"".as_slice() } else { b"mine" }
        );
    }
}

/// A server before a directory, of which the creation of `made` dies before the directory has its owner and mode; and the
/// directory of the back end. `None` without the rights for it.
fn interrupted_creation() -> Option<(World, tempfile::TempDir, Arc<AtomicBool>)> {
    if !forebay_testkit::is_root() {
        forebay_testkit::skip("interrupted creations", "only root can create a directory of another user");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let (made, dies) = (dir.path().join("made"), Arc::new(AtomicBool::new(true)));
    let dying = dies.clone();
    let backend = Faulty::new(Dir::open(dir.path()).unwrap(), move |call| {
        if call != "make_dir" || !dying.load(Ordering::Relaxed) {
            return None;
        }
        // An earlier attempt may have made it.
        let _ = fs::create_dir(&made);
        fs::set_permissions(&made, PermissionsExt::from_mode(0o700)).unwrap();
        Some(Fault::Before)
    });
    let world = before(Arc::new(backend), Draining { threshold: 99, ..Draining::default() });
    Some((world, dir, dies))
}

#[test]
fn directory_whose_creation_died_is_drained_after_a_restart() {
    for mode in [0o700, 0o755] {
        let Some((mut world, dir, dies)) = interrupted_creation() else { return };
        let made = world.control().acting(ALICE).make_dir(ROOT, "made", mode);
        let token = world.control().acting(ALICE).create(made, "f", 0o644);
        world.data().acting(ALICE).write(token, At::Offset(0), b"below").unwrap();
        let report = drain(&mut world.control(), None);
        assert!(report.ticket.is_some_and(|ticket| ticket.failed > 0), "{report:?}");
        world.restart();
        dies.store(false, Ordering::Relaxed);
        drained(&mut world.control());
        let there = fs::metadata(dir.path().join("made")).unwrap();
        assert_eq!((there.mode() & 0o7777, there.uid()), (u32::from(mode), ALICE));
        assert_eq!(fs::read(dir.path().join("made/f")).unwrap(), b"below");
    }
}

#[test]
fn directory_whose_creation_died_is_exchanged_and_renamed() {
    let Some((world, dir, dies)) = interrupted_creation() else { return };
    fs::write(dir.path().join("other"), b"other").unwrap();
    let mut control = world.control();
    control.walk("other").unwrap();
    world.control().acting(ALICE).make_dir(ROOT, "made", 0o755);
    let report = drain(&mut control, None);
    assert!(report.ticket.is_some_and(|ticket| ticket.failed > 0), "{report:?}");
    let (from, to, mode) = (name("other"), name("made"), RenameMode::Exchange);
    control.call(Request::Rename { dir: ROOT, name: from, to_dir: ROOT, to_name: to, mode }).unwrap();
    dies.store(false, Ordering::Relaxed);
    rename(&mut control, "other", "again").unwrap();
    drained(&mut control);
    assert_eq!(fs::read(dir.path().join("made")).unwrap(), b"other");
    assert!(fs::metadata(dir.path().join("again")).unwrap().is_dir());
    assert!(!dir.path().join("other").exists());
}
