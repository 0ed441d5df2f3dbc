//! `stage`: what is brought near from the back end before it is read, and what is brought out.

use crate::connect::Service;
use crate::drain::{await_end, begin, conclude};
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

/// As much is asked to come near at once.
const STEP: u64 = 8 << 20;

/// Brings files from the back end here, or the other way
#[derive(Subcommand)]
pub(crate) enum Stage {
    /// Bring what is in the back end near, to be read soon, and wait until it is
    In(StageIn),
    /// Bring what is here out, and wait until it is in the back end
    Out(StageOut),
}

#[derive(Args)]
pub(crate) struct StageOut {
    /// What is to leave
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
            conclude(await_end(&client, report)?, self.json)?;
        }
        Ok(())
    }
}

#[derive(Args)]
pub(crate) struct StageIn {
    /// What is to come: files, and directories with all that is in them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

/// What was brought near.
#[derive(Default, Serialize)]
struct StagedIn {
    files: u64,
    /// Their length.
    bytes: u64,
    /// How much of it is near: what was written here and has not left need not be.
    near: u64,
    /// Most that all servers keep near; what was brought first goes first.
    room: u64,
    /// Whether some was not brought because it would have driven out what had just come.
    full: bool,
    seconds: f64,
}

impl fmt::Display for StagedIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StagedIn { files, bytes, near, room, full, .. } = self;
        let (files, bytes) = (human::counted(*files, "file"), human::size(*bytes));
        write!(f, "{files} of {bytes}: {} brought near", human::size(*near))?;
        if *full {
            let room = human::size(*room);
            write!(f, "; there is room for {room}, and the rest is read from the back end as ever")?;
        }
        Ok(())
    }
}

impl StageIn {
    fn run(&self) -> Outcome {
        let (client, progress, begin) = (self.service.connect()?, Progress::new(), Instant::now());
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let staging = Staging { client: &client, progress: &progress, turn: since.as_nanos() as u64 };
        let mut staged = StagedIn { room: client.drain_state(None)?.status.near.1, ..StagedIn::default() };
        let brought = remote::each(&self.paths, |path| {
            let attr = client.stat(path)?;
            staging.bring(path, &attr, &mut staged)
        });
        progress.finish();
        staged.seconds = begin.elapsed().as_secs_f64();
        output::show(&staged, self.json)?;
        brought
    }
}

/// What belongs together, so that nothing of it drives out the rest.
struct Staging<'a> {
    client: &'a Client,
    progress: &'a Progress,
    turn: u64,
}

impl Staging<'_> {
    /// Brings a file near, or all that are in a directory.
    fn bring(&self, path: &Path, attr: &Attr, staged: &mut StagedIn) -> Outcome {
        match attr.kind {
            FileKind::Directory => {
                let entries = remote::entries(self.client, path)?;
                remote::each(&entries, |(entry, attr)| {
                    self.bring(&remote::join(path, &entry.name), attr, staged)
                })
            }
            FileKind::File => {
                self.progress.expect(attr.size);
                staged.files += 1;
                staged.bytes += attr.size;
                for offset in (0..attr.size).step_by(STEP as usize) {
                    let len = STEP.min(attr.size - offset);
                    // Where one server has no room others may have.
                    let report = self.client.fetch(attr.id, offset, len, self.turn)?;
                    staged.near += report.fetched;
                    staged.full |= report.full;
                    self.progress.copied(len);
                }
                Ok(())
            }
            FileKind::Symlink | FileKind::Special(_) => Ok(()),
        }
    }
}
