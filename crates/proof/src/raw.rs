//! Raw frames: a peer that can send what no client sends.

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
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

/// Longest wait for a reply; reached only if it is lost.
const LOST: Duration = Duration::from_secs(60);

/// A byte stream to the server and back.
pub trait Socket: Read + Write + Send {
    /// Shuts down the sending direction.
    fn end_writing(&mut self);
}

impl Socket for UnixStream {
    fn end_writing(&mut self) {
        // The peer may have closed it already.
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Socket for TcpStream {
    fn end_writing(&mut self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// A process of another user that relays bytes.
pub struct Relay {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
}

impl Relay {
    /// Takes over a process that was started with pipes.
    #[must_use]
    pub fn new(mut child: Child) -> Relay {
        let (to, from) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Relay { child, to, from }
    }
}

impl Read for Relay {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.from.read(bytes)
    }
}

impl Write for Relay {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Socket for Relay {
    fn end_writing(&mut self) {
        self.to = None;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that sends and receives frames.
pub struct Raw {
    /// The byte stream.
    pub socket: Box<dyn Socket>,
    next: u64,
    who: Option<Identity>,
    /// Whether a key has to be proved.
    tcp: bool,
    sealer: Option<Sealer>,
    opener: Option<Opener>,
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
    #[must_use]
    pub fn over(socket: Box<dyn Socket>) -> Raw {
        Raw { socket, next: 1, who: None, tcp: false, sealer: None, opener: None }
    }

    /// A connection to a Unix socket, before the handshake.
    pub fn open(path: &Path) -> io::Result<Raw> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(LOST))?;
        Ok(Raw::over(Box::new(socket)))
    }

    /// A TCP connection, before the handshake.
    pub fn open_tcp(address: SocketAddr) -> io::Result<Raw> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(LOST))?;
        Ok(Raw { tcp: true, ..Raw::over(Box::new(socket)) })
    }

    /// A connection to a Unix socket, after the handshake.
    pub fn unix(path: &Path, channel: Channel, client: u128) -> Result<Raw, Error> {
        let mut raw = Raw::open(path).expect("socket connection");
        raw.greet(&hello(channel, client), None).map(|_| raw)
    }

    /// Performs the handshake, over TCP with the service's key.
    pub fn greet(&mut self, hello: &Hello, key: Option<&Key>) -> Result<Welcome, Error> {
        self.greet_with(hello, &key.cloned().unwrap_or(Key::new([0; 32])).into())
    }

    /// Performs the handshake, over TCP with this key.
    pub fn greet_with(&mut self, hello: &Hello, key: &ConnectionKey) -> Result<Welcome, Error> {
        let broken = |error: io::Error| Error::new(ErrorKind::Unreachable, error.to_string());
        let mut level = Security::None;
        if self.tcp {
            let (initiator, opening) = Initiator::open(key, level, hello)?;
            self.send_frame(FrameKind::Hello, 0, &opening, &[]).map_err(broken)?;
            let noise = match self.greeting().map_err(broken)? {
                Greeting::Challenge { noise } => noise,
                Greeting::Refusal(error) => return Err(error),
                Greeting::Welcome(_) => panic!("accepted without a proof"),
            };
            let agreed: Agreed = initiator.finish(&noise)?;
            level = agreed.level;
            (self.sealer, self.opener) = (Some(agreed.sealer), Some(agreed.opener));
            self.send_frame(FrameKind::Proof, 0, &Proof {}, &[]).map_err(broken)?;
        } else {
            self.send_frame(FrameKind::Hello, 0, hello, &[]).map_err(broken)?;
        }
        let welcome = match self.greeting().map_err(broken)? {
            Greeting::Welcome(welcome) => welcome,
            Greeting::Refusal(error) => return Err(error),
            Greeting::Challenge { .. } => panic!("unexpected challenge"),
        };
        self.sealer = self.sealer.take().and_then(|sealer| sealer.agreed(level));
        self.opener = self.opener.take().and_then(|opener| opener.agreed(level));
        Ok(welcome)
    }

    fn greeting(&mut self) -> io::Result<Greeting> {
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
        self.who = Some(Identity { uid: Uid(uid), gid: Gid(uid), groups: Vec::new() });
        self
    }

    /// Sends this identity with all further calls.
    pub fn set_identity(&mut self, who: Option<Identity>) {
        self.who = who;
    }

    /// Sends a whole frame.
    pub fn send_frame<T: Serialize>(
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

    /// Sends a request without waiting; returns its number.
    pub fn send(&mut self, request: Request, payload: &[u8]) -> io::Result<u64> {
        self.next += 1;
        let call = Call { identity: self.who.clone(), request };
        self.send_frame(FrameKind::Call, self.next, &call, payload)?;
        Ok(self.next)
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
        let broken = |error: io::Error| Error::new(ErrorKind::Unreachable, error.to_string());
        let id = self.send(request, payload).map_err(broken)?;
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

/// Asserts that the result is one of these errors.
pub fn refused<T: std::fmt::Debug>(what: &str, result: Result<T, Error>, kinds: &[ErrorKind]) {
    match result {
        Err(error) if kinds.contains(&error.kind()) => {}
        other => panic!("{what}: expected one of {kinds:?}, got {other:?}"),
    }
}
