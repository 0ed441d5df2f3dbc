//! Opening sockets to an address, and reading frames from a stream.
//!
//! A transport is a pair of byte streams. The layers above use [`Pipe`] and do not know the kind of socket.

use crate::socket::{Reader, Writer, halves};
use crate::{Address, ClientConfig};
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{CHUNK_HEAD, FrameKind, HEADER, Header, Opener, Sealer, TAG, body};
use serde::de::DeserializeOwned;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::task::{Context, Poll};
use tokio::net::{TcpStream, UnixStream};

/// A connected stream before the handshake.
pub(crate) struct Pipe {
    pub(crate) frame_reader: FrameReader,
    pub(crate) writer: Writer,
    /// Seals outgoing frames, if the connection is protected.
    pub(crate) sealer: Option<Sealer>,
    /// The peer's IP address, over TCP.
    pub(crate) peer: Option<IpAddr>,
    /// The user who runs the server, over a Unix socket.
    pub(crate) user: Option<u32>,
}

/// Opens a connection to an address.
pub(crate) async fn connect(config: &ClientConfig, address: &Address) -> Result<Pipe> {
    match open(config, address).await {
        Ok(((reader, writer), at)) => {
            let (peer, user) = match at {
                Peer::Host(address) => (Some(address), None),
                Peer::User(user) => (None, Some(user)),
            };
            Ok(Pipe { frame_reader: FrameReader::new(reader), writer, sealer: None, peer, user })
        }
        // A retry does not help.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let text = format!("cannot connect: {error}; the service belongs to another user");
            Err(Error::new(ErrorKind::AccessDenied, text))
        }
        Err(error) => {
            Err(Error::new(ErrorKind::Unreachable, format!("cannot connect: {error}; is the service up?")))
        }
    }
}

/// The error for a process that cannot act as the user who owns its connections.
pub(crate) fn not_acting(error: &io::Error) -> Error {
    Error::new(ErrorKind::AccessDenied, format!("cannot act as the user who connected before: {error}"))
}

/// Connects to a Unix socket. The kernel reports to the server the credentials of the thread that starts to connect.
async fn unix(config: &ClientConfig, path: &Path) -> io::Result<UnixStream> {
    let mut connecting = Box::pin(UnixStream::connect(path));
    let begun = poll_fn(|context| Poll::Ready(config.act(|| connecting.as_mut().poll(context)))).await;
    match begun? {
        Poll::Ready(connected) => connected,
        Poll::Pending => connecting.await,
    }
}

/// Who is at the other end of a socket.
enum Peer {
    Host(IpAddr),
    User(u32),
}

async fn open(config: &ClientConfig, address: &Address) -> io::Result<((Reader, Writer), Peer)> {
    let (socket, peer) = match address {
        Address::Unix(path) => {
            let stream = unix(config, path).await?;
            let peer = Peer::User(stream.peer_cred()?.uid());
            (OwnedFd::from(stream.into_std()?), peer)
        }
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            let peer = Peer::Host(stream.peer_addr()?.ip());
            (OwnedFd::from(stream.into_std()?), peer)
        }
    };
    Ok((halves(socket)?, peer))
}

fn broken(error: &io::Error) -> Error {
    let text = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the service closed the connection".to_owned(),
        _ => format!("the connection broke: {error}"),
    };
    Error::new(ErrorKind::Unreachable, text)
}

const BUFFER: usize = 16 << 10;
/// Minimum body length of a message to a client.
const SHORTEST: usize = 2;

/// Reads frames from a stream. Payload goes directly to the caller's memory; only the read-ahead that the caller allows
/// passes through the internal buffer.
pub(crate) struct FrameReader {
    reader: Reader,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Verifies incoming frames, if the connection is protected. Only verified bytes are returned.
    pub(crate) opener: Option<Opener>,
}

impl FrameReader {
    fn new(reader: Reader) -> FrameReader {
        FrameReader { reader, buffer: vec![0; BUFFER], start: 0, end: 0, opener: None }
    }

    /// Waits for a frame of the given kind and decodes its body. May read up to `ahead` bytes that follow it.
    pub(crate) async fn frame<T: DeserializeOwned>(
        &mut self,
        kind: FrameKind,
        ahead: usize,
    ) -> Result<(Header, T)> {
        self.fill(HEADER + SHORTEST, ahead).await?;
        let head = self.buffer[self.start..].first_chunk().expect("`fill` buffers a whole header");
        let header = Header::decode(head)?;
        if header.kind != kind {
            let text = format!("the service sent a frame of kind {} instead of {kind}", header.kind);
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        let gap = if self.opener.is_some() { TAG } else { 0 };
        let whole = HEADER + gap + header.body as usize;
        self.fill(whole, ahead).await?;
        let rest = &mut self.buffer[self.start + HEADER..self.start + whole];
        if let Some(opener) = &mut self.opener {
            opener.frame(&header, rest)?;
        }
        let message = body(&rest[gap..])?;
        self.start += whole;
        Ok((header, message))
    }

    /// Length on the wire of a payload of `len` bytes sent in one piece.
    pub(crate) fn on_the_wire(&self, len: usize) -> usize {
        if self.opener.is_some() { len + CHUNK_HEAD } else { len }
    }

    /// Reads the payload of the last frame.
    pub(crate) async fn payload(&mut self, mut into: &mut [u8]) -> Result<()> {
        if self.opener.is_none() {
            return self.bytes(into).await;
        }
        while !into.is_empty() {
            let mut head = [0; CHUNK_HEAD];
            self.bytes(&mut head).await?;
            let (len, tag) = Opener::chunk_head(&head, u32::try_from(into.len()).unwrap_or(u32::MAX))?;
            let (chunk, rest) = into.split_at_mut(len);
            self.bytes(chunk).await?;
            self.opener.as_mut().expect("the connection stays sealed").chunk(&tag, chunk)?;
            into = rest;
        }
        Ok(())
    }

    /// Reads the next bytes: those in the buffer, then those in the socket.
    async fn bytes(&mut self, into: &mut [u8]) -> Result<()> {
        let here = into.len().min(self.end - self.start);
        let (first, rest) = into.split_at_mut(here);
        first.copy_from_slice(&self.buffer[self.start..self.start + here]);
        self.start += here;
        if !rest.is_empty() {
            self.reader.read_exact(rest).await.map_err(|error| broken(&error))?;
        }
        Ok(())
    }

    /// Buffers at least `want` bytes and at most `ahead` more.
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

    /// Whether no unrequested byte has arrived and the stream has not ended.
    pub(crate) fn is_quiet(&self) -> bool {
        self.start == self.end && self.reader.is_quiet()
    }
}

/// Writes `head` and then `tail` without joining them. Sets `sent` when the first byte leaves.
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

/// Writes as much as the socket accepts now.
pub(crate) fn poll_send(
    writer: &mut Writer,
    context: &mut Context<'_>,
    head: &[u8],
    tail: &[u8],
) -> Poll<io::Result<usize>> {
    writer.poll_write(context, &[IoSlice::new(head), IoSlice::new(tail)])
}

/// Converts an I/O error of the stream.
pub(crate) fn stream_error(error: &io::Error) -> Error {
    broken(error)
}
