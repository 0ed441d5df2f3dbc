//! What a user can learn about, and do to, the files of other users through the drain.

use crate::drain::{before, clean, drain, report};
use crate::raw::{ALICE, BOB, Raw, World, refused};
use forebay_backend::{Dir, Fault, Faulty, Memory};
use forebay_model::{ErrorKind, FileId};
use forebay_server::Draining;
use forebay_wire::{At, DrainCall, DrainStatus, Failing, Reply, Request};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ROOT: FileId = FileId::ROOT;

fn status(raw: &mut Raw) -> DrainStatus {
    match raw.call(Request::Status).unwrap() {
        Reply::Status(status) => status.drain.expect("drain status"),
        other => panic!("unexpected reply to a status request: {other:?}"),
    }
}

fn paths(failing: &[Failing]) -> Vec<&str> {
    let mut paths: Vec<&str> = failing.iter().map(|failing| failing.path.as_str()).collect();
    paths.sort_unstable();
    paths
}

#[test]
fn user_sees_only_own_failing_paths() {
    let faulty = Faulty::new(Memory::default(), |call| (call == "create").then_some(Fault::Quota));
    let world = before(Arc::new(faulty), Draining { threshold: 99, ..Draining::default() });
    let (mut root, mut alice) = (world.control(), world.control().acting(ALICE));
    let closed = alice.make_dir(ROOT, "closed", 0o700);
    let secret = alice.create(closed, "secret", 0o600);
    world.data().acting(ALICE).write(secret, At::Offset(0), b"hers").unwrap();
    let mut bob = world.control().acting(BOB);
    let own = bob.create(ROOT, "his", 0o600);
    world.data().acting(BOB).write(own, At::Offset(0), b"his").unwrap();
    drain(&mut root, None);
    let all = status(&mut root);
    assert_eq!((paths(&all.failing), all.failures), (vec!["/closed/secret", "/his"], 2));
    for (raw, sees) in [(&mut bob, "/his"), (&mut alice, "/closed/secret")] {
        let seen = status(raw);
        assert_eq!((paths(&seen.failing), seen.failures), (vec![sees], 1));
        let seen = report(raw, DrainCall::Look { ticket: None }).status;
        assert_eq!((paths(&seen.failing), seen.failures), (vec![sees], 1));
    }
}

#[test]
fn draining_by_id_checks_permission() {
    let world = before(Arc::new(Memory::default()), Draining { threshold: 99, ..Draining::default() });
    let (mut alice, mut bob) = (world.control().acting(ALICE), world.control().acting(BOB));
    let begin = |file| Request::Drain(DrainCall::Begin { file: Some(file), order: None, last: false });
    let dir = alice.make_dir(ROOT, "d", 0o777);
    let files = [0o600, 0o644, 0o666].map(|mode| alice.create(dir, &format!("{mode:o}"), mode).file);
    refused(bob.call(begin(ROOT)), ErrorKind::NotPermitted);
    refused(alice.call(begin(ROOT)), ErrorKind::NotPermitted);
    refused(bob.call(begin(dir)), ErrorKind::NotPermitted);
    refused(bob.call(begin(files[0])), ErrorKind::AccessDenied);
    refused(bob.call(begin(files[1])), ErrorKind::AccessDenied);
    bob.call(begin(files[2])).unwrap();
    alice.call(begin(dir)).unwrap();
    alice.call(begin(files[0])).unwrap();
    world.control().call(begin(ROOT)).unwrap();
    let fetch = |file| Request::Drain(DrainCall::Fetch { file, offset: 0, len: 10, turn: 1 });
    refused(bob.call(fetch(files[0])), ErrorKind::AccessDenied);
    bob.call(fetch(files[1])).unwrap();
}

#[test]
fn private_directory_of_the_back_end_must_be_the_servers_own() {
    if !forebay_testkit::is_root() {
        forebay_testkit::skip("private directory", "only root can create files of another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let squat = dir.path().join(".forebay");
    let cases: [(&str, &dyn Fn()); 4] = [
        ("another user's", &|| {
            fs::create_dir(&squat).unwrap();
            fs::write(squat.join("bait"), "").unwrap();
            fs::set_permissions(&squat, PermissionsExt::from_mode(0o700)).unwrap();
            chown(&squat, Some(BOB), Some(BOB)).unwrap();
        }),
        ("open to others", &|| {
            fs::create_dir(&squat).unwrap();
            fs::set_permissions(&squat, PermissionsExt::from_mode(0o777)).unwrap();
        }),
        ("a link", &|| std::os::unix::fs::symlink("elsewhere", &squat).unwrap()),
        ("a file", &|| fs::write(&squat, "").unwrap()),
    ];
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    let world = World::before(Arc::new(Dir::open(dir.path()).unwrap()));
    let mut alice = world.control().acting(ALICE);
    for (squatted, make) in cases {
        let token = alice.create(ROOT, "f", 0o644);
        world.data().acting(ALICE).write(token, At::Offset(0), b"hers").unwrap();
        clean(&drain(&mut world.control(), None));
        make();
        let unlink = Request::Unlink { dir: ROOT, name: crate::raw::name("f") };
        let error = alice.call(unlink.clone()).expect_err(squatted);
        assert!(error.to_string().contains(".forebay"), "{squatted}: {error}");
        assert!(dir.path().join("f").exists() && alice.walk("f").is_ok(), "{squatted}: nothing was moved");
        match squat.is_dir() && !squat.is_symlink() {
            true => fs::remove_dir_all(&squat).unwrap(),
            false => fs::remove_file(&squat).unwrap(),
        }
        alice.call(unlink).unwrap();
        let made = squat.metadata().unwrap();
        assert_eq!((made.uid(), made.mode() & 0o7777), (0, 0o700));
        assert_eq!(world.data().acting(ALICE).read(token, 0, 9).unwrap(), b"hers");
        alice.call(Request::Close { token }).unwrap();
        fs::remove_dir_all(&squat).unwrap();
    }
}

#[test]
fn full_buffer_error_names_no_file() {
    let closed = Arc::new(AtomicBool::new(true));
    let is_closed = closed.clone();
    let faulty = Faulty::new(Memory::default(), move |call| {
        (call == "create" && is_closed.load(Ordering::Relaxed)).then_some(Fault::Quota)
    });
    let patience = std::time::Duration::from_millis(200);
    let world = before(Arc::new(faulty), Draining { patience, ..Draining::default() });
    let mut alice = world.control().acting(ALICE);
    let dir = alice.make_dir(ROOT, "closed", 0o700);
    let secret = alice.create(dir, "secret", 0o600);
    let mut data = world.data().acting(ALICE);
    let full = (0..64_u64).find_map(|at| data.write(secret, At::Offset(at << 20), &[1; 1 << 20]).err());
    assert_eq!(full.expect("the buffer fills up").kind(), ErrorKind::NoSpace);
    let own = world.control().acting(BOB).create(ROOT, "his", 0o600);
    let mut data = world.data().acting(BOB);
    let full = (0..64_u64).find_map(|at| data.write(own, At::Offset(at << 20), &[2; 1 << 20]).err());
    let error = full.expect("the buffer is full for other users too");
    assert!(!error.to_string().contains("secret") && error.to_string().contains("forebay status"), "{error}");
}
