//! The result of a run.

use crate::human;
use forebay_client::RunCounts;
use forebay_wire::Status;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the program ended.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Ended {
    pub(crate) code: u8,
    pub(crate) seconds: f64,
}

/// The drained data.
#[derive(Default, Serialize)]
pub(crate) struct Drained {
    /// Files, links and directories.
    pub(crate) entries: u64,
    /// Bytes that the target received, including those drained while the program ran.
    pub(crate) bytes: u64,
    /// Time from the end of the program until everything was drained.
    pub(crate) seconds: f64,
    pub(crate) failed: u64,
    /// Attributes and entries that the target could not store.
    pub(crate) notes: Vec<String>,
}

/// What all processes of the program did to the buffer.
#[derive(Default, Serialize)]
struct Served {
    /// Bytes that calls of the program wrote and read.
    written: u64,
    read: u64,
    /// Bytes in the buffer at the end.
    live: u64,
    /// Whether the buffer has files.
    files: bool,
    capacity: u64,
}

/// The result of the whole run.
#[derive(Serialize)]
pub(crate) struct RunReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<Ended>,
    served: Served,
    counts: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pfs: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drained: Option<Drained>,
}

/// Counters of the preload library. Times in seconds.
#[derive(Serialize)]
struct Counts {
    /// Time in calls to the buffer, summed over all threads.
    io: f64,
    /// Time of the process with the most.
    longest_io: f64,
    processes: u64,
    calls: u64,
    /// Calls that found the buffer full.
    full: u64,
    /// Whether programs used the buffer by a private mount: their calls are not counted.
    mounted: bool,
}

impl RunReport {
    /// `mounted`: programs of the run used a private mount.
    pub(crate) fn new(counts: RunCounts, mounted: bool, program: Option<Ended>) -> RunReport {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let RunCounts { nanos, longest, processes, calls, full, written, read } = counts;
        let (io, longest_io) = (seconds(nanos), seconds(longest));
        let counts = Counts { io, longest_io, processes, calls, full, mounted };
        let served = Served { written, read, ..Served::default() };
        RunReport { program, served, counts, pfs: None, drained: None }
    }

    /// Records the server's status before the final drain. Byte counts are those of the program's calls: the
    /// server also counts space that was only reserved, and does not see reads from shared memory.
    pub(crate) fn served(&mut self, status: &Status, files: bool) {
        self.served.live = status.usage.live;
        self.served.capacity = status.usage.capacity;
        self.served.files = files;
    }

    pub(crate) fn drain(&mut self, pfs: &Path, drained: Drained) {
        self.pfs = Some(pfs.to_owned());
        self.drained = Some(drained);
    }

    pub(crate) fn drained(&self) -> Option<&Drained> {
        self.drained.as_ref()
    }

    /// Whether the buffer has files.
    pub(crate) fn has_files(&self) -> bool {
        self.served.files
    }

    /// Whether a program ran and none of its processes used the buffer.
    pub(crate) fn is_unused(&self) -> bool {
        let Served { written, read, .. } = self.served;
        let Counts { processes, mounted, .. } = self.counts;
        self.program.is_some() && processes == 0 && written == 0 && read == 0 && !mounted
    }

    /// The program's exit code, if there was one.
    pub(crate) fn code(&self) -> u8 {
        self.program.map_or(0, |program| program.code)
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |seconds: f64| human::duration(Duration::from_secs_f64(seconds));
        if let Some(Ended { code, seconds }) = self.program {
            writeln!(f, "program    ended with code {code} after {}", time(seconds))?;
            let Counts { io, longest_io, processes, calls, full, mounted } = self.counts;
            writeln!(
                f,
                "in buffer  {} written, {} read by {} in {}",
                human::size(self.served.written),
                human::size(self.served.read),
                human::counted(calls, "call"),
                human::plural(processes, "process", "processes"),
            )?;
            writeln!(f, "in I/O     {} in all, {} in the process with most", time(io), time(longest_io))?;
            if mounted {
                writeln!(
                    f,
                    "note       programs with a private mount ran too: what they wrote and read is not counted"
                )?;
            }
            if full > 0 {
                writeln!(
                    f,
                    "FULL       {} found no space: a buffer of {} was too small, set a larger --capacity",
                    human::counted(full, "call"),
                    human::size(self.served.capacity)
                )?;
            }
        }
        if let (Some(drained), Some(pfs)) = (&self.drained, &self.pfs) {
            let Drained { entries, bytes, seconds, failed, notes } = drained;
            write!(
                f,
                "drained    {}, {} to {}, read back and compared; complete {} after the program's end",
                human::plural(*entries, "entry", "entries"),
                human::size(*bytes),
                pfs.display(),
                time(*seconds)
            )?;
            if *failed > 0 {
                write!(f, "; {failed} FAILED")?;
            }
            writeln!(f)?;
            notes.iter().try_for_each(|note| writeln!(f, "note       {note}"))?;
        } else if self.served.files {
            writeln!(f, "left       {} in the buffer", human::size(self.served.live))?;
        }
        Ok(())
    }
}
