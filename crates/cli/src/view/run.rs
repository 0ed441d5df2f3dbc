//! What a run came to.

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

/// What was brought out.
#[derive(Default, Serialize)]
pub(crate) struct Drained {
    /// Files, links and directories.
    pub(crate) entries: u64,
    /// Bytes that the target took, those that it took while the program ran among them.
    pub(crate) bytes: u64,
    /// From the end of the program until everything was out.
    pub(crate) seconds: f64,
    pub(crate) failed: u64,
    /// What could not be kept.
    pub(crate) notes: Vec<String>,
}

/// What all processes of the program did to the buffer.
#[derive(Default, Serialize)]
struct Served {
    written: u64,
    read: u64,
    /// Bytes in the buffer at the end.
    live: u64,
    /// Whether there are files.
    files: bool,
    capacity: u64,
}

/// The whole run.
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

/// What the library has counted. Times in seconds.
#[derive(Serialize)]
struct Counts {
    /// In calls that asked the buffer, of all threads together.
    io: f64,
    /// Of the process with the most.
    longest_io: f64,
    processes: u64,
    calls: u64,
    /// Calls that found the buffer full.
    full: u64,
}

impl RunReport {
    pub(crate) fn new(counts: RunCounts, program: Option<Ended>) -> RunReport {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let RunCounts { nanos, longest, processes, calls, full } = counts;
        let counts = Counts { io: seconds(nanos), longest_io: seconds(longest), processes, calls, full };
        RunReport { program, served: Served::default(), counts, pfs: None, drained: None }
    }

    /// Takes in what the server has counted before anything was brought out.
    pub(crate) fn served(&mut self, status: &Status, files: bool) {
        let sum = |count: fn(&forebay_wire::JobStatus) -> u64| status.jobs.iter().map(count).sum();
        self.served = Served {
            written: sum(|job| job.written),
            read: sum(|job| job.read),
            live: status.usage.live,
            files,
            capacity: status.usage.capacity,
        };
    }

    pub(crate) fn drain(&mut self, pfs: &Path, drained: Drained) {
        self.pfs = Some(pfs.to_owned());
        self.drained = Some(drained);
    }

    pub(crate) fn drained(&self) -> Option<&Drained> {
        self.drained.as_ref()
    }

    /// Whether there is something in the buffer.
    pub(crate) fn has_files(&self) -> bool {
        self.served.files
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
            let Counts { io, longest_io, processes, calls, full } = self.counts;
            writeln!(
                f,
                "in buffer  {} written, {} read by {} in {}",
                human::size(self.served.written),
                human::size(self.served.read),
                human::counted(calls, "call"),
                human::plural(processes, "process", "processes"),
            )?;
            writeln!(f, "in I/O     {} in all, {} in the process with most", time(io), time(longest_io))?;
            if full > 0 {
                writeln!(
                    f,
                    "FULL       {} found no space: {} were not enough, give more with --capacity",
                    human::counted(full, "call"),
                    human::size(self.served.capacity)
                )?;
            }
        }
        if let (Some(drained), Some(pfs)) = (&self.drained, &self.pfs) {
            let Drained { entries, bytes, seconds, failed, notes } = drained;
            write!(
                f,
                "brought    {}, {} to {}, read back and compared; the last of it {} after the program's end",
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
