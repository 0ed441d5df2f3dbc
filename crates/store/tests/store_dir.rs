//! The directory of a store: made, opened, refused; what a crash in between leaves.

use forebay_dice::{Seeded, rounds};
use forebay_model::{Bytes, ErrorKind, FileId, Gid, JobId, ServerId, Uid};
use forebay_store::{Filled, Medium, Place, Root, Start, Store, StoreConfig};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
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

/// Two who want the same lock while a third removes the store and its lock: one of them has it at a time.
#[test]
fn a_lock_that_was_removed_with_its_store_keeps_nobody_out_and_lets_nobody_in() {
    let room = TempDir::new().unwrap();
    let dir = room.path().join("store");
    let holders = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (dir, holders) = (&dir, &holders);
            scope.spawn(move || {
                let mut opened = 0;
                while opened < 6 {
                    if let Ok(store) = Store::open_or_create(&config(dir)) {
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two processes have one store");
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        drop(store);
                        opened += 1;
                    }
                    if opened % 2 == thread % 2 {
                        // Somebody may have it open.
                        let _ = Store::remove(dir);
                    }
                }
            });
        }
    });
}

#[test]
fn a_removal_that_was_cut_short_is_finished_by_the_next_or_made_good_by_a_new_store() {
    let parts: [&[&str]; 4] = [&[], &["store"], &["store", "regions"], &["store", "regions", "meta"]];
    for gone in parts {
        for again in [true, false] {
            let room = TempDir::new().unwrap();
            let dir = room.path().join("store");
            used(&dir);
            fs::write(dir.join("making"), "").unwrap();
            for part in gone {
                let path = dir.join(part);
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
            }
            if again {
                Store::remove(&dir).unwrap();
                assert!(!dir.exists(), "{gone:?}");
            } else {
                let store = Store::open_or_create(&config(&dir)).unwrap();
                let fresh = if gone.is_empty() { Start::ProcessDied } else { Start::Fresh };
                assert_eq!(store.start(), fresh, "{gone:?}");
            }
        }
    }
    let room = TempDir::new().unwrap();
    fs::write(room.path().join("thesis.tex"), "mine").unwrap();
    assert_eq!(Store::remove(room.path()).unwrap_err().kind(), ErrorKind::BadStore);
    assert_eq!(fs::read_dir(room.path()).unwrap().count(), 1, "what is no store is left as it was");
}

const CHILD_DIR: &str = "FOREBAY_TEST_STORE_DIR";

/// Not a test of its own: what the killed process does.
#[test]
fn child_makes_replaces_and_removes_until_it_is_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let dir = Path::new(&dir);
    loop {
        make_replace_and_remove(dir);
    }
}

fn make_replace_and_remove(dir: &Path) {
    let store = Store::open_or_create(&config(dir)).unwrap();
    store.close().unwrap();
    drop(store);
    Store::replace(dir, Medium::Disk).unwrap();
    Store::remove(dir).unwrap();
}

#[test]
fn random_kills_inside_making_replacing_and_removing_leave_what_can_be_gone_on_with() {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(0);
    let room = TempDir::new().unwrap();
    let dir = room.path().join("store");
    // However slow the machine is, kills fall everywhere.
    let start = Instant::now();
    make_replace_and_remove(&dir);
    let cycle = start.elapsed().as_millis() as u64;
    let mut replaced = 0;
    for round in rounds(400) {
        if round >= 25 && replaced > 0 && std::env::var_os("FOREBAY_SOAK_SECONDS").is_none() {
            break;
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_makes_replaces_and_removes_until_it_is_killed"])
            .env(CHILD_DIR, &dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(5 + dice.below(2 * cycle * (1 + round / 25))));
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(ended.code(), None, "round {round}: it went on until it was killed");
        let opened = match Store::open_or_create(&config(&dir)) {
            // The regions were on the way out, or on the way in.
            Err(error) if error.to_string().contains("store replace") => {
                replaced += 1;
                Store::replace(&dir, Medium::Disk).unwrap();
                Store::open_or_create(&config(&dir))
            }
            opened => opened,
        };
        let store = opened.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(forebay_store::check(&**store.meta()), Vec::<String>::new(), "round {round}");
        assert_eq!(store.data().damage(), Vec::<String>::new(), "round {round}");
        drop(store);
        if dice.one_in(2) {
            Store::remove(&dir).unwrap();
            assert!(!dir.exists(), "round {round}");
        }
    }
    assert!(replaced > 0, "no kill hit the replacing");
}
