//! Sockets: how to reach an address, and how frames come off a stream.
//!
//! A transport is a pair of byte streams. Everything above here speaks to [`Pipe`] and does not know what kind
//! of socket it is.

use crate::Address;
use crate::socket::{Reader, Writer, halves};
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{FrameKind, HEADER, Header, body};
use serde::de::DeserializeOwned;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use tokio::net::{TcpStream, UnixStream};

/// A connection before anything was said on it.
pub(crate) struct Pipe {
    pub(crate) inbox: Inbox,
    pub(crate) writer: Writer,
}

/// Opens a connection to an address.
pub(crate) async fn connect(address: &Address) -> Result<Pipe> {
    match open(address).await {
        Ok((reader, writer)) => Ok(Pipe { inbox: Inbox::new(reader), writer }),
        Err(error) => {
            Err(Error::new(ErrorKind::Unreachable, format!("cannot connect: {error}; is the service up?")))
        }
    }
}

async fn open(address: &Address) -> io::Result<(Reader, Writer)> {
    halves(match address {
        Address::Unix(path) => OwnedFd::from(UnixStream::connect(path).await?.into_std()?),
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            OwnedFd::from(stream.into_std()?)
        }
    })
}

fn broken(error: &io::Error) -> Error {
    let text = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the service closed the connection".to_owned(),
        _ => format!("the connection broke: {error}"),
    };
    Error::new(ErrorKind::Unreachable, text)
}

const BUFFER: usize = 16 << 10;
/// No message to a client has a shorter body.
const SHORTEST: usize = 2;

/// Frames from a stream. Payloads go to where the caller wants them; at most as much of one as the caller
/// allowed passes through the buffer here.
pub(crate) struct Inbox {
    reader: Reader,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn new(reader: Reader) -> Inbox {
        Inbox { reader, buffer: vec![0; BUFFER], start: 0, end: 0 }
    }

    /// Waits for a frame of this kind and decodes its body. Up to `ahead` bytes behind it may be read with it.
    pub(crate) async fn frame<T: DeserializeOwned>(
        &mut self,
        kind: FrameKind,
        ahead: usize,
    ) -> Result<(Header, T)> {
        self.fill(HEADER + SHORTEST, ahead).await?;
        let head = self.buffer[self.start..].first_chunk().expect("as many bytes as were asked for");
        let header = Header::decode(head)?;
        if header.kind != kind {
            let text = format!("the service sent a {:?} frame instead of a {kind:?}", header.kind);
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        let whole = HEADER + header.body as usize;
        self.fill(whole, ahead).await?;
        let message = body(&self.buffer[self.start + HEADER..self.start + whole])?;
        self.start += whole;
        Ok((header, message))
    }

    /// Reads the payload of the last frame.
    pub(crate) async fn payload(&mut self, into: &mut [u8]) -> Result<()> {
        let here = into.len().min(self.end - self.start);
        let (first, rest) = into.split_at_mut(here);
        first.copy_from_slice(&self.buffer[self.start..self.start + here]);
        self.start += here;
        if !rest.is_empty() {
            self.reader.read_exact(rest).await.map_err(|error| broken(&error))?;
        }
        Ok(())
    }

    /// Makes sure that `want` bytes are in the buffer, and takes at most `ahead` more.
    async fn fill(&mut self, want: usize, ahead: usize) -> Result<()> {
        if self.end - self.start >= want {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < want {
            self.buffer.resize(want, 0);
        }
        let limit = self.buffer.len().min(want + ahead);
        while self.end < want {
            match self.reader.read(&mut self.buffer[self.end..limit]).await {
                Ok(0) => return Err(broken(&io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.end += count,
                Err(error) => return Err(broken(&error)),
            }
        }
        Ok(())
    }

    /// Whether nothing has come in that nobody asked for, the end of the stream included.
    pub(crate) fn is_quiet(&self) -> bool {
        self.start == self.end && self.reader.is_quiet()
    }
}

/// Writes `head` and then `tail` without joining them. `sent` turns true with the first byte that leaves.
pub(crate) async fn send(writer: &mut Writer, head: &[u8], tail: &[u8], sent: &mut bool) -> Result<()> {
    let (mut head, mut tail) = (head, tail);
    while !(head.is_empty() && tail.is_empty()) {
        let count = poll_fn(|context| poll_send(writer, context, head, tail))
            .await
            .map_err(|error| broken(&error))?;
        *sent = true;
        let first = count.min(head.len());
        head = &head[first..];
        tail = &tail[count - first..];
    }
    Ok(())
}

/// Writes what can be written now.
pub(crate) fn poll_send(
    writer: &mut Writer,
    context: &mut Context<'_>,
    head: &[u8],
    tail: &[u8],
) -> Poll<io::Result<usize>> {
    writer.poll_write(context, &[IoSlice::new(head), IoSlice::new(tail)])
}

/// An error of the stream in words.
pub(crate) fn stream_error(error: &io::Error) -> Error {
    broken(error)
}
