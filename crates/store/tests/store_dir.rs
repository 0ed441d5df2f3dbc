//! The directory of a store: creating, opening, refusing, and crashes in between.

use forebay_model::{
    Bytes, Change, ErrorKind, FileId, Gid, Identity, JobId, Name, ServerId, SetTime, Span, Stamp, Time, Uid,
};
use forebay_store::{AtRest, Batch, Filled, Mapper, Medium, Place, Root, Start, Store, StoreConfig};
use forebay_testkit::{Seeded, child, child_of, rounds, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
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

/// A store with some bytes, as after a kill.
fn used(dir: &Path) {
    let store = Store::open_or_create(&config(dir)).unwrap();
    let data = store.data();
    let mut grant = data.reserve(Uid(1), FileId(2), 5000).unwrap();
    grant.as_mut_slice().fill(7);
    let crc = crc32c::crc32c(grant.as_mut_slice());
    let len = grant.len();
    data.commit(FileId(2), Place::At(0), vec![Filled { grant, len, crc }], JobId(1)).unwrap();
}

/// Writes a range of bytes, or as much of it as there is space for.
fn fill(store: &Store, file: FileId, len: u32) {
    let (data, mut at) = (store.data(), 0);
    while at < len {
        let Ok(mut grant) = data.reserve(Uid(1), file, len - at) else { return };
        grant.as_mut_slice().fill(7);
        let (crc, len) = (crc32c::crc32c(grant.as_mut_slice()), grant.len());
        data.commit(file, Place::At(at.into()), vec![Filled { grant, len, crc }], JobId(1)).unwrap();
        at += len;
    }
}

#[test]
fn full_store_with_a_mapped_file_is_closed_cleanly() {
    const LEN: u64 = 400_000;
    let (room, mapped, other) = (TempDir::new().unwrap(), FileId(2), FileId(3));
    let store = Store::open_or_create(&config(room.path())).unwrap();
    let (data, span) = (store.data(), Span::new(0, LEN));
    data.truncate(mapped, LEN, Batch::default()).unwrap();
    let mapper = Mapper { uid: Uid(1), job: JobId(1), write: true };
    assert_eq!(data.prepare_map(mapped, span, mapper).unwrap(), None);
    let object = data.share_map(mapped, span, true).unwrap().unwrap();
    object.write_all_at(&[5; LEN as usize], 0).unwrap();
    drop(object);
    fill(&store, other, 1 << 20);
    let size = data.facts(other).unwrap().size;
    assert_eq!(store.close().unwrap_err().kind(), ErrorKind::NoSpace);
    drop(store);
    let store = Store::open_or_create(&config(room.path())).unwrap();
    assert_eq!((store.start(), store.data().facts(other).unwrap().size), (Start::Clean, size));
    store.data().delete(other, Batch::default()).unwrap();
    store.close().unwrap();
    drop(store);
    let store = Store::open_or_create(&config(room.path())).unwrap();
    assert_eq!(store.data().facts(mapped).unwrap().buffered, LEN, "everything that was stored");
}

#[test]
fn store_is_private_whatever_the_mode_of_its_directory() {
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
fn directory_that_is_not_a_store_is_left_unchanged() {
    for name in ["meta", "regions", "thesis.tex"] {
        let room = TempDir::new().unwrap();
        fs::create_dir(room.path().join(name)).unwrap();
        fs::write(room.path().join(name).join("precious"), "x").unwrap();
        refused(room.path(), "not empty");
        assert!(room.path().join(name).join("precious").exists());
    }
    // A store without its superblock is not recreated over its data.
    let room = TempDir::new().unwrap();
    used(room.path());
    fs::remove_file(room.path().join("store")).unwrap();
    refused(room.path(), "not empty");
    assert!(room.path().join("regions/r00000.log").exists());
}

#[test]
fn incomplete_store_is_recreated_but_not_through_a_foreign_link() {
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
fn incomplete_region_does_not_prevent_opening() {
    let room = TempDir::new().unwrap();
    used(room.path());
    let unfinished = room.path().join("regions/r00000.log.new");
    fs::write(&unfinished, "half").unwrap();
    let store = Store::open_or_create(&config(room.path())).unwrap();
    assert_eq!(store.start(), Start::ProcessDied);
    assert!(!unfinished.exists());
}

#[test]
fn check_after_a_machine_crash_is_repeated_until_it_completes() {
    let room = TempDir::new().unwrap();
    used(room.path());
    // The superblock names another boot and has a valid checksum.
    let head = room.path().join("store");
    let mut bytes = fs::read(&head).unwrap();
    bytes[32..48].fill(0x11);
    let crc = crc32c::crc32c(&bytes[16..]).to_le_bytes();
    bytes[12..16].copy_from_slice(&crc);
    fs::write(&head, &bytes).unwrap();
    let (log, aside) = (room.path().join("regions/r00002.log"), room.path().join("aside"));
    fs::rename(&log, &aside).unwrap();
    assert!(Store::open_or_create(&config(room.path())).is_err(), "recovery is interrupted");
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

/// Two processes compete for a lock while a third removes the store with its lock: only one holds it at a time.
#[test]
fn removed_store_lock_blocks_no_process_and_admits_only_one() {
    let room = TempDir::new().unwrap();
    let dir = room.path().join("store");
    let (holders, removed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (dir, holders, removed) = (&dir, &holders, &removed);
            scope.spawn(move || {
                let mut opened = 0;
                while opened < 6 {
                    if let Ok(store) = Store::open_or_create(&config(dir)) {
                        let others = holders.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(others, 0, "two processes opened one store");
                        assert!(Store::open_or_create(&config(dir)).is_err(), "it is open");
                        assert!(Store::remove(dir).is_err(), "it is open");
                        holders.fetch_sub(1, Ordering::SeqCst);
                        drop(store);
                        opened += 1;
                    }
                    if opened % 2 == thread % 2 {
                        // Another process may have it open.
                        let gone = Store::remove(dir).is_ok();
                        removed.fetch_add(u64::from(gone), Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!(removed.into_inner() > 0, "the store was never removed");
}

#[test]
fn interrupted_removal_is_finished_by_the_next_or_by_a_new_store() {
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
    assert_eq!(
        fs::read_dir(room.path()).unwrap().count(),
        1,
        "a directory that is not a store is left unchanged"
    );
}

fn make_replace_and_remove(dir: &Path) {
    let store = Store::open_or_create(&config(dir)).unwrap();
    store.close().unwrap();
    drop(store);
    Store::replace(dir, Medium::Disk).unwrap();
    Store::remove(dir).unwrap();
}

#[test]
fn random_kills_during_create_replace_and_remove_are_recoverable() {
    const TEST: &str = "random_kills_during_create_replace_and_remove_are_recoverable";
    if let Some(dir) = child_of(TEST) {
        loop {
            make_replace_and_remove(&dir);
        }
    }
    let seeded = Seeded::new();
    let mut rng = seeded.rng(0);
    let room = TempDir::new().unwrap();
    let dir = room.path().join("store");
    // Kills are spread over the whole run, however slow the machine is.
    let start = Instant::now();
    make_replace_and_remove(&dir);
    let cycle = start.elapsed().as_millis() as u64;
    let mut replaced = 0;
    for round in rounds(400) {
        if round >= 25 && replaced > 0 && std::env::var_os("FOREBAY_SOAK_SECONDS").is_none() {
            break;
        }
        let mut child = child(TEST, &dir).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 + rng.below(2 * cycle * (1 + round / 25))));
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(ended.code(), None, "round {round}: it ran until it was killed");
        let opened = match Store::open_or_create(&config(&dir)) {
            // The regions were being removed or created.
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
        if rng.one_in(2) {
            Store::remove(&dir).unwrap();
            assert!(!dir.exists(), "round {round}");
        }
    }
    assert!(replaced > 0, "no kill hit the replacement");
}

#[test]
fn start_after_a_run_with_a_future_clock_warns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open_or_create(&config(&path)).unwrap();
    assert!(store.notes().is_empty() && store.data().ahead_of_clock() < Duration::from_secs(60));
    // As a start one hour from now would leave it.
    let mut batch = Batch::default();
    batch.put(b"c".to_vec(), (store.data().now().0 + 3_600_000_000_000).to_be_bytes());
    store.meta().commit(batch).unwrap();
    drop(store);
    let store = Store::open_or_create(&config(&path)).unwrap();
    let is_warning = |note: &String| note.contains("minutes ahead of this machine's present one");
    assert!(store.notes().iter().any(is_warning), "{:?}", store.notes());
    assert!(store.data().ahead_of_clock() > Duration::from_secs(3000));
}

#[test]
fn files_changed_after_a_start_with_a_clock_in_the_future_show_the_present() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (root, owner) = (FileId::ROOT, Identity::root());
    let future = |store: &Store| Stamp(store.data().now().0 + 3_600_000_000_000);
    let store = Store::open_or_create(&config(&path)).unwrap();
    let then = future(&store);
    let name = Name::new("made in the future").unwrap();
    let (old, _) = store.names().make_dir(&owner, root, &name, 0o755, then).unwrap();
    let mut batch = Batch::default();
    batch.put(b"c".to_vec(), then.0.to_be_bytes());
    store.meta().commit(batch).unwrap();
    drop(store);
    // Twice, because the second start has to know what the first has seen.
    for round in ["first", "second"] {
        let store = Store::open_or_create(&config(&path)).unwrap();
        let (names, data) = (store.names(), store.data());
        let shown = |file: FileId| {
            let inode = names.inode(file).unwrap();
            inode.attr(file, &names.share(file).unwrap().into(), data.times())
        };
        let is_present = |time: Time| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
            (now - 1800..now + 1800).contains(&time.secs)
        };
        let before = shown(old);
        if round == "first" {
            assert_eq!((before.mtime, before.ctime), (then.into(), then.into()), "what was shown stays");
        }
        assert!(data.now() > then, "stamps only grow");
        let inside = Name::new(round).unwrap();
        let (new, _) = names.make_dir(&owner, old, &inside, 0o755, data.now()).unwrap();
        for attr in [shown(new), shown(old)] {
            assert!(is_present(attr.mtime) && is_present(attr.ctime), "{round}: {attr:?}");
        }
        assert!(is_present(shown(new).atime));
        let change = Change { mode: Some(0o700), mtime: Some(SetTime::Now), ..Change::default() };
        names.set_attr(&owner, old, &change, data.now()).unwrap();
        assert!(is_present(shown(old).mtime) && is_present(shown(old).ctime));
        let set = Time { secs: 99_999_999_999, nanos: 5 };
        let change = Change { mtime: Some(SetTime::To(set)), ..Change::default() };
        names.set_attr(&owner, new, &change, data.now()).unwrap();
        assert_eq!(shown(new).mtime, set, "a time that was asked for is kept");
        assert!(is_present(shown(new).ctime));
    }
}

/// A user who owns nothing of the service.
const STRANGER: u32 = 4711;

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "it needs root");
    }
    root
}

#[test]
fn directory_of_another_user_does_not_become_a_store() {
    if !is_root("a store in a directory of another user") {
        return;
    }
    let room = TempDir::new().unwrap();
    for mode in [0o700, 0o755] {
        let dir = room.path().join(format!("{mode:o}"));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        chown(&dir, Some(STRANGER), Some(STRANGER)).unwrap();
        refused(&dir, "belongs to user 4711");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing was put there");
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, mode);
    }
    // A store that was given away is no store of this user any more.
    let dir = room.path().join("used");
    used(&dir);
    chown(&dir, Some(STRANGER), Some(STRANGER)).unwrap();
    refused(&dir, "belongs to user 4711");
    for refusal in [Store::remove(&dir).err(), Store::replace(&dir, Medium::Disk).err()] {
        assert!(refusal.expect("refused").to_string().contains("belongs to user 4711"));
    }
    assert!(AtRest::open(&dir).is_err(), "nor for a check");
}

#[test]
fn link_in_place_of_a_store_directory_is_refused() {
    let room = TempDir::new().unwrap();
    let (dir, elsewhere) = (room.path().join("store"), room.path().join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &dir).unwrap();
    refused(&dir, "link");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn directory_that_others_can_write_to_does_not_become_a_store() {
    let room = TempDir::new().unwrap();
    let dir = room.path().join("store");
    fs::create_dir(&dir).unwrap();
    for mode in [0o777, 0o702, 0o1777] {
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        refused(&dir, "chmod 700");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing was put there");
    }
}

#[test]
fn planted_lock_does_not_truncate_another_file() {
    let room = TempDir::new().unwrap();
    let (precious, pipe) = (room.path().join("precious"), room.path().join("pipe"));
    fs::write(&precious, "x").unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for name in ["link", "hard"] {
        let dir = room.path().join(name);
        fs::create_dir(&dir).unwrap();
        match name {
            "link" => symlink(&precious, dir.join("lock")),
            _ => fs::hard_link(&precious, dir.join("lock")),
        }
        .unwrap();
        refused(&dir, "lock");
        assert_eq!(fs::read(&precious).unwrap(), b"x", "{name}");
    }
    let dir = room.path().join("fifo");
    fs::create_dir(&dir).unwrap();
    fs::rename(&pipe, dir.join("lock")).unwrap();
    refused(&dir, "lock");
}

/// Moves the regions of a store to a directory in `/dev/shm`, where regions of users without mounts are.
fn regions_in_shared_memory(dir: &Path) -> PathBuf {
    let incarnation = forebay_store::inspect(dir).unwrap().incarnation;
    let elsewhere = PathBuf::from(format!("/dev/shm/forebay-{incarnation}"));
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(dir.join("regions")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), elsewhere.join(entry.file_name())).unwrap();
    }
    fs::remove_dir_all(dir.join("regions")).unwrap();
    symlink(&elsewhere, dir.join("regions")).unwrap();
    elsewhere
}

#[test]
fn regions_that_another_user_put_into_shared_memory_are_refused() {
    if !is_root("regions of another user") {
        return;
    }
    let room = TempDir::new().unwrap();
    let dir = room.path().join("store");
    used(&dir);
    let elsewhere = regions_in_shared_memory(&dir);
    drop(Store::open_or_create(&config(&dir)).unwrap());
    // As after a reboot: the stranger makes the directory first, with regions of their own.
    chown(&elsewhere, Some(STRANGER), Some(STRANGER)).unwrap();
    refused(&dir, "belongs to user 4711");
    let (precious, epochs) = (room.path().join("precious"), elsewhere.join(forebay_shm::EPOCHS_NAME));
    fs::write(&precious, [7; 4096]).unwrap();
    let _ = fs::remove_file(&epochs);
    symlink(&precious, &epochs).unwrap();
    // The store goes on without them, and touches nothing there.
    Store::replace(&dir, Medium::Disk).unwrap();
    drop(Store::open_or_create(&config(&dir)).unwrap());
    assert_eq!(fs::read(&precious).unwrap(), [7; 4096]);
    assert!(elsewhere.join("r00000.log").exists());
    fs::remove_dir_all(&elsewhere).unwrap();
}

#[test]
fn store_below_a_directory_of_another_user_warns() {
    if !is_root("a store below a directory of another user") {
        return;
    }
    let room = TempDir::new().unwrap();
    let parent = room.path().join("scratch");
    fs::create_dir(&parent).unwrap();
    let dir = parent.join("store");
    let warns = || {
        let store = Store::open_or_create(&config(&dir)).unwrap();
        store.notes().iter().any(|note| note.contains("may replace the store"))
    };
    assert!(!warns());
    for mode in [0o777, 0o755] {
        fs::set_permissions(&parent, Permissions::from_mode(mode)).unwrap();
        assert_eq!(warns(), mode == 0o777, "{mode:o}");
    }
    chown(&parent, Some(STRANGER), Some(STRANGER)).unwrap();
    assert!(warns());
}
