//! `forebay check`: intact stores, and stores with every kind of damage.

use crate::support::{Ran, World, pattern, text};
use forebay_store::{AtRest, Batch, Kv};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

const LEN: usize = 300_000;

/// A closed store with `/a/b`, `/a/f` and `/g`.
fn store() -> World {
    let world = World::up();
    world.well(&["mkdir", "/a"]);
    world.well(&["mkdir", "/a/b"]);
    world.write("f", pattern(LEN, 1));
    world.well(&["put", "f", "/a/f"]);
    world.well(&["put", "f", "/g"]);
    world.well(&["down"]);
    world
}

fn copy(world: &World, to: &str) -> PathBuf {
    let to = world.path(to);
    let copied = Command::new("cp").arg("-a").arg(world.path("store")).arg(&to).status().expect("cp runs");
    assert!(copied.success());
    to
}

fn check(world: &World, store: &Path, more: &[&str]) -> Ran {
    world.run(&[&["check", "--json", text(store)], more].concat())
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("no JSON ({error}): {}{}", ran.out, ran.err))
}

fn kinds(found: &Value) -> Vec<&str> {
    let found = found["found"].as_array().expect("a list");
    found.iter().map(|flaw| flaw["kind"].as_str().expect("a kind")).collect()
}

type Pair = (Vec<u8>, Vec<u8>);

fn records(kv: &dyn Kv, letter: u8) -> Vec<Pair> {
    let mut all = Vec::new();
    kv.scan(&[letter], &[], &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .expect("readable");
    all
}

/// The directory entry of a name.
fn entry(kv: &dyn Kv, name: &str) -> Pair {
    let named = |(key, _): &Pair| key.get(17..) == Some(name.as_bytes());
    records(kv, b'e').into_iter().find(named).expect("there")
}

/// The key of a record of the file with a name.
fn of(kv: &dyn Kv, letter: u8, name: &str) -> Vec<u8> {
    [&[letter], &entry(kv, name).1[2..10]].concat()
}

/// A number in postcard's variable-length encoding.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Two directories that contain each other.
fn make_loop(kv: &dyn Kv, batch: &mut Batch) {
    let ((key, a), (_, b)) = (entry(kv, "a"), entry(kv, "b"));
    let inode = kv.get(&of(kv, b'i', "a")).expect("readable").expect("there");
    let at = inode.windows(2).position(|pair| pair == [1, 1]).expect("one parent, the root");
    let number = u64::from_be_bytes(b[2..10].try_into().expect("8 bytes"));
    let mut moved = inode.clone();
    moved.splice(at + 1..at + 2, varint(number));
    batch.put(of(kv, b'i', "a"), moved);
    batch.put([b"e", &b[2..10], &key[9..]].concat(), a);
    batch.remove(key);
}

/// Sets the length of a file with data to 0.
fn shorten(kv: &dyn Kv, batch: &mut Batch) {
    let key = of(kv, b's', "f");
    let value = kv.get(&key).expect("readable").expect("there");
    let rest = value.strip_prefix(&varint(LEN as u64)[..]).expect("its length comes first");
    batch.put(key, [&[0], rest].concat());
}

struct Damage {
    kind: &'static str,
    expected: &'static str,
    plant: fn(&dyn Kv, &mut Batch),
    /// Options needed with `--repair`; `None` if it cannot be repaired.
    repaired_by: Option<&'static [&'static str]>,
}

const DAMAGES: [Damage; 8] = [
    Damage {
        kind: "name",
        expected: "is missing",
        plant: |kv, batch| batch.remove(of(kv, b'i', "f")),
        repaired_by: Some(&["--drop-dangling"]),
    },
    Damage {
        kind: "links",
        expected: "says it holds 4 directories",
        plant: |kv, batch| {
            let mut counts = kv.get(&of(kv, b'd', "a")).expect("readable").expect("there");
            counts[4] += 3;
            batch.put(of(kv, b'd', "a"), counts);
        },
        repaired_by: Some(&[]),
    },
    Damage {
        kind: "orphan",
        expected: "has no name and is no orphan",
        plant: |kv, batch| batch.remove(entry(kv, "f").0),
        repaired_by: Some(&[]),
    },
    Damage {
        kind: "orphan",
        expected: "there is no such directory",
        plant: |kv, batch| batch.remove(of(kv, b'i', "a")),
        repaired_by: Some(&[]),
    },
    Damage { kind: "loop", expected: "it is in a loop", plant: make_loop, repaired_by: None },
    Damage { kind: "size", expected: "/a/f (file ", plant: shorten, repaired_by: Some(&[]) },
    Damage {
        kind: "orphan",
        expected: "holds bytes of file 77, which has no inode",
        plant: |kv, batch| {
            let record = kv.get(&of(kv, b's', "f")).expect("readable").expect("there");
            batch.put([b"s".as_slice(), &77_u64.to_be_bytes()].concat(), record);
        },
        repaired_by: Some(&["--drop-dangling"]),
    },
    Damage {
        kind: "store",
        expected: "cannot be read",
        plant: |kv, batch| batch.put(of(kv, b'i', "f"), [9, 9]),
        repaired_by: None,
    },
];

#[test]
fn check_finds_nothing_wrong_after_a_clean_stop() {
    let world = store();
    let ran = check(&world, &world.path("store"), &[]);
    assert_eq!((ran.code, &json(&ran)), (0, &serde_json::json!({ "repaired": [], "found": [] })));
    assert_eq!(world.well(&["check", text(&world.path("store"))]), "nothing is wrong\n");
    world.run(&["check", "nowhere"]).failed(1, &["nowhere"]);
    // Without directories the running service is checked.
    world.run(&["check"]).failed(1, &["cannot reach the service"]);
    let mut world = world;
    world.start(&[]);
    world.run(&["check", "store"]).failed(1, &["is in use by process"]);
    assert_eq!(world.well(&["check"]), "nothing is wrong\n");
}

#[test]
fn every_kind_of_damage_is_found_and_repaired_if_safe() {
    let world = store();
    for (number, damage) in DAMAGES.iter().enumerate() {
        let Damage { kind, expected, plant, repaired_by } = damage;
        let dir = copy(&world, &format!("store-{number}"));
        {
            let (store, mut batch) = (AtRest::open(&dir).expect("at rest"), Batch::default());
            plant(&**store.meta(), &mut batch);
            store.meta().commit(batch).expect("written");
            store.meta().sync().expect("synced");
        }
        let ran = check(&world, &dir, &[]);
        let found = json(&ran);
        assert_eq!(ran.code, 3, "{kind}: {found}");
        let flaws = found["found"].as_array().expect("a list").iter();
        let reported = |flaw: &Value| {
            flaw["kind"] == *kind && flaw["what"].as_str().is_some_and(|what| what.contains(expected))
        };
        assert!(flaws.clone().any(reported), "{kind}: {expected}: {found}");
        let plain = check(&world, &dir, &["--repair"]);
        assert_eq!(
            plain.code,
            if *repaired_by == Some(&[][..]) { 0 } else { 3 },
            "{expected}: {}{}",
            plain.out,
            plain.err
        );
        let Some(more) = repaired_by else { continue };
        if !more.is_empty() {
            let ran = check(&world, &dir, &[&["--repair"], *more].concat());
            assert_eq!(ran.code, 0, "{expected}: {}{}", ran.out, ran.err);
            assert!(!json(&ran)["repaired"].as_array().expect("a list").is_empty());
        }
        let again = check(&world, &dir, &[]);
        assert_eq!((again.code, kinds(&json(&again))), (0, Vec::new()), "{expected}");
    }
}

/// Starts a server with a copy of the store.
fn serve(world: &mut World, dir: &Path) {
    let mut command = world.command(&["up", "--detach", "--json", "--disk", "--capacity", "128MiB"]);
    command.arg("--store").arg(dir).arg("--socket").arg(world.path("sock"));
    let started: Value = serde_json::from_str(&crate::support::run(command).well().out).expect("JSON");
    world.watch(started["pid"].as_u64().expect("a process"));
}

#[test]
fn repaired_store_has_all_its_files() {
    let mut world = store();
    // The name, the directory and the length of a file.
    for (number, path) in [(2, None), (3, Some("/a/f")), (5, Some("/a/f"))] {
        let dir = copy(&world, &format!("store-{number}"));
        let id = {
            let (store, mut batch) = (AtRest::open(&dir).expect("at rest"), Batch::default());
            let id = u64::from_be_bytes(of(&**store.meta(), b'i', "f")[1..].try_into().expect("8 bytes"));
            (DAMAGES[number].plant)(&**store.meta(), &mut batch);
            store.meta().commit(batch).expect("written");
            id
        };
        assert_eq!(check(&world, &dir, &["--repair"]).code, 0);
        serve(&mut world, &dir);
        let path = path.map_or_else(|| format!("/lost-{id}"), str::to_owned);
        assert!(world.run(&["cat", &path]).well().bytes == pattern(LEN, 1), "{path}");
        assert!(world.run(&["cat", "/g"]).well().bytes == pattern(LEN, 1));
        world.well(&["down"]);
    }
}

#[test]
fn lost_regions_and_their_files_are_found() {
    let world = store();
    let dir = copy(&world, "damaged");
    let log = dir.join("regions/r00000.log");
    let len = std::fs::metadata(&log).expect("there").len();
    std::fs::write(&log, vec![0x5a; len as usize]).expect("written");
    let ran = check(&world, &dir, &[]);
    assert_eq!(ran.code, 3);
    assert!(kinds(&json(&ran)).contains(&"region"), "{}", ran.out);

    let dir = copy(&world, "replaced");
    world.well(&["store", "replace", text(&dir), "--disk", "--yes"]);
    let ran = check(&world, &dir, &["--repair"]);
    assert_eq!(ran.code, 3);
    let found = json(&ran);
    assert_eq!(kinds(&found), ["lost", "lost"], "{found}");
    for (flaw, path) in found["found"].as_array().expect("a list").iter().zip(["/a/f", "/g"]) {
        let what = flaw["what"].as_str().expect("a sentence");
        assert!(what.starts_with(&format!("{path} (file ")) && what.ends_with("300000 bytes"), "{what}");
    }
}

/// The data on one server is compared with the inode on another.
#[test]
fn inconsistent_lengths_are_collected_again_from_servers() {
    let mut world = World::empty();
    world.start(&["--shards", "3"]);
    world.well(&["layout", "set", "/", "--stripe", "64KiB"]);
    world.write("f", pattern(LEN, 1));
    world.well(&["put", "f", "/f"]);
    let whole = world.json(&["stat", "--json", "/f"]);
    world.well(&["down"]);
    let stores = ["store", "store.1", "store.2"].map(|name| text(&world.path(name)).to_owned());
    let args = ["check", "--json", &stores[0], &stores[1], &stores[2]];
    assert_eq!(world.run(&args).well().code, 0);
    // The inode claims that no other server has data of the file.
    let at_rest = |index: usize| AtRest::open(Path::new(&stores[index])).expect("at rest");
    let home = (0..3)
        .find(|&index| records(&**at_rest(index).meta(), b'e').iter().any(|(key, _)| key.ends_with(b"f")));
    {
        let (store, mut batch) = (at_rest(home.expect("it has a name")), Batch::default());
        let key = of(&**store.meta(), b'i', "f");
        let value = store.meta().get(&key).expect("readable").expect("there");
        batch.put(key, without_extent(&value));
        store.meta().commit(batch).expect("written");
    }
    let ran = world.run(&args);
    assert_eq!((ran.code, kinds(&json(&ran))), (3, vec!["size", "size"]), "{}", ran.out);
    let mended = world.run(&[&args[..], &["--repair"]].concat()).well();
    assert_eq!(json(&mended)["repaired"].as_array().map(Vec::len), Some(2), "{}", mended.out);
    world.start(&["--shards", "3"]);
    assert_eq!(world.json(&["stat", "--json", "/f"])["size"], whole["size"]);
    assert!(world.run(&["cat", "/f"]).well().bytes == pattern(LEN, 1));
}

/// An inode without the length fields at the end of its record: least, touched, unsettled, elsewhere.
fn without_extent(inode: &[u8]) -> Vec<u8> {
    let known = varint(LEN as u64);
    let at = inode.windows(known.len()).rposition(|bytes| bytes == known).expect("its length is noted");
    [&inode[..at], &[0; 4]].concat()
}
