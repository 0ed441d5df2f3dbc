//! Connections that another process opens, for programs of a run that have switched to users whom the run's socket does
//! not admit.
//!
//! The run keeps one end of a socket pair, and its programs inherit the other. A program that needs a connection sends
//! one end of a new pair, over which it receives the connected socket. The service treats such a connection as the
//! run's own, so the program names the user in every request.
//!
//! **Invariant**: no program can keep the run from serving the next one. No message from a program ends the broker, and
//! the broker never waits for a program that does not receive its answer or for a service that accepts no connections.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with, socketpair, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Environment variable with the number of the inherited descriptor.
pub const BROKER_VARIABLE: &str = "FOREBAY_BROKER";

/// How long a program waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// The programs' end of the socket pair.
#[derive(Clone, Debug)]
pub struct Broker(Arc<OwnedFd>);

impl Broker {
    /// Wraps a descriptor; fails if it is no such socket.
    pub fn new(socket: OwnedFd) -> io::Result<Broker> {
        let known = sockopt::socket_type(&socket)? == SocketType::SEQPACKET
            && sockopt::socket_domain(&socket)? == AddressFamily::UNIX;
        match known {
            true => Ok(Broker(Arc::new(socket))),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not the socket of a run")),
        }
    }

    /// Requests a new connection to the run's service.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        let (here, there) = pair()?;
        sockopt::set_socket_timeout(&here, sockopt::Timeout::Recv, Some(PATIENCE))?;
        send(self.0.as_fd(), b"connect", Some(there.as_fd()), SendFlags::empty())?;
        drop(there);
        let mut answer = [0; 4];
        let Received { len, descriptor, .. } = receive(here.as_fd(), &mut answer)?;
        match (len, descriptor) {
            (_, Some(connection)) => Ok(connection),
            (4, None) => Err(io::Error::from_raw_os_error(i32::from_le_bytes(answer))),
            _ => Err(io::Error::new(io::ErrorKind::NotConnected, "the run has ended")),
        }
    }
}

/// Creates the socket pair: the run's end and the programs' end.
pub fn broker_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    pair()
}

/// Opens connections for programs that request them, until all copies of the programs' end are closed.
pub fn serve_broker(socket: &OwnedFd, service: &Path) -> io::Result<()> {
    // With this option every message has credentials, even an empty one; the end of the stream has none.
    sockopt::set_socket_passcred(socket, true)?;
    loop {
        let mut message = [0; 16];
        let received = match receive(socket.as_fd(), &mut message) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            received => received?,
        };
        if received.len == 0 && !received.has_sender {
            return Ok(());
        }
        let Some(reply) = received.descriptor else { continue };
        // The send fails if the program has stopped waiting or its socket is full; that is fine.
        let _ = match connect_now(service) {
            Ok(connection) => send(reply.as_fd(), b"ok", Some(connection.as_fd()), SendFlags::DONTWAIT),
            Err(error) => {
                let number = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
                send(reply.as_fd(), &number.to_le_bytes(), None, SendFlags::DONTWAIT)
            }
        };
    }
}

/// Connects to a socket without blocking. If its backlog is full, the program receives the error and retries.
fn connect_now(service: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(service)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("a descriptor does not fit its message"));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | flags)?;
    Ok(())
}

/// A message or the end of the stream.
struct Received {
    len: usize,
    descriptor: Option<OwnedFd>,
    /// Whether the message came with the sender's credentials.
    has_sender: bool,
}

fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let (mut descriptor, mut has_sender) = (None, false);
    for message in control.drain() {
        match message {
            // Any further descriptors are closed.
            RecvAncillaryMessage::ScmRights(mut list) if descriptor.is_none() => descriptor = list.next(),
            RecvAncillaryMessage::ScmCredentials(_) => has_sender = true,
            _ => {}
        }
    }
    Ok(Received { len: received.bytes, descriptor, has_sender })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn broker_connects_programs_until_all_have_exited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let (run, program) = broker_pair().unwrap();
        let broker = Broker::new(program).unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve_broker(&run, &path));
            let none = broker.connect().unwrap_err();
            assert_eq!(none.kind(), io::ErrorKind::NotFound, "no service listens yet");
            let listener = UnixListener::bind(&path).unwrap();
            for _ in 0..3 {
                let mut near = UnixStream::from(broker.connect().unwrap());
                let mut far = listener.accept().unwrap().0;
                near.write_all(b"hello").unwrap();
                let mut received = [0; 5];
                far.read_exact(&mut received).unwrap();
                assert_eq!(&received, b"hello");
            }
            drop(broker);
            served.join().unwrap().unwrap();
        });
    }

    /// Runs `program` with a broker and a listening service.
    fn beside_a_broker(program: impl FnOnce(BorrowedFd<'_>, &Broker, &UnixListener)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (run, other) = broker_pair().unwrap();
        let broker = Broker::new(other).unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve_broker(&run, &path));
            program(broker.0.as_fd(), &broker, &listener);
            drop(broker);
            served.join().unwrap().unwrap();
        });
    }

    #[test]
    fn empty_messages_do_not_stop_the_broker() {
        beside_a_broker(|socket, broker, _listener| {
            send(socket, b"", None, SendFlags::empty()).unwrap();
            broker.connect().unwrap();
            send(socket, b"no descriptor", None, SendFlags::empty()).unwrap();
            broker.connect().unwrap();
        });
    }

    #[test]
    fn programs_that_receive_no_answer_do_not_stop_the_broker() {
        beside_a_broker(|socket, broker, _listener| {
            let (full, _never_read) = pair().unwrap();
            while send(full.as_fd(), &[0; 4096], None, SendFlags::DONTWAIT).is_ok() {}
            send(socket, b"connect", Some(full.as_fd()), SendFlags::empty()).unwrap();
            let no_socket = tempfile::tempfile().unwrap();
            send(socket, b"connect", Some(no_socket.as_fd()), SendFlags::empty()).unwrap();
            broker.connect().unwrap();
        });
    }

    #[test]
    fn full_backlog_of_the_service_does_not_stop_the_broker() {
        beside_a_broker(|socket, broker, listener| {
            rustix::net::listen(listener, 0).unwrap();
            let mut waiting = Vec::new();
            let number = loop {
                let (here, there) = pair().unwrap();
                let patience = Some(Duration::from_secs(60));
                sockopt::set_socket_timeout(&here, sockopt::Timeout::Recv, patience).unwrap();
                send(socket, b"connect", Some(there.as_fd()), SendFlags::empty()).unwrap();
                let mut answer = [0; 4];
                match receive(here.as_fd(), &mut answer).expect("an answer").descriptor {
                    Some(connection) => waiting.push(connection),
                    None => break i32::from_le_bytes(answer),
                }
                assert!(waiting.len() < 100, "the backlog never fills");
            };
            assert_eq!(number, rustix::io::Errno::AGAIN.raw_os_error());
            for _ in &waiting {
                listener.accept().unwrap();
            }
            broker.connect().unwrap();
        });
    }

    #[test]
    fn broker_accepts_only_the_socket_of_a_run() {
        let (stream, _other) = UnixStream::pair().unwrap();
        assert!(Broker::new(stream.into()).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(Broker::new(file.into()).is_err());
        let (run, program) = broker_pair().unwrap();
        let broker = Broker::new(program).unwrap();
        drop(run);
        assert!(broker.connect().is_err(), "the run has ended");
    }
}
