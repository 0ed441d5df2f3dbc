//! `down`, `status`, `df`: the service as a whole.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view;
use clap::Args;
use std::path::Path;
use std::time::{Duration, Instant};

const GLANCE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Down {
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Status {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Df {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

impl Down {
    /// Stops the server, and waits until it is gone.
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        let pid = client.status()?.pid;
        client.shutdown()?;
        drop(client);
        let end = Instant::now() + PATIENCE;
        let local = self.service.is_local()?;
        while self.service.connect().is_ok() || local && lives(pid) {
            if Instant::now() > end {
                let text =
                    format!("the server (process {pid}) is still stopping after {} s", PATIENCE.as_secs());
                return Err(Failure::Failed(text));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }
}

/// Whether a process of this machine is there, and not only waits to be buried.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
}

impl Status {
    pub(crate) fn run(&self) -> Outcome {
        let status = self.service.connect()?.status()?;
        output::show(&view::Status::from(&status), self.json)
    }
}

impl Df {
    pub(crate) fn run(&self) -> Outcome {
        let usage = self.service.connect()?.statfs()?;
        output::show(&view::Usage::from(usage), self.json)
    }
}
