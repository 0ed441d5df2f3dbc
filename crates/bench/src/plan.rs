//! The plan of a benchmark: sections, rounds and sizes.

use crate::crowd::Part;
use crate::deployments::Deployment;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// The client's reads and writes.
    Data,
    /// Create, stat, unlink.
    Names,
    /// Many writers at once.
    Writers,
    /// Unmodified programs.
    Programs,
    /// Several servers in one process.
    Servers,
    /// More data than the buffer holds.
    Beyond,
    /// Every deployment.
    Deployments,
    /// What interception of system calls costs.
    Calls,
}

/// All sections, with their names.
pub const SECTIONS: [(&str, Section); 8] = [
    ("data", Section::Data),
    ("names", Section::Names),
    ("writers", Section::Writers),
    ("programs", Section::Programs),
    ("servers", Section::Servers),
    ("beyond", Section::Beyond),
    ("deployments", Section::Deployments),
    ("calls", Section::Calls),
];

impl FromStr for Section {
    type Err = String;

    fn from_str(text: &str) -> Result<Section, String> {
        let found = SECTIONS.iter().find(|(word, _)| *word == text);
        found.map(|&(_, section)| section).ok_or_else(|| {
            let words: Vec<&str> = SECTIONS.iter().map(|&(word, _)| word).collect();
            format!("unknown section \"{text}\": choose from {}", words.join(", "))
        })
    }
}

/// The plan of a run.
pub struct Plan {
    sections: Vec<Section>,
    /// Called with progress messages and with skipped parts.
    pub(crate) progress: fn(&str),
    /// A directory on the disk that Forebay is compared with.
    pub(crate) disk: PathBuf,
    /// Rounds that count, after one warm-up round.
    pub(crate) rounds: usize,
    pub(crate) sizes: Vec<Size>,
    /// Number of names that are created, looked up and removed.
    pub(crate) names: usize,
    /// Total data of all writers of one file.
    pub(crate) shared: Size,
    /// Data that programs write with large requests, and with small ones.
    pub(crate) large: usize,
    pub(crate) small: usize,
}

/// A number of requests of a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size {
    pub(crate) chunk: usize,
    pub(crate) count: usize,
}

impl Size {
    pub(crate) const fn of(chunk: usize, total: usize) -> Size {
        Size { chunk, count: total / chunk }
    }

    pub(crate) fn bytes(self) -> usize {
        self.chunk * self.count
    }
}

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

impl Plan {
    /// All sections unless some are named; files on disk are created in `disk`.
    #[must_use]
    pub fn new(quick: bool, sections: Vec<Section>, disk: PathBuf, progress: fn(&str)) -> Plan {
        let (rounds, large, small, names) =
            if quick { (3, 128 * MIB, 16 * MIB, 500) } else { (5, 256 * MIB, 32 * MIB, 2000) };
        Plan {
            sections,
            progress,
            disk,
            rounds,
            sizes: vec![Size::of(MIB, large), Size::of(4 * KIB, small)],
            names,
            shared: Size::of(MIB, large),
            large,
            small,
        }
    }

    pub(crate) fn has(&self, section: Section) -> bool {
        self.sections.is_empty() || self.sections.contains(&section)
    }

    /// The data that programs write in requests of a size.
    pub(crate) fn amount(&self, chunk: usize) -> Size {
        Size::of(chunk, if chunk >= 64 * KIB { self.large } else { self.small })
    }
}

/// The kind of socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Socket {
    Tcp,
    Unix,
}

pub(crate) const SOCKETS: [Socket; 2] = [Socket::Tcp, Socket::Unix];

/// How the client is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    /// One request after the other, in a blocking thread.
    Blocking,
    /// The given number of requests in flight.
    Async(usize),
}

pub(crate) const STYLES: [Style; 3] = [Style::Blocking, Style::Async(1), Style::Async(4)];
/// Requests in flight where the rate of small requests is measured.
pub(crate) const MANY: Style = Style::Async(32);

/// The measured system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Party {
    Forebay(Socket, Style),
    /// The given number of servers in one process, with many requests in flight.
    Servers(u16),
    /// Forebay in a deployment, by an unmodified program with the preload library.
    Deployed(Deployment),
    /// A raw socket that never waits for the peer.
    Stream(Socket),
    /// A raw socket that waits for the peer after every chunk.
    Turns(Socket),
    /// A new file in memory.
    Tmpfs,
    /// An unmodified program with the preload library.
    Library,
    /// An unmodified program on the mount.
    Mount,
    /// A minimal pass-through mount of a file in memory.
    PassThrough,
    /// A new file on the disk's file system, which stays in the page cache.
    Disk,
    /// Bytes copied into touched memory, without system calls.
    Copy,
    /// A program without Forebay.
    Plain,
    /// A program whose system calls are all intercepted.
    Dispatch,
    /// A program that is not searched for raw system calls.
    NoSearch,
    /// A program that is searched, and of which nothing is remembered.
    FirstSearch,
}

/// The measured work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Write(usize),
    Read(usize),
    Fio(Fio),
    Create,
    Stat,
    Unlink,
    /// The same by an unmodified program.
    ProgramCreate,
    ProgramStat,
    ProgramUnlink,
    /// An unmodified program creates a file, writes the given bytes and closes it.
    Small(usize),
    /// The given number of writers of one file, each in its own part.
    OneFile(usize),
    /// The given number of writers of one file each.
    FileEach(usize),
    /// Writes more than the buffer holds.
    Beyond,
    /// The same, until all of it is on the back end.
    Drained,
    /// A part of the work that every deployment does, by the given number of processes.
    Crowd {
        part: Part,
        processes: usize,
    },
    /// A system call that is not the C library's.
    RawCall,
    /// A program that does nothing.
    Start,
}

/// Parameters of fio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fio {
    pub(crate) how: How,
    pub(crate) chunk: usize,
    pub(crate) crew: Crew,
}

/// fio's access pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// A new file, sequentially.
    Write,
    /// An existing file, sequentially.
    Overwrite,
    Read,
    /// An existing file, every block once, in random order.
    RandomWrite,
    RandomRead,
}

/// Processes and their files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crew {
    One,
    /// Two processes with a file each.
    FileEach,
    /// Two processes, each with its half of one file.
    OneFile,
}

impl Crew {
    pub(crate) fn processes(self) -> usize {
        match self {
            Crew::One => 1,
            Crew::FileEach | Crew::OneFile => 2,
        }
    }
}

impl Work {
    /// The unit of its figures.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Work::Write(_) | Work::Read(_) | Work::Fio(_) | Work::OneFile(_) | Work::FileEach(_) => "MB/s",
            Work::Beyond | Work::Drained => "MB/s",
            Work::Crowd { part: Part::Large | Part::Small, .. } => "MB/s",
            Work::Crowd { part: Part::WriteFiles | Part::ReadFiles, .. } => "files/s",
            Work::Small(_) => "files/s",
            Work::RawCall => "ns",
            Work::Start => "µs",
            _ => "op/s",
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
            Party::Deployed(deployment) => write!(f, "forebay, {deployment}"),
            Party::Stream(socket) => write!(f, "bare {socket} stream"),
            Party::Turns(socket) => write!(f, "bare {socket} request/ack"),
            Party::Library => f.write_str("forebay, preload library"),
            Party::Mount => f.write_str("forebay, mount"),
            Party::PassThrough => f.write_str("pass-through mount"),
            Party::Tmpfs => f.write_str("tmpfs"),
            Party::Disk => f.write_str("disk, page cache"),
            Party::Copy => f.write_str("copy in memory"),
            Party::Plain => f.write_str("without forebay"),
            Party::Dispatch => f.write_str("forebay, calls intercepted"),
            Party::NoSearch => f.write_str("forebay, without search"),
            Party::FirstSearch => f.write_str("forebay, nothing remembered"),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Write(chunk) => write!(f, "write {}", shown(*chunk)),
            Work::Read(chunk) => write!(f, "read {}", shown(*chunk)),
            Work::Fio(fio) => write!(f, "{fio}"),
            Work::Create => f.write_str("create"),
            Work::Stat => f.write_str("stat"),
            Work::Unlink => f.write_str("unlink"),
            Work::ProgramCreate => f.write_str("a program's create"),
            Work::ProgramStat => f.write_str("a program's stat"),
            Work::ProgramUnlink => f.write_str("a program's unlink"),
            Work::Small(bytes) => write!(f, "a program's open, write {}, close", shown(*bytes)),
            Work::OneFile(writers) => write!(f, "{writers} writers of one file"),
            Work::FileEach(writers) => write!(f, "{writers} writers of one file each"),
            Work::Beyond => f.write_str("write four times the capacity"),
            Work::Drained => f.write_str("write four times the capacity until it is behind"),
            Work::RawCall => f.write_str("a raw system call"),
            Work::Start => f.write_str("start and end of a program that makes no raw call"),
            Work::Crowd { part, processes: 1 } => write!(f, "{part}, one process"),
            Work::Crowd { part, processes } => write!(f, "{part}, {processes} processes"),
        }
    }
}

impl fmt::Display for Fio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            How::Write => "write",
            How::Overwrite => "overwrite",
            How::Read => "read",
            How::RandomWrite => "random write",
            How::RandomRead => "random read",
        };
        write!(f, "fio (psync) {how} {}", shown(self.chunk))?;
        f.write_str(match self.crew {
            Crew::One => "",
            Crew::FileEach => ", two processes, a file each",
            Crew::OneFile => ", two processes, one file",
        })
    }
}

fn shown(bytes: usize) -> String {
    if bytes >= MIB { format!("{} MiB", bytes / MIB) } else { format!("{} KiB", bytes / KIB) }
}
