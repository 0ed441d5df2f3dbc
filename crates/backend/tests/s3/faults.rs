//! Requests that fail, or are done and said to have failed, at every step of a change.

use super::{create, path, read};
use crate::proxy;
use crate::support::Bucket;
use forebay_backend::{Backend, Fault, S3};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What comes after a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// All goes well again.
    Well,
    /// Nothing is done any more: the server has died.
    Dead,
}

/// Which of all changing requests fails, and how.
#[derive(Clone, Debug)]
struct Trouble {
    nth: usize,
    fault: Fault,
    then: Then,
    seen: Arc<AtomicUsize>,
}

impl Trouble {
    fn choose(&self, method: &str) -> Option<Fault> {
        let changes = !matches!(method, "GET" | "HEAD");
        let number = self.seen.fetch_add(usize::from(changes), Ordering::SeqCst);
        match changes && number == self.nth {
            true => Some(self.fault),
            false => (self.then == Then::Dead && number > self.nth).then_some(Fault::Before),
        }
    }

    /// A bucket that is reached only through this.
    fn open(&self, bucket: &Bucket) -> S3 {
        let this = self.clone();
        open(bucket, move |method, _| this.choose(method))
    }
}

/// A bucket through something that fails where `choose` says so.
fn open(bucket: &Bucket, choose: impl Fn(&str, &str) -> Option<Fault> + Send + Sync + 'static) -> S3 {
    let access = proxy::before(bucket.access(), move |method, key, _| choose(method, key));
    S3::open("bucket", &access).unwrap()
}

/// Does something again and again, each time with another of its changing requests going wrong, until none is left.
fn at_every_step(act: impl Fn(&Trouble)) {
    for fault in [Fault::Before, Fault::After] {
        for then in [Then::Well, Then::Dead] {
            for nth in 0.. {
                let trouble = Trouble { nth, fault, then, seen: Arc::default() };
                act(&trouble);
                if trouble.seen.load(Ordering::SeqCst) <= nth {
                    assert!(nth > 2, "nothing was changed");
                    break;
                }
            }
        }
    }
}

fn content(backend: &S3, at: &str) -> Option<Vec<u8>> {
    backend.find(&path(at)).unwrap().map(|_| read(&*backend.open(&path(at)).unwrap(), 0, 1000))
}

/// A change of a file.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write(usize, u8),
    Cut(usize),
}

impl Change {
    fn model(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match self {
            Change::Cut(size) => bytes.resize(size, 0),
            Change::Write(at, byte) => {
                bytes.resize(bytes.len().max(at + 10), 0);
                bytes[at..at + 10].fill(byte);
            }
        }
        bytes
    }
}

/// What was told to be done is there, what was told to have failed never comes, in this life and the next; only what a
/// server was doing when it died is one or the other.
#[test]
fn whatever_request_fails_a_file_is_what_its_writers_were_told() {
    // Those of one list have the file open together.
    const TOGETHER: [&[Change]; 2] =
        [&[Change::Write(0, b'b'), Change::Write(20, b'c')], &[Change::Cut(25), Change::Write(30, b'd')]];
    let Some(bucket) = Bucket::new() else { return };
    at_every_step(|trouble| {
        let name = format!("{:?}-{:?}-{}", trouble.fault, trouble.then, trouble.nth);
        let mut model = vec![b'a'; 100];
        create(&bucket.open(), &name).write_at(0, &[&model]).unwrap();
        let backend = trouble.open(&bucket);
        let mut pending = None;
        for changes in TOGETHER {
            let Ok(file) = backend.open_to_write(&path(&name)) else { break };
            for &change in changes {
                let done = match change {
                    Change::Write(at, byte) => file.write_at(at as u64, &[&[byte; 10]]),
                    Change::Cut(size) => backend.truncate(&path(&name), size as u64).map(drop),
                };
                match done {
                    Ok(()) => model = change.model(&model),
                    Err(_) => pending = pending.or(Some(change)),
                }
            }
            if trouble.then == Then::Well {
                assert_eq!(read(&*file, 0, 1000), model, "{trouble:?}, while it is open");
                drop(file);
                assert_eq!(content(&backend, &name).as_ref(), Some(&model), "{trouble:?}, closed");
            }
        }
        drop(backend);
        let found = content(&bucket.open(), &name).unwrap();
        let maybe = pending.filter(|_| trouble.then == Then::Dead).map(|change| change.model(&model));
        assert!(
            found == model || Some(&found) == maybe.as_ref(),
            "{trouble:?}, {pending:?}: {:?} instead of {:?}",
            String::from_utf8_lossy(&found),
            String::from_utf8_lossy(&model)
        );
        assert_eq!(bucket.parts(), 0, "{trouble:?}");
    });
}

/// A write that arrives although it was told to have failed, and cannot be taken back, is older than what came after it.
#[test]
fn what_failed_and_was_done_never_hides_what_came_later() {
    let Some(bucket) = Bucket::new() else { return };
    for (name, failed) in [("write", Change::Write(0, b'x')), ("cut", Change::Cut(0))] {
        create(&bucket.open(), name).write_at(0, &[&[b'a'; 50]]).unwrap();
        let first = AtomicUsize::new(0);
        let backend = open(&bucket, move |method, key| match method {
            "PUT" if key.starts_with(".forebay-parts/") && first.fetch_add(1, Ordering::SeqCst) == 0 => {
                Some(Fault::After)
            }
            "DELETE" => Some(Fault::Before),
            _ => None,
        });
        let file = backend.open_to_write(&path(name)).unwrap();
        let refused = match failed {
            Change::Write(at, byte) => file.write_at(at as u64, &[&[byte; 10]]),
            Change::Cut(size) => backend.truncate(&path(name), size as u64).map(drop),
        };
        refused.unwrap_err();
        file.write_at(5, &[b"later"]).unwrap();
        drop(file);
        let expected = [&[b'a'; 5][..], b"later", &[b'a'; 40]].concat();
        assert_eq!(content(&backend, name), Some(expected.clone()), "{name}");
        drop(backend);
        assert!(bucket.parts() > 0, "{name}: nothing could be removed");
        assert_eq!(content(&bucket.open(), name), Some(expected), "{name}, the next life");
        assert_eq!(bucket.parts(), 0, "{name}");
    }
}

/// Objects of others that say the same are files of their own.
#[test]
fn equal_objects_of_others_are_different_files() {
    let Some(bucket) = Bucket::new() else { return };
    bucket.ask("PUT", "one", b"0123456789");
    bucket.ask("PUT", "two", b"0123456789");
    let backend = bucket.open();
    let file = backend.open_to_write(&path("one")).unwrap();
    file.write_at(3, &[b"xyz"]).unwrap();
    let serials = ["one", "two"].map(|name| backend.find(&path(name)).unwrap().unwrap().version.serial);
    assert_ne!(serials[0], serials[1]);
    drop(file);
    assert!(backend.unlink(&path("two")).unwrap());
    assert_eq!(bucket.ask("GET", "one", b""), (200, b"012xyz6789".to_vec()));
    // One that was renamed keeps its number; another may come to its old name.
    bucket.ask("PUT", "three", b"0123456789");
    let file = backend.open_to_write(&path("three")).unwrap();
    assert!(backend.rename(&path("three"), &path("four")).unwrap());
    bucket.ask("PUT", "three", b"0123456789");
    backend.find(&path("three")).unwrap().unwrap();
    file.write_at(0, &[b"abc"]).unwrap();
    drop(file);
    assert_eq!(bucket.ask("GET", "three", b"").1, b"0123456789");
    assert_eq!(bucket.ask("GET", "four", b"").1, b"abc3456789");
}

/// A rename is done or not, as is told; one that a dying server left half done is done when it is asked for again.
#[test]
fn whatever_request_fails_a_file_has_one_name() {
    let Some(bucket) = Bucket::new() else { return };
    for replaces in [false, true] {
        at_every_step(|trouble| {
            let [from, to] = ["from", "to"].map(|end| {
                format!("{replaces}-{:?}-{:?}-{}-{end}", trouble.fault, trouble.then, trouble.nth)
            });
            let direct = bucket.open();
            create(&direct, &from).write_at(0, &[b"from it"]).unwrap();
            if replaces {
                create(&direct, &to).write_at(0, &[b"to be replaced"]).unwrap();
            }
            let old = content(&direct, &to);
            drop(direct);
            let backend = trouble.open(&bucket);
            let file = backend.open_to_write(&path(&from)).unwrap();
            let written = file.write_at(0, &[b"FROM"]).is_ok();
            let renamed = backend.rename(&path(&from), &path(&to));
            let moved: &[u8] = if written { b"FROM it" } else { b"from it" };
            let mut backend = backend;
            if trouble.then == Then::Well {
                assert_eq!(backend.find(&path(&to)).unwrap().is_some(), replaces || renamed.is_ok());
                drop(file);
            } else {
                std::mem::forget((file, std::mem::replace(&mut backend, bucket.open())));
            }
            let found = [content(&backend, &from), content(&backend, &to)];
            match renamed {
                Ok(was) => assert_eq!((was, found), (true, [None, Some(moved.to_vec())]), "{trouble:?}"),
                Err(_) if trouble.then == Then::Well => {
                    assert_eq!(found, [Some(moved.to_vec()), old], "{trouble:?}");
                }
                Err(_) => {
                    backend.rename(&path(&from), &path(&to)).unwrap();
                    let found = [content(&backend, &from), content(&backend, &to)];
                    let maybe = [None, Some(b"FROM it".to_vec())];
                    assert!(
                        found == [None, Some(moved.to_vec())] || found == maybe,
                        "{trouble:?}: {found:?}"
                    );
                }
            }
            assert_eq!(bucket.parts(), 0, "{trouble:?}");
        });
    }
}

/// A store that never says that it has removed something is asked what it has.
#[test]
fn what_was_removed_and_never_told_to_be_is_not_taken_back() {
    let Some(bucket) = Bucket::new() else { return };
    create(&bucket.open(), "from").write_at(0, &[b"0123456789"]).unwrap();
    let backend = open(&bucket, |method, key| (method == "DELETE" && key == "from").then_some(Fault::After));
    assert!(backend.rename(&path("from"), &path("to")).unwrap());
    assert_eq!((content(&backend, "from"), content(&backend, "to")), (None, Some(b"0123456789".to_vec())));
}

/// A name that cannot be removed: the file is written to where it was, and nothing is found elsewhere.
#[test]
fn a_file_whose_old_name_cannot_be_removed_keeps_it() {
    let Some(bucket) = Bucket::new() else { return };
    create(&bucket.open(), "from").write_at(0, &[b"0123456789"]).unwrap();
    let backend = open(&bucket, |method, key| (method == "DELETE" && key == "from").then_some(Fault::Before));
    let file = backend.open_to_write(&path("from")).unwrap();
    file.write_at(0, &[b"abc"]).unwrap();
    backend.rename(&path("from"), &path("to")).unwrap_err();
    assert_eq!(backend.find(&path("to")).unwrap(), None);
    file.write_at(7, &[b"xyz"]).unwrap();
    drop(file);
    assert_eq!(bucket.ask("GET", "from", b"").1, b"abc3456xyz");
    // Where neither name can be removed there are two, and only one of them is the file that is being written.
    let stuck = open(&bucket, |method, key| {
        (method == "DELETE" && ["from", "to"].contains(&key)).then_some(Fault::Before)
    });
    let file = stuck.open_to_write(&path("from")).unwrap();
    file.write_at(0, &[b"ABC"]).unwrap();
    stuck.rename(&path("from"), &path("to")).unwrap_err();
    assert!(stuck.find(&path("to")).unwrap().is_some(), "a copy");
    stuck.rename(&path("from"), &path("to")).unwrap_err();
    drop(file);
    assert_eq!(bucket.ask("GET", "from", b"").1, b"ABC3456xyz");
    drop(stuck);
    let backend = bucket.open();
    assert!(backend.rename(&path("from"), &path("to")).unwrap());
    assert_eq!((content(&backend, "from"), content(&backend, "to")), (None, Some(b"ABC3456xyz".to_vec())));
}

/// The same for a directory, with all that is in it.
#[test]
fn whatever_request_fails_a_directory_is_whole() {
    const FILES: [&str; 2] = ["a", "sub/b"];
    let Some(bucket) = Bucket::new() else { return };
    at_every_step(|trouble| {
        let [from, to] =
            ["from", "to"].map(|end| format!("{:?}-{:?}-{}-{end}", trouble.fault, trouble.then, trouble.nth));
        let direct = bucket.open();
        let me = (forebay_model::Uid(7), forebay_model::Gid(8));
        direct.make_dir(&path(&from), me, 0o750).unwrap();
        // What is in a directory that nobody made.
        for file in FILES {
            bucket.ask("PUT", &format!("{from}/{file}"), file.as_bytes());
        }
        let serial = direct.find(&path(&from)).unwrap().unwrap().version.serial;
        let mut backend = trouble.open(&bucket);
        let mut renamed = backend.rename(&path(&from), &path(&to));
        if trouble.then == Then::Dead {
            backend = bucket.open();
            // As whoever finishes what a server has begun: it is done when what it was about is not there any more.
            let left = backend.find(&path(&from)).unwrap();
            if left.is_some_and(|found| found.version.serial == serial) {
                renamed = backend.rename(&path(&from), &path(&to));
                assert!(renamed.is_ok(), "{trouble:?}: {renamed:?}");
            } else {
                renamed = Ok(true);
            }
        }
        let (whole, nothing) = if renamed.is_ok() { (&to, &from) } else { (&from, &to) };
        assert_eq!(backend.find(&path(nothing)).unwrap(), None, "{trouble:?}");
        let found = backend.find(&path(whole)).unwrap().unwrap();
        assert_eq!((found.version.serial, found.mode, found.uid), (serial, 0o750, me.0), "{trouble:?}");
        for file in FILES {
            let held = content(&backend, &format!("{whole}/{file}"));
            assert_eq!(held.as_deref(), Some(file.as_bytes()), "{trouble:?}, {whole}");
        }
    });
}
