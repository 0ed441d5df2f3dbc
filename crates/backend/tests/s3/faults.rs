//! Requests that fail, with or without effect, at every step of a change.

use super::{create, path, read};
use crate::proxy;
use crate::support::Bucket;
use forebay_backend::{Backend, Fault, S3};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The state after a failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// All later requests succeed.
    Well,
    /// All later requests fail: the server has died.
    Dead,
}

/// The modifying request that fails, and how.
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

    /// A bucket that is reached only through the fault proxy.
    fn open(&self, bucket: &Bucket) -> S3 {
        let this = self.clone();
        open(bucket, move |method, _| this.choose(method))
    }
}

/// A bucket through a proxy that fails requests as `choose` decides.
fn open(bucket: &Bucket, choose: impl Fn(&str, &str) -> Option<Fault> + Send + Sync + 'static) -> S3 {
    let access = proxy::before(bucket.access(), move |method, key, _| choose(method, key));
    S3::open("bucket", &access).unwrap()
}

/// Repeats an action, each time with another of its modifying requests failing, until all have failed once.
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

/// A change that returned success is visible, a change that returned an error never appears, before and after
/// a restart. Only a change in progress when the server died may be either.
#[test]
fn file_matches_the_reported_results_whatever_request_fails() {
    // Changes of one list have the file open together.
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

/// A write that succeeds although it was reported as failed, and cannot be removed, is older than later
/// changes.
#[test]
fn failed_write_that_took_effect_never_hides_later_changes() {
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
        assert_eq!(content(&bucket.open(), name), Some(expected), "{name}, after a restart");
        assert_eq!(bucket.parts(), 0, "{name}");
    }
}

/// Equal objects of other programs are different files.
#[test]
fn equal_foreign_objects_are_different_files() {
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
    // A renamed file keeps its id; another file may take its old name.
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

/// A rename is done or not, as it was reported. One that a dying server left half done completes when it is
/// requested again.
#[test]
fn renamed_file_has_one_name_whatever_request_fails() {
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

/// A store that never confirms a removal is checked for the object.
#[test]
fn unconfirmed_removal_is_not_rolled_back() {
    let Some(bucket) = Bucket::new() else { return };
    create(&bucket.open(), "from").write_at(0, &[b"0123456789"]).unwrap();
    let backend = open(&bucket, |method, key| (method == "DELETE" && key == "from").then_some(Fault::After));
    assert!(backend.rename(&path("from"), &path("to")).unwrap());
    assert_eq!((content(&backend, "from"), content(&backend, "to")), (None, Some(b"0123456789".to_vec())));
}

/// A name that cannot be removed: writes go to the old name, and no other name appears.
#[test]
fn file_whose_old_name_cannot_be_removed_keeps_it() {
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
    // Where neither name can be removed there are two objects, and only one of them is the file that is being
    // written.
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

/// The same for a directory with all its entries.
#[test]
fn renamed_directory_is_whole_whatever_request_fails() {
    const FILES: [&str; 2] = ["a", "sub/b"];
    let Some(bucket) = Bucket::new() else { return };
    at_every_step(|trouble| {
        let [from, to] =
            ["from", "to"].map(|end| format!("{:?}-{:?}-{}-{end}", trouble.fault, trouble.then, trouble.nth));
        let direct = bucket.open();
        let me = (forebay_model::Uid(7), forebay_model::Gid(8));
        direct.make_dir(&path(&from), me, 0o750).unwrap();
        // The entries of a directory that was never created.
        for file in FILES {
            bucket.ask("PUT", &format!("{from}/{file}"), file.as_bytes());
        }
        let serial = direct.find(&path(&from)).unwrap().unwrap().version.serial;
        let mut backend = trouble.open(&bucket);
        let mut renamed = backend.rename(&path(&from), &path(&to));
        if trouble.then == Then::Dead {
            backend = bucket.open();
            // Recovery of an interrupted rename: it is done when the source no longer exists.
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
