//! `down`: stops servers gracefully.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::{human, output};
use clap::Args;
use forebay_client::Address;
use forebay_client::blocking::Client;
use forebay_model::{Member, list};
use forebay_wire::Status;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

/// Stops all shards of the service, on all hosts.
#[derive(Args)]
pub(crate) struct Down {
    /// Stop only the shards of this host, named as in the list of servers
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    #[command(flatten)]
    service: Service,
}

/// A server that was asked to stop.
struct Stopped<'a> {
    member: &'a Member,
    /// Its last status.
    status: Status,
    /// Whether its process runs on this machine.
    is_local: bool,
}

impl Down {
    /// Stops servers, and waits until their processes have ended.
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        let (own, members) = (client.status()?, client.welcome()?.members);
        let mut meant: Vec<&Member> = members.all().iter().filter(|member| self.is_meant(member)).collect();
        if meant.is_empty() {
            let text = format!(
                "no shard of the service is on host {}: {members}",
                self.host.as_deref().unwrap_or("")
            );
            return Err(Failure::Usage(text));
        }
        let (mut stopped, mut missed) = (Vec::new(), Vec::new());
        // The server that this client is connected to stops last.
        meant.sort_by_key(|member| member.server == own.server);
        for member in meant {
            let ended = match member.server == own.server {
                true => stop(&client),
                false => self.service.connect_member(member).and_then(|other| stop(&other)),
            };
            match ended {
                Ok((status, is_local)) => stopped.push(Stopped { member, status, is_local }),
                Err(failure) => missed.push(failure.text().unwrap_or_default().to_owned()),
            }
        }
        drop(client);
        self.await_end(&stopped)?;
        notify(&stopped, self.host.is_none())?;
        match missed.is_empty() {
            true => Ok(()),
            false => Err(Failure::Failed(format!("not all servers were stopped: {}", missed.join("; ")))),
        }
    }

    fn is_meant(&self, member: &Member) -> bool {
        self.host.as_deref().is_none_or(|host| host_of(member) == Some(host))
    }

    fn await_end(&self, stopped: &[Stopped<'_>]) -> Outcome {
        let end = Instant::now() + PATIENCE;
        let lasts = |one: &Stopped<'_>| match one.is_local {
            true => is_running(one.status.pid),
            false => self.service.connect_member(one.member).is_ok(),
        };
        while stopped.iter().any(lasts) {
            if Instant::now() > end {
                let pids: Vec<u32> = stopped.iter().map(|one| one.status.pid).collect();
                let text = format!(
                    "a server (process {}) is still stopping after {} s",
                    list(&pids),
                    PATIENCE.as_secs()
                );
                return Err(Failure::Failed(text));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

/// Stops a server and returns its last status.
fn stop(client: &Client) -> Outcome<(Status, bool)> {
    let status = client.status()?;
    client.shutdown()?;
    Ok((status, matches!(client.reached_at(), Some(Address::Unix(_)))))
}

/// The host in the address of a server; `None` if it only listens on a Unix socket.
fn host_of(member: &Member) -> Option<&str> {
    let (host, _port) = member.address.strip_prefix("tcp:")?.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

/// Reports that shards of several hosts were stopped, and which stores keep their memory.
fn notify(stopped: &[Stopped<'_>], all: bool) -> Outcome {
    let hosts: BTreeSet<&str> = stopped.iter().filter_map(|one| host_of(one.member)).collect();
    if all && hosts.len() > 1 {
        output::text(format_args!(
            "stopped {} shards on {} hosts ({}); \"forebay down --host HOST\" stops those of one",
            stopped.len(),
            hosts.len(),
            hosts.into_iter().collect::<Vec<_>>().join(", ")
        ))?;
    }
    for status in stopped.iter().map(|one| &one.status).filter(|status| status.medium != "disk") {
        output::text(format_args!(
            "{} of memory stay with {}, which keeps its data: start it again with \"forebay up\", or free the memory:",
            human::size(status.usage.capacity),
            status.store
        ))?;
        output::text(format_args!("  forebay store remove --yes {}", human::quoted(&status.store)))?;
    }
    Ok(())
}

/// Whether a local process exists and is no zombie.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
}
