//! Another process changes or removes files in the back end whose bytes several servers hold: all servers see the
//! change.

use crate::cluster::Fleet;
use crate::drain::{clean, drain, open, report, until};
use crate::raw::{Raw, name, pattern, refused};
use crate::striped_drain::{fleet, layout, read, write};
use forebay_backend::{Backend, Dir, Faulty, Memory};
use forebay_model::{Bytes, ErrorKind, FileId, Gid, ServerId, Striping, Uid};
use forebay_server::Draining;
use forebay_store::{FjallKv, Kv, check_all};
use forebay_wire::{At, DrainCall, Reply, Request, Token};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const ROOT: FileId = FileId::ROOT;
/// Gives a concurrent call time to run; no result depends on the length.
const A_WHILE: Duration = Duration::from_millis(100);

fn backing_dir() -> (TempDir, Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let backend = Dir::open(dir.path().to_str().unwrap()).unwrap();
    (dir, Arc::new(backend))
}

/// Inconsistencies in the stores after all servers have stopped.
fn findings(mut fleet: Fleet) -> Vec<String> {
    (0..fleet.configs.len()).for_each(|index| fleet.stop(index));
    let open = |store: &std::path::Path| FjallKv::open(&store.join("meta"), Bytes::mib(4)).unwrap();
    let stores: Vec<FjallKv> = fleet.configs.iter().map(|config| open(&config.store)).collect();
    let stores: Vec<&dyn Kv> = stores.iter().map(|store| -> &dyn Kv { store }).collect();
    check_all(&fleet.members(), &stores)
}

fn names(control: &mut Raw) -> usize {
    match control.call(Request::ReadDir { dir: ROOT, cookie: 0, limit: 100, plus: false }).unwrap() {
        Reply::Entries { entries, .. } => entries.len(),
        other => panic!("unexpected reply to a listing: {other:?}"),
    }
}

/// Every server reports this size, and returns its part of these bytes.
fn check(fleet: &Fleet, path: &str, bytes: &[u8]) {
    let mut control = fleet.control(0);
    assert_eq!(control.walk(path).unwrap().size, bytes.len() as u64, "{path}");
    let token = open(&mut control, path);
    assert!(read(fleet, token, bytes.len() as u64) == bytes, "{path}");
    control.call(Request::Close { token }).unwrap();
}

/// The state of a file before another process replaces it.
struct Case {
    what: &'static str,
    /// Number of servers it is striped over; 1 is a server other than the home of its name.
    width: u16,
    written: usize,
    truncated: Option<u64>,
}

#[test]
fn drained_file_replaced_in_the_back_end_is_seen_by_all_servers() {
    let cases = [
        Case { what: "written", width: 0, written: 300_000, truncated: None },
        Case { what: "empty", width: 0, written: 0, truncated: None },
        Case { what: "zeros at the end", width: 0, written: 10, truncated: Some(250_000) },
        Case { what: "nothing but zeros", width: 0, written: 0, truncated: Some(250_000) },
        Case { what: "truncated to nothing", width: 0, written: 300_000, truncated: Some(0) },
        Case { what: "on another server", width: 1, written: 300_000, truncated: None },
        Case {
            what: "on another server with zeros at the end",
            width: 1,
            written: 10,
            truncated: Some(250_000),
        },
        Case { what: "on another server and empty", width: 1, written: 0, truncated: None },
    ];
    let (dir, backend) = backing_dir();
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    for (number, case) in cases.iter().enumerate() {
        let striping = Some(Striping { width: case.width, stripe: 64 << 10 });
        control.call(Request::SetLayout { dir: ROOT, striping }).unwrap();
        let (path, token) = made(&mut control, number, case.width == 1);
        write(&fleet, token, 0, &pattern(1, case.written));
        if let Some(size) = case.truncated {
            control.call(Request::Truncate { token, size }).unwrap();
        }
        clean(&drain(&mut control, None));
        control.call(Request::Close { token }).unwrap();
        for (seed, len) in [(2, 41), (3, 200_000), (4, 0), (5, 100_000)] {
            fs::write(dir.path().join(&path), pattern(seed, len)).unwrap();
            assert_eq!(control.walk(&path).unwrap().size, len as u64, "{}", case.what);
            check(&fleet, &path, &pattern(seed, len));
        }
        clean(&drain(&mut control, None));
        assert!(fs::read(dir.path().join(&path)).unwrap() == pattern(5, 100_000), "{}", case.what);
    }
    drop(control);
    assert_eq!(findings(fleet), Vec::<String>::new());
}

/// A new file; with `elsewhere`, the home of its name holds none of its bytes.
fn made(control: &mut Raw, number: usize, elsewhere: bool) -> (String, Token) {
    for other in 0.. {
        let path = format!("{number}.{other}");
        let token = control.create(ROOT, &path, 0o644);
        if !elsewhere || !layout(control, token.file).servers.contains(&ServerId(0)) {
            return (path, token);
        }
    }
    unreachable!("names do not run out")
}

#[test]
fn empty_file_filled_in_the_back_end_is_seen_by_all_servers() {
    let (dir, backend) = backing_dir();
    let fleet = fleet(&backend, Draining::default());
    fs::write(dir.path().join("e"), b"").unwrap();
    let mut control = fleet.control(0);
    let file = control.walk("e").unwrap().id;
    assert_eq!(layout(&mut control, file).servers.len(), 3);
    fs::write(dir.path().join("e"), pattern(1, 400_000)).unwrap();
    check(&fleet, "e", &pattern(1, 400_000));
    drop(control);
    assert_eq!(findings(fleet), Vec::<String>::new());
}

#[test]
fn file_removed_in_the_back_end_is_gone_unless_bytes_are_buffered() {
    let (dir, backend) = backing_dir();
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    let tokens = ["gone", "stays"].map(|path| control.create(ROOT, path, 0o644));
    tokens.iter().for_each(|&token| write(&fleet, token, 0, &pattern(1, 300_000)));
    clean(&drain(&mut control, None));
    // One byte, on a server that is not the home of the name.
    let (offset, server) = (0..3)
        .map(|stripe| stripe * (64 << 10))
        .zip(layout(&mut control, tokens[1].file).servers)
        .find(|(_, server)| *server != ServerId(0))
        .expect("another server");
    fleet.data(server).write(tokens[1], At::Offset(offset), b"!").unwrap();
    ["gone", "stays"].iter().for_each(|path| fs::remove_file(dir.path().join(path)).unwrap());
    refused(control.walk("gone"), ErrorKind::NotFound);
    assert_eq!(control.walk("stays").unwrap().size, 300_000);
    assert_eq!(names(&mut control), 1);
    assert_eq!(fleet.data(server).read(tokens[1], offset, 1).unwrap(), b"!");
}

#[test]
fn drained_open_file_causes_no_further_back_end_calls() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let counting: Arc<dyn Backend> = Arc::new(Faulty::new(Memory::default(), move |call| {
        counted.fetch_add(u64::from(call == "set_attr"), Ordering::Relaxed);
        None
    }));
    let fleet = fleet(&counting, Draining::default());
    let mut control = fleet.control(0);
    let token = control.create(ROOT, "f", 0o644);
    write(&fleet, token, 0, &pattern(1, 300_000));
    clean(&drain(&mut control, None));
    let before = calls.load(Ordering::Relaxed);
    assert!(before > 0);
    clean(&drain(&mut control, None));
    assert_eq!(calls.load(Ordering::Relaxed), before);
}

/// Creations in the back end wait while the gate is closed.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU64,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let closed = self.is_closed.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(self.opened.wait_while(closed, |closed| *closed).unwrap());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn lookup_of_a_changed_file_waits_for_a_drain_with_the_same_lock() {
    let (memory, gate) = (Memory::default(), Arc::new(Gate::default()));
    let at_gate = gate.clone();
    let gated: Arc<dyn Backend> = Arc::new(Faulty::new(memory.clone(), move |call| {
        (call == "create").then(|| at_gate.pass());
        None
    }));
    let mut fleet = Fleet::plan(3, |config| {
        config.backend = Some("dir:/".into());
        // Longer than any wait in this test.
        config.times.peer = Duration::from_secs(240);
        config.drain = Draining { threshold: 90, age: Duration::from_secs(600), ..Draining::default() };
    });
    fleet.start_before(&gated);
    let mut control = fleet.control(0);
    let striping = Some(Striping { width: 0, stripe: 64 << 10 });
    control.call(Request::SetLayout { dir: ROOT, striping }).unwrap();
    let old = control.create(ROOT, "old", 0o644);
    write(&fleet, old, 0, &pattern(1, 300_000));
    clean(&drain(&mut control, None));
    // Files whose ids are congruent modulo 64 share a lock.
    let mut new = (0..).map(|number| fleet.control(0).create(ROOT, &format!("{number}"), 0o644));
    let new = new.find(|token| token.file.0 % 64 == old.file.0 % 64).unwrap();
    gate.set(true);
    report(&mut control, DrainCall::Begin { file: Some(new.file), order: None, last: false });
    until("a worker creates the file in the back end", || gate.waiting.load(Ordering::Relaxed) > 0);
    memory.put(&[name("old")], (Uid(0), Gid(0)), 0o644, &pattern(2, 200_000));
    let seen = std::thread::scope(|scope| {
        let lookup = scope.spawn(|| fleet.control(0).walk("old").unwrap().size);
        std::thread::sleep(A_WHILE);
        gate.set(false);
        lookup.join().unwrap()
    });
    assert_eq!(seen, 200_000);
}
