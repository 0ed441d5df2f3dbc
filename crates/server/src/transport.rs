//! Transports: each provides a byte stream in both directions and a way to authenticate the peer.

use crate::config::TransportSettings;
use crate::peer;
use forebay_model::{Error, ErrorKind, Identity, Result};
use forebay_wire::{HEADER, Header, MAX_HANDSHAKE, Security};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::net::RecvFlags;
use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, tcp, unix};

/// The receiving half.
pub(crate) type Reading = Box<dyn Incoming>;
/// The sending half.
pub(crate) type Writing = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// The half of a connection that is read from.
pub(crate) trait Incoming: AsyncRead + Send + Sync + Unpin {
    /// A second descriptor of the socket, by which the server ends the connection of a revoked key.
    fn cutter(&self) -> io::Result<Option<OwnedFd>>;
}

impl Incoming for tcp::OwnedReadHalf {
    fn cutter(&self) -> io::Result<Option<OwnedFd>> {
        let stream: &TcpStream = self.as_ref();
        stream.as_fd().try_clone_to_owned().map(Some)
    }
}

impl Incoming for unix::OwnedReadHalf {
    fn cutter(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }
}

/// How the server learns who a peer is. MUNGE will be a third way.
pub(crate) enum Vouch {
    /// The kernel reports the peer's credentials.
    Kernel(Identity),
    /// The same at a socket that admits every user who can reach it.
    Program(Identity),
    /// The peer at this address must prove that it holds a key.
    Key(IpAddr),
}

/// A new connection.
pub(crate) trait Transport: Send + Sync {
    fn vouch(&self) -> io::Result<Vouch>;

    /// Waits until the peer has sent a whole frame, bytes that begin no frame, or has disconnected. Reads nothing.
    fn first_frame(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>>;

    /// The two directions.
    fn split(self: Box<Self>) -> (Reading, Writing);
}

/// Waits for the first frame on a stream of either kind.
macro_rules! first_frame {
    ($stream:expr) => {
        async move {
            loop {
                let ready = $stream.ready(Interest::READABLE).await?;
                match $stream.try_io(Interest::READABLE, || peek($stream)) {
                    // Nothing follows what has arrived: reading it tells why the peer is refused.
                    _ if ready.is_read_closed() => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
            }
        }
    };
}

impl Transport for TcpStream {
    fn vouch(&self) -> io::Result<Vouch> {
        self.set_nodelay(true)?;
        Ok(Vouch::Key(self.peer_addr()?.ip()))
    }

    fn first_frame(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(first_frame!(self))
    }

    fn split(self: Box<Self>) -> (Reading, Writing) {
        let (reading, writing) = self.into_split();
        (Box::new(reading), Box::new(writing))
    }
}

impl Transport for UnixStream {
    fn vouch(&self) -> io::Result<Vouch> {
        let cred = self.peer_cred()?;
        peer::identity(self.as_fd(), cred.uid(), cred.gid()).map(Vouch::Kernel)
    }

    fn first_frame(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(first_frame!(self))
    }

    fn split(self: Box<Self>) -> (Reading, Writing) {
        let (reading, writing) = self.into_split();
        (Box::new(reading), Box::new(writing))
    }
}

/// Checks whether a whole frame or anything else has arrived, or the peer has disconnected; the bytes stay in the socket,
/// which has space for any frame of the handshake.
fn peek(socket: impl AsFd) -> io::Result<()> {
    let mut head = [0; HEADER];
    let (count, _) = rustix::net::recv(&socket, &mut head, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    let is_whole = match count {
        0 => true,
        HEADER => match Header::decode(&head) {
            Ok(header) if header.body <= MAX_HANDSHAKE => {
                rustix::io::ioctl_fionread(&socket)? >= HEADER as u64 + u64::from(header.body)
            }
            // Refused as soon as the header is read.
            Ok(_) | Err(_) => true,
        },
        _ => false,
    };
    if is_whole { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// A listening socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Whether it admits every user who can reach it.
        admits_all: bool,
        /// Removes the socket file on drop.
        _file: SocketFile,
    },
}

/// A socket file that is removed with its listener.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may have been removed already, which is fine.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    pub(crate) async fn tcp(address: SocketAddr, settings: TransportSettings) -> Result<Listener> {
        if !address.ip().is_loopback() && settings.security.is_some_and(|least| least < Security::Encrypt) {
            tracing::warn!(%address, "listening for remote clients that may connect without encryption");
        }
        match TcpListener::bind(address).await {
            Ok(listener) => Ok(Listener::Tcp(listener)),
            Err(error) => {
                let text =
                    format!("cannot listen on {address}: {error}: choose another address with listen = …");
                Err(Error::new(ErrorKind::Unreachable, text))
            }
        }
    }

    /// Uses a socket that is already bound.
    pub(crate) fn bound(listener: std::net::TcpListener) -> Result<Listener> {
        let made = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
        made.map(Listener::Tcp)
            .map_err(|error| Error::new(ErrorKind::Unreachable, format!("cannot listen: {error}")))
    }

    /// Listens on a Unix socket with this mode. The kernel reports who connects. For a service of one user, the service
    /// itself also refuses other users, since the file has a different mode until it is set.
    pub(crate) fn unix(path: &Path, mode: u32) -> Result<Listener> {
        clear(path)?;
        let about = |error: io::Error| {
            let text =
                format!("cannot listen on {}: {error}: choose another path with socket = …", path.display());
            Error::new(ErrorKind::Unreachable, text)
        };
        let listener = UnixListener::bind(path).map_err(about)?;
        let _file = SocketFile(path.to_owned());
        set_mode(path, mode).map_err(about)?;
        Ok(Listener::Unix { listener, admits_all: false, _file })
    }

    /// Listens on a Unix socket that admits every user whom its directory lets through.
    pub(crate) fn for_programs(path: &Path) -> Result<Listener> {
        match Listener::unix(path, 0o666)? {
            Listener::Unix { listener, _file, .. } => {
                Ok(Listener::Unix { listener, admits_all: true, _file })
            }
            tcp @ Listener::Tcp(_) => Ok(tcp),
        }
    }

    /// The TCP address with the actual port.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix { .. } => None,
        }
    }

    /// Who vouches for a peer of this listener.
    pub(crate) fn vouch(&self, transport: &dyn Transport) -> io::Result<Vouch> {
        Ok(match (self, transport.vouch()?) {
            (Listener::Unix { admits_all: true, .. }, Vouch::Kernel(identity)) => Vouch::Program(identity),
            (_, vouch) => vouch,
        })
    }

    /// Accepts the next connection.
    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Transport>> {
        match self {
            Listener::Tcp(listener) => Ok(Box::new(listener.accept().await?.0)),
            Listener::Unix { listener, .. } => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Sets the mode of the socket that this process has made, and of nothing that another user has put in its place.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let socket = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let (facts, own) = (fstat(&socket)?, rustix::process::geteuid().as_raw());
    if FileType::from_raw_mode(facts.st_mode) != FileType::Socket || facts.st_uid != own {
        return Err(io::Error::other("another user replaced the socket"));
    }
    // The kernel changes no mode through a descriptor of this kind, but through its name.
    std::fs::set_permissions(format!("/proc/self/fd/{}", socket.as_raw_fd()), Permissions::from_mode(mode))
}

/// Removes the socket of a server that no longer runs, and no other file.
fn clear(path: &Path) -> Result<()> {
    let Ok(meta) = path.symlink_metadata() else { return Ok(()) };
    let shown = path.display();
    if !meta.file_type().is_socket() {
        let text =
            format!("{shown} is in the way of the socket: move it, or choose another path with socket = …");
        return Err(Error::new(ErrorKind::Exists, text));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let text =
            format!("another server listens on {shown}: stop it, or choose another path with socket = …");
        return Err(Error::new(ErrorKind::Busy, text));
    }
    std::fs::remove_file(path)
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot remove the old socket {shown}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Incoming for tokio::io::ReadHalf<tokio::io::DuplexStream> {
        fn cutter(&self) -> io::Result<Option<OwnedFd>> {
            Ok(None)
        }
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::unix(&path, 0o666).unwrap();
        assert_eq!(Listener::unix(&path, 0o666).err().expect("refused").kind(), ErrorKind::Busy);
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(Listener::unix(&path, 0o666).err().expect("refused").kind(), ErrorKind::Exists);
        assert!(path.exists());
    }

    #[test]
    fn mode_of_a_socket_is_not_set_on_what_replaced_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mode = |name: &str| at(name).metadata().unwrap().permissions().mode() & 0o777;
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        set_mode(&at("socket"), 0o640).unwrap();
        assert_eq!(mode("socket"), 0o640);
        std::fs::write(at("precious"), "x").unwrap();
        std::fs::set_permissions(at("precious"), Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(at("precious"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("socket"), at("link of the socket")).unwrap();
        for name in ["precious", "link", "link of the socket"] {
            assert!(set_mode(&at(name), 0o666).is_err(), "{name}");
        }
        assert_eq!((mode("precious"), mode("socket")), (0o600, 0o640));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(at("socket"), Some(4711), None).unwrap();
            assert!(set_mode(&at("socket"), 0o666).is_err(), "a socket of another user");
        }
    }
}
