//! What another user can do directly in the directories behind a server that runs as root, or as a service's user.

use forebay_backend::{Backend, Creation, Dir};
use forebay_model::{ErrorKind, Gid, Name, Time, Uid};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const ALICE: (Uid, Gid) = (Uid(4001), Gid(4001));
const BOB: u32 = 4002;
const LAYOUT: &str = "user.forebay.layout";

fn path(text: &str) -> Vec<Name> {
    text.split('/').map(|part| Name::new(part).unwrap()).collect()
}

fn creation(mode: u16) -> Creation {
    Creation { owner: ALICE, mode, stripes: None }
}

/// A directory that every user may write to.
fn shared() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    dir
}

fn striped() -> (TempDir, Arc<dyn Backend>) {
    let dir = shared();
    let backend = forebay_backend::open(&format!("stripes:{}", dir.path().display())).unwrap();
    (dir, backend)
}

fn is_root(what: &str) -> bool {
    let root = forebay_testkit::is_root();
    if !root {
        forebay_testkit::skip(what, "only root can make files of another user");
    }
    root
}

fn bytes(backend: &dyn Backend, file: &str) -> Vec<u8> {
    let object = backend.open(&path(file)).unwrap();
    let mut bytes = vec![0; 100];
    let count = object.read_at(0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn objects(dir: &Path) -> usize {
    fs::read_dir(dir.join(".objects")).unwrap().count()
}

#[test]
fn objects_directory_of_a_stripe_set_is_reserved() {
    let (dir, backend) = striped();
    let (squat, inner, file) = (path(".objects"), path(".objects/x"), path("f"));
    let before = dir.path().join(".objects").metadata().unwrap();
    drop(backend.create(&file, &creation(0o644)).unwrap());
    fs::write(dir.path().join(".objects/7"), b"data of a file").unwrap();
    let time = Time { secs: 1, nanos: 0 };
    let object = path(".objects/7");
    let calls = [
        ("make_dir", backend.make_dir(&squat, ALICE, 0o755).map(drop)),
        ("make_dir below", backend.make_dir(&inner, ALICE, 0o755).map(drop)),
        ("create", backend.create(&inner, &creation(0o644)).map(drop)),
        ("symlink", backend.symlink(&inner, b"x")),
        ("set_attr", backend.set_attr(&squat, ALICE, 0o777, time)),
        ("set_attr below", backend.set_attr(&object, ALICE, 0o777, time)),
        ("rename", backend.rename(&object, &path("g")).map(drop)),
        ("rename to", backend.rename(&file, &inner).map(drop)),
        ("unlink", backend.unlink(&object).map(drop)),
        ("remove_dir", backend.remove_dir(&squat).map(drop)),
        ("truncate", backend.truncate(&object, 0).map(drop)),
        ("open", backend.open(&object).map(drop)),
        ("open_to_write", backend.open_to_write(&object).map(drop)),
    ];
    for (call, done) in calls {
        assert_eq!(done.expect_err(call).kind(), ErrorKind::Invalid, "{call}");
    }
    assert_eq!(backend.find(&object).unwrap(), None);
    assert!(backend.list(&squat, &mut |_| {}).is_err());
    let now = dir.path().join(".objects").metadata().unwrap();
    assert_eq!((now.uid(), now.mode(), now.ino()), (before.uid(), before.mode(), before.ino()));
    assert_eq!(fs::read(dir.path().join(".objects/7")).unwrap(), b"data of a file");
}

#[test]
fn replaced_objects_directory_does_not_receive_data() {
    let (dir, backend) = striped();
    fs::rename(dir.path().join(".objects"), dir.path().join("aside")).unwrap();
    fs::create_dir(dir.path().join(".objects")).unwrap();
    let file = backend.create(&path("f"), &creation(0o600)).unwrap();
    file.write_at(0, &[b"secret"]).unwrap();
    assert_eq!(objects(dir.path()), 0);
    assert_eq!(bytes(&*backend, "f"), b"secret");
}

#[test]
fn service_user_never_owns_a_set_uid_file_of_another_user() {
    if !is_root("set-uid files") {
        return;
    }
    for kind in ["dir", "stripes"] {
        let dir = shared();
        let place = dir.path().to_owned();
        // A service that does not run as root cannot give files away.
        forebay_testkit::as_user(BOB, move || {
            let backend = forebay_backend::open(&format!("{kind}:{}", place.display())).unwrap();
            drop(backend.create(&path("f"), &creation(0o6755)).unwrap());
            drop(backend.create(&path("g"), &creation(0o755)).unwrap());
            backend.set_attr(&path("g"), ALICE, 0o6755, Time { secs: 1, nanos: 0 }).unwrap();
            backend.make_dir(&path("d"), ALICE, 0o2755).unwrap();
            // Its own files may be set-uid.
            let own = (Uid(BOB), Gid(BOB));
            backend.set_attr(&path("d"), own, 0o2755, Time { secs: 1, nanos: 0 }).unwrap();
            drop(backend.create(&path("h"), &Creation { owner: own, ..creation(0o4755) }).unwrap());
        });
        let mode = |name: &str| dir.path().join(name).metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode("f"), mode("g"), mode("h"), mode("d")), (0o755, 0o755, 0o4755, 0o2755), "{kind}");
    }
}

#[test]
fn empty_private_directory_of_another_user_is_not_given_away() {
    if !is_root("empty directories") {
        return;
    }
    let dir = shared();
    let backend = Dir::open(dir.path()).unwrap();
    let private = dir.path().join("d");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, PermissionsExt::from_mode(0o700)).unwrap();
    chown(&private, Some(BOB), Some(BOB)).unwrap();
    backend.make_dir(&path("d"), ALICE, 0o755).unwrap();
    let now = private.metadata().unwrap();
    assert_eq!((now.uid(), now.mode() & 0o7777), (BOB, 0o700));
    // One that this server began to make is completed.
    chown(&private, Some(0), Some(0)).unwrap();
    backend.make_dir(&path("d"), ALICE, 0o755).unwrap();
    let now = private.metadata().unwrap();
    assert_eq!((now.uid(), now.mode() & 0o7777), (ALICE.0.0, 0o755));
}

#[test]
fn objects_of_a_file_with_another_hard_link_are_kept() {
    let (dir, backend) = striped();
    let at = |name: &str| dir.path().join(name);
    for (call, name) in [("unlink", "f"), ("rename", "g")] {
        backend.create(&path(name), &creation(0o644)).unwrap().write_at(0, &[b"kept"]).unwrap();
        let second = format!("{name}.second");
        fs::hard_link(at(name), at(&second)).unwrap();
        match call {
            "unlink" => assert!(backend.unlink(&path(name)).unwrap()),
            _ => {
                drop(backend.create(&path("new"), &creation(0o644)).unwrap());
                assert!(backend.rename(&path("new"), &path(name)).unwrap());
            }
        }
        assert_eq!(bytes(&*backend, &second), b"kept", "{call}");
        assert!(backend.unlink(&path(&second)).unwrap());
    }
    assert!(backend.unlink(&path("g")).unwrap());
    assert_eq!(objects(dir.path()), 0);
}

#[test]
fn reused_inode_number_gives_no_access_to_left_over_objects() {
    if !is_root("reused inode numbers") {
        return;
    }
    let (dir, backend) = striped();
    let at = |name: &str| dir.path().join(name);
    backend.create(&path("alices"), &creation(0o600)).unwrap().write_at(0, &[b"secret"]).unwrap();
    let mut layout = vec![0; 100];
    let len = getxattr(at("alices"), LAYOUT, layout.as_mut_slice()).unwrap();
    // File systems reuse inode numbers; here the objects take the number of another file.
    fs::write(at("bobs"), b"123456").unwrap();
    chown(at("bobs"), Some(BOB), Some(BOB)).unwrap();
    let (alices, bobs) = (at("alices").metadata().unwrap().ino(), at("bobs").metadata().unwrap().ino());
    fs::remove_file(at("alices")).unwrap();
    for entry in fs::read_dir(at(".objects")).unwrap() {
        let object = entry.unwrap().path();
        let name =
            object.file_name().unwrap().to_str().unwrap().replace(&alices.to_string(), &bobs.to_string());
        fs::rename(&object, at(".objects").join(name)).unwrap();
    }
    let forged =
        String::from_utf8(layout[..len].to_vec()).unwrap().replace(&alices.to_string(), &bobs.to_string());
    setxattr(at("bobs"), LAYOUT, forged.as_bytes(), XattrFlags::empty()).unwrap();
    assert!(backend.open(&path("bobs")).err().unwrap().to_string().contains("layout of another file"));
    assert!(backend.open_to_write(&path("bobs")).is_err());
    assert!(backend.unlink(&path("bobs")).unwrap());
    assert_eq!(objects(dir.path()), 1, "objects that are not its own stay");
}

/// An access list in the form of the attribute: tag, permissions, id.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |&(tag, grants, who): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &grants.to_le_bytes(), &who.to_le_bytes()].concat()
    };
    [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
}

#[test]
fn access_list_survives_setting_the_attributes_that_are_shown() {
    if !is_root("access lists") {
        return;
    }
    let dir = shared();
    let backend = Dir::open(dir.path()).unwrap();
    let file = backend.create(&path("f"), &creation(0o640)).unwrap();
    drop(file);
    let any = u32::MAX;
    // user::rw-, Bob rw-, group::---, mask::rw-, other::---
    let list = access_list(&[(1, 6, any), (2, 6, BOB), (4, 0, any), (16, 6, any), (32, 0, any)]);
    let name = "system.posix_acl_access";
    if setxattr(dir.path().join("f"), name, &list, XattrFlags::empty()).is_err() {
        return forebay_testkit::skip(
            "access lists",
            "the file system of temporary files does not support them",
        );
    }
    let found = backend.find(&path("f")).unwrap().unwrap();
    assert_eq!(found.mode, 0o600);
    backend.set_attr(&path("f"), ALICE, found.mode, Time { secs: 7, nanos: 0 }).unwrap();
    let mut now = vec![0; 100];
    let len = getxattr(dir.path().join("f"), name, now.as_mut_slice()).unwrap();
    assert_eq!(&now[..len], list);
    // A mode that differs is set.
    backend.set_attr(&path("f"), ALICE, 0o400, Time { secs: 7, nanos: 0 }).unwrap();
    assert_eq!(backend.find(&path("f")).unwrap().unwrap().mode, 0o400);
}
