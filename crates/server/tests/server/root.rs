//! The root directory with a back end: mode, owner and access list of the back end's root apply.

use crate::raw::{ALICE, BOB, Raw, World, name, refused};
use forebay_backend::{Backend, Memory};
use forebay_model::{Access, Change, ErrorKind, FileId, Gid, Result, Uid};
use forebay_testkit::until;
use forebay_wire::{IfExists, Reply, Request};
use rustix::fs::{XattrFlags, setxattr};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const ROOT: FileId = FileId::ROOT;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn list(raw: &mut Raw) -> Result<Reply> {
    raw.call(Request::ReadDir { dir: ROOT, cookie: 0, limit: 9, plus: false })
}

fn create(raw: &mut Raw, text: &str) -> Result<Reply> {
    let (access, if_exists) = (Access::BOTH, IfExists::Refuse);
    raw.call(Request::Create { dir: ROOT, name: name(text), mode: 0o666, access, if_exists })
}

/// Directories with a file, and back ends on them.
fn back_ends() -> Vec<(TempDir, Arc<dyn Backend>)> {
    ["dir", "stripes"]
        .into_iter()
        .map(|kind| {
            let dir = tempfile::tempdir().unwrap();
            let backend = forebay_backend::open(&format!("{kind}:{}", dir.path().display())).unwrap();
            std::fs::write(dir.path().join("diary"), "private").unwrap();
            set_mode(&dir.path().join("diary"), 0o644);
            (dir, backend)
        })
        .collect()
}

fn is_refused(raw: &mut Raw) {
    refused(raw.walk("diary"), ErrorKind::AccessDenied);
    refused(raw.walk("missing"), ErrorKind::AccessDenied);
    refused(list(raw), ErrorKind::AccessDenied);
    refused(create(raw, "planted"), ErrorKind::AccessDenied);
    refused(raw.call(Request::MakeDir { dir: ROOT, name: name("d"), mode: 0o777 }), ErrorKind::AccessDenied);
    refused(raw.call(Request::Unlink { dir: ROOT, name: name("diary") }), ErrorKind::AccessDenied);
}

#[test]
fn closed_back_end_root_denies_other_users_from_the_first_request() {
    for (dir, backend) in back_ends() {
        set_mode(dir.path(), 0o700);
        let mut world = World::before(backend);
        for _ in 0..2 {
            is_refused(&mut world.control().acting(BOB));
            let attr = world.control().walk("").unwrap();
            assert_eq!((attr.mode, attr.uid.0), (0o700, rustix::process::geteuid().as_raw()));
            assert!(world.control().walk("diary").is_ok(), "its owner has access");
            world.restart();
        }
        assert!(!dir.path().join("planted").exists());
    }
}

#[test]
fn changes_of_the_back_end_root_are_followed() {
    for (dir, backend) in back_ends() {
        set_mode(dir.path(), 0o755);
        let world = World::before(backend);
        let mut bob = world.control().acting(BOB);
        assert!(bob.walk("diary").is_ok() && list(&mut bob).is_ok());
        refused(create(&mut bob, "planted"), ErrorKind::AccessDenied);
        set_mode(dir.path(), 0o700);
        until("the root is checked", || bob.walk("diary").is_err());
        is_refused(&mut bob);
        set_mode(dir.path(), 0o1777);
        until("the root is checked", || create(&mut bob, "his").is_ok());
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), Some(ALICE), Some(ALICE)).unwrap();
            set_mode(dir.path(), 0o700);
            until("the root is checked", || bob.walk("diary").is_err());
            is_refused(&mut bob);
            assert!(create(&mut world.control().acting(ALICE), "hers").is_ok());
        }
    }
}

#[test]
fn access_list_of_the_back_end_root_only_restricts() {
    for (dir, backend) in back_ends() {
        set_mode(dir.path(), 0o755);
        // user::rwx, Bob nothing, group::r-x, mask::r-x, other::r-x
        let entries: [(u16, u16, u32); 5] =
            [(1, 7, u32::MAX), (2, 0, BOB), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 5, u32::MAX)];
        let entry = |&(tag, grants, who): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &grants.to_le_bytes(), &who.to_le_bytes()].concat()
        };
        let list = [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat();
        if setxattr(dir.path(), "system.posix_acl_access", &list, XattrFlags::empty()).is_err() {
            forebay_testkit::skip("access lists", "the file system of temporary files does not support them");
            return;
        }
        let world = World::before(backend);
        is_refused(&mut world.control().acting(BOB));
        assert_eq!(world.control().walk("").unwrap().mode, 0o700);
    }
}

#[test]
fn chmod_of_the_root_changes_the_back_end_root() {
    for (dir, backend) in back_ends() {
        set_mode(dir.path(), 0o755);
        let world = World::before(backend);
        let before = dir.path().metadata().unwrap();
        let change = Change { mode: Some(0o750), ..Change::default() };
        let set = Request::SetAttr { file: ROOT, change };
        refused(world.control().acting(BOB).call(set.clone()), ErrorKind::NotPermitted);
        assert_eq!(dir.path().metadata().unwrap().mode() & 0o7777, 0o755);
        let Ok(Reply::Attr(attr)) = world.control().call(set) else { panic!("refused") };
        let after = dir.path().metadata().unwrap();
        assert_eq!((attr.mode, after.mode() & 0o7777), (0o750, 0o750));
        assert_eq!((after.uid(), after.mtime_nsec()), (before.uid(), before.mtime_nsec()));
        is_refused(&mut world.control().acting(BOB));
    }
}

#[test]
fn back_end_without_root_attributes_keeps_the_configured_mode() {
    let memory = Memory::default();
    let world = World::before(Arc::new(memory.clone()));
    let mut bob = world.control().acting(BOB);
    assert!(create(&mut bob, "his").is_ok());
    assert_eq!(bob.walk("").unwrap().mode, 0o1777);
    memory.set_root((Uid(ALICE), Gid(ALICE)), 0o700);
    until("the root is checked", || bob.walk("his").is_err());
    refused(create(&mut bob, "more"), ErrorKind::AccessDenied);
    assert!(create(&mut world.control().acting(ALICE), "hers").is_ok());
}
