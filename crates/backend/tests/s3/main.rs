//! The S3 back end against a real S3 server.

mod faults;
mod proxy;
#[path = "../support/mod.rs"]
mod support;

use forebay_backend::{Access, Backend, Creation, Object, S3};
use forebay_model::{ErrorKind, Gid, Name, Uid};
use forebay_testkit::{Rng, seed};
use support::Bucket;

const MIB: usize = 1 << 20;

fn path(text: &str) -> Vec<Name> {
    text.split('/').map(|name| Name::new(name).unwrap()).collect()
}

fn create(backend: &S3, at: &str) -> Box<dyn Object> {
    let creation = Creation { owner: (Uid(7), Gid(8)), mode: 0o640, stripes: None };
    backend.create(&path(at), &creation).unwrap()
}

fn bytes(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| ((at / 7 + salt * 31 + at * at / 1000) % 251) as u8).collect()
}

fn read(object: &dyn Object, from: u64, len: usize) -> Vec<u8> {
    let mut into = vec![0; len];
    let count = object.read_at(from, &mut into).unwrap();
    into.truncate(count);
    into
}

/// While a file is open the back end reads its private objects; afterwards it is one object that any S3
/// client reads.
#[test]
fn closed_file_is_one_object_composed_by_the_store() {
    let Some(bucket) = Bucket::new() else { return };
    let backend = bucket.open();
    let file = create(&backend, "big");
    let whole = bytes(20 * MIB, 1);
    // Out of order, large and small, with a hole that is filled last.
    for (start, end) in [(8, 16), (0, 6), (17, 20), (6, 8)] {
        file.write_at((start * MIB) as u64, &[&whole[start * MIB..end * MIB]]).unwrap();
    }
    file.sync().unwrap();
    let reader = backend.open(&path("big")).unwrap();
    assert_eq!(read(&*reader, (16 * MIB) as u64, MIB), vec![0; MIB], "a hole");
    assert!(read(&*reader, 0, 16 * MIB) == whole[..16 * MIB], "read while it is open");
    assert_eq!((bucket.parts(), bucket.ask("GET", "big", b"").1.len()), (4, 0));
    file.write_at((16 * MIB) as u64, &[&whole[16 * MIB..17 * MIB]]).unwrap();
    assert_eq!(backend.find(&path("big")).unwrap().unwrap().version.size, 20 * MIB as u64);
    drop(reader);
    drop(file);
    assert_eq!(bucket.parts(), 0);
    assert!(bucket.ask("GET", "big", b"").1 == whole, "one object");
    let found = backend.find(&path("big")).unwrap().unwrap();
    assert_eq!(
        (found.version.size, found.mode, found.uid, found.gid),
        (20 * MIB as u64, 0o640, Uid(7), Gid(8))
    );
    assert!(backend.rename(&path("big"), &path("bigger")).unwrap());
    assert!(bucket.ask("GET", "bigger", b"").1 == whole, "copied by the store");
    assert_eq!(bucket.ask("GET", "big", b"").0, 404);
}

/// A file with more pieces than a store composes at once, some of them overwritten.
#[test]
fn many_pieces_are_composed_in_several_steps() {
    const PIECES: usize = 520;
    const PIECE: usize = 17 << 10;
    let Some(bucket) = Bucket::new() else { return };
    let backend = bucket.open();
    let (file, mut whole) = (create(&backend, "many"), bytes(PIECES * PIECE, 1));
    for (number, piece) in whole.chunks(PIECE).enumerate() {
        file.write_at((number * PIECE) as u64, &[piece]).unwrap();
    }
    whole[PIECE + 5..3 * PIECE].fill(7);
    file.write_at((PIECE + 5) as u64, &[&whole[PIECE + 5..3 * PIECE]]).unwrap();
    file.gather().unwrap();
    assert_eq!(bucket.parts(), 0);
    assert!(bucket.ask("GET", "many", b"").1 == whole);
    assert!(read(&*file, 0, whole.len()) == whole, "it is still open");
}

/// A server that ends without cleanup leaves private objects; the next server finds them, and a lookup
/// composes the file.
#[test]
fn private_objects_left_by_a_crash_are_recovered() {
    let Some(bucket) = Bucket::new() else { return };
    let whole = bytes(3000, 2);
    let first = bucket.open();
    let file = create(&first, "left");
    file.write_at(0, &[&whole[..2000]]).unwrap();
    first.truncate(&path("left"), 1000).unwrap();
    file.write_at(1500, &[&whole[1500..]]).unwrap();
    std::mem::forget((file, first));
    assert_eq!(bucket.parts(), 3);
    let second = bucket.open();
    let found = second.find(&path("left")).unwrap().unwrap();
    let expected = [&whole[..1000], &[0; 500], &whole[1500..]].concat();
    assert_eq!((found.version.size, bucket.parts()), (3000, 0));
    assert!(bucket.ask("GET", "left", b"") == (200, expected));
}

#[test]
fn foreign_objects_are_files_and_can_be_changed() {
    let Some(bucket) = Bucket::new() else { return };
    bucket.ask("PUT", "runs/7/input", b"0123456789");
    let backend = bucket.open();
    let mut names = Vec::new();
    backend.list(&path("runs"), &mut |name| names.push(name.to_string())).unwrap();
    assert_eq!(names, ["7"]);
    let found = backend.find(&path("runs/7/input")).unwrap().unwrap();
    assert!(found.version.mtime.secs > 1_000_000_000, "{found:?}");
    let file = backend.open_to_write(&path("runs/7/input")).unwrap();
    file.write_at(3, &[b"xy", b"z"]).unwrap();
    assert_eq!(file.version().unwrap().serial, found.version.serial, "it is the same file");
    assert_eq!(read(&*file, 0, 100), b"012xyz6789");
    drop(file);
    assert_eq!(bucket.ask("GET", "runs/7/input", b"").1, b"012xyz6789");
    bucket.ask("PUT", "runs/7/input", b"replaced");
    let other = backend.find(&path("runs/7/input")).unwrap().unwrap();
    assert_ne!(other.version, found.version, "another object is another file");
}

#[test]
fn random_changes_match_a_plain_file() {
    let Some(bucket) = Bucket::new() else { return };
    let backend = bucket.open();
    let mut rng = Rng::new(seed());
    let (mut file, mut model): (_, Vec<u8>) = (create(&backend, "f"), Vec::new());
    for step in 0..60 {
        match rng.below(8) {
            0 => {
                let size = rng.below(300);
                backend.truncate(&path("f"), size).unwrap();
                model.resize(size as usize, 0);
            }
            1 => {
                // Closed and reopened: composed in between.
                drop(file);
                file = backend.open_to_write(&path("f")).unwrap();
            }
            _ => {
                let (at, len) = (rng.below(250) as usize, 1 + rng.below(60) as usize);
                let put = bytes(len, step);
                file.write_at(at as u64, &[&put]).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&put);
            }
        }
        assert_eq!(read(&*file, 0, 1000), model, "seed {}, step {step}", seed());
    }
    drop(file);
    assert!(bucket.ask("GET", "f", b"") == (200, model), "seed {}", seed());
    assert_eq!(bucket.parts(), 0);
}

/// Some writers close a file, which composes it, while others open it.
#[test]
fn concurrent_opens_and_closes_lose_no_write() {
    const WRITERS: usize = 4;
    const WRITES: usize = 12;
    let Some(bucket) = Bucket::new() else { return };
    let backend = &bucket.open();
    drop(create(backend, "f"));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for slot in (writer..WRITERS * WRITES).step_by(WRITERS) {
                    let file = backend.open_to_write(&path("f")).unwrap();
                    file.write_at(slot as u64 * 3, &[&bytes(3, slot)]).unwrap();
                }
            });
        }
    });
    let whole: Vec<u8> = (0..WRITERS * WRITES).flat_map(|slot| bytes(3, slot)).collect();
    assert_eq!(bucket.ask("GET", "f", b"").1, whole);
    assert_eq!(bucket.parts(), 0);
}

#[test]
fn unsupported_object_store_calls_are_refused() {
    let Some(bucket) = Bucket::new() else { return };
    let backend = bucket.open();
    let creation = Creation { owner: (Uid(0), Gid(0)), mode: 0o644, stripes: None };
    let wild = [Name::new(&b"\xff"[..]).unwrap()];
    let refused = backend.create(&wild, &creation).err().unwrap();
    assert_eq!((refused.kind(), backend.find(&wild).unwrap()), (ErrorKind::Invalid, None));
    let error = S3::open("nobody", &bucket.access()).err().unwrap();
    assert!(error.to_string().contains("s3:nobody"), "{error}");
    let nowhere = Access { endpoint: Some("http://127.0.0.1:1".into()), ..bucket.access() };
    let error = S3::open("bucket", &nowhere).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    for endpoint in ["not an address", "ftp://host"] {
        let wrong = Access { endpoint: Some(endpoint.into()), ..bucket.access() };
        assert_eq!(S3::open("bucket", &wrong).err().unwrap().kind(), ErrorKind::Invalid, "{endpoint}");
    }
}
