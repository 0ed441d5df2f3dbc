//! Ways in: each gives a stream of bytes in both directions, and says who vouches for the peer.

use crate::peer;
use forebay_model::{Error, ErrorKind, Identity, Result};
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// What comes from a peer.
pub(crate) type Reading = Box<dyn AsyncRead + Send + Sync + Unpin>;
/// What goes to a peer.
pub(crate) type Writing = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// How the server learns who a peer is. MUNGE will be a third way.
pub(crate) enum Vouch {
    /// The kernel knows.
    Kernel(Identity),
    /// The peer has to prove that it holds the key.
    Key,
}

/// A connection, before anything was said on it.
pub(crate) trait Transport: Send {
    /// Who vouches for the peer.
    fn vouch(&self) -> io::Result<Vouch>;

    /// The two directions.
    fn split(self: Box<Self>) -> (Reading, Writing);
}

impl Transport for TcpStream {
    fn vouch(&self) -> io::Result<Vouch> {
        self.set_nodelay(true)?;
        Ok(Vouch::Key)
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

    fn split(self: Box<Self>) -> (Reading, Writing) {
        let (reading, writing) = self.into_split();
        (Box::new(reading), Box::new(writing))
    }
}

/// A place where clients can come in.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Held to be removed at the end.
        _file: SocketFile,
    },
}

/// A socket's file, removed with its listener.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already, which is all that was wanted.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Listens on TCP.
    pub(crate) async fn tcp(address: SocketAddr) -> Result<Listener> {
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "listening for other machines: bytes travel there unencrypted");
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

    /// Listens where somebody listens already.
    pub(crate) fn bound(listener: std::net::TcpListener) -> Result<Listener> {
        let made = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
        made.map(Listener::Tcp)
            .map_err(|error| Error::new(ErrorKind::Unreachable, format!("cannot listen: {error}")))
    }

    /// Listens on a Unix socket that everybody may connect to: the kernel says who they are.
    pub(crate) fn unix(path: &Path) -> Result<Listener> {
        clear(path)?;
        let about = |error: io::Error| {
            let text =
                format!("cannot listen on {}: {error}: choose another path with socket = …", path.display());
            Error::new(ErrorKind::Unreachable, text)
        };
        let listener = UnixListener::bind(path).map_err(about)?;
        let _file = SocketFile(path.to_owned());
        std::fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(about)?;
        Ok(Listener::Unix { listener, _file })
    }

    /// The address on TCP, with the port that was really taken.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix { .. } => None,
        }
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Transport>> {
        match self {
            Listener::Tcp(listener) => Ok(Box::new(listener.accept().await?.0)),
            Listener::Unix { listener, .. } => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Removes the socket of a server that is gone, and nothing else.
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

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::unix(&path).unwrap();
        assert_eq!(Listener::unix(&path).err().expect("refused").kind(), ErrorKind::Busy);
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(Listener::unix(&path).err().expect("refused").kind(), ErrorKind::Exists);
        assert!(path.exists());
    }
}
