//! `down`, `status`, `df`: the service as a whole.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::{self, LostList};
use clap::Args;
use forebay_client::blocking::Client;
use forebay_model::ErrorKind;
use forebay_wire::Standing;
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
    /// Stops all servers of the service, and waits until they are gone.
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        let (own, here) = (client.status()?, client.welcome()?);
        let mut pids = vec![own.pid];
        let mut missed = Vec::new();
        for member in here.members.all().iter().filter(|member| member.server != own.server) {
            match self.service.connect_member(member).and_then(|other| {
                let pid = other.status()?.pid;
                other.shutdown()?;
                Ok(pid)
            }) {
                Ok(pid) => pids.push(pid),
                Err(failure) => missed.push(failure.text().unwrap_or_default().to_owned()),
            }
        }
        client.shutdown()?;
        drop(client);
        let end = Instant::now() + PATIENCE;
        let local = self.service.is_local()?;
        let lasts = || self.service.connect().is_ok() || local && pids.iter().any(|&pid| lives(pid));
        while lasts() {
            if Instant::now() > end {
                let text =
                    format!("a server (process {pids:?}) is still stopping after {} s", PATIENCE.as_secs());
                return Err(Failure::Failed(text));
            }
            std::thread::sleep(GLANCE);
        }
        match missed.is_empty() {
            true => Ok(()),
            false => Err(Failure::Failed(format!("not all servers were stopped: {}", missed.join("; ")))),
        }
    }
}

/// Whether a process of this machine is there, and not only waits to be buried.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
}

impl Status {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        if client.welcome()?.members.is_single() {
            return output::show(&look(&client, &client.status()?), self.json);
        }
        let all = client.statuses()?.into_iter();
        let all: Vec<_> =
            all.map(|(server, status)| (server, status.map(|status| look(&client, &status)))).collect();
        output::show(&view::Servers::from(all), self.json)
    }
}

/// What a server says of itself, and of what was lost. Only its owner hears of the latter.
fn look(client: &Client, status: &forebay_wire::Status) -> view::Status {
    let lost = match (&status.standing, client.losses(status.server)) {
        (_, Ok(losses)) => LostList::new(losses),
        (Standing::Joined, Err(error)) if error.kind() != ErrorKind::NotPermitted => {
            LostList::unlisted(error.to_string())
        }
        _ => LostList::default(),
    };
    view::Status::new(status, lost)
}

impl Df {
    pub(crate) fn run(&self) -> Outcome {
        let usage = self.service.connect()?.statfs()?;
        output::show(&view::Usage::from(usage), self.json)
    }
}
