//! Corrupted records and files: a clear error, no panic.

use crate::common::{ROOT, SERVER, fresh, name, open, open_root};
use forebay_model::{Bytes, Change, Error, ErrorKind, FileId, Identity, Stamp, Uid};
use forebay_store::{Attempt, Batch, FjallKv, Kv, MemoryKv, Names, RenameMode, Stopped, XattrMode, check};
use forebay_testkit::{Rng, alone, rounds, seed};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn pairs(kv: &dyn Kv) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    kv.scan(&[], &[], &mut |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .expect("readable");
    pairs
}

/// Runs every operation once; only errors and panics matter.
fn exercise(kv: &Arc<MemoryKv>) -> Vec<ErrorKind> {
    let root = Identity::root();
    let names = match Names::open(kv.clone(), SERVER) {
        Ok(names) => names,
        Err(error) => return vec![error.kind()],
    };
    let mut kinds = Vec::new();
    let mut record = |result: Attempt<()>| {
        kinds.extend(result.err().map(|stopped| Error::from(stopped).kind()));
    };
    for id in (1..10).map(FileId) {
        let now = Stamp(99);
        record(names.inode(id).map(|_| ()).map_err(Stopped::from));
        record(names.reach(&root, id));
        record(names.read_dir(&root, id, 0, 100).map(|_| ()));
        record(names.list_xattrs(&root, id).map(|_| ()).map_err(Stopped::from));
        record(names.set_xattr(&root, id, &name("user.n"), b"v", XattrMode::Any, now).map_err(Stopped::from));
        record(
            names.set_attr(&root, id, &Change { uid: Some(Uid(3)), ..Change::default() }, now).map(|_| ()),
        );
        record(names.make_dir(&root, id, &name("new"), 0o700, now).map(|_| ()));
        record(names.rename(&root, id, &name("new"), ROOT, &name("n"), RenameMode::Replace, now).map(|_| ()));
        record(names.reap(id, |_| Ok(())).map_err(Stopped::from));
        for text in ["a", "f", "s", "n", "new"] {
            record(names.lookup(&root, id, &name(text)).map(|_| ()));
            record(names.unlink(&root, id, &name(text), now).map(|_| ()));
            record(names.remove_dir(&root, id, &name(text), now).map(|_| ()));
        }
    }
    record(names.walk(&root, ROOT, b"a/b/../f", true).map(|_| ()));
    record(names.orphans().map(|_| ()).map_err(Stopped::from));
    kinds
}

#[test]
fn every_flipped_byte_and_truncated_record_is_handled() {
    let world = fresh();
    world.build(&["d a 755", "d a/b 755", "f a/f 644", "s s a", "f f 644"]);
    let (root, f) = (Identity::root(), world.id("f"));
    world.names.set_xattr(&root, f, &name("user.x"), b"v", XattrMode::Any, world.now()).expect("root may");
    world.names.unlink(&root, ROOT, &name("f"), world.now()).expect("there");
    let original = pairs(&*world.kv);
    let mut bad_stores = 0;
    let mut attempt = |key: &[u8], value: Option<&[u8]>, new_key: Option<&[u8]>| {
        let kv = Arc::new(world.kv.crash(usize::MAX));
        let mut batch = Batch::default();
        match value {
            Some(value) => batch.put(new_key.unwrap_or(key), value),
            None => batch.remove(key),
        }
        if new_key.is_some() {
            batch.remove(key);
        }
        kv.commit(batch).expect("memory");
        let findings = check(&*kv);
        bad_stores += usize::from(exercise(&kv).contains(&ErrorKind::BadStore));
        findings
    };
    for (key, value) in &original {
        if !matches!(key[0], b'x' | b'o') {
            assert_ne!(attempt(key, None, None), Vec::<String>::new(), "without {}", key.escape_ascii());
        }
        for index in 0..value.len() {
            let mut changed = value.clone();
            changed[index] ^= 0x81;
            attempt(key, Some(&changed), None);
            if key[0] != b'x' {
                let findings = attempt(key, Some(&value[..index]), None);
                assert_ne!(findings, Vec::<String>::new(), "{} cut at {index}", key.escape_ascii());
            }
        }
        for index in 0..key.len() {
            let mut changed = key.clone();
            changed[index] ^= 0x01;
            attempt(key, Some(value), Some(&changed));
            attempt(key, Some(value), Some(&key[..index]));
        }
    }
    assert!(bad_stores > 100, "corruption is reported as BadStore: {bad_stores}");
}

type Damage = fn(&mut Batch, &dyn Kv);

#[test]
fn checker_finds_every_kind_of_flaw() {
    let cases: [(&str, Damage); 4] = [
        ("its inode", |batch, _| batch.remove(key(b"i", 4))),
        ("no name and is no orphan", |batch, kv| {
            let entries = pairs(kv);
            let (key, _) =
                entries.iter().find(|(key, _)| key.starts_with(b"e") && key.ends_with(b"f")).expect("f");
            batch.remove(key.clone());
        }),
        ("has a name", |batch, _| batch.put(key(b"o", 4), [])),
        ("which has no inode", |batch, _| batch.put([key(b"x", 99), b"user.x".to_vec()].concat(), [])),
    ];
    for (expected, damage) in cases {
        let world = fresh();
        world.build(&["d a 755", "d a/b 755", "f f 644"]);
        assert_eq!(world.id("f"), FileId(4));
        let mut batch = Batch::default();
        damage(&mut batch, &*world.kv);
        world.kv.commit(batch).expect("memory");
        let findings = check(&*world.kv);
        assert!(findings.iter().any(|finding| finding.contains(expected)), "{expected}: {findings:?}");
    }
    assert!(!check(&MemoryKv::new()).is_empty(), "an empty store is not a namespace");
}

fn key(letter: &[u8], id: u64) -> Vec<u8> {
    [letter, &id.to_be_bytes()].concat()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).expect("below it"));
        std::fs::create_dir_all(target.parent().expect("in a directory")).expect("made");
        std::fs::copy(&file, target).expect("copied");
    }
}

/// A store with tables and an unpadded journal, so that copies are cheap and every flip hits data.
fn small_store(dir: &Path) {
    let kv: Arc<dyn Kv> = Arc::new(FjallKv::create(dir, Bytes::mib(1)).expect("a new store"));
    Names::format(&*kv, SERVER, Some(open_root()), Stamp(1)).expect("an empty store");
    let names = open(kv.clone());
    for count in 0..5000 {
        let file = name(&format!("directory-with-a-long-name-{count}"));
        names.make_dir(&Identity::root(), ROOT, &file, 0o700, Stamp(5)).expect("new");
    }
    drop((names, kv));
    // Reopening it removes the padding.
    drop(FjallKv::open(dir, Bytes::mib(1)).expect("sound"));
}

/// Limit of the address space in bytes: fjall's own threads have stacks and arenas.
const MEMORY: u64 = 4 << 30;

#[test]
fn random_damage_to_the_files_never_panics() {
    alone("corrupt::random_damage_to_the_files_never_panics", MEMORY, damage);
}

fn damage() {
    let base = seed();
    let mut random = Rng::new(base);
    let dir = tempfile::tempdir().expect("a temporary directory");
    small_store(dir.path());
    let mut refused = 0;
    for round in rounds(60) {
        let copied = tempfile::tempdir().expect("a temporary directory");
        copy(dir.path(), copied.path());
        let victim = random.pick(&files(copied.path())).clone();
        let mut bytes = std::fs::read(&victim).expect("readable");
        match random.below(4) {
            0 => bytes.truncate(random.index(bytes.len() + 1)),
            1 => bytes.clear(),
            _ if bytes.is_empty() => continue,
            _ => {
                for _ in 0..=random.below(8) {
                    let index = random.index(bytes.len());
                    bytes[index] ^= 1 << random.below(8);
                }
            }
        }
        std::fs::write(&victim, bytes).expect("written");
        let context = format!("FOREBAY_SEED={base}, round {round}, {}", victim.display());
        let kv = match FjallKv::open(copied.path(), Bytes::mib(1)) {
            Ok(kv) => Arc::new(kv),
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::BadStore, "{context}: {error}");
                assert!(
                    error.to_string().contains(&copied.path().display().to_string()),
                    "{context}: {error}"
                );
                continue;
            }
        };
        // A store that opens is consistent, or the check reports its flaws.
        let _ = check(&*kv);
        if let Ok(names) = Names::open(kv, SERVER) {
            let _ = names.read_dir(&Identity::root(), ROOT, 0, 100_000);
            let _ = names.make_dir(&Identity::root(), ROOT, &name("new"), 0o700, Stamp(9));
        }
    }
    assert!(refused > 5, "FOREBAY_SEED={base}: corruption was detected only {refused} times");
}
