//! `check`: the stores of a service that is not running.

use crate::failure::{Failure, Outcome};
use crate::output;
use clap::Args;
use forebay_store::{AtRest, check_stores, repair_stores};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Check {
    /// The directories of all stores of the service
    #[arg(required = true)]
    stores: Vec<PathBuf>,
    /// Repair what is safe to repair, and go on without what was lost
    #[arg(long)]
    repair: bool,
    /// Also take away names that lead to files that are lost
    #[arg(long, requires = "repair")]
    drop_dangling: bool,
}

impl Check {
    pub(crate) fn run(&self) -> Outcome {
        let stores = self.stores.iter().map(|dir| AtRest::open(dir)).collect::<Result<Vec<_>, _>>()?;
        if self.repair {
            for sentence in repair_stores(&stores, self.drop_dangling)? {
                output::text(format_args!("repaired: {sentence}"))?;
            }
            for store in &stores {
                if forebay_server::forgive(&**store.meta())? {
                    let server = store.server();
                    output::text(format_args!("repaired: server {server} goes on without what it had lost"))?;
                }
            }
        }
        let found = check_stores(&stores)?;
        for sentence in &found {
            output::text(sentence)?;
        }
        match found.len() {
            0 => output::text("nothing is wrong"),
            1 => Err(Failure::Failed("something is wrong with the service".to_owned())),
            count => Err(Failure::Failed(format!("{count} things are wrong with the service"))),
        }
    }
}
