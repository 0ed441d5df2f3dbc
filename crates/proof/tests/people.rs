//! Two real users: neither gets beyond the modes, whatever he asks for and whoever he says he is.

use forebay_model::{Access, Bytes, Change, ErrorKind, FileId, Gid, Identity, Uid};
use forebay_proof::{Host, Person, Plan, Raw, is_root, name, refused, skip};
use forebay_server::Medium;
use forebay_wire::{At, Channel, IfExists, RenameMode, Reply, Request, Token, XattrMode};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const RELAY: &str = env!("CARGO_BIN_EXE_forebay-proof-relay");
const ROOT: FileId = FileId::ROOT;

/// A server, two users, and the program that speaks for them.
struct Town {
    host: Host,
    alice: Person,
    bob: Person,
    relay: PathBuf,
}

impl Town {
    /// `None`, said aloud, where users cannot be made.
    fn new(test: &str) -> Option<Town> {
        if !is_root() {
            skip(test, "only root can make the two users it needs");
            return None;
        }
        let mut plan = Plan::new(Medium::Disk, Bytes::mib(16), Bytes::mib(1));
        // Whoever says nothing is not closed for as long as a test can take.
        plan.handshake = Duration::from_secs(3600);
        let host = Host::new(PROGRAM, plan);
        // What the users run has to be where they may go.
        let relay = host.dir().join("relay");
        std::fs::copy(RELAY, &relay).unwrap();
        for (path, mode) in [(host.dir(), 0o755), (&relay, 0o755)] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        Some(Town { alice: Person::new(), bob: Person::new(), host, relay })
    }

    fn connect(&self, person: &Person, channel: Channel) -> Raw {
        self.connect_as(person, channel, u128::from(person.uid))
    }

    /// With a client's number of one's own choice.
    fn connect_as(&self, person: &Person, channel: Channel, client: u128) -> Raw {
        let relay = self.relay.to_str().unwrap();
        let (raw, welcome) = person.connect(relay, &self.host.socket(), channel, client).unwrap();
        assert_eq!(welcome.uid, Uid(person.uid), "the kernel vouches");
        raw
    }
}

#[test]
fn one_who_only_knocks_keeps_nobody_else_out() {
    let Some(town) = Town::new("one_who_only_knocks_keeps_nobody_else_out") else { return };
    let relay = town.relay.to_str().unwrap();
    // More than all handshakes that may be under way at once.
    let limit = town.host.plan.config(&town.host.store()).limits.handshakes;
    let silent = town.alice.knock(relay, &town.host.socket(), 2 * limit);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bob = town.connect(&town.bob, Channel::Control);
            tell.send(bob.call(Request::Ping)).unwrap();
        });
        let heard = told.recv_timeout(Duration::from_secs(60));
        // Lets Bob in, if he is not, so that the test ends either way.
        drop(silent);
        assert_eq!(heard, Ok(Ok(Reply::Done)), "Bob waits for Alice");
    });
    town.connect(&town.alice, Channel::Control).call(Request::Ping).unwrap();
}

/// Everything that can be asked about a file and its directory by nothing but their ids.
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
fn neither_user_gets_behind_a_closed_directory_by_any_request() {
    let Some(town) = Town::new("neither_user_gets_behind_a_closed_directory_by_any_request") else { return };
    for (owner, thief) in [(&town.alice, &town.bob), (&town.bob, &town.alice)] {
        let mut mine = town.connect(owner, Channel::Control);
        let dir = mine.make_dir(ROOT, &format!("private{}", owner.uid), 0o700);
        let token = mine.create(dir, "n", 0o666);
        town.connect(owner, Channel::Data).write(token, At::Offset(0), b"secret").unwrap();

        let mut theirs = town.connect(thief, Channel::Control);
        for request in requests(dir, token.file) {
            let what = format!("{request:?}");
            // To move something into a closed directory, one has to have it first.
            let miss = [ErrorKind::AccessDenied, ErrorKind::NotPermitted, ErrorKind::NotFound];
            let kinds = if what.contains("Rename") { &miss[..] } else { &NO };
            refused(&what, theirs.call(request), kinds);
        }
        let untouched = mine.walk(&format!("private{}/n", owner.uid)).unwrap();
        assert_eq!((untouched.size, untouched.mode, untouched.links), (6, 0o666, 1));
        let change = Change { mode: Some(0o755), ..Change::default() };
        mine.call(Request::SetAttr { file: dir, change }).unwrap();
        let open = Request::Open { file: token.file, access: Access::READ, truncate: false };
        assert!(theirs.call(open).is_ok(), "the directory was all that kept him out");
    }
}

#[test]
fn modes_groups_and_the_sticky_bit_bind_real_users() {
    let Some(town) = Town::new("modes_groups_and_the_sticky_bit_bind_real_users") else { return };
    let mut alice = town.connect(&town.alice, Channel::Control);
    let mut bob = town.connect(&town.bob, Channel::Control);
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
    refused("nor may he rename there", bob.call(steal), &NO);
    let own = bob.create(ROOT, "bobs", 0o600);
    let over = Request::Rename {
        dir: ROOT,
        name: name("bobs"),
        to_dir: ROOT,
        to_name: name("f"),
        mode: RenameMode::Replace,
    };
    refused("nor put his own in its place", bob.call(over), &NO);
    let gift = Change { uid: Some(Uid(town.alice.uid)), ..Change::default() };
    refused("files are no gifts", bob.call(Request::SetAttr { file: own.file, change: gift }), &NO);
    let claim = Change { uid: Some(Uid(town.bob.uid)), ..Change::default() };
    refused("nor are they taken", bob.call(Request::SetAttr { file: token.file, change: claim }), &NO);

    town.bob.join(&town.alice);
    let mut member = town.connect(&town.bob, Channel::Control);
    assert!(member.call(open(Access::READ)).is_ok(), "the machine says that bob is in alice's group now");
    refused("the group may only read", member.call(open(Access::WRITE)), &NO);
    let shared = alice.make_dir(ROOT, "shared", 0o1770);
    alice.create(shared, "hers", 0o660);
    member.create(shared, "his", 0o600);
    refused("sticky", member.call(Request::Unlink { dir: shared, name: name("hers") }), &NO);
    assert!(member.call(Request::Unlink { dir: shared, name: name("his") }).is_ok());
    let outsider = requests(shared, token.file).into_iter().filter(|request| {
        matches!(request, Request::Walk { .. } | Request::ReadDir { .. } | Request::MakeDir { .. })
    });
    // The connection from before he joined still speaks for who he was.
    for request in outsider {
        refused(&format!("{request:?}"), bob.call(request), &NO);
    }
}

#[test]
fn who_lies_about_himself_gains_nothing() {
    let Some(town) = Town::new("who_lies_about_himself_gains_nothing") else { return };
    let mut alice = town.connect(&town.alice, Channel::Control);
    let token = alice.create(ROOT, "f", 0o600);
    let mut hers = town.connect(&town.alice, Channel::Data);
    hers.write(token, At::Offset(0), b"secret").unwrap();

    // Bob says that he is alice's client, and has her token.
    let mut bob = town.connect_as(&town.bob, Channel::Control, u128::from(town.alice.uid));
    let mut data = town.connect_as(&town.bob, Channel::Data, u128::from(town.alice.uid));
    for lie in [None, Some(town.alice.identity()), Some(Identity::root()), Some(grouped(&town))] {
        bob.pose(lie.clone());
        data.pose(lie.clone());
        let shown = format!("as {lie:?}");
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
    bob.pose(None);
    data.pose(None);
    let forged = Token { uid: Uid(town.bob.uid), ..token };
    refused("her token with his name", data.read(forged, 0, 6), &[ErrorKind::Stale]);
    refused("her token with his name", bob.call(Request::Reopen { token: forged }), &[ErrorKind::Stale]);
    let himself = town.bob.identity();
    bob.pose(Some(himself));
    assert!(matches!(bob.call(Request::StatFs), Ok(Reply::Usage(_))), "he may say who he is");
    assert_eq!(hers.read(token, 0, 9).unwrap(), b"secret");
}

/// Bob with a group that he is not in.
fn grouped(town: &Town) -> Identity {
    Identity { groups: vec![Gid(town.alice.gid), Gid(0)], ..town.bob.identity() }
}

#[test]
fn the_key_and_the_store_are_their_owners_alone() {
    let test = "the_key_and_the_store_are_their_owners_alone";
    if !is_root() {
        return skip(test, "only root can make the two users it needs");
    }
    let (alice, bob) = (Person::new(), Person::new());
    // A service that alice runs, not root.
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
    assert!(as_user(&alice, &["cat", key.to_str().unwrap()]), "it is hers");
    assert!(!as_user(&bob, &["cat", key.to_str().unwrap()]), "the key of another user");
    assert!(!as_user(&bob, &["ls", store.to_str().unwrap()]), "the bytes of another user's service");
    let mut tcp = Raw::knock_tcp(host.tcp()).unwrap();
    let met = tcp.greet(&forebay_proof::hello(Channel::Control, 5), None);
    refused("TCP without the key", met, &[ErrorKind::Unauthenticated]);

    let relay = host.dir().join("relay");
    let relay = relay.to_str().unwrap();
    let (mut theirs, _) = bob.connect(relay, &host.socket(), Channel::Control, 6).unwrap();
    theirs.pose(Some(alice.identity()));
    refused("bob as the service's owner", theirs.call(Request::Ping), &NO);
    let (mut hers, _) = alice.connect(relay, &host.socket(), Channel::Control, 7).unwrap();
    hers.pose(Some(bob.identity()));
    hers.create(ROOT, "for-bob", 0o600);
    theirs.pose(None);
    assert_eq!(theirs.walk("for-bob").unwrap().uid, Uid(bob.uid), "the owner may act for others");
    refused("bob stops the service", theirs.call(Request::Shutdown), &NO);
    host.kill();
}
