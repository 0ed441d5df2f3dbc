//! What is measured, how often, how much.

use std::fmt;

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Section {
    Data,
    Names,
    Writers,
    Programs,
    Servers,
}

/// How much of everything.
pub(crate) struct Plan {
    sections: Vec<Section>,
    /// Rounds that count; one more comes before them.
    pub(crate) rounds: usize,
    pub(crate) sizes: Vec<Size>,
    /// Names that are made, asked for and removed.
    pub(crate) names: usize,
    /// What all writers of one file write together.
    pub(crate) shared: Size,
}

/// So many requests of so many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size {
    pub(crate) chunk: usize,
    pub(crate) count: usize,
}

impl Size {
    const fn of(chunk: usize, total: usize) -> Size {
        Size { chunk, count: total / chunk }
    }

    pub(crate) fn bytes(self) -> usize {
        self.chunk * self.count
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

impl Plan {
    /// All sections unless some are named.
    pub(crate) fn new(quick: bool, sections: Vec<Section>) -> Plan {
        let (rounds, large, small, names) =
            if quick { (3, 128 * MIB, 16 * MIB, 500) } else { (9, 256 * MIB, 32 * MIB, 2000) };
        Plan {
            sections,
            rounds,
            sizes: vec![Size::of(MIB, large), Size::of(4 * KIB, small)],
            names,
            shared: Size::of(MIB, large),
        }
    }

    pub(crate) fn has(&self, section: Section) -> bool {
        self.sections.is_empty() || self.sections.contains(&section)
    }
}

/// Which kind of socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Socket {
    Tcp,
    Unix,
}

pub(crate) const SOCKETS: [Socket; 2] = [Socket::Tcp, Socket::Unix];

/// How the client is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    /// One request after the other, in a thread that waits.
    Blocking,
    /// So many requests under way.
    Async(usize),
}

pub(crate) const STYLES: [Style; 3] = [Style::Blocking, Style::Async(1), Style::Async(4)];

/// Who does the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Party {
    Forebay(Socket, Style),
    /// So many servers in one process, and many requests under way.
    Servers(u16),
    /// A bare socket that never waits for the other side.
    Stream(Socket),
    /// A bare socket that waits for the other side after every chunk.
    Turns(Socket),
    /// A fresh file in memory.
    Tmpfs,
    /// An unmodified program with the preload library in it.
    Library,
    /// An unmodified program on the mount.
    Mount,
    /// The plainest mount there can be, of a file in memory.
    PassThrough,
    /// A fresh file on the disk's file system, which keeps it in the page cache.
    Disk,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Write(usize),
    Read(usize),
    /// fio writes.
    FioWrite(usize),
    /// fio reads.
    FioRead(usize),
    Create,
    Stat,
    Unlink,
    /// So many writers of one file, each in its own part.
    OneFile(usize),
    /// So many writers of one file each.
    FileEach(usize),
}

impl Work {
    /// The unit of its figures.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Work::Create | Work::Stat | Work::Unlink => "op/s",
            _ => "MB/s",
        }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Socket::Tcp => "tcp",
            Socket::Unix => "unix",
        })
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Style::Blocking => f.write_str("blocking"),
            Style::Async(depth) => write!(f, "async, depth {depth}"),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::Forebay(socket, style) => write!(f, "forebay {socket}, {style}"),
            Party::Servers(count) => write!(f, "forebay unix, servers: {count}"),
            Party::Stream(socket) => write!(f, "bare {socket} stream"),
            Party::Turns(socket) => write!(f, "bare {socket} request/ack"),
            Party::Library => f.write_str("forebay, preload library"),
            Party::Mount => f.write_str("forebay, mount"),
            Party::PassThrough => f.write_str("pass-through mount"),
            Party::Tmpfs => f.write_str("tmpfs"),
            Party::Disk => f.write_str("disk, page cache"),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Write(chunk) => write!(f, "write {}", shown(*chunk)),
            Work::Read(chunk) => write!(f, "read {}", shown(*chunk)),
            Work::FioWrite(chunk) => write!(f, "fio (psync) write {}", shown(*chunk)),
            Work::FioRead(chunk) => write!(f, "fio (psync) read {}", shown(*chunk)),
            Work::Create => f.write_str("create"),
            Work::Stat => f.write_str("stat"),
            Work::Unlink => f.write_str("unlink"),
            Work::OneFile(writers) => write!(f, "{writers} writers of one file"),
            Work::FileEach(writers) => write!(f, "{writers} writers of one file each"),
        }
    }
}

fn shown(bytes: usize) -> String {
    if bytes >= MIB { format!("{} MiB", bytes / MIB) } else { format!("{} KiB", bytes / KIB) }
}
