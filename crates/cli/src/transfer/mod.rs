//! `put`, `get`, `cat`: copying files in and out.
//!
//! A walker finds the files to copy and creates directories; a few workers copy, large files in pieces.
//! Failures are
//! reported and counted, and the rest continues, unless the service does not answer any more.

mod get;
mod passage;
mod pool;
mod progress;
mod put;
mod tally;

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::remote::mask;
use crate::view::Direction;
use clap::Args;
use std::path::{Path, PathBuf};
use tally::Tally;

pub(crate) use progress::Progress;

/// Bytes per read and write.
const PIECE: usize = 8 << 20;
/// Files larger than this are shared by several workers.
const LARGE: u64 = 4 * PIECE as u64;

#[derive(Args)]
pub(crate) struct Put {
    /// Local files, or - for standard input
    #[arg(required = true)]
    local: Vec<PathBuf>,
    /// Destination: a new name, or a directory
    remote: PathBuf,
    /// Copy directories with everything in them
    #[arg(short)]
    recursive: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Get {
    /// Files of the service
    #[arg(required = true)]
    remote: Vec<PathBuf>,
    /// Destination: a new name, a directory, or - for standard output
    local: PathBuf,
    /// Copy directories with everything in them
    #[arg(short)]
    recursive: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Cat {
    /// Files to print
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    service: Service,
}

fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Put {
    pub(crate) fn run(&self) -> Outcome {
        if self.local.len() > 1 && self.local.iter().any(|path| is_stream(path)) {
            return Err(Failure::Usage(
                "standard input (-) must be the only source, and the destination must be a file name"
                    .to_owned(),
            ));
        }
        let client = self.service.connect()?;
        let tally = Tally::new();
        let copied = match &self.local[..] {
            [local] if is_stream(local) => put::stream(&client, &self.remote, &tally),
            _ => put::Walk { client: &client, tally: &tally, recursive: self.recursive, mask: mask() }
                .all(&self.local, &self.remote),
        };
        let summary = tally.finish(Direction::Put);
        copied?;
        output::show(&summary, self.json)?;
        tally.verdict()
    }
}

impl Get {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        if is_stream(&self.local) {
            return get::stream(&client, &self.remote);
        }
        let tally = Tally::new();
        let copied = get::Walk { client: &client, tally: &tally, recursive: self.recursive }
            .all(&self.remote, &self.local);
        let summary = tally.finish(Direction::Got);
        copied?;
        output::show(&summary, self.json)?;
        tally.verdict()
    }
}

impl Cat {
    pub(crate) fn run(&self) -> Outcome {
        get::stream(&self.service.connect()?, &self.paths)
    }
}
