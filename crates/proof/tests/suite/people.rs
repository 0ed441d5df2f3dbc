//! Two real users: neither gets more access than the modes allow, whatever ids, tokens or identities they send.

use forebay_model::{Access, Bytes, Change, ErrorKind, FileId, Gid, Identity, Uid};
use forebay_proof::{Host, Person, Plan, Raw, is_root, name, refused, skip};
use forebay_server::Medium;
use forebay_wire::{At, Channel, IfExists, Key, RenameMode, Reply, Request, Token, XattrMode};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const RELAY: &str = env!("CARGO_BIN_EXE_forebay-proof-relay");
const ROOT: FileId = FileId::ROOT;

/// A server, two users, and the relay program that they run.
struct Setup {
    host: Host,
    alice: Person,
    bob: Person,
    relay: PathBuf,
}

impl Setup {
    /// `None`, with a note, if users cannot be created.
    fn new(test: &str) -> Option<Setup> {
        if !is_root() {
            skip(test, "only root can create the two users it needs");
            return None;
        }
        let mut plan = Plan::new(Medium::Disk, Bytes::mib(16), Bytes::mib(1));
        // Silent connections do not time out within the test.
        plan.handshake = Duration::from_secs(3600);
        let host = Host::new(PROGRAM, plan);
        // The users must be able to execute it.
        let relay = host.dir().join("relay");
        std::fs::copy(RELAY, &relay).unwrap();
        for (path, mode) in [(host.dir(), 0o755), (&relay, 0o755)] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        Some(Setup { alice: Person::new(), bob: Person::new(), host, relay })
    }

    fn connect(&self, person: &Person, channel: Channel) -> Raw {
        self.connect_as(person, channel, u128::from(person.uid))
    }

    /// With a chosen client id.
    fn connect_as(&self, person: &Person, channel: Channel, client: u128) -> Raw {
        let relay = self.relay.to_str().unwrap();
        let (raw, welcome) = person.connect(relay, &self.host.socket(), channel, client).unwrap();
        assert_eq!(welcome.uid, Uid(person.uid), "the kernel reports the uid");
        raw
    }
}

#[test]
fn silent_connections_of_one_user_do_not_block_others() {
    let Some(setup) = Setup::new("silent_connections_of_one_user_do_not_block_others") else { return };
    let relay = setup.relay.to_str().unwrap();
    // More than the limit on concurrent handshakes.
    let limit = setup.host.plan.config(&setup.host.store()).limits.handshakes;
    let silent = setup.alice.hold_connections(relay, &setup.host.socket(), 2 * limit);
    let (notify, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bob = setup.connect(&setup.bob, Channel::Control);
            notify.send(bob.call(Request::Ping)).unwrap();
        });
        let answer = answered.recv_timeout(Duration::from_secs(60));
        // Lets Bob connect, if he has not, so that the test ends either way.
        drop(silent);
        assert_eq!(answer, Ok(Ok(Reply::Done)), "Bob is blocked by Alice's connections");
    });
    setup.connect(&setup.alice, Channel::Control).call(Request::Ping).unwrap();
}

/// Every request about a file and its directory by their ids.
fn requests(dir: FileId, file: FileId) -> Vec<Request> {
    let n = || name("n");
    let (mode, target, access) = (0o777, b"t".to_vec(), Access::READ);
    let change = |mode, uid, gid| Change { mode, uid, gid, ..Change::default() };
    let moved = |dir, to_dir, mode| Request::Rename { dir, name: n(), to_dir, to_name: n(), mode };
    vec![
        Request::Walk { dir, path: b"n".to_vec(), follow: true },
        Request::GetAttr { file },
        Request::SetAttr { file, change: change(Some(0o777), None, None) },
        Request::SetAttr { file, change: change(None, Some(Uid(0)), None) },
        Request::SetAttr { file, change: change(None, None, Some(Gid(0))) },
        Request::Open { file, access, truncate: false },
        Request::Open { file, access: Access::WRITE, truncate: false },
        Request::Open { file, access: Access::BOTH, truncate: true },
        Request::Open { file, access: Access::default(), truncate: false },
        Request::Open { file: dir, access, truncate: false },
        Request::Create { dir, name: n(), mode, access, if_exists: IfExists::Open },
        Request::Create { dir, name: n(), mode, access: Access::WRITE, if_exists: IfExists::Truncate },
        Request::Create { dir, name: name("new"), mode, access, if_exists: IfExists::Refuse },
        Request::TruncateFile { file, size: 0 },
        Request::MakeDir { dir, name: name("new"), mode },
        Request::RemoveDir { dir, name: n() },
        Request::Unlink { dir, name: n() },
        moved(dir, ROOT, RenameMode::Replace),
        moved(dir, ROOT, RenameMode::NoReplace),
        moved(ROOT, dir, RenameMode::Replace),
        moved(dir, ROOT, RenameMode::Exchange),
        Request::Link { file, dir: ROOT, name: name("stolen") },
        Request::Link { file, dir, name: name("new") },
        Request::Symlink { dir, name: name("new"), target },
        Request::ReadLink { file },
        Request::ReadDir { dir, cookie: 0, limit: 9, plus: true },
        Request::ReadDir { dir, cookie: 0, limit: 9, plus: false },
        Request::GetXattr { file, name: name("user.x") },
        Request::SetXattr { file, name: name("user.x"), value: vec![1], mode: XattrMode::Any },
        Request::ListXattr { file },
        Request::RemoveXattr { file, name: name("user.x") },
    ]
}

const NO: [ErrorKind; 2] = [ErrorKind::AccessDenied, ErrorKind::NotPermitted];

#[test]
fn no_request_gets_past_a_closed_directory_of_another_user() {
    let Some(setup) = Setup::new("no_request_gets_past_a_closed_directory_of_another_user") else { return };
    for (owner, thief) in [(&setup.alice, &setup.bob), (&setup.bob, &setup.alice)] {
        let mut mine = setup.connect(owner, Channel::Control);
        let dir = mine.make_dir(ROOT, &format!("private{}", owner.uid), 0o700);
        let token = mine.create(dir, "n", 0o666);
        setup.connect(owner, Channel::Data).write(token, At::Offset(0), b"secret").unwrap();

        let mut theirs = setup.connect(thief, Channel::Control);
        for request in requests(dir, token.file) {
            let what = format!("{request:?}");
            // A rename into a closed directory fails at the missing source first.
            let miss = [ErrorKind::AccessDenied, ErrorKind::NotPermitted, ErrorKind::NotFound];
            let kinds = if what.contains("Rename") { &miss[..] } else { &NO };
            refused(&what, theirs.call(request), kinds);
        }
        let untouched = mine.walk(&format!("private{}/n", owner.uid)).unwrap();
        assert_eq!((untouched.size, untouched.mode, untouched.links), (6, 0o666, 1));
        let change = Change { mode: Some(0o755), ..Change::default() };
        mine.call(Request::SetAttr { file: dir, change }).unwrap();
        let open = Request::Open { file: token.file, access: Access::READ, truncate: false };
        assert!(theirs.call(open).is_ok(), "only the directory denied access");
    }
}

#[test]
fn modes_groups_and_the_sticky_bit_apply_to_real_users() {
    let Some(setup) = Setup::new("modes_groups_and_the_sticky_bit_apply_to_real_users") else { return };
    let mut alice = setup.connect(&setup.alice, Channel::Control);
    let mut bob = setup.connect(&setup.bob, Channel::Control);
    let token = alice.create(ROOT, "f", 0o640);
    let open = |access| Request::Open { file: token.file, access, truncate: false };
    refused("not in the group", bob.call(open(Access::READ)), &NO);
    refused("the root directory is sticky", bob.call(Request::Unlink { dir: ROOT, name: name("f") }), &NO);
    let steal = Request::Rename {
        dir: ROOT,
        name: name("f"),
        to_dir: ROOT,
        to_name: name("g"),
        mode: RenameMode::Replace,
    };
    refused("rename in a sticky directory", bob.call(steal), &NO);
    let own = bob.create(ROOT, "bobs", 0o600);
    let over = Request::Rename {
        dir: ROOT,
        name: name("bobs"),
        to_dir: ROOT,
        to_name: name("f"),
        mode: RenameMode::Replace,
    };
    refused("replacing in a sticky directory", bob.call(over), &NO);
    let gift = Change { uid: Some(Uid(setup.alice.uid)), ..Change::default() };
    refused("giving a file away", bob.call(Request::SetAttr { file: own.file, change: gift }), &NO);
    let claim = Change { uid: Some(Uid(setup.bob.uid)), ..Change::default() };
    refused("taking a file over", bob.call(Request::SetAttr { file: token.file, change: claim }), &NO);

    setup.bob.join(&setup.alice);
    let mut member = setup.connect(&setup.bob, Channel::Control);
    assert!(member.call(open(Access::READ)).is_ok(), "bob is in alice's group now");
    refused("the group may only read", member.call(open(Access::WRITE)), &NO);
    let shared = alice.make_dir(ROOT, "shared", 0o1770);
    alice.create(shared, "owner", 0o660);
    member.create(shared, "his", 0o600);
    refused("sticky", member.call(Request::Unlink { dir: shared, name: name("owner") }), &NO);
    assert!(member.call(Request::Unlink { dir: shared, name: name("his") }).is_ok());
    let outsider = requests(shared, token.file).into_iter().filter(|request| {
        matches!(request, Request::Walk { .. } | Request::ReadDir { .. } | Request::MakeDir { .. })
    });
    // The older connection keeps the groups from before he joined.
    for request in outsider {
        refused(&format!("{request:?}"), bob.call(request), &NO);
    }
}

#[test]
fn false_identities_of_real_users_are_refused() {
    let Some(setup) = Setup::new("false_identities_of_real_users_are_refused") else { return };
    let mut alice = setup.connect(&setup.alice, Channel::Control);
    let token = alice.create(ROOT, "f", 0o600);
    let mut owner = setup.connect(&setup.alice, Channel::Data);
    owner.write(token, At::Offset(0), b"secret").unwrap();

    // Bob sends the id of Alice's client, and has her token.
    let mut bob = setup.connect_as(&setup.bob, Channel::Control, u128::from(setup.alice.uid));
    let mut data = setup.connect_as(&setup.bob, Channel::Data, u128::from(setup.alice.uid));
    for identity in [None, Some(setup.alice.identity()), Some(Identity::root()), Some(grouped(&setup))] {
        bob.set_identity(identity.clone());
        data.set_identity(identity.clone());
        let shown = format!("as {identity:?}");
        refused(&shown, data.read(token, 0, 6), &NO);
        refused(&shown, data.write(token, At::Offset(0), b"xxxxxx"), &NO);
        for request in [
            Request::Reopen { token },
            Request::Close { token },
            Request::Truncate { token, size: 0 },
            Request::Punch { token, offset: 0, len: 6 },
            Request::Sync { token },
            Request::Open { file: token.file, access: Access::READ, truncate: false },
            Request::TruncateFile { file: token.file, size: 0 },
            Request::Unlink { dir: ROOT, name: name("f") },
            Request::Shutdown,
        ] {
            refused(&format!("{shown}: {request:?}"), bob.call(request), &NO);
        }
    }
    bob.set_identity(None);
    data.set_identity(None);
    let forged = Token { uid: Uid(setup.bob.uid), ..token };
    refused("her token with his uid", data.read(forged, 0, 6), &[ErrorKind::Stale]);
    refused("her token with his uid", bob.call(Request::Reopen { token: forged }), &[ErrorKind::Stale]);
    let own_identity = setup.bob.identity();
    bob.set_identity(Some(own_identity));
    assert!(matches!(bob.call(Request::StatFs), Ok(Reply::Usage(_))), "a user may send its own identity");
    assert_eq!(owner.read(token, 0, 9).unwrap(), b"secret");
}

/// Bob with groups that he is not in.
fn grouped(setup: &Setup) -> Identity {
    Identity { groups: vec![Gid(setup.alice.gid), Gid(0)], ..setup.bob.identity() }
}

#[test]
fn key_and_store_are_private_to_their_owner() {
    let test = "key_and_store_are_private_to_their_owner";
    if !is_root() {
        return skip(test, "only root can create the two users it needs");
    }
    let (alice, bob) = (Person::new(), Person::new());
    // A service that Alice runs, not root.
    let mut host = Host::prepare(PROGRAM, Plan::new(Medium::Disk, Bytes::mib(16), Bytes::mib(1)));
    std::os::unix::fs::chown(host.dir(), Some(alice.uid), Some(alice.gid)).unwrap();
    std::fs::set_permissions(host.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    for (program, copy) in [(PROGRAM, "server"), (RELAY, "relay")] {
        std::fs::copy(program, host.dir().join(copy)).unwrap();
        std::fs::set_permissions(host.dir().join(copy), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let program = host.dir().join("server");
    host.start_as(alice.command(), &program).unwrap();
    let (key, store) = (host.key(), host.store());
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let as_user = |person: &Person, words: &[&str]| {
        let mut command: Command = person.command();
        command.args(words).output().unwrap().status.success()
    };
    assert!(as_user(&alice, &["cat", key.to_str().unwrap()]), "the owner reads the key");
    assert!(!as_user(&bob, &["cat", key.to_str().unwrap()]), "the key of another user");
    assert!(!as_user(&bob, &["ls", store.to_str().unwrap()]), "the bytes of another user's service");
    let mut tcp = Raw::open_tcp(host.tcp()).unwrap();
    let greeted = tcp.greet(&forebay_proof::hello(Channel::Control, 5), Some(&Key::new([0; 32])));
    refused("TCP without the key", greeted, &[ErrorKind::Unauthenticated]);

    let relay = host.dir().join("relay");
    let relay = relay.to_str().unwrap();
    let (mut theirs, _) = bob.connect(relay, &host.socket(), Channel::Control, 6).unwrap();
    theirs.set_identity(Some(alice.identity()));
    refused("bob as the service's owner", theirs.call(Request::Ping), &NO);
    let (mut owner, _) = alice.connect(relay, &host.socket(), Channel::Control, 7).unwrap();
    owner.set_identity(Some(bob.identity()));
    owner.create(ROOT, "for-bob", 0o600);
    theirs.set_identity(None);
    assert_eq!(theirs.walk("for-bob").unwrap().uid, Uid(bob.uid), "the owner may act for others");
    refused("bob stops the service", theirs.call(Request::Shutdown), &NO);
    host.kill();
    // Only its owner removes a store, and this process is root's.
    let given = Command::new("chown").args(["-R", "0:0"]).arg(host.store()).status().unwrap();
    assert!(given.success());
}
