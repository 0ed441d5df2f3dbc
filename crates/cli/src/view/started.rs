//! A server that has just started.

use crate::human;
use forebay_server::Addresses;
use forebay_wire::RecoverySummary;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Addresses of a new server, and its recovery report.
#[derive(Serialize, Deserialize)]
pub(crate) struct Started {
    pid: u32,
    version: String,
    store: String,
    capacity: u64,
    medium: String,
    socket: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tcp: Option<SocketAddr>,
    key: PathBuf,
    recovery: RecoverySummary,
    /// Number of servers of one service in the process.
    #[serde(default)]
    servers: usize,
    /// Why some of them were refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    refused: Vec<String>,
    /// The log file of a server in the background.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log: Option<PathBuf>,
}

impl Started {
    pub(crate) fn new(
        addresses: &Addresses,
        status: &forebay_wire::Status,
        servers: usize,
        refused: Vec<String>,
    ) -> Started {
        Started {
            pid: status.pid,
            version: status.version.clone(),
            store: status.store.clone(),
            capacity: status.usage.capacity,
            medium: status.medium.clone(),
            socket: addresses.unix.clone(),
            tcp: addresses.tcp,
            key: addresses.key.clone(),
            recovery: status.recovery,
            servers,
            refused,
            log: None,
        }
    }

    /// The recovery report.
    pub(crate) fn recovery(&self) -> RecoverySummary {
        self.recovery
    }

    pub(crate) fn with_log(self, log: PathBuf) -> Started {
        Started { log: Some(log), ..self }
    }
}

/// The recovery report in one line; `None` if there was nothing to recover.
pub(crate) fn recovered(recovery: &RecoverySummary) -> Option<String> {
    if recovery.clean {
        return None;
    }
    let cause = if recovery.machine_crash { "the machine" } else { "the server" };
    Some(format!(
        "after {cause} died: {}, {} live, {} torn, in {}",
        human::counted(recovery.records, "record"),
        human::size(recovery.live_bytes),
        human::count(recovery.torn),
        human::duration(Duration::from_millis(recovery.millis))
    ))
}

impl fmt::Display for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (capacity, medium) = (human::size(self.capacity), &self.medium);
        writeln!(f, "forebay {} serves {} as process {}", self.version, self.store, self.pid)?;
        match self.servers {
            0 | 1 => writeln!(f, "  capacity  {capacity}, {medium}")?,
            servers => writeln!(f, "  capacity  {capacity}, {medium}, on each of {servers} servers")?,
        }
        if let Some(found) = recovered(&self.recovery) {
            writeln!(f, "  recovered {found}")?;
        }
        for why in &self.refused {
            writeln!(f, "  REFUSED   {why}")?;
        }
        writeln!(f, "  socket    {}", self.socket.display())?;
        match self.tcp {
            Some(tcp) => writeln!(f, "  tcp       {tcp}, key {}", self.key.display())?,
            None => writeln!(f, "  tcp       off (--listen 127.0.0.1:7411 turns it on)")?,
        }
        if let Some(log) = &self.log {
            writeln!(f, "  log       {}", log.display())?;
        }
        // Shell commands that can be copied as they are.
        let service = human::quoted(&format!("unix:{}", self.socket.display()));
        writeln!(f, "  use it    export FOREBAY_SERVICE={service}")?;
        writeln!(f, "            forebay exec -- ls -l /fb")?;
        writeln!(f, "            forebay status")?;
        match self.log {
            Some(_) => write!(f, "  stop it   forebay down"),
            None => write!(f, "  stop it   forebay down    # or Ctrl-C here"),
        }
    }
}
