//! A raw socket: the upper bound for payload transfer on this machine.

use crate::Outcome;
use crate::near::Near;
use crate::plan::{Party, Size, Socket, Work};
use crate::results::{Results, timed};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

pub(crate) trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// What the server side does.
#[derive(Clone, Copy)]
enum Mode {
    /// Reads all data, then acknowledges it.
    Take,
    /// Reads and acknowledges chunk by chunk.
    TakeInTurns,
    /// Sends all data.
    Give,
    /// Sends a chunk per request.
    GiveInTurns,
}

const MODES: [Mode; 4] = [Mode::Take, Mode::TakeInTurns, Mode::Give, Mode::GiveInTurns];

/// About as long as a Forebay request.
const REQUEST: usize = 64;
/// Buffer size of a stream's receiver.
const BUFFER: usize = 1 << 20;

/// Measures writes and reads, as a stream and in turns.
pub(crate) fn run(near: &Near, socket: Socket, size: Size, results: &mut Results) -> Outcome {
    for mode in MODES {
        let mut stream = connect(near, socket)?;
        let (done, took) = timed(|| send_request(&mut *stream, mode, size));
        done?;
        let (work, party) = match mode {
            Mode::Take => (Work::Write(size.chunk), Party::Stream(socket)),
            Mode::TakeInTurns => (Work::Write(size.chunk), Party::Turns(socket)),
            Mode::Give => (Work::Read(size.chunk), Party::Stream(socket)),
            Mode::GiveInTurns => (Work::Read(size.chunk), Party::Turns(socket)),
        };
        results.moved(work, party, size, took);
    }
    Ok(())
}

fn connect(near: &Near, socket: Socket) -> io::Result<Box<dyn Stream>> {
    match socket {
        Socket::Tcp => {
            let stream = TcpStream::connect(&near.bare_tcp)?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        Socket::Unix => Ok(Box::new(UnixStream::connect(&near.bare_unix)?)),
    }
}

fn send_request(stream: &mut dyn Stream, mode: Mode, size: Size) -> io::Result<()> {
    let mut head = [0; 17];
    head[0] = MODES.iter().position(|known| *known as u8 == mode as u8).expect("all modes are listed") as u8;
    head[1..9].copy_from_slice(&(size.chunk as u64).to_le_bytes());
    head[9..].copy_from_slice(&(size.count as u64).to_le_bytes());
    stream.write_all(&head)?;
    let (mut chunk, mut request) = (vec![7; size.chunk], [0; REQUEST]);
    match mode {
        Mode::Take => {
            for _ in 0..size.count {
                stream.write_all(&chunk)?;
            }
            stream.read_exact(&mut request)
        }
        Mode::TakeInTurns => {
            for _ in 0..size.count {
                stream.write_all(&chunk)?;
                stream.read_exact(&mut request)?;
            }
            Ok(())
        }
        Mode::Give => drain(stream, size.bytes()),
        Mode::GiveInTurns => {
            for _ in 0..size.count {
                stream.write_all(&request)?;
                stream.read_exact(&mut chunk)?;
            }
            Ok(())
        }
    }
}

fn drain(stream: &mut dyn Stream, bytes: usize) -> io::Result<()> {
    let (mut buffer, mut left) = (vec![0; BUFFER], bytes);
    while left > 0 {
        let end = left.min(BUFFER);
        match stream.read(&mut buffer[..end])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => left -= count,
        }
    }
    Ok(())
}

/// The server side: serves connections one after the other.
pub(crate) fn serve_all<S: Stream>(accept: impl Fn() -> io::Result<S>) {
    while let Ok(mut stream) = accept() {
        // The client sees the error on its connection.
        let _ = serve(&mut stream);
    }
}

fn serve(stream: &mut dyn Stream) -> io::Result<()> {
    let mut head = [0; 17];
    stream.read_exact(&mut head)?;
    let number = |range: std::ops::Range<usize>| {
        u64::from_le_bytes(head[range].try_into().expect("eight bytes")) as usize
    };
    let size = Size { chunk: number(1..9), count: number(9..17) };
    let (mut chunk, mut request) = (vec![7; size.chunk], [0; REQUEST]);
    match MODES.get(usize::from(head[0])) {
        None => Err(io::ErrorKind::InvalidData.into()),
        Some(Mode::Take) => {
            drain(stream, size.bytes())?;
            stream.write_all(&request)
        }
        Some(Mode::TakeInTurns) => {
            for _ in 0..size.count {
                stream.read_exact(&mut chunk)?;
                stream.write_all(&request)?;
            }
            Ok(())
        }
        Some(Mode::Give) => {
            for _ in 0..size.count {
                stream.write_all(&chunk)?;
            }
            Ok(())
        }
        Some(Mode::GiveInTurns) => {
            for _ in 0..size.count {
                stream.read_exact(&mut request)?;
                stream.write_all(&chunk)?;
            }
            Ok(())
        }
    }
}
