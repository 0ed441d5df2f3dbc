//! What is measured, how often, how much.

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
    /// More than the buffer holds.
    Beyond,
}

/// All sections, with the words for them.
pub const SECTIONS: [(&str, Section); 6] = [
    ("data", Section::Data),
    ("names", Section::Names),
    ("writers", Section::Writers),
    ("programs", Section::Programs),
    ("servers", Section::Servers),
    ("beyond", Section::Beyond),
];

impl FromStr for Section {
    type Err = String;

    fn from_str(text: &str) -> Result<Section, String> {
        let found = SECTIONS.iter().find(|(word, _)| *word == text);
        found.map(|&(_, section)| section).ok_or_else(|| {
            let words: Vec<&str> = SECTIONS.iter().map(|&(word, _)| word).collect();
            format!("there is no section {text:?}: choose from {}", words.join(", "))
        })
    }
}

/// How much of everything.
pub struct Plan {
    sections: Vec<Section>,
    /// Is told how far the run is, and what is left out.
    pub(crate) say: fn(&str),
    /// A directory on the disk that Forebay is compared with.
    pub(crate) disk: PathBuf,
    /// Rounds that count; one more comes before them.
    pub(crate) rounds: usize,
    pub(crate) sizes: Vec<Size>,
    /// Names that are made, asked for and removed.
    pub(crate) names: usize,
    /// What all writers of one file write together.
    pub(crate) shared: Size,
    /// What programs write at a time with large requests, and with small ones.
    pub(crate) large: usize,
    pub(crate) small: usize,
}

/// So many requests of so many bytes.
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
    /// All sections unless some are named; files on disk are made in `disk`.
    #[must_use]
    pub fn new(quick: bool, sections: Vec<Section>, disk: PathBuf, say: fn(&str)) -> Plan {
        let (rounds, large, small, names) =
            if quick { (3, 128 * MIB, 16 * MIB, 500) } else { (5, 256 * MIB, 32 * MIB, 2000) };
        Plan {
            sections,
            say,
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

    /// What programs write in requests of a size.
    pub(crate) fn amount(&self, chunk: usize) -> Size {
        Size::of(chunk, if chunk >= 64 * KIB { self.large } else { self.small })
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
/// How many small requests are under way where it is about their number.
pub(crate) const MANY: Style = Style::Async(32);

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
    /// Bytes copied into memory that was touched before, by nobody's leave.
    Copy,
}

/// What is done.
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
    /// An unmodified program makes a file, writes so many bytes and closes it.
    Small(usize),
    /// So many writers of one file, each in its own part.
    OneFile(usize),
    /// So many writers of one file each.
    FileEach(usize),
    /// Writes more than the buffer holds.
    Beyond,
    /// The same, until all of it is on the storage behind.
    Drained,
}

/// What fio is told to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fio {
    pub(crate) how: How,
    pub(crate) chunk: usize,
    pub(crate) crew: Crew,
}

/// How fio goes through a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// A fresh file, from its start to its end.
    Write,
    /// A file that is there, from its start to its end.
    Overwrite,
    Read,
    /// A file that is there, every part of it once, in any order.
    RandomWrite,
    RandomRead,
}

/// Who goes through which files.
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
            Work::Small(_) => "files/s",
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
            Party::Stream(socket) => write!(f, "bare {socket} stream"),
            Party::Turns(socket) => write!(f, "bare {socket} request/ack"),
            Party::Library => f.write_str("forebay, preload library"),
            Party::Mount => f.write_str("forebay, mount"),
            Party::PassThrough => f.write_str("pass-through mount"),
            Party::Tmpfs => f.write_str("tmpfs"),
            Party::Disk => f.write_str("disk, page cache"),
            Party::Copy => f.write_str("copy in memory"),
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
