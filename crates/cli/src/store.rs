//! `store`: works on stores on disk without a server.

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::{Inspected, Removed, Replaced};
use clap::{Args, Subcommand};
use forebay_store::Medium;
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Store {
    /// Show the contents of a store's files; a server may be using it
    Inspect(Inspect),
    /// Discard the data of a store whose regions are lost; names stay
    Replace(Replace),
    /// Remove a store with everything in it
    Remove(Remove),
}

#[derive(Args)]
pub(crate) struct Inspect {
    /// The directory of the store
    dir: PathBuf,
    /// Include every record of every journal
    #[arg(long)]
    records: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Replace {
    /// The directory of the store
    dir: PathBuf,
    /// Create the new regions on disk instead of in memory
    #[arg(long)]
    disk: bool,
    /// Do it even if the old regions still exist
    #[arg(long)]
    yes: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Remove {
    /// The directory of the store
    dir: PathBuf,
    /// Confirm the removal
    #[arg(long)]
    yes: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl Store {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Store::Inspect(Inspect { dir, records, json }) => {
                output::show(&Inspected::new(&forebay_store::inspect(dir)?, *records), *json)
            }
            Store::Replace(replace) => replace.run(),
            Store::Remove(remove) => remove.run(),
        }
    }
}

impl Remove {
    fn run(&self) -> Outcome {
        if !self.yes {
            return Err(Failure::Usage(format!(
                "this would remove the store {} with everything in it: add --yes if that is what you want",
                self.dir.display()
            )));
        }
        forebay_store::Store::remove(&self.dir)?;
        output::show(&Removed::new(&self.dir), self.json)
    }
}

impl Replace {
    fn run(&self) -> Outcome {
        let there =
            forebay_store::inspect(&self.dir)?.regions.iter().any(|region| region.generation.is_some());
        if there && !self.yes {
            return Err(Failure::Usage(format!(
                "the regions of {} are still there, and would be given up: add --yes if that is what you want",
                self.dir.display()
            )));
        }
        let medium = if self.disk { Medium::Disk } else { Medium::Memory };
        let incarnation = forebay_store::Store::replace(&self.dir, medium)?;
        output::show(&Replaced::new(&self.dir, incarnation), self.json)
    }
}
