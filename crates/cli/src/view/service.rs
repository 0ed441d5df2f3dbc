//! The whole service: status and usage.

use super::drain::Draining;
use super::route::{Routed, amplification};
use super::started::recovered;
use super::{LostList, table};
use crate::human;
use forebay_wire::{RecoverySummary, RegionCounts, Standing};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Fill level of the buffer.
#[derive(Serialize)]
pub(crate) struct Usage {
    pub(super) capacity: u64,
    pub(super) used: u64,
    free: u64,
    pub(super) live: u64,
    pub(super) files: u64,
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

/// The state of a server.
#[derive(Serialize)]
pub(crate) struct Status {
    server: u16,
    version: String,
    pub(super) pid: u32,
    pub(super) uptime: u64,
    store: String,
    incarnation: String,
    medium: String,
    pub(super) usage: Usage,
    region_size: u64,
    regions: RegionCounts,
    connections: u32,
    pub(super) sessions: u32,
    pub(super) opens: u64,
    waiting: u64,
    recovery: RecoverySummary,
    pub(super) damage: Vec<String>,
    pub(super) standing: Standing,
    #[serde(flatten)]
    lost: LostList,
    pub(super) jobs: Vec<Job>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) drain: Option<Draining>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<Routed>,
}

#[derive(Serialize)]
pub(super) struct Job {
    pub(super) label: String,
    pub(super) user: String,
    pub(super) group: String,
    nodes: u32,
    priority: u32,
    pub(super) written: u64,
    /// Of the written bytes, those that bypassed the buffer.
    direct: u64,
    /// Bytes buffered per byte written.
    write_amplification: f64,
    pub(super) read: u64,
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
            drain: status.drain.clone().map(|drain| Draining::new(drain, status.usage.live)),
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
        self.standing(f)?;
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
    /// All faults, each on its own line that begins with a newline.
    pub(super) fn troubles(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.standing(f)?;
        self.drain.as_ref().map_or(Ok(()), |drain| drain.troubles(f))
    }

    fn standing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.standing {
            Standing::Joined => {}
            Standing::Waiting(whom) => write!(f, "\n  WAITS     for {whom}")?,
            Standing::Refused(why) => write!(f, "\n  REFUSED   {why}")?,
        }
        for sentence in &self.damage {
            write!(f, "\n  DAMAGE    {sentence}")?;
        }
        write!(f, "{}", self.lost)
    }

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
