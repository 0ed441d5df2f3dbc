//! `check`: the stores of a service that is not running.

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::Checked;
use clap::Args;
use forebay_store::{AtRest, check_stores, repair_stores};
use std::path::PathBuf;

/// Ends with 0 if nothing is wrong, or nothing is wrong any more; with 3 if something is; with 1 if that cannot be found
/// out, and with 2 if it was called wrongly.
#[derive(Args)]
pub(crate) struct Check {
    /// The directories of all stores of the service
    #[arg(required = true)]
    stores: Vec<PathBuf>,
    /// Repair what is safe to repair, and go on without what was lost
    #[arg(long)]
    repair: bool,
    /// Also take away names that lead to files that are lost, and bytes of files that have no inode
    #[arg(long, requires = "repair")]
    drop_dangling: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(&self) -> Outcome {
        let stores = self.stores.iter().map(|dir| AtRest::open(dir)).collect::<Result<Vec<_>, _>>()?;
        let repaired = if self.repair { self.mend(&stores)? } else { Vec::new() };
        let found = check_stores(&stores)?;
        let count = found.len();
        output::show(&Checked::new(repaired, found), self.json)?;
        match count {
            0 => Ok(()),
            1 => Err(Failure::Wrong("something is wrong with the service".to_owned())),
            count => Err(Failure::Wrong(format!("{count} things are wrong with the service"))),
        }
    }

    /// Repairs, and says what was done.
    fn mend(&self, stores: &[AtRest]) -> Outcome<Vec<String>> {
        let mut done = repair_stores(stores, self.drop_dangling)?;
        for store in stores {
            if forebay_server::forgive(&**store.meta())? {
                done.push(format!("server {} goes on without what it had lost", store.server()));
            }
        }
        Ok(done)
    }
}
