//! A connection that another process makes, as another user.

use forebay_testkit::Socket;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout};

/// A process of another user that relays bytes.
pub struct Relay {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
}

impl Relay {
    /// Takes over a process that was started with pipes.
    #[must_use]
    pub fn new(mut child: Child) -> Relay {
        let (to, from) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Relay { child, to, from }
    }
}

impl Read for Relay {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.from.read(bytes)
    }
}

impl Write for Relay {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Socket for Relay {
    fn end_writing(&mut self) {
        self.to = None;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
