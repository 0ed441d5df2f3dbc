//! `check`: finds and repairs faults of a running service, or of the stores of a stopped one.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::{Checked, LostList};
use clap::Args;
use forebay_store::{AtRest, Flaw, Kind, check_payloads, check_stores, repair_stores};
use forebay_wire::RepairStep;
use std::path::PathBuf;

/// Without directories, queries the servers of the running service, on all its machines, for what was lost with
/// stores;
/// with --repair the service continues without the lost data. With the directories of all stores of a stopped
/// service,
/// reads everything in them; the stores of other machines must be reachable by local paths.
///
/// Exits with 0 if nothing is wrong or everything was repaired, with 3 if something is wrong, with 1 if the
/// check could
/// not be made, and with 2 for a usage error.
#[derive(Args)]
pub(crate) struct Check {
    /// The directories of all stores of a stopped service
    stores: Vec<PathBuf>,
    /// Repair what is safe to repair, and continue without the lost data
    #[arg(long)]
    repair: bool,
    /// Also remove names of lost files, and data of files that have no inode
    #[arg(long, requires = "repair")]
    drop_dangling: bool,
    /// Also read all file data in the stores and compare its checksums
    #[arg(long, requires = "stores")]
    payload: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

impl Check {
    pub(crate) fn run(&self) -> Outcome {
        match self.stores.is_empty() {
            true => self.running(),
            false => self.at_rest(),
        }
    }

    /// Queries the servers of a running service.
    fn running(&self) -> Outcome {
        let client = self.service.connect()?;
        let members = client.welcome()?.members;
        let mut repaired = Vec::new();
        if self.repair {
            for step in [RepairStep::Rescue { drop_dangling: self.drop_dangling }, RepairStep::Forgive] {
                for server in members.servers() {
                    repaired.extend(client.repair(server, step)?);
                }
            }
        }
        let mut found = Vec::new();
        for (server, status) in client.statuses()? {
            let status = status?;
            let damage = status.damage.into_iter().map(|what| Flaw { kind: Kind::Lost, what, safe: false });
            found.extend(damage);
            let lost = LostList::new(client.losses(server)?);
            found.extend(lost.sentences().map(|(what, safe)| Flaw { kind: Kind::Lost, what, safe }));
        }
        self.notify(repaired, found)
    }

    fn at_rest(&self) -> Outcome {
        let stores = self.stores.iter().map(|dir| AtRest::open(dir)).collect::<Result<Vec<_>, _>>()?;
        let repaired = if self.repair { self.repair_stores(&stores)? } else { Vec::new() };
        let mut found = check_stores(&stores)?;
        if self.payload {
            found.extend(check_payloads(&stores)?);
        }
        self.notify(repaired, found)
    }

    fn notify(&self, repaired: Vec<String>, found: Vec<Flaw>) -> Outcome {
        let count = found.len();
        output::show(&Checked::new(repaired, found), self.json)?;
        match count {
            0 => Ok(()),
            1 => Err(Failure::Wrong("something is wrong with the service".to_owned())),
            count => Err(Failure::Wrong(format!("{count} things are wrong with the service"))),
        }
    }

    /// Repairs the stores, and returns what was done.
    fn repair_stores(&self, stores: &[AtRest]) -> Outcome<Vec<String>> {
        let mut done = repair_stores(stores, self.drop_dangling)?;
        for store in stores {
            if forebay_server::forgive(&**store.meta())? {
                done.push(format!("server {} goes on without what it had lost", store.server()));
            }
        }
        Ok(done)
    }
}
