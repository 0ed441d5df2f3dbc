//! Several servers with one namespace, tested with raw connections.

use crate::raw::{Raw, hello, name, pattern, refused};
use forebay_backend::Backend;
use forebay_model::{Attr, Bytes, Change, Error, ErrorKind, FileId, Members, ServerId};
use forebay_server::{Config, Medium, Running, Server};
use forebay_testkit::{address, until};
use forebay_wire::{
    Answer, At, Channel, FrameKind, Greeting, Hello, IfExists, Known, Reply, Request, Roster, Standing,
    Status, Token, Welcome, frame,
};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const ROOT: FileId = FileId::ROOT;
const SOON: Duration = Duration::from_secs(240);

/// Servers in this process; each can be stopped and started.
pub(crate) struct Fleet {
    pub(crate) configs: Vec<Config>,
    running: Vec<Option<Running>>,
    pub(crate) dir: TempDir,
}

impl Fleet {
    pub(crate) fn plan(count: u16, change: impl FnOnce(&mut Config)) -> Fleet {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut config = Config::for_store(dir.path().join("store"));
        config.capacity = Bytes::mib(16);
        config.region = Some(Bytes::mib(1));
        config.medium = Medium::Disk;
        config.tcp = false;
        config.times.lease = Duration::from_millis(400);
        config.times.peer = Duration::from_secs(2);
        change(&mut config);
        let configs = config.cluster(count);
        Fleet { running: configs.iter().map(|_| None).collect(), configs, dir }
    }

    pub(crate) fn new(count: u16) -> Fleet {
        let mut fleet = Fleet::plan(count, |_| {});
        (0..usize::from(count)).for_each(|index| fleet.start(index));
        fleet.joined();
        fleet
    }

    pub(crate) fn start(&mut self, index: usize) {
        let running = Server::start(self.configs[index].clone()).expect("a server starts");
        self.running[index] = Some(running);
    }

    /// Starts all servers with a back end.
    pub(crate) fn start_before(&mut self, backend: &Arc<dyn Backend>) {
        for (config, running) in self.configs.iter().zip(&mut self.running) {
            let started = Server::start_before(config.clone(), backend.clone());
            *running = Some(started.expect("a server starts"));
        }
        self.joined();
    }

    pub(crate) fn stop(&mut self, index: usize) {
        self.running[index].take().expect("running server").shutdown().expect("clean shutdown");
    }

    pub(crate) fn joined(&self) {
        for running in self.running.iter().flatten() {
            running.wait_until_joined(SOON).expect("all servers joined");
        }
    }

    pub(crate) fn members(&self) -> Members {
        self.configs[0].members().expect("a list")
    }

    pub(crate) fn index(&self, server: ServerId) -> usize {
        self.configs.iter().position(|config| config.server == server).expect("known server")
    }

    pub(crate) fn control(&self, index: usize) -> Raw {
        Raw::unix(&self.configs[index].socket_path(), Channel::Control, 1).expect("connected")
    }

    pub(crate) fn data(&self, server: ServerId) -> Raw {
        Raw::unix(&self.configs[self.index(server)].socket_path(), Channel::Data, 1).expect("connected")
    }

    pub(crate) fn home(&self, dir: FileId, text: &str) -> Raw {
        self.control(self.index(self.members().home(dir, &name(text))))
    }

    fn authority(&self, file: FileId) -> Raw {
        self.control(self.index(self.members().authority(file)))
    }

    /// A name whose home is the given server.
    pub(crate) fn name_on(&self, dir: FileId, server: ServerId, like: &str) -> String {
        let members = self.members();
        let mut names = (0..).map(|number| format!("{like}{number}"));
        names.find(|text| members.home(dir, &name(text)) == server).expect("a matching name")
    }

    pub(crate) fn make_dir(&self, dir: FileId, text: &str) -> FileId {
        self.home(dir, text).make_dir(dir, text, 0o755)
    }

    /// Walks as a client does, from server to server.
    pub(crate) fn walk(&self, path: &str) -> Result<Attr, Error> {
        let (mut dir, mut rest) = (ROOT, path.to_owned());
        loop {
            let first = rest.split('/').next().expect("a part").to_owned();
            let request = Request::Walk { dir, path: rest.into_bytes(), follow: false };
            match self.home(dir, &first).call(request)? {
                Reply::Found(attr) => return Ok(attr),
                Reply::At { file, .. } => match self.authority(file).call(Request::GetAttr { file })? {
                    Reply::Attr(attr) => return Ok(attr),
                    other => panic!("{other:?}"),
                },
                Reply::Elsewhere { dir: next, rest: left } => {
                    (dir, rest) = (next, String::from_utf8(left).expect("UTF-8 path"));
                }
                other => panic!("unexpected reply to a walk: {other:?}"),
            }
        }
    }

    pub(crate) fn status(&self, index: usize) -> Status {
        match self.control(index).call(Request::Status) {
            Ok(Reply::Status(status)) => *status,
            other => panic!("no status: {other:?}"),
        }
    }
}

#[test]
fn names_are_spread_and_found_on_all_servers() {
    let fleet = Fleet::new(3);
    let mut dir = ROOT;
    let mut path = String::new();
    for (level, server) in [1_u16, 2, 0, 2, 1].into_iter().enumerate() {
        let text = fleet.name_on(dir, ServerId(server), &format!("level{level}."));
        dir = fleet.make_dir(dir, &text);
        assert_eq!(dir.maker(), ServerId(server), "the home server assigns the id");
        path = format!("{path}{}{text}", if level > 0 { "/" } else { "" });
    }
    assert_eq!(fleet.walk(&path).unwrap().id, dir);
    for server in 0..3 {
        let text = fleet.name_on(dir, ServerId(server), "file");
        let token = fleet.home(dir, &text).create(dir, &text, 0o644);
        let authority = token.file.maker();
        fleet.data(authority).write(token, At::Offset(0), &pattern(1, 5000)).unwrap();
        let attr = fleet.walk(&format!("{path}/{text}")).unwrap();
        assert_eq!((attr.id, attr.size), (token.file, 5000));
        // One request suffices for a client that knows the directory.
        let known = Known { len: path.len() as u16, dir };
        let full = format!("{path}/{text}").into_bytes();
        match fleet.home(dir, &text).call(Request::Jump { path: full, follow: false, known }) {
            Ok(Reply::Found(attr)) => assert_eq!(attr.id, token.file),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fleet.walk(&path).unwrap().links, 2);
    refused(fleet.walk(&format!("{path}/nothing")), ErrorKind::NotFound);
}

#[test]
fn mode_change_takes_effect_on_all_servers_before_the_reply() {
    let fleet = Fleet::new(3);
    let text = fleet.name_on(ROOT, ServerId(1), "d");
    let dir = fleet.make_dir(ROOT, &text);
    let file = fleet.name_on(dir, ServerId(2), "f");
    fleet.home(dir, &file).create(dir, &file, 0o644);
    let walk = || Request::Walk { dir, path: file.clone().into_bytes(), follow: false };
    let mut alice = fleet.home(dir, &file).acting(crate::raw::ALICE);
    for round in 0..20 {
        let mode = if round % 2 == 0 { 0o700 } else { 0o755 };
        let change = Change { mode: Some(mode), ..Change::default() };
        fleet.authority(dir).call(Request::SetAttr { file: dir, change }).unwrap();
        let seen = alice.call(walk());
        match mode {
            0o700 => refused(seen, ErrorKind::AccessDenied),
            _ => assert!(seen.is_ok(), "{seen:?}"),
        }
    }
}

#[test]
fn mode_can_be_changed_while_a_server_is_down() {
    let mut fleet = Fleet::new(3);
    let dir = fleet.make_dir(ROOT, &fleet.name_on(ROOT, ServerId(1), "d"));
    let file = fleet.name_on(dir, ServerId(2), "f");
    fleet.home(dir, &file).create(dir, &file, 0o644);
    fleet.stop(2);
    let change = Change { mode: Some(0o700), ..Change::default() };
    fleet.authority(dir).call(Request::SetAttr { file: dir, change }).unwrap();
    fleet.start(2);
    let walk = Request::Walk { dir, path: file.clone().into_bytes(), follow: false };
    refused(fleet.home(dir, &file).acting(crate::raw::ALICE).call(walk), ErrorKind::AccessDenied);
}

#[test]
fn striped_file_behaves_as_one_file() {
    let fleet = Fleet::new(3);
    let text = fleet.name_on(ROOT, ServerId(1), "f");
    let dir_layout = forebay_model::Striping { width: 0, stripe: 64 << 10 };
    fleet.authority(ROOT).call(Request::SetLayout { dir: ROOT, striping: Some(dir_layout) }).unwrap();
    let mut home = fleet.home(ROOT, &text);
    let request = Request::Create {
        dir: ROOT,
        name: name(&text),
        mode: 0o644,
        access: forebay_model::Access::BOTH,
        if_exists: IfExists::Refuse,
    };
    let Ok(Reply::Opened { token, layout, .. }) = home.call(request) else { panic!("not created") };
    assert_eq!(layout.servers, [1, 2, 0].map(ServerId), "striped over all servers, beginning at the home");
    let bytes = pattern(9, 500_000);
    let whole = forebay_model::Span::new(0, bytes.len() as u64);
    for (server, span) in layout.pieces(whole) {
        let piece = &bytes[span.start as usize..span.end as usize];
        fleet.data(server).write(token, At::Offset(span.start), piece).unwrap();
    }
    let size = |raw: &mut Raw| match raw.call(Request::GetAttr { file: token.file }) {
        Ok(Reply::Attr(attr)) => attr.size,
        other => panic!("{other:?}"),
    };
    assert_eq!(size(&mut home), 500_000, "the size is gathered while the file is open");
    for (server, span) in layout.pieces(whole) {
        let got = fleet.data(server).read(token, span.start, (span.end - span.start) as u32).unwrap();
        assert!(got == bytes[span.start as usize..span.end as usize]);
    }
    let appended = fleet.data(ServerId(1)).write(token, At::End, &pattern(4, 100_000)).unwrap();
    assert_eq!((appended, size(&mut home)), (500_000, 600_000), "the authority appends over all servers");
    for (server, span) in layout.pieces(forebay_model::Span::new(500_000, 600_000)) {
        let got = fleet.data(server).read(token, span.start, span.len() as u32).unwrap();
        let from = (span.start - 500_000) as usize;
        assert!(got == pattern(4, 100_000)[from..from + span.len() as usize], "{span} on server {server}");
    }
    home.call(Request::Punch { token, offset: 60_000, len: 20_000 }).unwrap();
    assert_eq!(
        fleet.data(layout.server_at(70_000)).read(token, 70_000, 10).unwrap(),
        [0; 10],
        "punched on the other servers too"
    );
    home.call(Request::Truncate { token, size: 100_000 }).unwrap();
    assert_eq!(size(&mut home), 100_000);
    let gone = layout.server_at(150_000);
    assert_eq!(fleet.data(gone).read(token, 150_000, 10).unwrap(), b"", "truncated on all servers");
    home.call(Request::Close { token }).unwrap();
    home.call(Request::Unlink { dir: ROOT, name: name(&text) }).unwrap();
    until("nothing is live", || (0..3).all(|index| fleet.status(index).usage.live == 0));
}

fn forged(token: Token) -> Token {
    Token { serial: token.serial + 1, ..token }
}

#[test]
fn token_is_valid_on_vouching_servers_while_the_file_is_open() {
    let fleet = Fleet::new(3);
    let striping = Some(forebay_model::Striping { width: 0, stripe: 64 << 10 });
    fleet.authority(ROOT).call(Request::SetLayout { dir: ROOT, striping }).unwrap();
    let text = fleet.name_on(ROOT, ServerId(0), "f");
    let mut home = fleet.home(ROOT, &text);
    let token = home.create(ROOT, &text, 0o644);
    let mut other = fleet.data(ServerId(1));
    refused(other.write(forged(token), At::Offset(0), b"x"), ErrorKind::Stale);
    other.write(token, At::Offset(64 << 10), b"there").unwrap();
    home.call(Request::Close { token }).unwrap();
    until("all servers agree", || {
        // Persisting the size revokes the voucher.
        let read = other.read(token, 64 << 10, 9);
        read.is_err_and(|error| error.kind() == ErrorKind::Stale)
    });
    match home.call(Request::GetAttr { file: token.file }) {
        Ok(Reply::Attr(attr)) => assert_eq!(attr.size, (64 << 10) + 5),
        other => panic!("{other:?}"),
    }
}

#[test]
fn buffered_bytes_of_a_closed_file_are_counted_over_all_servers() {
    let mut fleet = Fleet::new(3);
    let striping = Some(forebay_model::Striping { width: 0, stripe: 64 << 10 });
    fleet.authority(ROOT).call(Request::SetLayout { dir: ROOT, striping }).unwrap();
    let text = fleet.name_on(ROOT, ServerId(0), "f");
    let mut home = fleet.home(ROOT, &text);
    let token = home.create(ROOT, &text, 0o644);
    for server in 0..3 {
        let offset = u64::from(server) * (64 << 10);
        fleet.data(ServerId(server)).write(token, At::Offset(offset), &pattern(1, 64 << 10)).unwrap();
    }
    let buffered = |fleet: &Fleet| match fleet.control(0).call(Request::GetAttr { file: token.file }) {
        Ok(Reply::Attr(attr)) => (attr.size, attr.buffered),
        other => panic!("{other:?}"),
    };
    assert_eq!(buffered(&fleet), (3 << 16, 3 << 16), "while it is open");
    home.call(Request::Close { token }).unwrap();
    until("the read fails", || fleet.data(ServerId(1)).read(token, 64 << 10, 9).is_err());
    assert_eq!(buffered(&fleet), (3 << 16, 3 << 16), "after the sizes are persisted");
    home.call(Request::TruncateFile { file: token.file, size: 3 << 15 }).unwrap();
    assert_eq!(buffered(&fleet), (3 << 15, 3 << 15), "after a truncation");
    drop(home);
    // The home has stored the counts and does not query the other servers.
    until("all servers agree", || {
        fleet.stop(1);
        let counted = buffered(&fleet);
        fleet.start(1);
        counted == (3 << 15, 3 << 15)
    });
}

pub(crate) fn standing(fleet: &Fleet, index: usize) -> Standing {
    fleet.status(index).standing
}

#[test]
fn servers_start_in_any_order_and_a_new_one_waits_for_the_others() {
    let mut fleet = Fleet::plan(3, |_| {});
    fleet.start(2);
    let walk = || Request::Walk { dir: ROOT, path: b"x".to_vec(), follow: false };
    let error = fleet.control(2).call(walk()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("server 0") && error.to_string().contains("server 1"), "{error}");
    fleet.start(0);
    fleet.start(1);
    fleet.joined();
    fleet.stop(0);
    fleet.stop(1);
    fleet.stop(2);
    // A server that has joined before serves at once; an error names the server that a request needs.
    fleet.start(1);
    assert_eq!(standing(&fleet, 1), Standing::Joined);
    let text = fleet.name_on(ROOT, ServerId(1), "f");
    let request = Request::Walk { dir: ROOT, path: text.into_bytes(), follow: false };
    let error = fleet.control(1).call(request).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("server 0"), "{error}");
}

#[test]
fn different_server_lists_are_refused_and_both_shown() {
    let mut fleet = Fleet::plan(2, |_| {});
    fleet.configs[1].epoch = 7;
    fleet.start(0);
    fleet.start(1);
    until("the server is refused", || matches!(standing(&fleet, 0), Standing::Refused(_)));
    let Standing::Refused(why) = standing(&fleet, 0) else { panic!("no longer refused") };
    assert!(why.contains("epoch 1: 0 unix:") && why.contains("epoch 7: 0 unix:"), "{why}");
}

#[test]
fn client_with_another_server_list_is_refused() {
    let mut fleet = Fleet::plan(2, |config| config.epoch = 3);
    (0..2).for_each(|index| fleet.start(index));
    fleet.joined();
    for (epoch, servers, says) in [
        (3, &[0, 1][..], None),
        (
            2,
            &[0, 1],
            Some(
                "an old list of servers: it has [epoch 2: servers 0, 1], server 1 has [epoch 3: servers 0, 1]",
            ),
        ),
        (4, &[0, 1], Some("another list of servers: it has [epoch 4: servers 0, 1]")),
        (3, &[0, 1, 2], Some("it has [epoch 3: servers 0, 1, 2], server 1 has [epoch 3: servers 0, 1]")),
        (3, &[], Some("another list of servers")),
    ] {
        for channel in [Channel::Control, Channel::Data] {
            let socket = UnixStream::connect(fleet.configs[1].socket_path()).expect("socket connection");
            let servers = servers.iter().copied().map(ServerId).collect();
            let hello = Hello { roster: Some(Roster { epoch, servers }), ..hello(channel, 1) };
            match (Raw::bare(socket).greet(&hello, None), says) {
                (Ok(welcome), None) => assert_eq!(welcome.members.epoch(), 3),
                (Err(error), Some(says)) => {
                    assert_eq!(error.kind(), ErrorKind::Stale);
                    assert!(error.to_string().contains(says), "{error}");
                }
                (greeted, says) => panic!("{greeted:?}, not {says:?}"),
            }
        }
    }
}

#[test]
fn server_list_with_a_duplicate_is_refused() {
    let mut fleet = Fleet::plan(2, |_| {});
    fleet.configs[0].servers[1].server = ServerId(0);
    let error = Server::start(fleet.configs[0].clone()).err().expect("refused");
    assert!(error.to_string().contains("are both called server 0: correct the list"), "{error}");
    assert!(!fleet.configs[0].store.exists(), "no store was created");
}

#[test]
fn server_of_another_cluster_is_refused() {
    let mut fleet = Fleet::plan(2, |config| {
        config.tcp = true;
        config.listen = address();
    });
    let (other, mut list) = (address(), fleet.configs[0].servers.clone());
    fleet.configs[1].listen = other;
    list[1].address = format!("tcp:{other}");
    fleet.configs.iter_mut().for_each(|config| config.servers.clone_from(&list));
    fleet.configs[1].key = Some(fleet.dir.path().join("another.key"));
    fleet.start(0);
    fleet.start(1);
    let text = fleet.name_on(ROOT, ServerId(0), "f");
    let request = Request::Walk { dir: ROOT, path: text.into_bytes(), follow: false };
    until(
        "the server is refused",
        || matches!(standing(&fleet, 0), Standing::Refused(why) if why.contains("key")),
    );
    refused(fleet.control(0).call(request), ErrorKind::Io);
}

/// A wrong reply of a peer.
#[derive(Clone, Copy, Debug)]
enum Nonsense {
    /// Bytes that are no frames.
    Noise,
    /// A welcome, then bytes that are no frames.
    LateNoise,
    /// A welcome, then an answer without a request.
    Beside,
    /// The welcome of another server.
    Impostor,
}

impl Nonsense {
    fn send_to(self, mut stream: UnixStream, members: &Members) -> std::io::Result<()> {
        let welcome = Welcome {
            server: ServerId(if matches!(self, Nonsense::Impostor) { 7 } else { 1 }),
            incarnation: forebay_model::Incarnation(5),
            uid: forebay_model::Uid(0),
            max_payload: 1 << 20,
            members: members.clone(),
            session_millis: 1000,
            connection: 1,
        };
        let mut sent = Vec::new();
        if !matches!(self, Nonsense::Noise) {
            frame(&mut sent, FrameKind::Greeting, 0, &Greeting::Welcome(welcome), 0).expect("frame fits");
        }
        match self {
            Nonsense::Noise | Nonsense::LateNoise => sent.extend([0xfe; 4096]),
            Nonsense::Beside | Nonsense::Impostor => {
                frame(&mut sent, FrameKind::Answer, 0, &Answer::Ok(Reply::Done), 0).expect("frame fits");
            }
        }
        stream.write_all(&sent)?;
        // The server reads until it closes the connection.
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    }
}

#[test]
fn garbage_from_a_peer_is_reported_with_its_cause() {
    for (nonsense, says) in [
        (Nonsense::Noise, "not the start of a Forebay frame"),
        (Nonsense::LateNoise, "not the start of a Forebay frame"),
        (Nonsense::Beside, "answered something else than was asked"),
        (Nonsense::Impostor, "calls itself server 7, not 1"),
    ] {
        let mut fleet = Fleet::plan(2, |config| config.times.peer = Duration::from_millis(500));
        let (members, path) = (fleet.members(), fleet.configs[1].socket_path());
        let listener = UnixListener::bind(path).expect("free socket path");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // The server may have closed the connection already.
                let _ = stream.and_then(|stream| nonsense.send_to(stream, &members));
            }
        });
        fleet.start(0);
        until("the standing changes", || match standing(&fleet, 0) {
            Standing::Waiting(why) | Standing::Refused(why) => why.contains(says),
            Standing::Joined => panic!("{nonsense:?} was accepted"),
        });
        assert!(fleet.control(0).call(Request::Ping).is_ok(), "{nonsense:?}");
    }
}

#[test]
fn empty_store_joins_only_after_the_old_one_is_replaced() {
    let mut fleet = Fleet::new(3);
    let dir = fleet.make_dir(ROOT, &fleet.name_on(ROOT, ServerId(0), "d"));
    let lost = fleet.name_on(dir, ServerId(2), "lost");
    let kept = fleet.name_on(dir, ServerId(1), "kept");
    fleet.home(dir, &lost).create(dir, &lost, 0o644);
    fleet.home(dir, &kept).create(dir, &kept, 0o644);
    fleet.stop(2);
    std::fs::remove_dir_all(&fleet.configs[2].store).expect("the store is wiped");
    fleet.start(2);
    until("the server is refused", || matches!(standing(&fleet, 2), Standing::Refused(_)));
    let walk = |text: &str| Request::Walk { dir, path: text.as_bytes().to_vec(), follow: false };
    let error = fleet.control(2).call(walk(&lost)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("forebay shard replace 2"), "{error}");
    assert!(fleet.home(dir, &kept).call(walk(&kept)).is_ok(), "names on other servers keep working");
    let replace = Request::ReplaceServer { server: ServerId(2) };
    for index in [0, 1] {
        fleet.control(index).call(replace.clone()).unwrap();
    }
    until("the server joins", || standing(&fleet, 2) == Standing::Joined);
    let damage = fleet.status(2).damage;
    assert!(damage.len() == 1 && damage[0].contains("earlier store of server 2"), "{damage:?}");
    refused(fleet.control(2).call(walk(&lost)), ErrorKind::Io);
    let made = fleet.home(dir, &lost).make_dir(dir, &lost, 0o755);
    assert!(made.0 & 0xffff_ffff_ffff >= 1 << 40, "an id of the new store: {made}");
    let inside = fleet.name_on(made, ServerId(2), "x");
    refused(fleet.walk(&inside), ErrorKind::NotFound);
    // A restart with the accepted store is not refused.
    fleet.stop(2);
    fleet.start(2);
    assert_eq!(standing(&fleet, 2), Standing::Joined);
}

#[test]
fn store_of_another_cluster_or_back_end_is_refused() {
    let mut fleet = Fleet::new(2);
    fleet.stop(1);
    let mut alone = fleet.configs[1].clone();
    alone.servers.clear();
    let error = Server::start(alone).err().expect("refused");
    assert!(error.to_string().contains("belongs to a service of servers 0, 1"), "{error}");
    let backing = tempfile::tempdir().unwrap();
    for index in 0..2 {
        if index == 0 {
            fleet.stop(0);
        }
        let mut before = fleet.configs[index].clone();
        before.backend = Some(format!("dir:{}", backing.path().display()));
        let error = Server::start(before).err().expect("refused");
        assert!(error.to_string().contains("spreads them over its servers"), "{error}");
    }
}

#[test]
fn sixty_four_servers_in_one_process() {
    let mut fleet = Fleet::plan(64, |config| {
        config.capacity = Bytes::mib(1);
        config.region = Some(Bytes::kib(256));
        config.times.lease = Duration::from_secs(10);
        config.times.peer = Duration::from_secs(30);
        config.lambda = Duration::from_secs(60);
    });
    (0..64).rev().for_each(|index| fleet.start(index));
    fleet.joined();
    let dir = fleet.make_dir(ROOT, &fleet.name_on(ROOT, ServerId(40), "d"));
    for number in 0..64 {
        let text = format!("file{number}");
        let token = fleet.home(dir, &text).create(dir, &text, 0o644);
        fleet.data(token.file.maker()).write(token, At::Offset(0), &[7; 10]).unwrap();
        let walk = Request::Walk { dir, path: text.clone().into_bytes(), follow: false };
        match fleet.home(dir, &text).call(walk) {
            Ok(Reply::Found(attr)) => assert_eq!(attr.size, 10),
            other => panic!("{other:?}"),
        }
    }
}
