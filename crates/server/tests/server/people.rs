//! Permissions: no user gets more than the modes allow, whatever id, token or identity the client sends.

use crate::keys::{connect, grant};
use crate::raw::{ALICE, BOB, Raw, World, name, person, refused};
use forebay_model::{Access, Change, ErrorKind, FileId, Identity};
use forebay_testkit::{as_user, is_root, skip, until};
use forebay_wire::{At, Call, Channel, FrameKind, IfExists, RenameMode, Reply, Request, Token, XattrMode};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;

/// Every request that names a file or directory by its id.
fn requests_by_id(dir: FileId, file: FileId) -> Vec<Request> {
    let n = || name("n");
    let change = Change { mode: Some(0o777), ..Change::default() };
    let (access, mode, target) = (Access::READ, 0o777, b"t".to_vec());
    let rename =
        |dir, to_dir| Request::Rename { dir, name: n(), to_dir, to_name: n(), mode: RenameMode::Replace };
    let mut requests = vec![
        Request::GetAttr { file },
        Request::SetAttr { file, change },
        Request::Open { file, access, truncate: false },
        Request::Open { file, access: Access::BOTH, truncate: true },
        Request::TruncateFile { file, size: 0 },
        Request::Link { file, dir: ROOT, name: name("stolen") },
        Request::ReadLink { file },
        Request::GetXattr { file, name: name("user.x") },
        Request::SetXattr { file, name: name("user.x"), value: vec![1], mode: XattrMode::Any },
        Request::ListXattr { file },
        Request::RemoveXattr { file, name: name("user.x") },
    ];
    for dir in [dir, file] {
        requests.extend([
            Request::Walk { dir, path: b"n".to_vec(), follow: true },
            Request::Walk { dir, path: b"".to_vec(), follow: true },
            Request::Create { dir, name: n(), mode, access, if_exists: IfExists::Open },
            Request::MakeDir { dir, name: n(), mode },
            Request::RemoveDir { dir, name: n() },
            Request::Unlink { dir, name: n() },
            Request::Symlink { dir, name: n(), target: target.clone() },
            Request::ReadDir { dir, cookie: 0, limit: 9, plus: true },
            rename(dir, ROOT),
            rename(ROOT, dir),
        ]);
    }
    requests
}

#[test]
fn guessed_id_gives_no_more_access_than_a_path() {
    let world = World::new();
    let mut alice = world.control().acting(ALICE);
    let private = alice.make_dir(ROOT, "private", 0o700);
    let inner = alice.make_dir(private, "inner", 0o777);
    let token = alice.create(inner, "n", 0o666);
    world.data().acting(ALICE).write(token, At::Offset(0), b"secret").unwrap();

    let mut bob = world.control().acting(BOB);
    for request in requests_by_id(inner, token.file) {
        let shown = format!("{request:?}");
        match bob.call(request) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::AccessDenied, "{shown}: {error}"),
            Ok(reply) => panic!("{shown} succeeded with {reply:?}"),
        }
    }
    refused(bob.walk("private/inner/n"), ErrorKind::AccessDenied);
    let untouched = alice.walk("private/inner/n").unwrap();
    assert_eq!((untouched.size, untouched.mode, untouched.links), (6, 0o666, 1));
}

#[test]
fn mode_change_of_a_parent_directory_takes_effect_at_once() {
    let world = World::new();
    let (mut alice, mut bob) = (world.control().acting(ALICE), world.control().acting(BOB));
    let dir = alice.make_dir(ROOT, "d", 0o755);
    let token = alice.create(dir, "f", 0o644);
    let open = Request::Open { file: token.file, access: Access::READ, truncate: false };
    let Ok(Reply::Opened { token: bobs, .. }) = bob.call(open.clone()) else { panic!("not opened") };
    let change = Change { mode: Some(0o700), ..Change::default() };
    alice.call(Request::SetAttr { file: dir, change }).unwrap();
    assert!(bob.call(open.clone()).is_ok(), "a session can reopen a file it has open");
    let mut elsewhere = Raw::unix(&world.socket(), Channel::Control, 99).unwrap().acting(BOB);
    refused(elsewhere.call(open), ErrorKind::AccessDenied);
    assert!(world.data().acting(BOB).read(bobs, 0, 9).is_ok(), "open files stay open");
}

#[test]
fn file_mode_is_enforced_for_other_users() {
    let world = World::new();
    let (mut alice, mut bob) = (world.control().acting(ALICE), world.control().acting(BOB));
    let token = alice.create(ROOT, "f", 0o640);
    let open = |access| Request::Open { file: token.file, access, truncate: false };
    refused(bob.call(open(Access::READ)), ErrorKind::AccessDenied);
    refused(bob.call(Request::Unlink { dir: ROOT, name: name("f") }), ErrorKind::NotPermitted);
    let mut friend = world.control();
    let member = Identity { groups: vec![forebay_model::Gid(ALICE)], ..person(BOB) };
    let mut try_open = |access| {
        let call = Call { identity: Some(member.clone()), request: open(access) };
        friend.send_frame(FrameKind::Call, 5, &call, &[]);
        friend.receive().unwrap().1
    };
    assert!(try_open(Access::READ).is_ok(), "the group may read");
    refused(try_open(Access::WRITE), ErrorKind::AccessDenied);
    let gift = Change { uid: Some(forebay_model::Uid(BOB)), ..Change::default() };
    refused(alice.call(Request::SetAttr { file: token.file, change: gift }), ErrorKind::NotPermitted);
}

#[test]
fn closed_token_does_not_bypass_a_changed_mode() {
    let world = World::new();
    let (mut alice, mut bob) = (world.control().acting(ALICE), world.control().acting(BOB));
    let made = alice.create(ROOT, "f", 0o644);
    let open = Request::Open { file: made.file, access: Access::READ, truncate: false };
    let Reply::Opened { token, .. } = bob.call(open).unwrap() else { panic!("not opened") };
    let change = Change { mode: Some(0o600), ..Change::default() };
    alice.call(Request::SetAttr { file: made.file, change }).unwrap();
    let mut data = world.data().acting(BOB);
    assert!(data.read(token, 0, 1).is_ok(), "open files stay open");
    bob.call(Request::Close { token }).unwrap();
    refused(data.read(token, 0, 1), ErrorKind::AccessDenied);
    refused(bob.call(Request::Reopen { token }), ErrorKind::AccessDenied);
}

/// Opens a file of Alice as Bob, removes Bob's permission, and returns the token.
fn opened_before_the_mode_changed(world: &World, file: &str) -> Token {
    let (mut alice, mut bob) = (world.control().acting(ALICE), world.control().acting(BOB));
    let made = alice.create(ROOT, file, 0o644);
    let open = Request::Open { file: made.file, access: Access::READ, truncate: false };
    let Reply::Opened { token, .. } = bob.call(open).unwrap() else { panic!("not opened") };
    let change = Change { mode: Some(0o600), ..Change::default() };
    alice.call(Request::SetAttr { file: made.file, change }).unwrap();
    token
}

#[test]
fn token_closed_before_a_restart_stays_closed() {
    let mut world = World::new();
    let (closed, open) =
        (opened_before_the_mode_changed(&world, "closed"), opened_before_the_mode_changed(&world, "open"));
    world.control().acting(BOB).call(Request::Close { token: closed }).unwrap();
    for restart in 0..3 {
        world.restart();
        let (mut bob, mut data) = (world.control().acting(BOB), world.data().acting(BOB));
        refused(data.read(closed, 0, 1), ErrorKind::AccessDenied);
        refused(bob.call(Request::Reopen { token: closed }), ErrorKind::AccessDenied);
        refused(bob.call(Request::Sync { token: closed }), ErrorKind::AccessDenied);
        // Before the last of these restarts the client has not sent the token since the previous one.
        if restart != 1 {
            assert!(
                bob.call(Request::Reopen { token: open }).is_ok(),
                "open before the restart, open after it"
            );
            assert!(data.read(open, 0, 1).is_ok());
        }
    }
}

#[test]
fn token_closed_during_the_grace_period_stays_closed() {
    let mut world = World::new();
    let (asserted, forgotten) = (
        opened_before_the_mode_changed(&world, "asserted"),
        opened_before_the_mode_changed(&world, "forgotten"),
    );
    world.restart();
    let mut bob = world.control().acting(BOB);
    assert!(bob.call(Request::Reopen { token: asserted }).is_ok());
    for token in [asserted, forgotten] {
        bob.call(Request::Close { token }).unwrap();
        refused(bob.call(Request::Reopen { token }), ErrorKind::AccessDenied);
    }
    world.restart();
    for token in [asserted, forgotten] {
        refused(world.data().acting(BOB).read(token, 0, 1), ErrorKind::AccessDenied);
    }
}

#[test]
fn token_open_in_several_clients_is_closed_per_client() {
    let mut world = World::new();
    let token = opened_before_the_mode_changed(&world, "f");
    let another = |world: &World| Raw::unix(&world.socket(), Channel::Control, 2).unwrap().acting(BOB);
    assert!(another(&world).call(Request::Reopen { token }).is_ok(), "passed to another client");
    world.control().acting(BOB).call(Request::Close { token }).unwrap();
    world.restart();
    assert!(another(&world).call(Request::Reopen { token }).is_ok());
    another(&world).call(Request::Close { token }).unwrap();
    refused(another(&world).call(Request::Reopen { token }), ErrorKind::AccessDenied);
}

#[test]
fn token_of_an_ended_session_is_closed_after_a_restart() {
    let mut world = World::with(|config| config.times.session = Duration::from_millis(400));
    let token = opened_before_the_mode_changed(&world, "f");
    let mut watcher = Raw::unix(&world.socket(), Channel::Control, 50).unwrap();
    until("the session ends", || {
        let Ok(Reply::Status(status)) = watcher.call(Request::Status) else { panic!("no status") };
        status.opens == 0
    });
    world.restart();
    refused(world.data().acting(BOB).read(token, 0, 1), ErrorKind::AccessDenied);
}

#[test]
fn open_files_are_passed_only_by_connections_acting_for_both_users() {
    let mut world = World::new();
    let mut alice = world.control().acting(ALICE);
    let closed = world.control().acting(0).make_dir(ROOT, "closed", 0o700);
    let token = world.control().acting(0).create(closed, "f", 0o600);
    world.data().acting(0).write(token, At::Offset(0), b"kept").unwrap();
    let hand = |world: &World, token| world.control().acting(BOB).call(Request::Reopen { token });
    let Ok(Reply::Opened { token: handed, .. }) = hand(&world, token) else { panic!("not passed on") };
    assert_eq!((handed.uid.0, handed.file, handed.access), (BOB, token.file, token.access));
    refused(alice.call(Request::Sync { token: handed }), ErrorKind::AccessDenied);
    refused(hand(&world, Token { access: Access::READ, ..token }), ErrorKind::Stale);
    world.control().acting(0).call(Request::Close { token }).unwrap();
    assert_eq!(
        world.data().acting(BOB).read(handed, 0, 9).unwrap(),
        b"kept",
        "still open for the other user"
    );
    let mut bob = world.control().acting(BOB);
    assert!(
        bob.call(Request::GetAttr { file: handed.file }).is_ok(),
        "an open file is accessible whatever its path"
    );
    bob.call(Request::Close { token: handed }).unwrap();
    for gone in [token, handed] {
        refused(world.data().acting(BOB).read(gone, 0, 9), ErrorKind::AccessDenied);
    }
    world.restart();
    refused(world.data().acting(BOB).read(handed, 0, 9), ErrorKind::AccessDenied);
}

#[test]
fn tokens_are_bound_to_their_user_and_cannot_be_altered() {
    let world = World::new();
    let mut alice = world.control().acting(ALICE);
    let token = alice.create(ROOT, "f", 0o600);
    let mut data = world.data().acting(BOB);
    refused(data.read(token, 0, 1), ErrorKind::AccessDenied);
    refused(data.write(token, At::End, b"x"), ErrorKind::AccessDenied);
    let uid = forebay_model::Uid(BOB);
    let other = FileId(token.file.0 + 1);
    let forgeries = [
        Token { uid, ..token },
        Token { uid, file: other, ..token },
        Token { uid, serial: token.serial + 1, ..token },
        Token { uid, seal: [0; 16], ..token },
    ];
    for forgery in forgeries {
        refused(data.read(forgery, 0, 1), ErrorKind::Stale);
        refused(data.write(forgery, At::End, &[1; 100_000]), ErrorKind::Stale);
        let mut bob = world.control().acting(BOB);
        for request in [
            Request::Reopen { token: forgery },
            Request::Close { token: forgery },
            Request::Truncate { token: forgery, size: 0 },
            Request::Punch { token: forgery, offset: 0, len: 1 },
            Request::Extend { token: forgery, size: 9 },
            Request::Sync { token: forgery },
        ] {
            refused(bob.call(request), ErrorKind::Stale);
        }
    }
    let stronger = Token { access: Access { execute: true, ..Access::BOTH }, ..token };
    refused(world.data().acting(ALICE).read(stronger, 0, 1), ErrorKind::Stale);
}

#[test]
fn set_id_bits_are_cleared_by_writes_of_ordinary_users() {
    let world = World::new();
    let (mut alice, mut root) = (world.control().acting(ALICE), world.control().acting(0));
    let before = alice.create(ROOT, "f", 0o777);
    let file = before.file;
    let Ok(Reply::Opened { token: roots, .. }) =
        root.call(Request::Open { file, access: Access::BOTH, truncate: false })
    else {
        panic!("not opened")
    };
    let punch = |token| Request::Punch { token, offset: 0, len: 1 };
    for (mode, after, change) in [
        (0o6777, 0o777, Some(Request::Truncate { token: before, size: 9 })),
        (0o6777, 0o777, Some(Request::TruncateFile { file, size: 8 })),
        (0o6777, 0o777, Some(Request::Open { file, access: Access::BOTH, truncate: true })),
        (0o6777, 0o777, Some(Request::Extend { token: before, size: 7 })),
        (0o6777, 0o777, Some(punch(before))),
        (0o6777, 0o777, None),
        // Without group execution the set-group-id bit has another meaning.
        (0o6767, 0o2767, None),
        (0o1777, 0o1777, None),
    ] {
        let change_mode = Change { mode: Some(mode), ..Change::default() };
        alice.call(Request::SetAttr { file, change: change_mode }).unwrap();
        world.data().acting(0).write(roots, At::Offset(0), b"root may").unwrap();
        assert_eq!(root.walk("f").unwrap().mode, mode, "root changes nothing but the bytes");
        let shown = format!("{mode:o} {change:?}");
        match change {
            Some(change) => drop(alice.call(change).unwrap()),
            None => drop(world.data().acting(ALICE).write(before, At::Offset(0), b"x").unwrap()),
        }
        assert_eq!(root.walk("f").unwrap().mode, after, "{shown}");
    }
    let set = Change { mode: Some(0o4777), ..Change::default() };
    alice.call(Request::SetAttr { file, change: set }).unwrap();
    let mut late = Raw::unix(&world.socket(), Channel::Control, 98).unwrap().acting(BOB);
    let open = Request::Open { file, access: Access::WRITE, truncate: false };
    let Ok(Reply::Opened { token, .. }) = late.call(open) else { panic!("not opened") };
    let mut data = Raw::unix(&world.socket(), Channel::Data, 98).unwrap().acting(BOB);
    data.write(token, At::End, b"x").unwrap();
    assert_eq!(root.walk("f").unwrap().mode, 0o777, "the bits were set before the open");
}

#[test]
fn only_root_and_the_owner_stop_the_server() {
    let mut world = World::new();
    refused(world.control().acting(BOB).call(Request::Shutdown), ErrorKind::NotPermitted);
    assert_eq!(world.control().call(Request::Shutdown), Ok(Reply::Done));
    world.wait();
}

/// Whether this test can act as other users.
fn can_act(test: &str) -> bool {
    if !is_root() {
        skip(test, "only root can act as other users");
    }
    is_root()
}

/// Requests of an unprivileged user who sends other identities.
fn send_false_identities(raw: &mut Raw, own: u32) {
    let claim = |identity| Call { identity: Some(identity), request: Request::StatFs };
    for identity in [Identity::root(), person(own + 1)] {
        raw.send_frame(FrameKind::Call, 3, &claim(identity), &[]);
        refused(raw.receive().unwrap().1, ErrorKind::NotPermitted);
    }
    refused(raw.call(Request::Shutdown), ErrorKind::NotPermitted);
    assert!(raw.call(Request::StatFs).is_ok());
}

fn in_group_of_root(uid: u32) -> Identity {
    Identity { groups: vec![forebay_model::Gid(0)], ..person(uid) }
}

#[test]
fn false_identity_over_tcp_is_refused() {
    if !can_act("false_identity_over_tcp_is_refused") {
        return;
    }
    let world = World::new();
    let mut root = world.control();
    root.create(ROOT, "of-root", 0o640);
    let (_, key) = grant(&mut root, ALICE, None);
    let (mut raw, welcome) = connect(world.tcp(), Channel::Control, &key).unwrap();
    assert_eq!(welcome.uid.0, ALICE);
    send_false_identities(&mut raw, ALICE);
    // The server's own record of the groups applies, whatever the client claims.
    raw.set_identity(Some(in_group_of_root(ALICE)));
    let file = raw.walk("of-root").unwrap().id;
    let open = Request::Open { file, access: Access::READ, truncate: false };
    refused(raw.call(open), ErrorKind::AccessDenied);
    raw.set_identity(None);
    let token = raw.create(ROOT, "mine", 0o600);
    assert_eq!(token.uid.0, ALICE);
}

/// What Bob can and cannot do.
fn another_user(socket: &Path) {
    let mut raw = Raw::unix(socket, Channel::Control, 1).expect("connected");
    send_false_identities(&mut raw, BOB);
    raw.set_identity(Some(in_group_of_root(BOB)));
    refused(raw.call(Request::StatFs), ErrorKind::NotPermitted);
    raw.set_identity(None);
    refused(raw.walk("secret"), ErrorKind::NotFound);
    let attr = raw.walk("hers").unwrap();
    refused(
        raw.call(Request::Open { file: attr.id, access: Access::READ, truncate: false }),
        ErrorKind::AccessDenied,
    );
    assert_eq!(raw.create(ROOT, "his", 0o600).uid.0, BOB);
}

/// Lets other users reach the socket.
fn open_directory(world: &World) {
    let dir = world.config.store.parent().unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn unix_socket_uses_kernel_credentials() {
    if !can_act("unix_socket_uses_kernel_credentials") {
        return;
    }
    let world = World::new();
    open_directory(&world);
    world.control().acting(ALICE).create(ROOT, "hers", 0o600);
    as_user(BOB, || another_user(&world.socket()));
    assert_eq!(world.control().walk("his").unwrap().uid.0, BOB);
}

/// The server refuses Bob.
fn refused_stranger(socket: &Path) {
    for channel in [Channel::Control, Channel::Data] {
        let error = Raw::unix(socket, channel, 1).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert!(error.to_string().contains(&format!("user {BOB} is refused")), "{error}");
    }
}

#[test]
fn owner_only_service_refuses_other_users_by_credential() {
    if !can_act("owner_only_service_refuses_other_users_by_credential") {
        return;
    }
    let world = World::with(|config| config.owner_only = true);
    open_directory(&world);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&world.socket()), 0o600);
    // The server refuses the user although the permissions of the socket let it connect.
    std::fs::set_permissions(world.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    as_user(BOB, || refused_stranger(&world.socket()));
    assert!(world.control().call(Request::StatFs).is_ok(), "the owner is accepted");
}

#[test]
fn socket_for_programs_admits_other_users_as_themselves_only() {
    if !can_act("socket_for_programs_admits_other_users_as_themselves_only") {
        return;
    }
    let mut world = World::with(|config| {
        config.owner_only = true;
        config.programs_socket = Some(config.store.with_extension("programs"));
    });
    let socket = world.config.programs_socket.clone().unwrap();
    open_directory(&world);
    world.control().acting(ALICE).create(ROOT, "hers", 0o600);
    as_user(BOB, || another_user(&socket));
    // The server refuses the user although the permissions of the socket let it connect.
    std::fs::set_permissions(world.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    as_user(BOB, || refused_stranger(&world.socket()));
    world.control().call(Request::Unlink { dir: ROOT, name: name("his") }).unwrap();
    world.restart();
    as_user(BOB, || another_user(&socket));
}
