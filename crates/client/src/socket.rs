//! The two directions of a socket, for tasks that wait on the runtime and for threads that wait in the kernel.
//!
//! A task that finds the socket empty or full registers it with the runtime, for that direction only and, for writing,
//! only while it waits: a Unix socket reports every byte that its peer takes, and would wake the runtime needlessly. A
//! thread within [`here`] waits in the system call itself, which saves the way over the runtime's thread. Before it
//! waits for incoming bytes it spins, which saves the time to wake up.

use forebay_shm::{Looked, Spin};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};
use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::LocalKey;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How long a thread waits in the kernel before it waits like a task, whose timers run.
const PATIENCE: Duration = Duration::from_millis(10);

/// How long a thread spins for incoming bytes before it waits in the kernel.
static SPIN: Spin = Spin::new(Duration::from_micros(2), Duration::from_micros(200));

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; during it, this thread itself waits for sockets. Only for work that needs one socket at a time: while
/// the thread waits for one, it serves no other.
pub(crate) fn here<T>(work: impl FnOnce() -> T) -> T {
    while_set(&HERE, true, work)
}

/// Runs `work` with a thread-local variable set to `value`, and then restores the variable.
pub(crate) fn while_set<W: Copy, T>(
    word: &'static LocalKey<Cell<W>>,
    value: W,
    work: impl FnOnce() -> T,
) -> T {
    struct Back<W: Copy + 'static>(&'static LocalKey<Cell<W>>, W);
    impl<W: Copy> Drop for Back<W> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _back = Back(word, word.replace(value));
    work()
}

/// The incoming direction.
pub(crate) struct Reader {
    socket: Arc<OwnedFd>,
    watch: Option<AsyncFd<Arc<OwnedFd>>>,
}

/// The outgoing direction. Dropping it shuts down writing, so that the peer reads the end of the stream.
pub(crate) struct Writer {
    /// A second descriptor of the same socket, since the runtime watches each descriptor once.
    socket: Arc<OwnedFd>,
    watch: Option<AsyncFd<Arc<OwnedFd>>>,
}

/// Both directions of a connected socket.
pub(crate) fn halves(socket: OwnedFd) -> io::Result<(Reader, Writer)> {
    rustix::io::ioctl_fionbio(&socket, false)?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(PATIENCE))?;
    }
    let twin = socket.try_clone()?;
    let reader = Reader { socket: Arc::new(socket), watch: None };
    Ok((reader, Writer { socket: Arc::new(twin), watch: None }))
}

impl Reader {
    /// Reads the available bytes, at least one; 0 only at the end of the stream.
    pub(crate) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, into)).await
    }

    /// Reads until `into` is full.
    pub(crate) async fn read_exact(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.read(into).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => into = &mut into[count..],
            }
        }
        Ok(())
    }

    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let come = match HERE.get() {
            true => {
                // Stop watching: the runtime would wake up for every incoming byte.
                self.watch = None;
                receive_blocking(&self.socket, into)
            }
            false => receive(&self.socket, into, RecvFlags::DONTWAIT),
        };
        if let Some(result) = come {
            return Poll::Ready(result);
        }
        let watch = watched(&mut self.watch, &self.socket, Interest::READABLE)?;
        loop {
            let mut guard = ready!(watch.poll_read_ready(context))?;
            let read = guard.try_io(|socket| Ok(recv(socket.get_ref(), &mut *into, RecvFlags::DONTWAIT)?.1));
            if let Ok(result) = read {
                return Poll::Ready(result);
            }
        }
    }

    /// Whether no byte has arrived and the stream has not ended.
    pub(crate) fn is_quiet(&self) -> bool {
        let seen = recv(&*self.socket, &mut [0_u8], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        matches!(seen, Err(Errno::AGAIN))
    }
}

impl Writer {
    /// Writes as much as the socket accepts now, at least one byte.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = |socket: &OwnedFd, flags: SendFlags| {
            let flags = flags | SendFlags::NOSIGNAL;
            match sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)? {
                0 => Err(io::ErrorKind::WriteZero.into()),
                count => Ok(count),
            }
        };
        let wait = if HERE.get() { SendFlags::empty() } else { SendFlags::DONTWAIT };
        let written = attempt(|| write(&self.socket, wait));
        if let Some(result) = written {
            self.watch = None;
            return Poll::Ready(result);
        }
        let watch = watched(&mut self.watch, &self.socket, Interest::WRITABLE)?;
        loop {
            let mut guard = ready!(watch.poll_write_ready(context))?;
            if let Ok(result) = guard.try_io(|socket| write(socket.get_ref(), SendFlags::DONTWAIT)) {
                return Poll::Ready(result);
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Fails if the peer has closed the connection; that is fine.
        let _ = shutdown(&*self.socket, Shutdown::Write);
    }
}

/// Receives the available bytes; `None` if there are none.
fn receive(socket: &OwnedFd, into: &mut [u8], flags: RecvFlags) -> Option<io::Result<usize>> {
    attempt(|| Ok(recv(socket, &mut *into, flags)?.1))
}

/// Receives bytes: spins first, then waits in the kernel.
fn receive_blocking(socket: &OwnedFd, into: &mut [u8]) -> Option<io::Result<usize>> {
    let mut come = None;
    let look = || {
        come = receive(socket, into, RecvFlags::DONTWAIT);
        come.is_some()
    };
    let Looked::SinceThen(begin) = SPIN.until(look, || false) else { return come };
    let come = receive(socket, into, RecvFlags::empty());
    SPIN.waited(begin.elapsed());
    come
}

/// Tries a system call; `None` if it would block.
fn attempt(mut call: impl FnMut() -> io::Result<usize>) -> Option<io::Result<usize>> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            result => return Some(result),
        }
    }
}

#[expect(
    deprecated,
    reason = "sound for a descriptor that is owned while it is watched; its successor is unsafe, at home elsewhere"
)]
fn watched<'a>(
    watch: &'a mut Option<AsyncFd<Arc<OwnedFd>>>,
    socket: &Arc<OwnedFd>,
    interest: Interest,
) -> io::Result<&'a AsyncFd<Arc<OwnedFd>>> {
    if watch.is_none() {
        *watch = Some(AsyncFd::with_interest(socket.clone(), interest)?);
    }
    Ok(watch.as_ref().expect("the watch was just created"))
}
