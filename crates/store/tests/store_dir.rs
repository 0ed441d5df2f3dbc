//! The directory of a store: made, opened, refused; what a crash in between leaves.

use forebay_model::{Bytes, ErrorKind, FileId, Gid, JobId, ServerId, Uid};
use forebay_store::{Filled, Medium, Place, Root, Start, Store, StoreConfig};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use tempfile::TempDir;

fn config(dir: &Path) -> StoreConfig {
    StoreConfig {
        dir: dir.to_owned(),
        server: ServerId(0),
        capacity: Bytes::mib(1),
        region: None,
        medium: Medium::Disk,
        root: Some(Root { owner: (Uid(0), Gid(0)), mode: 0o755 }),
    }
}

fn refused(dir: &Path, reason: &str) {
    let error = Store::open_or_create(&config(dir)).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::BadStore);
    assert!(error.to_string().contains(reason), "{error}");
}

/// A store with some bytes, left as by a kill.
fn used(dir: &Path) {
    let store = Store::open_or_create(&config(dir)).unwrap();
    let data = store.data();
    let mut grant = data.reserve(Uid(1), FileId(2), 5000).unwrap();
    grant.as_mut_slice().fill(7);
    let crc = crc32c::crc32c(grant.as_mut_slice());
    let len = grant.len();
    data.commit(FileId(2), Place::At(0), vec![Filled { grant, len, crc }], JobId(1)).unwrap();
}

#[test]
fn a_store_is_private_whatever_its_directory_was() {
    let room = TempDir::new().unwrap();
    let dir = room.path().join("store");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    drop(Store::open_or_create(&config(&dir)).unwrap());
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    fs::set_permissions(&dir, Permissions::from_mode(0o750)).unwrap();
    refused(&dir, "chmod 700");
}

#[test]
fn what_is_not_a_store_is_left_alone() {
    for name in ["meta", "regions", "thesis.tex"] {
        let room = TempDir::new().unwrap();
        fs::create_dir(room.path().join(name)).unwrap();
        fs::write(room.path().join(name).join("precious"), "x").unwrap();
        refused(room.path(), "not empty");
        assert!(room.path().join(name).join("precious").exists());
    }
    // A store that lost its head is not made anew over its bytes.
    let room = TempDir::new().unwrap();
    used(room.path());
    fs::remove_file(room.path().join("store")).unwrap();
    refused(room.path(), "not empty");
    assert!(room.path().join("regions/r00000.log").exists());
}

#[test]
fn a_half_made_store_is_made_anew_but_never_through_a_strange_link() {
    let room = TempDir::new().unwrap();
    fs::write(room.path().join("making"), "").unwrap();
    fs::create_dir(room.path().join("meta")).unwrap();
    drop(Store::open_or_create(&config(room.path())).unwrap());
    assert!(!room.path().join("making").exists());

    let (room, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(elsewhere.path().join("precious"), "x").unwrap();
    fs::write(room.path().join("making"), "").unwrap();
    symlink(elsewhere.path(), room.path().join("regions")).unwrap();
    refused(room.path(), "did not make");
    assert!(elsewhere.path().join("precious").exists());
}

#[test]
fn a_region_that_was_being_made_does_not_hinder() {
    let room = TempDir::new().unwrap();
    used(room.path());
    let unfinished = room.path().join("regions/r00000.log.new");
    fs::write(&unfinished, "half").unwrap();
    let store = Store::open_or_create(&config(room.path())).unwrap();
    assert_eq!(store.start(), Start::ProcessDied);
    assert!(!unfinished.exists());
}

#[test]
fn the_check_after_a_machine_crash_is_repeated_until_it_was_finished() {
    let room = TempDir::new().unwrap();
    used(room.path());
    // The head says another boot, and checks by its own checksum.
    let head = room.path().join("store");
    let mut bytes = fs::read(&head).unwrap();
    bytes[32..48].fill(0x11);
    let crc = crc32c::crc32c(&bytes[16..]).to_le_bytes();
    bytes[12..16].copy_from_slice(&crc);
    fs::write(&head, &bytes).unwrap();
    let (log, aside) = (room.path().join("regions/r00002.log"), room.path().join("aside"));
    fs::rename(&log, &aside).unwrap();
    assert!(Store::open_or_create(&config(room.path())).is_err(), "recovery ends in the middle");
    fs::rename(&aside, &log).unwrap();
    let store = Store::open_or_create(&config(room.path())).unwrap();
    assert_eq!(store.start(), Start::MachineDied);
    drop(store);
    let store = Store::open_or_create(&config(room.path())).unwrap();
    assert_eq!(store.start(), Start::ProcessDied);
    store.close().unwrap();
    drop(store);
    assert_eq!(Store::open_or_create(&config(room.path())).unwrap().start(), Start::Clean);
}
