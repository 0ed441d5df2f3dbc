//! Frames and nothing else: a peer that says what no client would.

use forebay_model::{Access, Attr, Error, ErrorKind, FileId, Gid, Identity, Job, Name, Uid};
use forebay_wire::{
    Answer, At, Call, Channel, FrameKind, Greeting, HEADER, Header, Hello, IfExists, Key, Proof, Reply,
    Request, Token, VERSION, Welcome, body, client_proof, frame,
};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

/// Longest wait for anything: only reached when something is lost.
const LOST: Duration = Duration::from_secs(60);

/// Something that carries bytes to the server and back.
pub trait Socket: Read + Write + Send {
    /// Says that nothing more will be sent.
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

/// A process of another user that passes bytes on.
pub struct Relay {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
}

impl Relay {
    /// The process must have been started with pipes.
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
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that speaks frames.
pub struct Raw {
    /// Where they go.
    pub socket: Box<dyn Socket>,
    next: u64,
    who: Option<Identity>,
}

/// A good hello.
#[must_use]
pub fn hello(channel: Channel, client: u128) -> Hello {
    let (user, group) = ("tester".to_owned(), "testers".to_owned());
    let job = Job { label: "77".to_owned(), user, group, nodes: 1, priority: 0 };
    Hello { version: VERSION, channel, client, job, nonce: [7; 32], roster: None }
}

impl Raw {
    /// A connection on which nothing was said.
    #[must_use]
    pub fn over(socket: Box<dyn Socket>) -> Raw {
        Raw { socket, next: 1, who: None }
    }

    /// A Unix socket on which nothing was said.
    pub fn knock(path: &Path) -> io::Result<Raw> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(LOST))?;
        Ok(Raw::over(Box::new(socket)))
    }

    /// A TCP connection on which nothing was said.
    pub fn knock_tcp(address: SocketAddr) -> io::Result<Raw> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(LOST))?;
        Ok(Raw::over(Box::new(socket)))
    }

    /// A Unix socket that was let in.
    pub fn unix(path: &Path, channel: Channel, client: u128) -> Result<Raw, Error> {
        let mut raw = Raw::knock(path).expect("somebody listens");
        raw.greet(&hello(channel, client), None).map(|_| raw)
    }

    /// Says hello, proves what has to be proved, and hears the answer.
    pub fn greet(&mut self, hello: &Hello, key: Option<&Key>) -> Result<Welcome, Error> {
        let broken = |error: io::Error| Error::new(ErrorKind::Unreachable, error.to_string());
        self.send_frame(FrameKind::Hello, 0, hello, &[]).map_err(broken)?;
        let mut greeting = self.greeting().map_err(broken)?;
        if let Greeting::Challenge { nonce } = greeting {
            let seal = key.map_or([0; 32], |key| client_proof(key, hello, &nonce));
            self.send_frame(FrameKind::Proof, 0, &Proof { seal }, &[]).map_err(broken)?;
            greeting = self.greeting().map_err(broken)?;
        }
        match greeting {
            Greeting::Welcome(welcome) => Ok(welcome),
            Greeting::Refusal(error) => Err(error),
            Greeting::Challenge { .. } => panic!("challenged twice"),
        }
    }

    fn greeting(&mut self) -> io::Result<Greeting> {
        let header = self.header()?;
        assert_eq!(header.kind, FrameKind::Greeting);
        Ok(body(&self.take(header.body)?).expect("a greeting"))
    }

    /// From now on, calls are made on behalf of this user.
    #[must_use]
    pub fn acting(mut self, uid: u32) -> Raw {
        self.who = Some(Identity { uid: Uid(uid), gid: Gid(uid), groups: Vec::new() });
        self
    }

    /// From now on, calls name this person.
    pub fn pose(&mut self, who: Option<Identity>) {
        self.who = who;
    }

    /// Sends a whole frame.
    pub fn send_frame<T: serde::Serialize>(
        &mut self,
        kind: FrameKind,
        id: u64,
        body: &T,
        payload: &[u8],
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame(&mut bytes, kind, id, body, payload.len() as u32).expect("it fits a frame");
        bytes.extend_from_slice(payload);
        self.socket.write_all(&bytes)?;
        self.socket.flush()
    }

    /// Sends a request and does not wait; returns its number.
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
        let answer = body(&self.take(header.body)?).expect("an answer");
        Ok((header.id, answer, self.take(header.payload)?))
    }

    /// Asks, and waits for the answer and its payload.
    pub fn ask(&mut self, request: Request, payload: &[u8]) -> Result<(Reply, Vec<u8>), Error> {
        let broken = |error: io::Error| Error::new(ErrorKind::Unreachable, error.to_string());
        let id = self.send(request, payload).map_err(broken)?;
        let (answered, answer, payload) = self.receive().map_err(broken)?;
        assert_eq!(answered, id);
        answer.map(|reply| (reply, payload))
    }

    /// Asks on a control connection.
    pub fn call(&mut self, request: Request) -> Answer {
        self.ask(request, &[]).map(|(reply, _)| reply)
    }

    /// Whether the server has closed this connection; whatever it still said is ignored.
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

    fn take(&mut self, len: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// What tests ask for again and again.
impl Raw {
    /// Makes a file, and has it open.
    pub fn create(&mut self, dir: FileId, text: &str, mode: u16) -> Token {
        let (name, access, if_exists) = (name(text), Access::BOTH, IfExists::Refuse);
        match self.call(Request::Create { dir, name, mode, access, if_exists }) {
            Ok(Reply::Opened { token, created: true, .. }) => token,
            other => panic!("cannot create {text}: {other:?}"),
        }
    }

    /// Makes a directory.
    pub fn make_dir(&mut self, dir: FileId, text: &str, mode: u16) -> FileId {
        match self.call(Request::MakeDir { dir, name: name(text), mode }) {
            Ok(Reply::Attr(attr)) => attr.id,
            other => panic!("cannot make {text}: {other:?}"),
        }
    }

    /// Walks from the root.
    pub fn walk(&mut self, path: &str) -> Result<Attr, Error> {
        match self.call(Request::Walk { dir: FileId::ROOT, path: path.into(), follow: false })? {
            Reply::Found(attr) => Ok(attr),
            other => panic!("walked to {other:?}"),
        }
    }

    /// Writes on a data connection.
    pub fn write(&mut self, token: Token, at: At, bytes: &[u8]) -> Result<u64, Error> {
        match self.ask(Request::Write { token, at }, bytes)?.0 {
            Reply::Written { offset } => Ok(offset),
            other => panic!("wrote and got {other:?}"),
        }
    }

    /// Reads on a data connection.
    pub fn read(&mut self, token: Token, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        self.ask(Request::Read { token, offset, len }, &[]).map(|(_, payload)| payload)
    }
}

/// A name that is one.
#[must_use]
pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// Asserts that something was refused, and how.
pub fn refused<T: std::fmt::Debug>(what: &str, result: Result<T, Error>, kinds: &[ErrorKind]) {
    match result {
        Err(error) if kinds.contains(&error.kind()) => {}
        other => panic!("{what}: expected one of {kinds:?}, got {other:?}"),
    }
}
