//! Connects to a Unix socket as the user it runs as, and passes bytes both ways: what a test says through it, the
//! server hears from that user.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

fn pass(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => {
                to.write_all(&buffer[..count])?;
                to.flush()?;
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "the test reads it")]
fn main() -> ExitCode {
    let path = std::env::args_os().nth(1).unwrap_or_default();
    let socket = match UnixStream::connect(&path).and_then(|socket| Ok((socket.try_clone()?, socket))) {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("cannot connect to {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    };
    let (reading, writing) = socket;
    std::thread::spawn(move || {
        // Either end may go first; then there is nothing more to pass.
        let _ = pass(io::stdin(), &writing);
        let _ = writing.shutdown(Shutdown::Write);
    });
    let _ = pass(reading, io::stdout());
    ExitCode::SUCCESS
}
