//! State that survives a restart of the server, and state that ends with its client.

use crate::raw::{Raw, World, name, pattern, refused};
use forebay_model::{ErrorKind, FileId};
use forebay_wire::{At, Channel, Reply, Request, Status};
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;

fn status(raw: &mut Raw) -> Status {
    match raw.call(Request::Status) {
        Ok(Reply::Status(status)) => *status,
        other => panic!("no status: {other:?}"),
    }
}

fn until_status(raw: &mut Raw, holds: impl Fn(&Status) -> bool) {
    forebay_testkit::until("the status", || holds(&status(raw)));
}

#[test]
fn bytes_names_and_tokens_survive_a_restart() {
    let mut world = World::new();
    let mut control = world.control();
    let dir = control.make_dir(ROOT, "d", 0o755);
    let token = control.create(dir, "f", 0o600);
    let bytes = pattern(3, 300_000);
    world.data().write(token, At::Offset(0), &bytes).unwrap();
    world.restart();
    assert_eq!(world.data().read(token, 0, 300_000).unwrap(), bytes, "the seal authenticates the token");
    let mut control = world.control();
    assert_eq!(control.walk("d/f").unwrap().size, 300_000);
    let Ok(Reply::Opened { attr, .. }) = control.call(Request::Reopen { token }) else {
        panic!("not reopened")
    };
    assert_eq!(attr.size, 300_000);
    let status = status(&mut control);
    assert!(status.recovery.clean && status.opens == 1, "{status:?}");
    control.call(Request::Close { token }).unwrap();
    control.call(Request::Close { token }).unwrap();
}

#[test]
fn unlinked_open_file_survives_a_restart_for_its_opener() {
    let mut world = World::new();
    let mut control = world.control();
    let (before, after) = (control.create(ROOT, "before", 0o600), control.create(ROOT, "after", 0o600));
    for token in [before, after] {
        world.data().write(token, At::Offset(0), b"kept").unwrap();
    }
    control.call(Request::Unlink { dir: ROOT, name: name("before") }).unwrap();
    world.restart();
    let mut control = world.control();
    control.call(Request::Unlink { dir: ROOT, name: name("after") }).unwrap();
    for token in [before, after] {
        assert!(control.call(Request::Reopen { token }).is_ok());
        assert_eq!(world.data().read(token, 0, 9).unwrap(), b"kept");
    }
    // A file created after the restart has no unknown openers, and is removed at once.
    let token = control.create(ROOT, "new", 0o600);
    control.call(Request::Close { token }).unwrap();
    control.call(Request::Unlink { dir: ROOT, name: name("new") }).unwrap();
    assert_eq!(status(&mut control).usage.files, 3);
}

#[test]
fn unlinked_file_is_removed_if_its_client_does_not_return() {
    let mut world = World::with(|config| config.times.session = Duration::from_secs(2));
    let token = world.control().create(ROOT, "f", 0o600);
    world.data().write(token, At::Offset(0), b"lost").unwrap();
    world.control().call(Request::Unlink { dir: ROOT, name: name("f") }).unwrap();
    world.restart();
    let mut control = world.control();
    until_status(&mut control, |status| status.usage.files == 1 && status.usage.live == 0);
    refused(control.call(Request::Reopen { token }), ErrorKind::Stale);
    refused(world.data().read(token, 0, 9), ErrorKind::Stale);
}

#[test]
fn silent_client_loses_its_open_files_and_may_reconnect() {
    let world = World::with(|config| config.times.session = Duration::from_secs(2));
    let mut watcher = Raw::unix(&world.socket(), Channel::Control, 50).unwrap();
    let mut silent = world.control();
    let (kept, gone) = (silent.create(ROOT, "kept", 0o600), silent.create(ROOT, "gone", 0o600));
    watcher.call(Request::Unlink { dir: ROOT, name: name("gone") }).unwrap();
    until_status(&mut watcher, |status| status.opens == 0);
    assert_eq!(status(&mut watcher).sessions, 1);
    let mut back = world.control();
    assert!(back.call(Request::Reopen { token: kept }).is_ok());
    refused(back.call(Request::Reopen { token: gone }), ErrorKind::Stale);
    assert!(silent.is_closed(), "connections of an ended session are closed");
}

#[test]
fn token_of_another_store_is_refused() {
    let (one, other) = (World::new(), World::new());
    let token = one.control().create(ROOT, "f", 0o600);
    other.control().create(ROOT, "f", 0o600);
    refused(other.data().read(token, 0, 1), ErrorKind::Stale);
}
