//! A running Forebay, which hands out turns to the processes of a job.

use crate::setting;
use forebay_policy::place::Service;
use forebay_wire::{
    Agreed, Answer, Call, Channel, ConnectionKey, FrameKind, Greeting, HEADER, Header, Hello, Initiator,
    Opener, Proof, Reply, Request, Sealer, Security, TAG, VERSION, body, frame_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Timeout of a call; the program waits for its file meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to the service. A forked process opens its own.
pub(crate) struct Connection {
    pipe: Box<dyn Pipe>,
    /// Seals and opens frames, where these are protected.
    sealer: Option<Sealer>,
    opener: Option<Opener>,
    process: u32,
    requests: u64,
}

trait Pipe: Read + Write + Send {}

impl<T: Read + Write + Send> Pipe for T {}

impl Connection {
    /// Connects and authenticates.
    pub(crate) fn open(service: &Service) -> Result<Connection> {
        let (pipe, least): (Box<dyn Pipe>, _) = match service.address.split_once(':') {
            Some(("unix", path)) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                (Box::new(stream), None)
            }
            Some(("tcp", at)) => {
                let stream = TcpStream::connect(at)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.set_nodelay(true)?;
                let least = Security::default_for(stream.peer_addr()?.ip());
                (Box::new(stream), Some(least))
            }
            _ => return Err(Error::other(format!("{} is not an address", service.address))),
        };
        let process = std::process::id();
        let mut line = Connection { pipe, sealer: None, opener: None, process, requests: 0 };
        line.enter(service, least)?;
        Ok(line)
    }

    /// Whether this process opened it.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Sends the hello message; over TCP with proof of the key, and at least the protection level `least`.
    fn enter(&mut self, service: &Service, least: Option<Security>) -> Result<()> {
        let mut client = [0; 16];
        random(&mut client)?;
        let (client, job) = (u128::from_ne_bytes(client), service.job.clone());
        let hello = Hello { version: VERSION, channel: Channel::Control, client, job, roster: None };
        match least {
            None => self.send(FrameKind::Hello, &hello)?,
            Some(least) => return self.prove(service, least, &hello),
        }
        match self.receive(FrameKind::Greeting)? {
            Greeting::Welcome(_) => Ok(()),
            greeting => Err(refused(greeting)),
        }
    }

    fn prove(&mut self, service: &Service, least: Security, hello: &Hello) -> Result<()> {
        let Some(path) = &service.key else { return Err(Error::other("the service requires a key")) };
        let key = read_key(setting::path(path))?;
        let (initiator, opening) = Initiator::open(&key, least, hello).map_err(Error::other)?;
        self.send(FrameKind::Hello, &opening)?;
        let noise = match self.receive(FrameKind::Greeting)? {
            Greeting::Challenge { noise } => noise,
            Greeting::Welcome(_) => return Err(Error::other("the service did not authenticate the key")),
            greeting => return Err(refused(greeting)),
        };
        let Agreed { level, sealer, opener } = initiator.finish(&noise).map_err(Error::other)?;
        (self.sealer, self.opener) = (Some(sealer), Some(opener));
        self.send(FrameKind::Proof, &Proof {})?;
        match self.receive(FrameKind::Greeting)? {
            Greeting::Welcome(_) => {}
            greeting => return Err(refused(greeting)),
        }
        self.sealer = self.sealer.take().and_then(|sealer| sealer.agreed(level));
        self.opener = self.opener.take().and_then(|opener| opener.agreed(level));
        Ok(())
    }

    /// The next number of a counter.
    pub(crate) fn number(&mut self, row: u64) -> Result<u64> {
        self.requests += 1;
        self.send(FrameKind::Call, &Call { identity: None, request: Request::Number { row } })?;
        match self.receive::<Answer>(FrameKind::Answer)? {
            Ok(Reply::Number(number)) => Ok(number),
            Ok(_) => Err(Error::other("the service sent an unexpected reply")),
            Err(error) => Err(Error::other(error)),
        }
    }

    fn send<T: Serialize>(&mut self, kind: FrameKind, message: &T) -> Result<()> {
        let mut bytes = Vec::new();
        frame_with(self.sealer.as_mut(), &mut bytes, kind, self.requests, message, 0)
            .map_err(Error::other)?;
        self.pipe.write_all(&bytes)
    }

    fn receive<T: DeserializeOwned>(&mut self, kind: FrameKind) -> Result<T> {
        let mut head = [0; HEADER];
        self.pipe.read_exact(&mut head)?;
        let header = Header::decode(&head).map_err(Error::other)?;
        if (header.kind, header.id, header.payload) != (kind, self.requests, 0) {
            return Err(Error::other("the service sent an unexpected frame"));
        }
        let gap = if self.opener.is_some() { TAG } else { 0 };
        let mut bytes = vec![0; gap + header.body as usize];
        self.pipe.read_exact(&mut bytes)?;
        if let Some(opener) = &mut self.opener {
            opener.frame(&header, &mut bytes).map_err(Error::other)?;
        }
        body(&bytes[gap..]).map_err(Error::other)
    }
}

/// Reads a key file, which must belong to the caller.
fn read_key(path: impl AsRef<Path>) -> Result<ConnectionKey> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    // SAFETY: it only returns a number.
    let me = unsafe { libc::geteuid() };
    ConnectionKey::check_file(meta.mode(), meta.uid(), me).map_err(Error::other)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    ConnectionKey::from_text(&text).map_err(Error::other)
}

fn refused(greeting: Greeting) -> Error {
    match greeting {
        Greeting::Refusal(error) => Error::other(format!("the service refused the connection: {error}")),
        _ => Error::other("the service sent an unexpected reply"),
    }
}

fn random(into: &mut [u8]) -> Result<()> {
    // SAFETY: the length is that of the buffer.
    let got = unsafe { libc::getrandom(into.as_mut_ptr().cast(), into.len(), 0) };
    match usize::try_from(got) {
        Ok(got) if got == into.len() => Ok(()),
        Ok(_) => Err(Error::other("the kernel returned too few random bytes")),
        Err(_) => Err(Error::last_os_error()),
    }
}
