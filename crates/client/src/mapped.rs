//! Memory-mapped files: the memory that all processes of a machine share that map a file.

use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::FileMap;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// Timeout for the server to pass a descriptor that it has ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before connecting again.
const PAUSE: Duration = Duration::from_millis(10);

/// How a file can be mapped.
#[derive(Debug)]
pub enum Mapping {
    /// Map this descriptor at the offsets of the file. All processes of the machine share its pages.
    Shared(OwnedFd),
    /// There is no shared memory: map a copy of the file, for reading only.
    Copied,
}

/// Receives the descriptor that the server has prepared. `server` is the user of the server to which the client is connected;
/// a socket of another one is refused: once the server is dead, any user may take its address.
pub(crate) async fn fetch(answer: FileMap, server: Option<u32>) -> Result<Mapping> {
    let FileMap::Shared { socket, ticket } = answer else { return Ok(Mapping::Copied) };
    let received = timeout(PATIENCE, descriptor(&socket, ticket, server)).await;
    let received = received.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    received.map(Mapping::Shared).map_err(|error| {
        let text = format!("cannot receive the file's memory from the server: {error}");
        Error::new(ErrorKind::Unsupported, text)
    })
}

async fn descriptor(socket: &[u8], ticket: [u8; 16], server: Option<u32>) -> io::Result<OwnedFd> {
    let name = [b"\0", socket].concat();
    let stream = loop {
        match UnixStream::connect(OsStr::from_bytes(&name)).await {
            // Too many clients wait to be accepted. Connecting never waits for them.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(PAUSE).await,
            connected => break connected?,
        }
    };
    if Some(stream.peer_cred()?.uid()) != server {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user has its socket"));
    }
    let mut rest = &ticket[..];
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    stream.async_io(Interest::READABLE, || receive(&stream)).await
}

fn receive(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
    })?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let first = descriptors.flatten().next();
    first.filter(|_| got.bytes == 1).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    /// A runtime with one thread goes on while a server passes nothing.
    #[tokio::test]
    async fn waiting_for_a_descriptor_blocks_no_thread() {
        let socket = format!("forebay-map-test-{}", std::process::id()).into_bytes();
        let address = SocketAddr::from_abstract_name(&socket).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        tokio::select! {
            received = fetch(FileMap::Shared { socket, ticket: [7; 16] }, me()) => panic!("{received:?}"),
            () = sleep(PAUSE) => {}
        }
    }

    fn me() -> Option<u32> {
        Some(rustix::process::geteuid().as_raw())
    }

    #[tokio::test]
    async fn socket_of_another_user_gets_no_ticket() {
        let socket = format!("forebay-map-squatted-{}", std::process::id()).into_bytes();
        let address = SocketAddr::from_abstract_name(&socket).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        for server in [None, me().map(|uid| uid + 1)] {
            let answer = FileMap::Shared { socket: socket.clone(), ticket: [7; 16] };
            let refused = fetch(answer, server).await.expect_err("refused");
            assert!(refused.to_string().contains("another user"), "{refused}");
            let mut ticket = Vec::new();
            io::Read::read_to_end(&mut listener.accept().unwrap().0, &mut ticket).unwrap();
            assert!(ticket.is_empty(), "it learns no ticket");
        }
    }
}
