//! Raw frames: a peer that can send what no client sends.

use crate::as_user;
use forebay_model::{Access, Attr, Error, ErrorKind, FileId, Gid, Identity, Job, Name, Uid};
use forebay_wire::{
    Agreed, Answer, At, CHUNK, CHUNK_HEAD, Call, Channel, ConnectionKey, FrameKind, Greeting, HEADER, Header,
    Hello, IfExists, Initiator, Key, Opener, Proof, Reply, Request, Sealer, Security, TAG, Token, VERSION,
    Welcome, body, frame_with,
};
use serde::Serialize;
use serde::ser::{SerializeTuple, Serializer};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest wait for a reply; reached only if it is lost.
const LOST: Duration = Duration::from_secs(60);

/// A byte stream to the server and back.
pub trait Socket: Read + Write + Send {
    /// Sets how long a read waits; a pipe waits for ever.
    fn patience(&self, _time: Duration) {}

    /// Shuts down the sending direction.
    fn end_writing(&mut self);
}

macro_rules! socket {
    ($stream:ty) => {
        impl Socket for $stream {
            fn patience(&self, time: Duration) {
                self.set_read_timeout(Some(time)).expect("a timeout");
            }

            fn end_writing(&mut self) {
                // The peer may have closed it already.
                let _ = self.shutdown(Shutdown::Write);
            }
        }
    };
}
socket!(TcpStream);
socket!(UnixStream);

/// A connection that sends and receives frames.
pub struct Raw {
    /// The byte stream.
    pub socket: Box<dyn Socket>,
    next: u64,
    who: Option<Identity>,
    sealer: Option<Sealer>,
    opener: Option<Opener>,
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn broken(error: io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, error.to_string())
}

/// A body of exactly these bytes.
struct Verbatim<'a>(&'a [u8]);

impl Serialize for Verbatim<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = serializer.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| bytes.serialize_element(byte))?;
        bytes.end()
    }
}

/// A valid hello.
#[must_use]
pub fn hello(channel: Channel, client: u128) -> Hello {
    let (user, group) = ("tester".to_owned(), "testers".to_owned());
    let job = Job { label: "77".to_owned(), user, group, nodes: 1, priority: 0 };
    Hello { version: VERSION, channel, client, job, roster: None }
}

impl Raw {
    /// A connection before the handshake.
    pub fn bare(socket: impl Socket + 'static) -> Raw {
        socket.patience(LOST);
        Raw { socket: Box::new(socket), next: 1, who: None, sealer: None, opener: None }
    }

    /// A connection to a Unix socket, before the handshake.
    pub fn open(path: &Path) -> io::Result<Raw> {
        UnixStream::connect(path).map(Raw::bare)
    }

    /// A TCP connection, before the handshake.
    pub fn open_tcp(address: SocketAddr) -> io::Result<Raw> {
        TcpStream::connect(address).map(Raw::bare)
    }

    /// A connection to a Unix socket, after the handshake.
    pub fn unix(path: &Path, channel: Channel, client: u128) -> Result<Raw, Error> {
        let mut raw = Raw::open(path).expect("socket connection");
        raw.greet(&hello(channel, client), None).map(|_| raw)
    }

    /// As `unix`, but as another user, whose identity the kernel reports. Needs root.
    pub fn unix_of(uid: u32, path: &Path, channel: Channel, client: u128) -> Result<Raw, Error> {
        let socket = as_user(uid, || UnixStream::connect(path).expect("socket connection"));
        let mut raw = Raw::bare(socket);
        raw.greet(&hello(channel, client), None).map(|_| raw)
    }

    /// A TCP connection, after the handshake.
    pub fn tcp(address: SocketAddr, channel: Channel, key: &Key) -> Result<(Raw, Welcome), Error> {
        let mut raw = Raw::open_tcp(address).expect("socket connection");
        let welcome = raw.greet(&hello(channel, 2), Some(key))?;
        Ok((raw, welcome))
    }

    /// Performs the handshake of a Unix socket, or with a key that of TCP.
    pub fn greet(&mut self, hello: &Hello, key: Option<&Key>) -> Result<Welcome, Error> {
        match key {
            Some(key) => self.prove(hello, &key.clone().into(), Security::None),
            None => {
                self.try_send_frame(FrameKind::Hello, 0, hello, &[]).map_err(broken)?;
                self.welcome()
            }
        }
    }

    /// Proves to know a key, and accepts no less protection than `least`.
    pub fn prove(&mut self, hello: &Hello, key: &ConnectionKey, least: Security) -> Result<Welcome, Error> {
        let (initiator, opening) = Initiator::open(key, least, hello)?;
        self.try_send_frame(FrameKind::Hello, 0, &opening, &[]).map_err(broken)?;
        let noise = match self.try_greeting().map_err(broken)? {
            Greeting::Challenge { noise } => noise,
            Greeting::Refusal(error) => return Err(error),
            Greeting::Welcome(_) => panic!("accepted without a proof"),
        };
        let Agreed { level, sealer, opener } = initiator.finish(&noise)?;
        (self.sealer, self.opener) = (Some(sealer), Some(opener));
        self.try_send_frame(FrameKind::Proof, 0, &Proof {}, &[]).map_err(broken)?;
        let welcome = self.welcome()?;
        self.sealer = self.sealer.take().and_then(|sealer| sealer.agreed(level));
        self.opener = self.opener.take().and_then(|opener| opener.agreed(level));
        Ok(welcome)
    }

    fn welcome(&mut self) -> Result<Welcome, Error> {
        match self.try_greeting().map_err(broken)? {
            Greeting::Welcome(welcome) => Ok(welcome),
            Greeting::Refusal(error) => Err(error),
            Greeting::Challenge { .. } => panic!("unexpected challenge"),
        }
    }

    /// The server's answer to a hello.
    pub fn greeting(&mut self) -> Greeting {
        self.try_greeting().expect("a greeting")
    }

    fn try_greeting(&mut self) -> io::Result<Greeting> {
        let header = self.header()?;
        assert_eq!(header.kind, FrameKind::Greeting);
        Ok(body(&self.take_body(&header)?).expect("a greeting"))
    }

    /// Sends the bytes of a frame, valid or not; on a sealed connection they are sealed as far as they form a frame.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let header = bytes.first_chunk::<HEADER>().and_then(|head| Header::decode(head).ok());
        let (Some(header), Some(sealer)) = (header, &mut self.sealer) else {
            return self.socket.write_all(bytes);
        };
        let rest = &bytes[HEADER..];
        let (body, payload) = rest.split_at(rest.len().min(header.body as usize));
        let mut sealed = Vec::new();
        sealer
            .frame(&mut sealed, header.kind, header.id, &Verbatim(body), header.payload)
            .expect("valid length");
        payload.chunks(CHUNK).for_each(|part| sealer.chunk(&mut sealed, part));
        self.socket.write_all(&sealed)
    }

    /// Sends the identity of this user with all further calls.
    #[must_use]
    pub fn acting(mut self, uid: u32) -> Raw {
        self.who = Some(person(uid));
        self
    }

    /// Sends this identity with all further calls.
    pub fn set_identity(&mut self, who: Option<Identity>) {
        self.who = who;
    }

    /// Sends a whole frame.
    pub fn send_frame<T: Serialize>(&mut self, kind: FrameKind, id: u64, body: &T, payload: &[u8]) {
        self.try_send_frame(kind, id, body, payload).expect("the server reads");
    }

    fn try_send_frame<T: Serialize>(
        &mut self,
        kind: FrameKind,
        id: u64,
        body: &T,
        payload: &[u8],
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame_with(self.sealer.as_mut(), &mut bytes, kind, id, body, payload.len() as u32)
            .expect("frame fits");
        match &mut self.sealer {
            Some(sealer) => payload.chunks(CHUNK).for_each(|part| sealer.chunk(&mut bytes, part)),
            None => bytes.extend_from_slice(payload),
        }
        self.socket.write_all(&bytes)?;
        self.socket.flush()
    }

    /// Sends a request without waiting for the answer; returns its number.
    pub fn send(&mut self, request: Request, payload: &[u8]) -> u64 {
        self.try_send(request, payload).expect("the server reads")
    }

    /// As `send`, where the server may have closed the connection.
    pub fn try_send(&mut self, request: Request, payload: &[u8]) -> io::Result<u64> {
        self.next += 1;
        let call = Call { identity: self.who.clone(), request };
        self.try_send_frame(FrameKind::Call, self.next, &call, payload)?;
        Ok(self.next)
    }

    /// Announces a write of `len` bytes, and sends only the first ones.
    pub fn begin_write(&mut self, token: Token, at: At, len: u32, first: &[u8]) {
        self.next += 1;
        let call = Call { identity: self.who.clone(), request: Request::Write { token, at } };
        let mut bytes = Vec::new();
        frame_with(self.sealer.as_mut(), &mut bytes, FrameKind::Call, self.next, &call, len)
            .expect("frame fits");
        bytes.extend_from_slice(first);
        self.socket.write_all(&bytes).expect("the server reads");
    }

    /// The next answer, with its number and payload.
    pub fn receive(&mut self) -> io::Result<(u64, Answer, Vec<u8>)> {
        let header = self.header()?;
        assert_eq!(header.kind, FrameKind::Answer);
        let answer = body(&self.take_body(&header)?).expect("an answer");
        Ok((header.id, answer, self.take_payload(header.payload)?))
    }

    /// Sends a request, and waits for the answer and its payload.
    pub fn request(&mut self, request: Request, payload: &[u8]) -> Result<(Reply, Vec<u8>), Error> {
        let id = self.try_send(request, payload).map_err(broken)?;
        let (answered, answer, payload) = self.receive().map_err(broken)?;
        assert_eq!(answered, id);
        answer.map(|reply| (reply, payload))
    }

    /// Sends a request on a control connection.
    pub fn call(&mut self, request: Request) -> Answer {
        self.request(request, &[]).map(|(reply, _)| reply)
    }

    /// Whether the server has closed this connection; ignores what it sent before.
    pub fn is_closed(&mut self) -> bool {
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

    fn take_body(&mut self, header: &Header) -> io::Result<Vec<u8>> {
        let gap = if self.opener.is_some() { TAG } else { 0 };
        let mut bytes = self.take(header.body + gap as u32)?;
        if let Some(opener) = &mut self.opener {
            opener.frame(header, &mut bytes).expect("a sealed frame");
        }
        Ok(bytes.split_off(gap))
    }

    fn take_payload(&mut self, len: u32) -> io::Result<Vec<u8>> {
        if self.opener.is_none() {
            return self.take(len);
        }
        let mut payload = Vec::new();
        while payload.len() < len as usize {
            let head = self.take(CHUNK_HEAD as u32)?;
            let left = len - payload.len() as u32;
            let (len, tag) = Opener::chunk_head(head.first_chunk().expect("a head"), left).expect("a chunk");
            let mut chunk = self.take(len as u32)?;
            self.opener.as_mut().expect("sealed connection").chunk(&tag, &mut chunk).expect("a sealed chunk");
            payload.extend_from_slice(&chunk);
        }
        Ok(payload)
    }

    fn take(&mut self, len: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Requests that many tests use.
impl Raw {
    /// Creates and opens a file.
    pub fn create(&mut self, dir: FileId, text: &str, mode: u16) -> Token {
        let (name, access, if_exists) = (name(text), Access::BOTH, IfExists::Refuse);
        match self.call(Request::Create { dir, name, mode, access, if_exists }) {
            Ok(Reply::Opened { token, created: true, .. }) => token,
            other => panic!("cannot create {text}: {other:?}"),
        }
    }

    /// Creates a directory.
    pub fn make_dir(&mut self, dir: FileId, text: &str, mode: u16) -> FileId {
        match self.call(Request::MakeDir { dir, name: name(text), mode }) {
            Ok(Reply::Attr(attr)) => attr.id,
            other => panic!("cannot create directory {text}: {other:?}"),
        }
    }

    /// Walks from the root.
    pub fn walk(&mut self, path: &str) -> Result<Attr, Error> {
        match self.call(Request::Walk { dir: FileId::ROOT, path: path.into(), follow: false })? {
            Reply::Found(attr) => Ok(attr),
            other => panic!("unexpected reply to a walk: {other:?}"),
        }
    }

    /// Writes on a data connection.
    pub fn write(&mut self, token: Token, at: At, bytes: &[u8]) -> Result<u64, Error> {
        match self.request(Request::Write { token, at }, bytes)?.0 {
            Reply::Written { offset } => Ok(offset),
            other => panic!("unexpected reply to a write: {other:?}"),
        }
    }

    /// Reads on a data connection.
    pub fn read(&mut self, token: Token, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        self.request(Request::Read { token, offset, len }, &[]).map(|(_, payload)| payload)
    }
}

/// A valid name.
#[must_use]
pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// The identity of a user with only the group of the same number.
#[must_use]
pub fn person(uid: u32) -> Identity {
    Identity { uid: Uid(uid), gid: Gid(uid), groups: Vec::new() }
}

/// Asserts that a request failed with this kind of error.
pub fn refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind) {
    match result {
        Err(error) if error.kind() == kind => {}
        other => panic!("expected {kind:?}, got {other:?}"),
    }
}
