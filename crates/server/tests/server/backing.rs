//! A server with a back end: files in the back end appear in the namespace, and changes reach the back end.

use crate::raw::{ALICE, BOB, Raw, World, name, refused};
use forebay_backend::{Backend, Fault, Faulty, Memory};
use forebay_model::{Access, Attr, Change, ErrorKind, FileId, FileKind, Gid, Name, Result, Uid};
use forebay_testkit::until;
use forebay_wire::{At, RenameMode, Reply, Request, Token};
use std::sync::{Arc, Mutex};

const ROOT: FileId = FileId::ROOT;

fn path(text: &str) -> Vec<Name> {
    text.split('/').map(name).collect()
}

fn owner(uid: u32) -> (Uid, Gid) {
    (Uid(uid), Gid(uid))
}

/// `open`: mode 0755, with `f` of mode 0644 and 10 bytes; `closed`: mode 0700, with `g` of mode 0666. Alice owns all.
fn sample_backend() -> Memory {
    let memory = Memory::default();
    memory.make_dir(&path("open"), owner(ALICE), 0o755).unwrap();
    memory.make_dir(&path("closed"), owner(ALICE), 0o700).unwrap();
    memory.put(&path("open/f"), owner(ALICE), 0o644, b"0123456789");
    memory.put(&path("closed/g"), owner(ALICE), 0o666, b"secret");
    memory.put_link(&path("link"), b"open/f");
    memory
}

pub(crate) fn open(raw: &mut Raw, path: &str, access: Access) -> Result<Token> {
    let file = raw.walk(path)?.id;
    match raw.call(Request::Open { file, access, truncate: false })? {
        Reply::Opened { token, .. } => Ok(token),
        other => panic!("unexpected reply to an open: {other:?}"),
    }
}

fn listed(raw: &mut Raw, dir: FileId) -> Result<Vec<String>> {
    match raw.call(Request::ReadDir { dir, cookie: 0, limit: 100, plus: true })? {
        Reply::Entries { entries, next: None } => {
            let mut names: Vec<String> = entries.iter().map(|entry| entry.name.to_string()).collect();
            assert!(entries.iter().all(|entry| entry.attr.is_some()), "{entries:?}");
            names.sort();
            Ok(names)
        }
        other => panic!("unexpected reply to a listing: {other:?}"),
    }
}

fn unlink(raw: &mut Raw, dir: FileId, text: &str) -> Result<Reply> {
    raw.call(Request::Unlink { dir, name: name(text) })
}

fn rename(raw: &mut Raw, dir: FileId, from: &str, to_dir: FileId, to: &str) -> Result<Reply> {
    let mode = RenameMode::Replace;
    raw.call(Request::Rename { dir, name: name(from), to_dir, to_name: name(to), mode })
}

#[test]
fn back_end_files_appear_with_their_owner_and_mode() {
    let memory = sample_backend();
    let world = World::before(Arc::new(memory.clone()));
    let (mut alice, mut bob) = (world.control().acting(ALICE), world.control().acting(BOB));
    let attr = alice.walk("open/f").unwrap();
    let Attr { kind, mode, uid, size, buffered, .. } = attr;
    assert_eq!((kind, mode, uid, size, buffered), (FileKind::File, 0o644, Uid(ALICE), 10, 0));
    assert_eq!(attr.mtime, memory.find(&path("open/f")).unwrap().unwrap().version.mtime);
    assert_eq!(alice.walk("open/f").unwrap(), attr, "the id is stable");
    assert_eq!(alice.walk("link").unwrap().kind, FileKind::Symlink);
    refused(alice.walk("open/x"), ErrorKind::NotFound);
    refused(alice.walk("open/f/x"), ErrorKind::NotDirectory);
    assert_eq!(listed(&mut alice, ROOT).unwrap(), ["closed", "link", "open"]);

    let token = open(&mut bob, "open/f", Access::READ).unwrap();
    assert_eq!(world.data().acting(BOB).read(token, 3, 100).unwrap(), b"3456789");
    refused(open(&mut bob, "open/f", Access::BOTH), ErrorKind::AccessDenied);
    refused(bob.walk("closed/g"), ErrorKind::AccessDenied);
    refused(bob.walk("closed/not-there"), ErrorKind::AccessDenied);
    let closed = alice.walk("closed").unwrap().id;
    let secret = alice.walk("closed/g").unwrap().id;
    refused(listed(&mut bob, closed), ErrorKind::AccessDenied);
    refused(bob.call(Request::GetAttr { file: secret }), ErrorKind::AccessDenied);
    refused(bob.call(Request::TruncateFile { file: secret, size: 0 }), ErrorKind::AccessDenied);
    let dir = alice.walk("open").unwrap().id;
    refused(unlink(&mut bob, dir, "f"), ErrorKind::AccessDenied);
    refused(rename(&mut bob, dir, "f", ROOT, "mine"), ErrorKind::AccessDenied);
    assert_eq!(memory.bytes(&path("open/f")).unwrap(), b"0123456789");
    assert_eq!(memory.bytes(&path("closed/g")).unwrap(), b"secret");
}

#[test]
fn permissions_removed_in_the_back_end_are_enforced() {
    let memory = sample_backend();
    let world = World::before(Arc::new(memory.clone()));
    let mut bob = world.control().acting(BOB);
    let file = bob.walk("open/f").unwrap().id;
    memory.put(&path("open/f"), owner(ALICE), 0o600, b"private");
    refused(open(&mut bob, "open/f", Access::READ), ErrorKind::AccessDenied);
    memory.put(&path("open/f"), owner(ALICE), 0o644, b"public");
    let token = open(&mut bob, "open/f", Access::READ).unwrap();
    bob.call(Request::Close { token }).unwrap();
    // The server may notice changes of parent directories a moment later.
    memory.remove_dir(&path("open")).unwrap_err();
    memory.unlink(&path("open/f")).unwrap();
    memory.remove_dir(&path("open")).unwrap();
    memory.make_dir(&path("open"), owner(ALICE), 0o700).unwrap();
    memory.put(&path("open/f"), owner(ALICE), 0o644, b"public");
    until("access is refused", || bob.call(Request::GetAttr { file }).is_err());
    refused(bob.walk("open/f"), ErrorKind::AccessDenied);
}

#[test]
fn buffered_and_back_end_bytes_form_one_file() {
    let memory = sample_backend();
    let mut world = World::before(Arc::new(memory.clone()));
    let mut control = world.control();
    let token = open(&mut control, "open/f", Access::BOTH).unwrap();
    let mut data = world.data();
    data.write(token, At::Offset(4), b"AB").unwrap();
    data.write(token, At::End, b"!").unwrap();
    assert_eq!(data.read(token, 0, 100).unwrap(), b"0123AB6789!");
    control.call(Request::Punch { token, offset: 1, len: 2 }).unwrap();
    assert_eq!(data.read(token, 0, 7).unwrap(), b"0\0\x003AB6");
    control.call(Request::Close { token }).unwrap();
    assert_eq!(memory.bytes(&path("open/f")).unwrap(), b"0123456789", "nothing is written to the back end");
    world.restart();
    let (mut control, mut data) = (world.control(), world.data());
    let attr = control.walk("open/f").unwrap();
    assert_eq!((attr.size, attr.buffered), (11, 3));
    let token = open(&mut control, "open/f", Access::BOTH).unwrap();
    assert_eq!(data.read(token, 0, 100).unwrap(), b"0\0\x003AB6789!");
    control.call(Request::Truncate { token, size: 7 }).unwrap();
    assert_eq!(memory.bytes(&path("open/f")).unwrap(), b"0123456", "truncation reaches the back end");
    control.call(Request::Extend { token, size: 9 }).unwrap();
    assert_eq!(data.read(token, 0, 100).unwrap(), b"0\0\x003AB6\0\0");
    control.call(Request::Truncate { token, size: 0 }).unwrap();
    control.call(Request::Extend { token, size: 3 }).unwrap();
    assert_eq!(data.read(token, 0, 100).unwrap(), b"\0\0\0");
}

#[test]
fn file_changed_in_the_back_end_is_reread_and_never_mixed() {
    let memory = sample_backend();
    memory.put(&path("open/h"), owner(ALICE), 0o644, b"hhhhhhhhhh");
    let world = World::before(Arc::new(memory.clone()));
    let (mut control, mut data) = (world.control(), world.data());
    let clean = open(&mut control, "open/f", Access::READ).unwrap();
    let dirty = open(&mut control, "open/h", Access::BOTH).unwrap();
    data.write(dirty, At::Offset(0), b"H").unwrap();
    memory.put(&path("open/f"), owner(ALICE), 0o644, b"another");
    memory.put(&path("open/h"), owner(ALICE), 0o644, b"another");
    assert_eq!(data.read(clean, 0, 100).unwrap(), b"another");
    assert_eq!(control.walk("open/f").unwrap().size, 7);
    refused(data.read(dirty, 0, 100), ErrorKind::Io);
    refused(control.call(Request::Truncate { token: dirty, size: 3 }), ErrorKind::Io);
    assert_eq!(data.read(dirty, 0, 1).unwrap(), b"H", "buffered bytes are readable");
    assert_eq!(control.walk("open/h").unwrap().size, 10);
    let dir = control.walk("open").unwrap().id;
    unlink(&mut control, dir, "h").unwrap();
    assert_eq!(
        memory.bytes(&path("open/h")).unwrap(),
        b"another",
        "the replacement in the back end is not removed"
    );
    assert_eq!(listed(&mut control, dir).unwrap(), ["f", "h"]);
    assert_eq!(control.walk("open/h").unwrap().size, 7);
    unlink(&mut control, dir, "h").unwrap();
    assert_eq!(listed(&mut control, dir).unwrap(), ["f"]);

    memory.unlink(&path("open/f")).unwrap();
    refused(data.read(clean, 0, 100), ErrorKind::Stale);
    refused(control.walk("open/f"), ErrorKind::NotFound);
    memory.put(&path("open/i"), owner(ALICE), 0o644, b"iiiii");
    let dirty = open(&mut control, "open/i", Access::BOTH).unwrap();
    data.write(dirty, At::Offset(1), b"I").unwrap();
    memory.unlink(&path("open/i")).unwrap();
    refused(data.read(dirty, 0, 5), ErrorKind::Stale);
    assert_eq!(data.read(dirty, 1, 1).unwrap(), b"I");
    assert_eq!(listed(&mut control, dir).unwrap(), ["i"], "files with buffered changes stay");
    unlink(&mut control, dir, "i").unwrap();
    memory.remove_dir(&path("open")).unwrap();
    refused(control.walk("open/x"), ErrorKind::NotFound);
    assert_eq!(listed(&mut control, ROOT).unwrap(), ["closed", "link"]);
    control.make_dir(ROOT, "open", 0o755);
}

#[test]
fn name_changes_reach_the_back_end() {
    let memory = sample_backend();
    let world = World::before(Arc::new(memory.clone()));
    let mut control = world.control();
    let taken = Request::MakeDir { dir: ROOT, name: name("open"), mode: 0o755 };
    refused(control.call(taken), ErrorKind::Exists);
    refused(control.call(Request::RemoveDir { dir: ROOT, name: name("open") }), ErrorKind::NotEmpty);
    // A directory that is only in the buffer is created in the back end when a file of the back end is moved into it.
    let new = control.make_dir(ROOT, "new", 0o751);
    let inner = control.make_dir(new, "inner", 0o755);
    let open_dir = control.walk("open").unwrap().id;
    rename(&mut control, open_dir, "f", inner, "F").unwrap();
    assert_eq!(memory.bytes(&path("new/inner/F")).unwrap(), b"0123456789");
    assert_eq!(memory.find(&path("new")).unwrap().unwrap().mode, 0o751);
    rename(&mut control, ROOT, "new", open_dir, "moved").unwrap();
    assert_eq!(memory.bytes(&path("open/moved/inner/F")).unwrap(), b"0123456789");
    assert_eq!(control.walk("open/moved/inner/F").unwrap().size, 10);
    // A directory that exists on both sides with the same owner is one directory.
    let both = control.make_dir(ROOT, "both", 0o755);
    control.create(both, "here", 0o644);
    let me = rustix::process::geteuid().as_raw();
    memory.make_dir(&path("both"), owner(me), 0o755).unwrap();
    memory.put(&path("both/there"), owner(ALICE), 0o644, b"there");
    assert_eq!(control.walk("both").unwrap().id, both);
    assert_eq!(listed(&mut control, both).unwrap(), ["here", "there"]);
    assert_eq!(control.walk("both/there").unwrap().size, 5);
    // A buffered file replaces one of the back end, which is removed there.
    control.create(ROOT, "mine", 0o644);
    rename(&mut control, ROOT, "mine", inner, "F").unwrap();
    assert_eq!(memory.find(&path("open/moved/inner/F")).unwrap(), None);
    assert_eq!(control.walk("open/moved/inner/F").unwrap().size, 0);
    unlink(&mut control, inner, "F").unwrap();
    let moved = control.walk("open/moved").unwrap().id;
    control.call(Request::RemoveDir { dir: moved, name: name("inner") }).unwrap();
    assert_eq!(memory.find(&path("open/moved/inner")).unwrap(), None);
    unlink(&mut control, ROOT, "link").unwrap();
    assert_eq!(memory.find(&path("link")).unwrap(), None);
    // A hard link that only the buffer knows becomes the name in the back end when the other name is removed.
    let closed = control.walk("closed").unwrap().id;
    let file = control.walk("closed/g").unwrap().id;
    control.call(Request::Link { file, dir: ROOT, name: name("second") }).unwrap();
    unlink(&mut control, closed, "g").unwrap();
    assert_eq!(memory.bytes(&path("second")).unwrap(), b"secret");
    let token = open(&mut control, "second", Access::READ).unwrap();
    assert_eq!(world.data().read(token, 0, 9).unwrap(), b"secret");
}

#[test]
fn unlinked_open_back_end_file_stays_readable() {
    let memory = sample_backend();
    let mut world = World::before(Arc::new(memory.clone()));
    let mut control = world.control();
    let token = open(&mut control, "open/f", Access::READ).unwrap();
    let dir = control.walk("open").unwrap().id;
    unlink(&mut control, dir, "f").unwrap();
    assert_eq!(memory.find(&path("open/f")).unwrap(), None);
    refused(control.walk("open/f"), ErrorKind::NotFound);
    assert_eq!(world.data().read(token, 0, 100).unwrap(), b"0123456789");
    assert_eq!(listed(&mut control, ROOT).unwrap(), ["closed", "link", "open"]);
    refused(control.walk(".forebay"), ErrorKind::NotFound);
    world.restart();
    assert_eq!(world.data().read(token, 0, 100).unwrap(), b"0123456789");
    let mut control = world.control();
    let kept = || {
        let mut kept = 0;
        memory.list(&path(".forebay"), &mut |_| kept += 1).unwrap();
        kept
    };
    assert_eq!(kept(), 1);
    let change = Change { mode: Some(0o755), ..Change::default() };
    control.call(Request::SetAttr { file: dir, change }).unwrap();
    let fresh = world.control().create(dir, "f", 0o644);
    assert_ne!(fresh.file, token.file);
}

/// A back end in which the first `call` fails.
fn failing(memory: &Memory, call: &'static str, fault: Fault) -> Arc<dyn Backend> {
    let left = Mutex::new(1);
    Arc::new(Faulty::new(memory.clone(), move |asked| {
        let mut left = left.lock().unwrap();
        (asked == call && *left > 0).then(|| {
            *left -= 1;
            fault
        })
    }))
}

#[test]
fn failing_back_end_leaves_the_old_state_or_the_new() {
    type Act = fn(&mut Raw) -> Result<Reply>;
    let acts: [(&str, Act); 4] = [
        ("unlink", |raw| raw.walk("open").and_then(|dir| unlink(raw, dir.id, "f"))),
        ("rename", |raw| raw.walk("open").and_then(|dir| rename(raw, dir.id, "f", ROOT, "f"))),
        ("rename", |raw| rename(raw, ROOT, "open", ROOT, "opened")),
        ("truncate", |raw| {
            raw.walk("open/f").and_then(|attr| raw.call(Request::TruncateFile { file: attr.id, size: 5 }))
        }),
    ];
    for (call, act) in acts {
        let memory = sample_backend();
        let world = World::before(failing(&memory, call, Fault::Before));
        refused(act(&mut world.control()), ErrorKind::Io);
        assert_eq!(world.control().walk("open/f").unwrap().size, 10, "{call}");
        assert_eq!(memory.bytes(&path("open/f")).unwrap(), b"0123456789", "{call}");
        act(&mut world.control()).unwrap_or_else(|error| panic!("{call} again: {error}"));

        let memory = sample_backend();
        let world = World::before(failing(&memory, call, Fault::After));
        act(&mut world.control())
            .unwrap_or_else(|error| panic!("{call} took effect, but the request failed: {error}"));
        assert_ne!(memory.bytes(&path("open/f")).as_deref(), Some(&b"0123456789"[..]), "{call}");
        let seen = world.control().walk("open/f").ok().map(|attr| attr.size);
        let stored = memory.bytes(&path("open/f")).map(|bytes| bytes.len() as u64);
        assert_eq!(seen, stored, "{call}");
    }
    for call in ["find", "list", "open", "read", "version"] {
        let memory = sample_backend();
        let world = World::before(failing(&memory, call, Fault::Before));
        let mut control = world.control();
        let tries: Vec<ErrorKind> = (0..2)
            .filter_map(|_| {
                let read = listed(&mut control, ROOT)
                    .and_then(|_| open(&mut control, "open/f", Access::READ))
                    .and_then(|token| world.data().read(token, 0, 10));
                read.err().map(|error| error.kind())
            })
            .collect();
        assert_eq!(tries, [ErrorKind::Io], "{call} fails once, and the retry succeeds");
    }
}
