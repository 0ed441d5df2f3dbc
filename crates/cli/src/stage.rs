//! `stage`: copies files from the back end into the read cache before they are read, and drains files.

use crate::connect::Service;
use crate::drain::{await_end, begin, report_result};
use crate::failure::Outcome;
use crate::transfer::Progress;
use crate::{human, output, remote};
use clap::{Args, Subcommand};
use forebay_client::blocking::Client;
use forebay_model::{Attr, FileKind};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Bytes of one prefetch request.
const STEP: u64 = 8 << 20;

/// Copies files from the back end into the buffer, or the other way
#[derive(Subcommand)]
pub(crate) enum Stage {
    /// Copy files from the back end into the buffer's read cache, and wait until they are there
    In(StageIn),
    /// Drain files to the back end, and wait until they are there
    Out(StageOut),
}

#[derive(Args)]
pub(crate) struct StageOut {
    /// Files and directories to drain
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

impl Stage {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Stage::In(stage) => stage.run(),
            Stage::Out(out) => out.run(),
        }
    }
}

impl StageOut {
    fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        for path in &self.paths {
            let report = begin(&client, Some(path), None)?;
            report_result(await_end(&client, report)?, self.json)?;
        }
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct StageIn {
    /// Files to read ahead, and directories with everything in them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

/// The result of `stage in`.
#[derive(Default, Serialize)]
struct StagedIn {
    files: u64,
    /// The total size of the files.
    bytes: u64,
    /// Bytes in the read cache. Data written to the buffer and not drained yet is not copied.
    #[serde(rename = "near")]
    read_cache: u64,
    /// The read cache size of all servers; the oldest data is evicted first.
    room: u64,
    /// Whether data was skipped because it would have evicted data of the same command.
    full: bool,
    seconds: f64,
}

impl fmt::Display for StagedIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StagedIn { files, bytes, read_cache, room, full, .. } = self;
        let (files, bytes) = (human::counted(*files, "file"), human::size(*bytes));
        write!(f, "{files} of {bytes}: {} in the read cache", human::size(*read_cache))?;
        if *full {
            let room = human::size(*room);
            write!(f, "; the read cache holds {room}, and the rest is read from the back end")?;
        }
        Ok(())
    }
}

impl StageIn {
    fn run(&self) -> Outcome {
        let (client, progress, begin) = (self.service.connect()?, Progress::new(), Instant::now());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let staging = Staging { client: &client, progress: &progress, turn: since.as_nanos() as u64 };
        let mut staged =
            StagedIn { room: client.drain_state(None)?.status.read_cache.1, ..StagedIn::default() };
        let brought = remote::each(&self.paths, |path| {
            let attr = client.stat(path)?;
            staging.prefetch(path, &attr, &mut staged)
        });
        progress.finish();
        staged.seconds = begin.elapsed().as_secs_f64();
        output::show(&staged, self.json)?;
        brought
    }
}

/// One `stage in`: its requests share a turn, so that they do not evict each other's data.
struct Staging<'a> {
    client: &'a Client,
    progress: &'a Progress,
    turn: u64,
}

impl Staging<'_> {
    /// Copies a file, or all files in a directory, into the read cache.
    fn prefetch(&self, path: &Path, attr: &Attr, staged: &mut StagedIn) -> Outcome {
        match attr.kind {
            FileKind::Directory => {
                let entries = remote::entries(self.client, path)?;
                remote::each(&entries, |(entry, attr)| {
                    self.prefetch(&remote::join(path, &entry.name), attr, staged)
                })
            }
            FileKind::File => {
                self.progress.expect(attr.size);
                staged.files += 1;
                staged.bytes += attr.size;
                for offset in (0..attr.size).step_by(STEP as usize) {
                    let len = STEP.min(attr.size - offset);
                    // If one server's cache is full, others may have space.
                    let report = self.client.fetch(attr.id, offset, len, self.turn)?;
                    staged.read_cache += report.fetched;
                    staged.full |= report.full;
                    self.progress.copied(len);
                }
                Ok(())
            }
            FileKind::Symlink | FileKind::Special(_) => Ok(()),
        }
    }
}
