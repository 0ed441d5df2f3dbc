//! A running Forebay, through which the processes of a job know of each other's files: it hands out turns.

use crate::setting;
use forebay_policy::place::Service;
use forebay_wire::{
    Answer, Call, Channel, FrameKind, Greeting, HEADER, Header, Hello, Key, Proof, Reply, Request, VERSION,
    body, client_proof, frame, same_proof, server_proof,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The program waits for its file meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to the service. A process that was divided makes its own.
pub(crate) struct Line {
    pipe: Box<dyn Pipe>,
    process: u32,
    asked: u64,
}

trait Pipe: Read + Write + Send {}

impl<T: Read + Write + Send> Pipe for T {}

impl Line {
    /// Connects, and proves what has to be proved.
    pub(crate) fn open(service: &Service) -> Result<Line> {
        let pipe: Box<dyn Pipe> = match service.address.split_once(':') {
            Some(("unix", path)) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Box::new(stream)
            }
            Some(("tcp", at)) => {
                let stream = TcpStream::connect(at)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            _ => return Err(Error::other(format!("{} is no address", service.address))),
        };
        let mut line = Line { pipe, process: std::process::id(), asked: 0 };
        line.enter(service)?;
        Ok(line)
    }

    /// Whether this process made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    fn enter(&mut self, service: &Service) -> Result<()> {
        let key = match &service.key {
            Some(path) => {
                Some(Key::from_text(&std::fs::read_to_string(setting::path(path))?).map_err(Error::other)?)
            }
            None => None,
        };
        let (mut nonce, mut client) = ([0; 32], [0; 16]);
        random(&mut nonce)?;
        random(&mut client)?;
        let (client, job) = (u128::from_ne_bytes(client), service.job.clone());
        let hello = Hello { version: VERSION, channel: Channel::Control, client, job, nonce, roster: None };
        self.say(FrameKind::Hello, &hello)?;
        let refused = |error| Error::other(format!("it refuses us: {error}"));
        match (self.hear(FrameKind::Greeting)?, key) {
            (Greeting::Welcome(_), None) => Ok(()),
            (Greeting::Challenge { nonce }, Some(key)) => {
                self.say(FrameKind::Proof, &Proof { seal: client_proof(&key, &hello, &nonce) })?;
                match self.hear(FrameKind::Greeting)? {
                    Greeting::Welcome(welcome)
                        if welcome
                            .seal
                            .is_some_and(|seal| same_proof(&seal, &server_proof(&key, &hello, &nonce))) =>
                    {
                        Ok(())
                    }
                    Greeting::Refusal(error) => Err(refused(error)),
                    _ => Err(Error::other("it does not hold the same key")),
                }
            }
            (Greeting::Refusal(error), _) => Err(refused(error)),
            (Greeting::Welcome(_), Some(_)) => Err(Error::other("it did not ask for the key")),
            (Greeting::Challenge { .. }, None) => Err(Error::other("it asks for a key")),
        }
    }

    /// The next number of a row.
    pub(crate) fn number(&mut self, row: u64) -> Result<u64> {
        self.asked += 1;
        self.say(FrameKind::Call, &Call { identity: None, request: Request::Number { row } })?;
        match self.hear::<Answer>(FrameKind::Answer)? {
            Ok(Reply::Number(number)) => Ok(number),
            Ok(other) => Err(Error::other(format!("it answers {other:?}"))),
            Err(error) => Err(Error::other(error)),
        }
    }

    fn say<T: Serialize>(&mut self, kind: FrameKind, message: &T) -> Result<()> {
        let mut bytes = Vec::new();
        frame(&mut bytes, kind, self.asked, message, 0).map_err(Error::other)?;
        self.pipe.write_all(&bytes)
    }

    fn hear<T: DeserializeOwned>(&mut self, kind: FrameKind) -> Result<T> {
        let mut head = [0; HEADER];
        self.pipe.read_exact(&mut head)?;
        let header = Header::decode(&head).map_err(Error::other)?;
        if (header.kind, header.id, header.payload) != (kind, self.asked, 0) {
            return Err(Error::other("it answers something else"));
        }
        let mut bytes = vec![0; header.body as usize];
        self.pipe.read_exact(&mut bytes)?;
        body(&bytes).map_err(Error::other)
    }
}

fn random(into: &mut [u8]) -> Result<()> {
    // SAFETY: the buffer is as long as said.
    let got = unsafe { libc::getrandom(into.as_mut_ptr().cast(), into.len(), 0) };
    match usize::try_from(got) {
        Ok(got) if got == into.len() => Ok(()),
        Ok(_) => Err(Error::other("the system gives no random numbers")),
        Err(_) => Err(Error::last_os_error()),
    }
}
