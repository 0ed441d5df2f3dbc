//! Memory-mapped files: the memory that all processes of a machine share that map a file.

use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::FileMap;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// Timeout for the server to pass a descriptor that it has ready.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a file can be mapped.
#[derive(Debug)]
pub enum Mapping {
    /// Map this descriptor at the offsets of the file. All processes of the machine share its pages.
    Shared(OwnedFd),
    /// Map a private copy and write it back. No other process maps the file for writing meanwhile.
    Copied,
}

/// Receives the descriptor that the server has prepared.
pub(crate) fn fetch(answer: FileMap) -> Result<Mapping> {
    match answer {
        FileMap::Alone => Ok(Mapping::Copied),
        FileMap::Shared { socket, ticket } => match descriptor(&socket, ticket) {
            Ok(descriptor) => Ok(Mapping::Shared(descriptor)),
            Err(error) => {
                let text = format!("cannot receive the file's memory from the server: {error}");
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        },
    }
}

fn descriptor(socket: &[u8], ticket: [u8; 16]) -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(socket)?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&ticket)?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
    })?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let first = descriptors.flatten().next();
    first.filter(|_| got.bytes == 1).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}
