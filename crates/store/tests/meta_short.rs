//! A metadata store on a full disk, or in a process without free descriptors: it refuses new data, serves existing
//! data, and recovers without a restart.

use forebay_model::{Bytes, ErrorKind};
use forebay_store::{Batch, FjallKv, Kv};
use forebay_testkit::{alone, skip};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

const CACHE: Bytes = Bytes::mib(1);
const VALUE: usize = 3000;

/// A small file system.
struct Small(PathBuf);

impl Small {
    fn new(test: &str, at: &Path, mib: u64) -> Option<Small> {
        let options = std::ffi::CString::new(format!("size={mib}m")).unwrap();
        match mount("forebay-test", at, "tmpfs", MountFlags::empty(), options.as_c_str()) {
            Ok(()) => Some(Small(at.to_owned())),
            Err(Errno::PERM | Errno::ACCESS) => {
                skip(test, "no permission to mount the small file system it needs");
                None
            }
            Err(error) => panic!("a small file system cannot be mounted: {error}"),
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn commit(kv: &FjallKv, number: u64) -> Result<(), ErrorKind> {
    let mut batch = Batch::default();
    batch.put(key(number), vec![number as u8; VALUE]);
    kv.commit(batch).map_err(|error| error.kind())
}

fn key(number: u64) -> Vec<u8> {
    [&b"e"[..], &number.to_be_bytes()].concat()
}

/// The store contains exactly these numbers, by lookup and by listing.
fn check(kv: &FjallKv, there: &BTreeSet<u64>, below: u64, when: &str) {
    for number in 0..below {
        let value = kv.get(&key(number)).unwrap();
        let expected = there.contains(&number).then(|| vec![number as u8; VALUE]);
        assert!(value == expected, "{when}: {number}");
    }
    let mut listed = BTreeSet::new();
    kv.scan(b"e", b"", &mut |key, value| {
        let number = u64::from_be_bytes(key[1..].try_into().unwrap());
        assert!(value == vec![number as u8; VALUE] && listed.insert(number), "{when}: {number}");
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(listed == *there, "{when}: {} are listed, {} are there", listed.len(), there.len());
}

/// Commits until some commits are refused; returns the next number.
fn commit_until_refused(kv: &FjallKv, there: &mut BTreeSet<u64>, mut number: u64) -> u64 {
    let mut refused = 0;
    while refused < 20 {
        assert!(number < 100_000, "no commit was refused");
        match commit(kv, number) {
            Ok(()) => {
                there.insert(number);
            }
            Err(kind) => {
                assert!(matches!(kind, ErrorKind::NoSpace | ErrorKind::Io), "{number}: {kind:?}");
                refused += 1;
            }
        }
        number += 1;
    }
    number
}

/// Another store of this process was damaged: a worker thread of fjall has panicked.
fn read_damaged() {
    drop(FjallKv::create(&tempfile::tempdir().unwrap().path().join("meta"), CACHE).unwrap());
    let worker = std::thread::Builder::new().name("fjall:worker".to_owned());
    assert!(worker.spawn(|| panic!("a bad table of another store")).unwrap().join().is_err());
}

/// Works while another thread is in the middle of a listing for a moment.
fn beside_a_listing(kv: &FjallKv, work: impl FnOnce()) {
    let (begun, has_begun) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            kv.scan(b"e", b"", &mut |_, _| {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(200));
                ControlFlow::Break(())
            })
        });
        has_begun.recv().unwrap();
        work();
    });
}

#[test]
fn metadata_store_recovers_from_a_full_disk_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let test = "metadata_store_recovers_from_a_full_disk_without_a_restart";
    let Some(small) = Small::new(test, dir.path(), 64) else { return };
    let (meta, hog) = (dir.path().join("meta"), dir.path().join("hog"));
    read_damaged();
    let kv = FjallKv::create(&meta, CACHE).unwrap();
    let (mut there, mut number) = (BTreeSet::new(), 0);
    for round in 0..3 {
        for _ in 0..100 {
            commit(&kv, number).unwrap();
            there.insert(number);
            number += 1;
        }
        kv.sync().unwrap();
        let mut whole = File::create(&hog).unwrap();
        while whole.write_all(&[7; 1 << 12]).is_ok() {}
        drop(whole);
        number = commit_until_refused(&kv, &mut there, number);
        check(&kv, &there, number, &format!("round {round}, full"));
        assert!(kv.sync().is_err(), "round {round}: nothing new can be durable");
        beside_a_listing(&kv, || {
            std::fs::remove_file(&hog).unwrap();
            commit(&kv, number)
                .unwrap_or_else(|kind| panic!("round {round}: there is space again: {kind:?}"));
        });
        there.insert(number);
        number += 1;
        kv.sync().unwrap();
        check(&kv, &there, number, &format!("round {round}, with space"));
    }
    drop(kv);
    check(&FjallKv::open(&meta, CACHE).unwrap(), &there, number, "opened again");
    drop(small);
}

#[test]
fn metadata_store_recovers_from_a_lack_of_descriptors() {
    alone("metadata_store_recovers_from_a_lack_of_descriptors", 4 << 30, || {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(100), ..limit }).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let kv = FjallKv::create(&dir.path().join("meta"), CACHE).unwrap();
        let (mut there, mut number) = (BTreeSet::new(), 0);
        for _ in 0..3 {
            let mut hog = Vec::new();
            while let Ok(file) = File::open("/dev/null") {
                hog.push(file);
            }
            // Enough for several tables, each of which needs a descriptor when it is written.
            for _ in 0..3000 {
                if commit(&kv, number).is_ok() {
                    there.insert(number);
                }
                number += 1;
            }
            drop(hog);
            commit(&kv, number).unwrap_or_else(|kind| panic!("there are descriptors again: {kind:?}"));
            there.insert(number);
            number += 1;
            kv.sync().unwrap();
            check(&kv, &there, number, "with descriptors");
        }
        drop(kv);
        check(&FjallKv::open(&dir.path().join("meta"), CACHE).unwrap(), &there, number, "opened again");
    });
}
