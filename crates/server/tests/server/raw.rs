//! A server in a directory of its own, and a client that sends and receives raw frames.

use forebay_model::{Access, Attr, Bytes, Error, ErrorKind, FileId, Gid, Identity, Job, Name, Uid};
use forebay_server::{Config, Medium, Running, Server};
use forebay_testkit::as_user;
use forebay_wire::{
    Agreed, Answer, At, CHUNK, CHUNK_HEAD, Call, Channel, ConnectionKey, FrameKind, Greeting, HEADER, Header,
    Hello, IfExists, Initiator, Key, Opener, Proof, Reply, Request, Sealer, Security, TAG, Token, VERSION,
    Welcome, body, frame_with,
};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const ALICE: u32 = 4001;
pub(crate) const BOB: u32 = 4002;

/// A server, its directory, and its configuration for a restart.
pub(crate) struct World {
    pub(crate) config: Config,
    running: Option<Running>,
    backend: Option<Arc<dyn forebay_backend::Backend>>,
    _dir: TempDir,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> World {
        let (dir, mut config) = plan();
        change(&mut config);
        let running = Server::start(config.clone()).expect("the server starts");
        World { config, running: Some(running), backend: None, _dir: dir }
    }

    pub(crate) fn before(backend: Arc<dyn forebay_backend::Backend>) -> World {
        World::before_with(backend, |_| {})
    }

    pub(crate) fn before_with(
        backend: Arc<dyn forebay_backend::Backend>,
        change: impl FnOnce(&mut Config),
    ) -> World {
        let (dir, mut config) = plan();
        change(&mut config);
        let running = Server::start_before(config.clone(), backend.clone()).expect("the server starts");
        World { config, running: Some(running), backend: Some(backend), _dir: dir }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.config.socket_path()
    }

    pub(crate) fn tcp(&self) -> SocketAddr {
        self.running.as_ref().and_then(|running| running.addresses().tcp).expect("TCP address")
    }

    pub(crate) fn key(&self) -> Key {
        let text = std::fs::read_to_string(self.config.key_path()).expect("key file");
        Key::from_text(&text).expect("valid key")
    }

    pub(crate) fn control(&self) -> Raw {
        Raw::unix(&self.socket(), Channel::Control, 1).expect("connected")
    }

    /// Lets other users of this host connect to the socket.
    pub(crate) fn open_to_all(&self) {
        let dir = self.config.store.parent().expect("parent directory");
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("permissions set");
    }

    pub(crate) fn data(&self) -> Raw {
        Raw::unix(&self.socket(), Channel::Data, 1).expect("connected")
    }

    pub(crate) fn stop(&mut self) {
        self.running.take().expect("running server").shutdown().expect("clean shutdown");
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    pub(crate) fn start(&mut self) {
        let started = match &self.backend {
            Some(backend) => Server::start_before(self.config.clone(), backend.clone()),
            None => Server::start(self.config.clone()),
        };
        self.running = Some(started.expect("the server starts again"));
    }

    pub(crate) fn wait(&mut self) {
        self.running.take().expect("running server").wait().expect("clean shutdown");
    }
}

fn plan() -> (TempDir, Config) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut config = Config::for_store(dir.path().join("store"));
    config.capacity = Bytes::mib(16);
    config.region = Some(Bytes::mib(1));
    config.medium = Medium::Disk;
    config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    (dir, config)
}

/// Either kind of socket.
pub(crate) trait Socket: Read + Write + Send {
    fn patience(&self, time: Duration);
    fn end_writing(&self);
}

macro_rules! socket {
    ($stream:ty) => {
        impl Socket for $stream {
            fn patience(&self, time: Duration) {
                self.set_read_timeout(Some(time)).expect("a timeout");
            }

            fn end_writing(&self) {
                // The peer may have closed it already.
                let _ = self.shutdown(Shutdown::Write);
            }
        }
    };
}
socket!(TcpStream);
socket!(UnixStream);

/// A connection that sends and receives frames.
pub(crate) struct Raw {
    pub(crate) socket: Box<dyn Socket>,
    next: u64,
    who: Option<Identity>,
    sealer: Option<Sealer>,
    opener: Option<Opener>,
}

pub(crate) fn hello(channel: Channel, client: u128) -> Hello {
    let (user, group) = ("tester".to_owned(), "testers".to_owned());
    let job = Job { label: "77".to_owned(), user, group, nodes: 1, priority: 0 };
    Hello { version: VERSION, channel, client, job, roster: None }
}

/// Longest wait for a reply; reached only if the reply is lost.
const LOST: Duration = Duration::from_secs(60);

impl Raw {
    pub(crate) fn bare(socket: impl Socket + 'static) -> Raw {
        socket.patience(LOST);
        Raw { socket: Box::new(socket), next: 1, who: None, sealer: None, opener: None }
    }

    pub(crate) fn unix(path: &Path, channel: Channel, client: u128) -> Result<Raw, Error> {
        let mut raw = Raw::bare(UnixStream::connect(path).expect("socket connection"));
        raw.greet(&hello(channel, client), None).map(|_| raw)
    }

    /// As `unix`, but as another user, whose identity the kernel reports. Needs root.
    pub(crate) fn unix_of(uid: u32, path: &Path, channel: Channel, client: u128) -> Result<Raw, Error> {
        let socket = as_user(uid, || UnixStream::connect(path).expect("socket connection"));
        let mut raw = Raw::bare(socket);
        raw.greet(&hello(channel, client), None).map(|_| raw)
    }

    pub(crate) fn tcp(address: SocketAddr, channel: Channel, key: &Key) -> Result<(Raw, Welcome), Error> {
        let mut raw = Raw::bare(TcpStream::connect(address).expect("socket connection"));
        let welcome = raw.greet(&hello(channel, 2), Some(key))?;
        Ok((raw, welcome))
    }

    pub(crate) fn greet(&mut self, hello: &Hello, key: Option<&Key>) -> Result<Welcome, Error> {
        match key {
            Some(key) => self.prove(hello, &key.clone().into(), Security::None),
            None => {
                self.send_frame(FrameKind::Hello, 0, hello, &[]);
                self.welcome()
            }
        }
    }

    /// Authenticates with a key, and accepts no less protection than `least`.
    pub(crate) fn prove(
        &mut self,
        hello: &Hello,
        key: &ConnectionKey,
        least: Security,
    ) -> Result<Welcome, Error> {
        let (initiator, opening) = Initiator::open(key, least, hello)?;
        self.send_frame(FrameKind::Hello, 0, &opening, &[]);
        let noise = match self.greeting() {
            Greeting::Challenge { noise } => noise,
            Greeting::Refusal(error) => return Err(error),
            Greeting::Welcome(_) => panic!("accepted without a proof"),
        };
        let Agreed { level, sealer, opener } = initiator.finish(&noise)?;
        (self.sealer, self.opener) = (Some(sealer), Some(opener));
        self.send_frame(FrameKind::Proof, 0, &Proof {}, &[]);
        let welcome = self.welcome()?;
        self.sealer = self.sealer.take().and_then(|sealer| sealer.agreed(level));
        self.opener = self.opener.take().and_then(|opener| opener.agreed(level));
        Ok(welcome)
    }

    fn welcome(&mut self) -> Result<Welcome, Error> {
        match self.greeting() {
            Greeting::Welcome(welcome) => Ok(welcome),
            Greeting::Refusal(error) => Err(error),
            Greeting::Challenge { .. } => panic!("unexpected challenge"),
        }
    }

    pub(crate) fn greeting(&mut self) -> Greeting {
        let header = self.header().expect("a greeting");
        assert_eq!(header.kind, FrameKind::Greeting);
        body(&self.take_body(&header)).expect("a greeting")
    }

    /// Sends this identity with all further calls.
    pub(crate) fn acting_as(&mut self, who: Identity) {
        self.who = Some(who);
    }

    /// Sends the identity of this user with all further calls.
    pub(crate) fn acting(mut self, uid: u32) -> Raw {
        self.who = Some(person(uid));
        self
    }

    pub(crate) fn send_frame<T: serde::Serialize>(
        &mut self,
        kind: FrameKind,
        id: u64,
        body: &T,
        payload: &[u8],
    ) {
        let mut bytes = Vec::new();
        frame_with(self.sealer.as_mut(), &mut bytes, kind, id, body, payload.len() as u32)
            .expect("frame fits");
        match &mut self.sealer {
            Some(sealer) => payload.chunks(CHUNK).for_each(|part| sealer.chunk(&mut bytes, part)),
            None => bytes.extend_from_slice(payload),
        }
        self.socket.write_all(&bytes).expect("the server reads");
    }

    /// Sends a request without waiting for the reply; returns its number.
    pub(crate) fn send(&mut self, request: Request, payload: &[u8]) -> u64 {
        self.next += 1;
        let call = Call { identity: self.who.clone(), request };
        self.send_frame(FrameKind::Call, self.next, &call, payload);
        self.next
    }

    /// Announces a write of `len` bytes, and sends only the first ones.
    pub(crate) fn begin_write(&mut self, token: Token, at: At, len: u32, first: &[u8]) {
        self.next += 1;
        let call = Call { identity: self.who.clone(), request: Request::Write { token, at } };
        let mut bytes = Vec::new();
        frame_with(self.sealer.as_mut(), &mut bytes, FrameKind::Call, self.next, &call, len)
            .expect("frame fits");
        bytes.extend_from_slice(first);
        self.socket.write_all(&bytes).expect("the server reads");
    }

    /// The next reply, with its number and payload.
    pub(crate) fn receive(&mut self) -> io::Result<(u64, Answer, Vec<u8>)> {
        let header = self.header()?;
        assert_eq!(header.kind, FrameKind::Answer);
        let answer = body(&self.take_body(&header)).expect("an answer");
        Ok((header.id, answer, self.take_payload(header.payload)))
    }

    pub(crate) fn call(&mut self, request: Request) -> Answer {
        let id = self.send(request, &[]);
        let (answered, answer, _) = self.receive().expect("an answer");
        assert_eq!(answered, id);
        answer
    }

    /// Whether the server has closed this connection; ignores what it sent before.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    fn header(&mut self) -> io::Result<Header> {
        let mut bytes = [0; HEADER];
        self.socket.read_exact(&mut bytes)?;
        Ok(Header::decode(&bytes).expect("a header"))
    }

    fn take_body(&mut self, header: &Header) -> Vec<u8> {
        let gap = if self.opener.is_some() { TAG } else { 0 };
        let mut bytes = self.take(header.body + gap as u32);
        if let Some(opener) = &mut self.opener {
            opener.frame(header, &mut bytes).expect("a sealed frame");
        }
        bytes.split_off(gap)
    }

    fn take_payload(&mut self, len: u32) -> Vec<u8> {
        if self.opener.is_none() {
            return self.take(len);
        }
        let mut payload = Vec::new();
        while payload.len() < len as usize {
            let head = self.take(CHUNK_HEAD as u32);
            let left = len - payload.len() as u32;
            let (len, tag) = Opener::chunk_head(head.first_chunk().expect("a head"), left).expect("a chunk");
            let mut chunk = self.take(len as u32);
            self.opener.as_mut().expect("sealed connection").chunk(&tag, &mut chunk).expect("a sealed chunk");
            payload.extend_from_slice(&chunk);
        }
        payload
    }

    fn take(&mut self, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.socket.read_exact(&mut bytes).expect("the rest of a frame");
        bytes
    }
}

/// Requests that many tests use.
impl Raw {
    pub(crate) fn create(&mut self, dir: FileId, text: &str, mode: u16) -> Token {
        let (name, access, if_exists) = (name(text), Access::BOTH, IfExists::Refuse);
        match self.call(Request::Create { dir, name, mode, access, if_exists }) {
            Ok(Reply::Opened { token, created: true, .. }) => token,
            other => panic!("cannot create {text}: {other:?}"),
        }
    }

    pub(crate) fn make_dir(&mut self, dir: FileId, text: &str, mode: u16) -> FileId {
        match self.call(Request::MakeDir { dir, name: name(text), mode }) {
            Ok(Reply::Attr(attr)) => attr.id,
            other => panic!("cannot create directory {text}: {other:?}"),
        }
    }

    pub(crate) fn walk(&mut self, path: &str) -> Result<Attr, Error> {
        match self.call(Request::Walk { dir: FileId::ROOT, path: path.into(), follow: false })? {
            Reply::Found(attr) => Ok(attr),
            other => panic!("unexpected reply to a walk: {other:?}"),
        }
    }

    pub(crate) fn write(&mut self, token: Token, at: At, bytes: &[u8]) -> Result<u64, Error> {
        let id = self.send(Request::Write { token, at }, bytes);
        let (answered, answer, _) = self.receive().expect("an answer");
        assert_eq!(answered, id);
        match answer? {
            Reply::Written { offset } => Ok(offset),
            other => panic!("unexpected reply to a write: {other:?}"),
        }
    }

    pub(crate) fn read(&mut self, token: Token, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        let id = self.send(Request::Read { token, offset, len }, &[]);
        let (answered, answer, payload) = self.receive().expect("an answer");
        assert_eq!(answered, id);
        answer.map(|reply| {
            assert_eq!(reply, Reply::Data);
            payload
        })
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub(crate) fn person(uid: u32) -> Identity {
    Identity { uid: Uid(uid), gid: Gid(uid), groups: Vec::new() }
}

/// Asserts that a request failed with this kind of error.
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind) {
    match result {
        Err(error) if error.kind() == kind => {}
        other => panic!("expected {kind:?}, got {other:?}"),
    }
}

/// Bytes that depend on the position and on the seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let start = seed.wrapping_mul(0xd1b5_4a32_d192_ed03);
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(start) >> 32) as u8).collect()
}
