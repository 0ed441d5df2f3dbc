//! Connects to a Unix socket as its own user, and relays bytes both ways, so that a test can act as that user. With a
//! count after the path it opens that many silent connections and holds them.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

fn relay(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
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

/// Holds silent connections until the standard input ends.
fn hold(path: &Path, count: usize) -> io::Result<()> {
    let held = (0..count).map(|_| UnixStream::connect(path)).collect::<io::Result<Vec<_>>>()?;
    io::stdout().write_all(b"held\n")?;
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    drop(held);
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the test reads it")]
fn main() -> ExitCode {
    let path = std::env::args_os().nth(1).unwrap_or_default();
    if let Some(count) = std::env::args().nth(2) {
        return match count.parse().map_err(io::Error::other).and_then(|count| hold(Path::new(&path), count)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("cannot hold {count} connections: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let socket = match UnixStream::connect(&path).and_then(|socket| Ok((socket.try_clone()?, socket))) {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("cannot connect to {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    };
    let (reading, writing) = socket;
    std::thread::spawn(move || {
        // Either end may close first; then there is nothing more to relay.
        let _ = relay(io::stdin(), &writing);
        let _ = writing.shutdown(Shutdown::Write);
    });
    let _ = relay(reading, io::stdout());
    ExitCode::SUCCESS
}
