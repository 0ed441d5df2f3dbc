//! The metadata store on a real disk: order, restarts, `kill -9`, and unusable directories.

use forebay_model::{Bytes, ErrorKind};
use forebay_store::{Batch, FjallKv, Kv};
use forebay_testkit::{child, child_of};
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

fn put(kv: &dyn Kv, key: &str, value: &str) {
    let mut batch = Batch::default();
    batch.put(key, value);
    kv.commit(batch).expect("the disk works");
}

fn keys(kv: &dyn Kv, prefix: &str, from: &str, most: usize) -> Vec<String> {
    let mut keys = Vec::new();
    kv.scan(prefix.as_bytes(), from.as_bytes(), &mut |key, _| {
        keys.push(String::from_utf8(key.to_vec()).expect("text"));
        if keys.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .expect("readable");
    keys
}

#[test]
fn both_stores_keep_order_and_batches() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = FjallKv::create(dir.path(), Bytes::mib(1)).expect("a new store");
    let memory = forebay_store::MemoryKv::new();
    let stores: [&dyn Kv; 2] = [&disk, &memory];
    for kv in stores {
        for key in ["b", "a2", "a1", "a", "c", "a3"] {
            put(kv, key, key);
        }
        assert_eq!(keys(kv, "a", "", 9), ["a", "a1", "a2", "a3"]);
        assert_eq!(keys(kv, "a", "a2", 9), ["a2", "a3"]);
        assert_eq!(keys(kv, "a", "", 2), ["a", "a1"]);
        assert_eq!(keys(kv, "", "b", 9), ["b", "c"]);
        assert_eq!(keys(kv, "x", "", 9), Vec::<String>::new());
        let mut batch = Batch::default();
        batch.put("a", "twice");
        batch.remove("a");
        batch.remove("b");
        batch.put("b", "last wins");
        batch.remove("never there");
        kv.commit(batch).expect("the disk works");
        assert_eq!(kv.get(b"a"), Ok(None));
        assert_eq!(kv.get(b"b"), Ok(Some(b"last wins".to_vec())));
        kv.commit(Batch::default()).expect("nothing to do");
        kv.sync().expect("the disk works");
    }
}

#[test]
fn store_that_cannot_be_opened_reports_why() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let refuse = |result: forebay_model::Result<FjallKv>, hint: &str| {
        let error = result.err().unwrap_or_else(|| panic!("should be refused: {hint}"));
        assert_eq!(error.kind(), ErrorKind::BadStore, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    };
    let cache = Bytes::mib(1);
    refuse(FjallKv::open(dir.path(), cache), "there is none");
    refuse(FjallKv::open(&dir.path().join("missing"), cache), "there is none");
    let kv = FjallKv::create(dir.path(), cache).expect("a new store");
    refuse(FjallKv::open(dir.path(), cache), "another process has it open");
    drop(kv);
    refuse(FjallKv::create(dir.path(), cache), "holds one already");
    let file = dir.path().join("file");
    std::fs::write(&file, b"").expect("written");
    refuse(FjallKv::create(&file, cache), "Not a directory");
    std::fs::write(dir.path().join("version"), b"something else").expect("written");
    refuse(FjallKv::open(dir.path(), cache), "another version");
}

/// The body of the process that is killed.
fn commit_until_killed(dir: &Path) {
    let kv = FjallKv::open(dir, Bytes::mib(1)).expect("a sound store");
    let start = keys(&kv, "k", "", usize::MAX).len();
    let mut out = std::io::stdout().lock();
    for count in start.. {
        let mut batch = Batch::default();
        batch.put(format!("k{count:09}"), format!("value of {count}"));
        batch.put(format!("other{count:09}"), vec![count as u8; 300]);
        kv.commit(batch).expect("the disk works");
        writeln!(out, "done {count}").and_then(|()| out.flush()).expect("the parent reads the output");
    }
}

#[test]
fn committed_batches_survive_a_killed_process() {
    const TEST: &str = "disk::committed_batches_survive_a_killed_process";
    if let Some(dir) = child_of(TEST) {
        return commit_until_killed(&dir);
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    drop(FjallKv::create(dir.path(), Bytes::mib(1)).expect("a new store"));
    let mut acknowledged = 0;
    for round in 1..=10 {
        let mut child = child(TEST, dir.path()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        // Output of the test harness may precede ours on the first line.
        let counts = lines
            .map_while(Result::ok)
            .filter_map(|line| line.split_once("done ").and_then(|(_, count)| count.parse::<usize>().ok()));
        let mut seen = 0;
        for count in counts {
            acknowledged = acknowledged.max(count + 1);
            seen += 1;
            // Kill the process while it works, and read the rest of its output.
            if seen == 50 * round {
                child.kill().expect("SIGKILL");
            }
        }
        child.wait().expect("it is dead");
        assert!(seen >= 50 * round, "round {round}: the child worked");
        let kv = FjallKv::open(dir.path(), Bytes::mib(1)).expect("a killed process leaves a sound store");
        let found = keys(&kv, "k", "", usize::MAX);
        assert!(found.len() >= acknowledged, "round {round}: {} of {acknowledged}", found.len());
        for (count, key) in found.iter().enumerate() {
            assert_eq!(*key, format!("k{count:09}"));
            assert_eq!(kv.get(key.as_bytes()), Ok(Some(format!("value of {count}").into_bytes())));
        }
        assert_eq!(keys(&kv, "other", "", usize::MAX).len(), found.len(), "both halves of every batch");
        acknowledged = found.len();
    }
}

#[test]
fn every_concurrent_sync_returns() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let kv = Arc::new(FjallKv::create(dir.path(), Bytes::mib(1)).expect("a new store"));
    std::thread::scope(|threads| {
        for thread in 0..8 {
            let kv = kv.clone();
            threads.spawn(move || {
                for count in 0..20 {
                    put(&*kv, &format!("{thread}/{count}"), "x");
                    kv.sync().expect("the disk works");
                }
            });
        }
    });
    drop(kv);
    let kv = FjallKv::open(dir.path(), Bytes::mib(1)).expect("sound");
    assert_eq!(keys(&kv, "", "", usize::MAX).len(), 160);
}
