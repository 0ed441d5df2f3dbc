//! The service as a whole: status and usage.

use super::drain::Draining;
use super::route::{Routed, amplification};
use super::started::recovered;
use super::{LostList, table};
use crate::human;
use forebay_model::{Result, ServerId};
use forebay_wire::{RecoverySummary, RegionCounts, Standing};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How full the buffer is.
#[derive(Serialize)]
pub(crate) struct Usage {
    capacity: u64,
    used: u64,
    free: u64,
    live: u64,
    files: u64,
}

impl From<forebay_model::Usage> for Usage {
    fn from(usage: forebay_model::Usage) -> Usage {
        let forebay_model::Usage { capacity, used, live, files } = usage;
        Usage { capacity, used, free: capacity.saturating_sub(used), live, files }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["capacity", "used", "free", "use", "live", "files"].map(str::to_owned);
        let row = [
            human::size(self.capacity),
            human::size(self.used),
            human::size(self.free),
            human::percent(self.used, self.capacity),
            human::size(self.live),
            human::count(self.files),
        ];
        table(f, "rrrrrr", 0, &[head, row])
    }
}

/// What a server is doing.
#[derive(Serialize)]
pub(crate) struct Status {
    server: u16,
    version: String,
    pid: u32,
    uptime: u64,
    store: String,
    incarnation: String,
    medium: String,
    usage: Usage,
    region_size: u64,
    regions: RegionCounts,
    connections: u32,
    sessions: u32,
    opens: u64,
    waiting: u64,
    recovery: RecoverySummary,
    damage: Vec<String>,
    standing: Standing,
    #[serde(flatten)]
    lost: LostList,
    jobs: Vec<Job>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain: Option<Draining>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<Routed>,
}

/// What all servers of a service are doing.
#[derive(Serialize)]
pub(crate) struct Servers {
    servers: Vec<Server>,
}

#[derive(Serialize)]
struct Server {
    server: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    /// Why it could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

impl From<Vec<(ServerId, Result<Status>)>> for Servers {
    fn from(all: Vec<(ServerId, Result<Status>)>) -> Servers {
        let one = |(server, answer): (ServerId, Result<Status>)| match answer {
            Ok(status) => Server { server: server.0, status: Some(status), trouble: None },
            Err(error) => Server { server: server.0, status: None, trouble: Some(error.to_string()) },
        };
        Servers { servers: all.into_iter().map(one).collect() }
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Server { server, status, trouble }) in self.servers.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match (status, trouble) {
                (Some(status), _) => write!(f, "{status}")?,
                (None, trouble) => {
                    write!(f, "server {server} DOES NOT ANSWER: {}", trouble.as_deref().unwrap_or_default())?;
                }
            }
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Job {
    label: String,
    user: String,
    group: String,
    nodes: u32,
    priority: u32,
    written: u64,
    /// Of that, what went past the buffer.
    direct: u64,
    /// Bytes buffered for each byte written.
    write_amplification: f64,
    read: u64,
    requests: u64,
    connections: u32,
}

impl Status {
    pub(crate) fn new(status: &forebay_wire::Status, lost: LostList) -> Status {
        let jobs = status.jobs.iter().map(|seen| Job {
            label: seen.job.label.clone(),
            user: seen.job.user.clone(),
            group: seen.job.group.clone(),
            nodes: seen.job.nodes,
            priority: seen.job.priority,
            written: seen.written,
            direct: seen.direct,
            write_amplification: amplification(seen.written.saturating_sub(seen.direct), seen.written),
            read: seen.read,
            requests: seen.requests,
            connections: seen.connections,
        });
        Status {
            server: status.server.0,
            version: status.version.clone(),
            pid: status.pid,
            uptime: status.uptime,
            store: status.store.clone(),
            incarnation: status.incarnation.to_string(),
            medium: status.medium.clone(),
            usage: status.usage.into(),
            region_size: status.region_size,
            regions: status.regions,
            connections: status.connections,
            sessions: status.sessions,
            opens: status.opens,
            waiting: status.waiting,
            recovery: status.recovery,
            damage: status.damage.clone(),
            standing: status.standing.clone(),
            lost,
            jobs: jobs.collect(),
            drain: status.drain.clone().map(Draining::from),
            route: status.route.clone().map(Routed::from),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = human::duration(Duration::from_secs(self.uptime));
        writeln!(f, "server {} (forebay {}, process {}), up {up}", self.server, self.version, self.pid)?;
        writeln!(f, "  store     {} ({})", self.store, self.medium)?;
        let usage = &self.usage;
        writeln!(
            f,
            "  buffer    {} of {} used ({}), {} live in {}",
            human::size(usage.used),
            human::size(usage.capacity),
            human::percent(usage.used, usage.capacity),
            human::size(usage.live),
            human::counted(usage.files, "entry").replace("entrys", "entries")
        )?;
        let RegionCounts { free, filling, sealed, draining, resting } = self.regions;
        writeln!(
            f,
            "  regions   {free} free, {filling} filling, {sealed} sealed, {draining} draining, {resting} resting; {} each",
            human::size(self.region_size)
        )?;
        writeln!(
            f,
            "  clients   {}, {}, {}, {} waiting",
            human::counted(u64::from(self.sessions), "session"),
            human::counted(u64::from(self.connections), "connection"),
            human::counted(self.opens, "open file"),
            human::counted(self.waiting, "request")
        )?;
        let recovered =
            recovered(&self.recovery).unwrap_or_else(|| "nothing to recover at the last start".to_owned());
        write!(f, "  recovery  {recovered}")?;
        match &self.standing {
            Standing::Joined => {}
            Standing::Waiting(whom) => write!(f, "\n  WAITS     for {whom}")?,
            Standing::Refused(why) => write!(f, "\n  REFUSED   {why}")?,
        }
        for sentence in &self.damage {
            write!(f, "\n  DAMAGE    {sentence}")?;
        }
        write!(f, "{}", self.lost)?;
        if let Some(route) = &self.route {
            write!(f, "\n{route}")?;
        }
        if let Some(drain) = &self.drain {
            write!(f, "\n{drain}")?;
        }
        self.jobs(f)
    }
}

impl Status {
    fn jobs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.jobs.is_empty() {
            return Ok(());
        }
        let head =
            ["job", "user", "group", "nodes", "written", "buffered", "read", "requests", "connections"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.jobs.iter().map(|job| {
            [
                job.label.clone(),
                job.user.clone(),
                job.group.clone(),
                job.nodes.to_string(),
                human::size(job.written),
                format!("{:.0} %", job.write_amplification * 100.0),
                human::size(job.read),
                human::count(job.requests),
                job.connections.to_string(),
            ]
        }));
        writeln!(f)?;
        writeln!(f)?;
        table(f, "lllrrrrrr", 2, &rows)
    }
}
