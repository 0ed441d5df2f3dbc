//! Mapped files, as clients of the wire see them.

use crate::backing::open;
use crate::raw::{Raw, World, pattern, refused};
use forebay_backend::{Faulty, Memory};
use forebay_model::{Access, ErrorKind, FileId, Gid, Uid};
use forebay_wire::{Answer, Channel, FileMap, Reply, Request, Token};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn file_of_a_slow_back_end_can_be_mapped() {
    const LEN: usize = 3 << 20;
    let memory = Memory::default();
    memory.put(&crate::drain::path("f"), (Uid(0), Gid(0)), 0o644, &pattern(1, LEN));
    // Longer than the interval at which unused objects end.
    let slow = Faulty::new(memory, |call| {
        if call == "read" {
            std::thread::sleep(Duration::from_millis(300));
        }
        None
    });
    let world = World::before(Arc::new(slow));
    let mut raw = world.control();
    let token = open(&mut raw, "f", Access::BOTH).unwrap();
    for write in [false, true] {
        let mapped = raw.call(Request::MapFile { token, offset: 0, len: LEN as u64, write });
        assert!(matches!(mapped, Ok(Reply::FileMap(FileMap::Shared { .. }))), "{mapped:?}");
    }
}

fn map(raw: &mut Raw, token: Token, write: bool) -> Answer {
    raw.call(Request::MapFile { token, offset: 0, len: 4096, write })
}

/// The kernel of a mount writes whole pages back, so its pages and the shared memory of a file exclude each other.
#[test]
fn pages_kept_by_a_mount_and_shared_memory_exclude_each_other() {
    let world = World::new();
    let mut owner = world.control();
    let created = owner.create(FileId::ROOT, "f", 0o644);
    let mut mount = Raw::unix(&world.socket(), Channel::Control, 77).expect("connected");
    let kept = open(&mut mount, "f", Access::BOTH).unwrap();
    for _ in 0..2 {
        assert_eq!(mount.call(Request::KeepPages { token: kept }), Ok(Reply::Done));
    }
    refused(map(&mut owner, created, true), ErrorKind::Unsupported);
    assert!(matches!(map(&mut owner, created, false), Ok(Reply::FileMap(_))), "a reader stores nothing");
    let reader = open(&mut mount, "f", Access::READ).unwrap();
    refused(mount.call(Request::KeepPages { token: reader }), ErrorKind::BadHandle);
    assert_eq!(mount.call(Request::Close { token: kept }), Ok(Reply::Done));
    // The descriptor that waits to be fetched counts as one that a process has.
    assert!(matches!(map(&mut owner, created, true), Ok(Reply::FileMap(FileMap::Shared { .. }))));
    let again = open(&mut mount, "f", Access::BOTH).unwrap();
    refused(mount.call(Request::KeepPages { token: again }), ErrorKind::Unsupported);
}

/// A mapping of a client on another machine is a copy, which would show nothing of what others write.
#[test]
fn client_of_another_machine_maps_files_without_writers_for_reading() {
    let world = World::new();
    let mut owner = world.control();
    let created = owner.create(FileId::ROOT, "f", 0o644);
    let (mut far, _) = Raw::tcp(world.tcp(), Channel::Control, &world.key()).expect("connected");
    let [both, reader] = [Access::BOTH, Access::READ].map(|access| open(&mut far, "f", access).unwrap());
    refused(map(&mut far, both, true), ErrorKind::Unsupported);
    refused(map(&mut far, both, false), ErrorKind::Unsupported);
    refused(map(&mut far, reader, true), ErrorKind::BadHandle);
    assert_eq!(far.call(Request::Close { token: both }), Ok(Reply::Done));
    refused(map(&mut far, reader, false), ErrorKind::Unsupported);
    assert_eq!(owner.call(Request::Close { token: created }), Ok(Reply::Done));
    assert_eq!(map(&mut far, reader, false), Ok(Reply::FileMap(FileMap::Copy)));
    // On the server's machine there is an object, with writers too.
    let _writer = open(&mut far, "f", Access::BOTH).unwrap();
    let near = open(&mut owner, "f", Access::READ).unwrap();
    assert!(matches!(map(&mut owner, near, false), Ok(Reply::FileMap(FileMap::Shared { .. }))));
}
