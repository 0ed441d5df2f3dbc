//! The effect of requests on files and directories.

use crate::raw::{Raw, World, hello, name, pattern, refused};
use forebay_model::{Access, ErrorKind, FileId, FileKind, Special};
use forebay_wire::{At, Call, Channel, FrameKind, IfExists, RenameMode, Reply, Request, XattrMode, frame};
use std::os::unix::net::UnixStream;

const ROOT: FileId = FileId::ROOT;

#[test]
fn written_bytes_are_read_back_over_both_transports() {
    let world = World::new();
    let mut control = world.control();
    let (tcp, _) = Raw::tcp(world.tcp(), Channel::Data, &world.key()).expect("connected");
    for (number, mut data) in [world.data(), tcp].into_iter().enumerate() {
        let token = control.create(ROOT, &format!("f{number}"), 0o644);
        for (offset, len) in [(0u64, 1usize), (3, 4096), (70_000, 100), (200_000, 3 << 20), (65_536, 4 << 20)]
        {
            let bytes = pattern(offset, len);
            assert_eq!(data.write(token, At::Offset(offset), &bytes).unwrap(), offset);
            assert_eq!(data.read(token, offset, len as u32).unwrap(), bytes);
        }
        let size = 65_536 + (4 << 20);
        assert_eq!(data.read(token, 5000, 8).unwrap(), [0; 8], "a hole reads as zeros");
        assert_eq!(data.read(token, size - 3, 100).unwrap().len(), 3, "reads stop at the end of the file");
        assert_eq!(data.read(token, size + 3, 100).unwrap().len(), 0);
        assert_eq!(control.walk(&format!("f{number}")).unwrap().size, size);
        assert_eq!(data.write(token, At::Offset(9), &[]).unwrap(), 9);
        assert_eq!(data.write(token, At::End, &[]).unwrap(), size);
        control.call(Request::Truncate { token, size: 0 }).unwrap();
        control.call(Request::Close { token }).unwrap();
    }
}

#[test]
fn directory_cannot_be_read_as_a_file() {
    let world = World::new();
    let (mut control, mut data) = (world.control(), world.data());
    let open = |access| Request::Open { file: ROOT, access, truncate: false };
    let Reply::Opened { token, .. } = control.call(open(Access::READ)).unwrap() else { panic!("not opened") };
    assert_eq!(data.read(token, 0, 10).unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(control.call(open(Access::BOTH)).unwrap_err().kind(), ErrorKind::IsDirectory);
}

#[test]
fn pipelined_requests_are_answered_by_number() {
    let world = World::new();
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o644);
    let mut waiting: Vec<u64> = (0..500)
        .map(|i| control.send(if i % 50 == 0 { Request::Sync { token } } else { Request::Ping }, &[]))
        .collect();
    while !waiting.is_empty() {
        let (id, answer, _) = control.receive().unwrap();
        assert_eq!(answer, Ok(Reply::Done));
        waiting.retain(|&waits| waits != id);
    }
    let mut data = world.data();
    let ids: Vec<u64> = (0..200)
        .map(|i| data.send(Request::Write { token, at: At::Offset(i * 100) }, &pattern(i, 100)))
        .collect();
    for id in ids {
        let (answered, answer, _) = data.receive().unwrap();
        assert_eq!(answered, id, "data connections answer in order");
        assert!(matches!(answer, Ok(Reply::Written { .. })));
    }
    assert_eq!(data.read(token, 700, 100).unwrap(), pattern(7, 100));
}

#[test]
fn appends_of_many_clients_never_overlap() {
    let world = World::new();
    let token = world.control().create(ROOT, "log", 0o644);
    let offsets: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let mut data = world.data();
                scope.spawn(move || {
                    (0..50).map(|_| data.write(token, At::End, &[writer; 100]).unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let mut sorted = offsets.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..200).map(|i| i * 100).collect::<Vec<_>>());
    let bytes = world.data().read(token, 0, 20_000).unwrap();
    assert!(bytes.chunks(100).all(|chunk| chunk.iter().all(|&byte| byte == chunk[0])));
}

#[test]
fn names_are_created_renamed_listed_and_removed() {
    let world = World::new();
    let mut control = world.control();
    let dir = control.make_dir(ROOT, "d", 0o755);
    let token = control.create(dir, "a", 0o640);
    control.call(Request::Symlink { dir, name: name("s"), target: b"a".to_vec() }).unwrap();
    control.call(Request::Link { file: token.file, dir, name: name("b") }).unwrap();
    assert_eq!(control.walk("d/b").unwrap().links, 2);
    let link = Request::Walk { dir: ROOT, path: b"d/s".to_vec(), follow: true };
    let Ok(Reply::Link { target, .. }) = control.call(link) else { panic!("no link") };
    assert_eq!(target, b"a");

    let list =
        |control: &mut Raw, plus| match control.call(Request::ReadDir { dir, cookie: 0, limit: 100, plus }) {
            Ok(Reply::Entries { entries, next: None }) => entries,
            other => panic!("{other:?}"),
        };
    let entries = list(&mut control, true);
    assert_eq!(entries.len(), 3);
    assert!(entries.iter().all(|entry| entry.attr.as_ref().is_some_and(|attr| attr.kind == entry.kind)));

    let rename = |mode| Request::Rename { dir, name: name("a"), to_dir: ROOT, to_name: name("c"), mode };
    control.call(rename(RenameMode::NoReplace)).unwrap();
    refused(control.call(rename(RenameMode::Replace)), ErrorKind::NotFound);
    assert_eq!(control.walk("c").unwrap().id, token.file);
    refused(control.call(Request::RemoveDir { dir: ROOT, name: name("d") }), ErrorKind::NotEmpty);
    for gone in ["b", "s"] {
        control.call(Request::Unlink { dir, name: name(gone) }).unwrap();
    }
    control.call(Request::RemoveDir { dir: ROOT, name: name("d") }).unwrap();
    refused(control.walk("d"), ErrorKind::NotFound);
    refused(control.call(Request::GetAttr { file: dir }), ErrorKind::Stale);
}

#[test]
fn attributes_are_set_and_read() {
    let world = World::new();
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o600);
    let (file, key) = (token.file, name("user.k"));
    let set = |value: &[u8], mode| Request::SetXattr { file, name: key.clone(), value: value.to_vec(), mode };
    refused(control.call(set(b"1", XattrMode::Replace)), ErrorKind::NoAttribute);
    control.call(set(b"1", XattrMode::Create)).unwrap();
    assert_eq!(control.call(Request::GetXattr { file, name: key.clone() }), Ok(Reply::Value(b"1".to_vec())));
    assert_eq!(control.call(Request::ListXattr { file }), Ok(Reply::Names(vec![key.clone()])));
    control.call(Request::RemoveXattr { file, name: key }).unwrap();
    let change = forebay_model::Change { mode: Some(0o444), ..Default::default() };
    let Ok(Reply::Attr(attr)) = control.call(Request::SetAttr { file, change }) else {
        panic!("no attributes")
    };
    assert_eq!(attr.mode, 0o444);
    control.call(Request::TruncateFile { file, size: 1234 }).unwrap();
    control.call(Request::Punch { token, offset: 0, len: 10 }).unwrap();
    // `Extend` never shrinks a file.
    control.call(Request::Extend { token, size: 1 }).unwrap();
    refused(control.call(Request::Punch { token, offset: 5, len: u64::MAX }), ErrorKind::Invalid);
    assert_eq!(control.walk("f").unwrap().size, 1234);
    control.call(Request::Extend { token, size: 2000 }).unwrap();
    assert_eq!(control.walk("f").unwrap().size, 2000);
    let Ok(Reply::Usage(usage)) = control.call(Request::StatFs) else { panic!("no usage") };
    assert_eq!((usage.files, usage.capacity), (2, 16 << 20));
}

#[test]
fn special_files_have_attributes_but_cannot_be_opened() {
    let mut world = World::new();
    let specials = [Special::Pipe, Special::Socket, Special::Character(0x501), Special::Block(0x700)];
    let mut ids = Vec::new();
    for (index, special) in specials.into_iter().enumerate() {
        let mut control = world.control();
        let make = |dir| Request::MakeSpecial { dir, name: name(&format!("s{index}")), mode: 0o640, special };
        if matches!(special, Special::Character(_) | Special::Block(_)) {
            refused(world.control().acting(crate::raw::ALICE).call(make(ROOT)), ErrorKind::NotPermitted);
        }
        let Ok(Reply::Attr(made)) = control.call(make(ROOT)) else { panic!("{special:?} was not created") };
        assert_eq!((made.kind, made.mode, made.size, made.links), (FileKind::Special(special), 0o640, 0, 1));
        refused(control.call(make(ROOT)), ErrorKind::Exists);
        let open = Request::Open { file: made.id, access: Access::READ, truncate: false };
        refused(control.call(open), ErrorKind::Unsupported);
        refused(control.call(Request::TruncateFile { file: made.id, size: 0 }), ErrorKind::Unsupported);
        control.call(Request::Link { file: made.id, dir: ROOT, name: name(&format!("l{index}")) }).unwrap();
        ids.push(made.id);
    }
    world.restart();
    let mut control = world.control();
    for (index, special) in specials.into_iter().enumerate() {
        let found = control.walk(&format!("l{index}")).unwrap();
        assert_eq!((found.id, found.kind, found.links), (ids[index], FileKind::Special(special), 2));
        control.call(Request::Unlink { dir: ROOT, name: name(&format!("l{index}")) }).unwrap();
        control.call(Request::Unlink { dir: ROOT, name: name(&format!("s{index}")) }).unwrap();
    }
    let listing = Request::ReadDir { dir: ROOT, cookie: 0, limit: 9, plus: true };
    assert_eq!(control.call(listing), Ok(Reply::Entries { entries: vec![], next: None }));
}

#[test]
fn unlinked_open_file_exists_until_the_last_close() {
    let world = World::new();
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o600);
    data.write(token, At::Offset(0), b"still here").unwrap();
    control.call(Request::Unlink { dir: ROOT, name: name("f") }).unwrap();
    refused(control.walk("f"), ErrorKind::NotFound);
    assert_eq!(data.read(token, 0, 100).unwrap(), b"still here");
    assert!(
        control.call(Request::GetAttr { file: token.file }).is_ok(),
        "attributes of an open file are readable"
    );
    data.write(token, At::End, b", and growing").unwrap();
    control.call(Request::Close { token }).unwrap();
    refused(data.read(token, 0, 100), ErrorKind::Stale);
    refused(data.write(token, At::End, b"x"), ErrorKind::Stale);
    refused(control.call(Request::GetAttr { file: token.file }), ErrorKind::Stale);
    let Ok(Reply::Status(status)) = control.call(Request::Status) else { panic!("no status") };
    assert_eq!((status.opens, status.usage.live, status.usage.files), (0, 0, 1));
    assert_eq!((status.jobs.len(), status.jobs[0].written), (1, 23));
}

#[test]
fn replaced_open_file_exists_until_the_last_close() {
    let world = World::new();
    let (mut control, mut data) = (world.control(), world.data());
    let (old, new) = (control.create(ROOT, "old", 0o600), control.create(ROOT, "new", 0o600));
    data.write(old, At::Offset(0), b"old").unwrap();
    data.write(new, At::Offset(0), b"new").unwrap();
    let mode = RenameMode::Replace;
    let (dir, to_dir) = (ROOT, ROOT);
    control.call(Request::Rename { dir, name: name("new"), to_dir, to_name: name("old"), mode }).unwrap();
    assert_eq!(data.read(old, 0, 9).unwrap(), b"old");
    assert_eq!(control.walk("old").unwrap().id, new.file);
    control.call(Request::Close { token: old }).unwrap();
    refused(data.read(old, 0, 9), ErrorKind::Stale);
    assert_eq!(data.read(new, 0, 9).unwrap(), b"new");
}

#[test]
fn create_opens_truncates_or_refuses_an_existing_file() {
    let world = World::new();
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o600);
    data.write(token, At::Offset(0), b"12345").unwrap();
    let create =
        |access, if_exists| Request::Create { dir: ROOT, name: name("f"), mode: 0, access, if_exists };
    refused(control.call(create(Access::READ, IfExists::Refuse)), ErrorKind::Exists);
    refused(control.call(create(Access::READ, IfExists::Truncate)), ErrorKind::Invalid);
    for (if_exists, size) in [(IfExists::Open, 5), (IfExists::Truncate, 0)] {
        let Ok(Reply::Opened { attr, created, .. }) = control.call(create(Access::WRITE, if_exists)) else {
            panic!("not opened");
        };
        assert_eq!((attr.size, created), (size, false));
    }
    let Ok(Reply::Opened { token, .. }) = control.call(create(Access::READ, IfExists::Open)) else {
        panic!("not opened");
    };
    refused(data.write(token, At::End, b"x"), ErrorKind::BadHandle);
    refused(control.call(Request::Truncate { token, size: 0 }), ErrorKind::BadHandle);
}

#[test]
fn full_buffer_returns_no_space_and_recovers_after_a_delete() {
    let world = World::new();
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "big", 0o600);
    let bytes = pattern(1, 1 << 20);
    let mut written = 0;
    let error = loop {
        match data.write(token, At::End, &bytes) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written <= 17, "more was accepted than the buffer can hold");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(written >= 14, "only {written} MiB of 16 could be used");
    assert_eq!(data.read(token, 0, 1 << 20).unwrap(), bytes, "the connection is still in sync");
    control.call(Request::Unlink { dir: ROOT, name: name("big") }).unwrap();
    control.call(Request::Close { token }).unwrap();
    let token = control.create(ROOT, "next", 0o600);
    for _ in 0..written {
        data.write(token, At::End, &bytes).unwrap();
    }
}

/// A client gives up a connection with a stalled write and repeats the write; the first one must not take effect later.
#[test]
fn abandoned_write_never_takes_effect_after_its_retry() {
    let world = World::new();
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o600);
    let connect = |channel| {
        let mut raw = Raw::bare(UnixStream::connect(world.socket()).unwrap());
        let welcome = raw.greet(&hello(channel, 1), None).unwrap();
        (raw, welcome.connection)
    };
    for give_up in [false, true] {
        let (mut old, number) = connect(Channel::Data);
        let call = Call { identity: None, request: Request::Write { token, at: At::Offset(0) } };
        let mut late = Vec::new();
        frame(&mut late, FrameKind::Call, 1, &call, 1000).unwrap();
        late.extend([1; 1000]);
        let (first, rest) = late.split_at(late.len() - 1);
        old.socket.write_all(first).unwrap();
        let (mut new, _) = connect(Channel::Data);
        if give_up {
            assert_eq!(control.call(Request::Abandon { connection: number }), Ok(Reply::Done));
        }
        new.write(token, At::Offset(0), &[2; 1000]).unwrap();
        // The rest of the first write arrives late.
        old.socket.write_all(rest).unwrap();
        let (_, answer, _) = old.receive().unwrap();
        assert_eq!(answer.is_err(), give_up, "{answer:?}");
        let expected = if give_up { 2 } else { 1 };
        assert_eq!(new.read(token, 0, 1000).unwrap(), [expected; 1000]);
        // Later requests on that connection fail too.
        assert_eq!(old.write(token, At::Offset(0), &[3; 10]).is_err(), give_up);
    }
    // A control connection is abandoned in the same way; a client cannot abandon a connection of another client.
    let (mut old, number) = connect(Channel::Control);
    let mut stranger = Raw::unix(&world.socket(), Channel::Control, 2).unwrap();
    stranger.call(Request::Abandon { connection: number }).unwrap();
    old.call(Request::Truncate { token, size: 5 }).unwrap();
    control.call(Request::Abandon { connection: number }).unwrap();
    old.call(Request::Ping).unwrap();
    refused(old.call(Request::Truncate { token, size: 0 }), ErrorKind::Unreachable);
    assert_eq!(control.walk("f").unwrap().size, 5);
}
