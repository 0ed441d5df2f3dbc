//! Somebody else changes or removes files behind whose bytes several servers hold: all of them see it.

use crate::drain::{clean, drain, open, report, until};
use crate::drain_several::{fleet, layout, read, write};
use crate::raw::{Raw, name, pattern, refused};
use crate::several::Fleet;
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
/// For those who may wait for each other: nothing depends on how long it is.
const A_WHILE: Duration = Duration::from_millis(100);

fn behind() -> (TempDir, Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let backend = Dir::open(dir.path().to_str().unwrap()).unwrap();
    (dir, Arc::new(backend))
}

/// What is wrong with the stores that they leave.
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
        other => panic!("listed and got {other:?}"),
    }
}

/// It is as long as this for whoever asks, and every server gives its part of it.
fn check(fleet: &Fleet, path: &str, bytes: &[u8]) {
    let mut control = fleet.control(0);
    assert_eq!(control.walk(path).unwrap().size, bytes.len() as u64, "{path}");
    let token = open(&mut control, path);
    assert!(read(fleet, token, bytes.len() as u64) == bytes, "{path}");
    control.call(Request::Close { token }).unwrap();
}

/// What becomes of a file before somebody else replaces it.
struct Case {
    what: &'static str,
    /// Over how many servers it is laid out; one is one that does not have its name.
    width: u16,
    written: usize,
    cut: Option<u64>,
}

#[test]
fn whatever_was_drained_and_is_replaced_behind_is_what_is_there_for_all_servers() {
    let cases = [
        Case { what: "written", width: 0, written: 300_000, cut: None },
        Case { what: "empty", width: 0, written: 0, cut: None },
        Case { what: "zeros at the end", width: 0, written: 10, cut: Some(250_000) },
        Case { what: "nothing but zeros", width: 0, written: 0, cut: Some(250_000) },
        Case { what: "cut to nothing", width: 0, written: 300_000, cut: Some(0) },
        Case { what: "elsewhere", width: 1, written: 300_000, cut: None },
        Case { what: "elsewhere with zeros at the end", width: 1, written: 10, cut: Some(250_000) },
        Case { what: "elsewhere and empty", width: 1, written: 0, cut: None },
    ];
    let (dir, backend) = behind();
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    for (number, case) in cases.iter().enumerate() {
        let striping = Some(Striping { width: case.width, stripe: 64 << 10 });
        control.call(Request::SetLayout { dir: ROOT, striping }).unwrap();
        let (path, token) = made(&mut control, number, case.width == 1);
        write(&fleet, token, 0, &pattern(1, case.written));
        if let Some(size) = case.cut {
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

/// A new file, and whether the server that has its name has none of its bytes.
fn made(control: &mut Raw, number: usize, elsewhere: bool) -> (String, Token) {
    for other in 0.. {
        let path = format!("{number}.{other}");
        let token = control.create(ROOT, &path, 0o644);
        if !elsewhere || !layout(control, token.file).servers.contains(&ServerId(0)) {
            return (path, token);
        }
    }
    unreachable!("there are enough names")
}

#[test]
fn an_empty_file_that_was_found_and_laid_out_is_seen_when_somebody_fills_it() {
    let (dir, backend) = behind();
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
fn what_somebody_removes_behind_is_gone_though_somebody_has_it_open_and_stays_if_something_is_only_here() {
    let (dir, backend) = behind();
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    let tokens = ["gone", "stays"].map(|path| control.create(ROOT, path, 0o644));
    tokens.iter().for_each(|&token| write(&fleet, token, 0, &pattern(1, 300_000)));
    clean(&drain(&mut control, None));
    // One byte, on a server that does not have the name.
    let (offset, server) = (0..3)
        .map(|stripe| stripe * (64 << 10))
        .zip(layout(&mut control, tokens[1].file).servers)
        .find(|(_, server)| *server != ServerId(0))
        .expect("three servers hold it");
    fleet.data(server).write(tokens[1], At::Offset(offset), b"!").unwrap();
    ["gone", "stays"].iter().for_each(|path| fs::remove_file(dir.path().join(path)).unwrap());
    refused(control.walk("gone"), ErrorKind::NotFound);
    assert_eq!(control.walk("stays").unwrap().size, 300_000);
    assert_eq!(names(&mut control), 1);
    assert_eq!(fleet.data(server).read(tokens[1], offset, 1).unwrap(), b"!");
}

#[test]
fn nothing_is_done_behind_about_an_open_file_of_which_all_is_there() {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = looks.clone();
    let counting: Arc<dyn Backend> = Arc::new(Faulty::new(Memory::default(), move |call| {
        counted.fetch_add(u64::from(call == "set_attr"), Ordering::Relaxed);
        None
    }));
    let fleet = fleet(&counting, Draining::default());
    let mut control = fleet.control(0);
    let token = control.create(ROOT, "f", 0o644);
    write(&fleet, token, 0, &pattern(1, 300_000));
    clean(&drain(&mut control, None));
    let before = looks.load(Ordering::Relaxed);
    assert!(before > 0);
    clean(&drain(&mut control, None));
    assert_eq!(looks.load(Ordering::Relaxed), before);
}

/// Whoever makes a file behind waits where it is closed.
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
fn who_looks_at_a_file_waits_for_those_who_put_its_bytes_in_order() {
    let (memory, gate) = (Memory::default(), Arc::new(Gate::default()));
    let at_gate = gate.clone();
    let gated: Arc<dyn Backend> = Arc::new(Faulty::new(memory.clone(), move |call| {
        (call == "create").then(|| at_gate.pass());
        None
    }));
    let mut fleet = Fleet::plan(3, |config| {
        config.backend = Some("dir:/".into());
        // Longer than anybody waits here.
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
    // Files whose numbers are so far apart are put in order one after the other.
    let mut new = (0..).map(|number| fleet.control(0).create(ROOT, &format!("{number}"), 0o644));
    let new = new.find(|token| token.file.0 % 64 == old.file.0 % 64).unwrap();
    gate.set(true);
    report(&mut control, DrainCall::Begin { file: Some(new.file), order: None, last: false });
    until("nobody makes the file behind", || gate.waiting.load(Ordering::Relaxed) > 0);
    memory.put(&[name("old")], (Uid(0), Gid(0)), 0o644, &pattern(2, 200_000));
    let seen = std::thread::scope(|scope| {
        let looks = scope.spawn(|| fleet.control(0).walk("old").unwrap().size);
        std::thread::sleep(A_WHILE);
        gate.set(false);
        looks.join().unwrap()
    });
    assert_eq!(seen, 200_000);
}
