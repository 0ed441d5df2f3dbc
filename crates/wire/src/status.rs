//! Status reports of servers, to users and to other servers.

use crate::drain::DrainStatus;
use forebay_model::{Incarnation, Job, JobId, ServerId, Stamp, Usage};
use serde::{Deserialize, Serialize};

/// A part of a server's job table, which it sends to the other servers. A table may be too long for one frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// The server.
    pub server: ServerId,
    /// Version of the table: larger is newer.
    pub version: u64,
    /// Estimated capacity of the server, in bytes per second.
    pub capacity: u64,
    /// Its current policy.
    pub policy: String,
    /// When that policy was set; 0 if it comes from the configuration. The latest one applies on all servers.
    pub policy_set: Stamp,
    /// Index of this part, from 0.
    pub part: u16,
    /// Number of parts.
    pub parts: u16,
    /// The active jobs of this part.
    pub jobs: Vec<Job>,
}

/// How a service is shared among jobs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sharing {
    /// The policy.
    pub policy: String,
    /// When it was set; 0 if it comes from the configuration.
    pub policy_set: Stamp,
    /// The scheduler that enforces it.
    pub scheduler: String,
    /// Rate of the modelled device in bytes per second; 0 without a model.
    pub device_rate: u64,
    /// Interval at which servers exchange their job tables, in milliseconds.
    pub lambda_millis: u64,
    /// The other servers.
    pub peers: Vec<PeerStatus>,
}

/// Another server, as this server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The address.
    pub address: String,
    /// Its id, once known.
    pub server: Option<ServerId>,
    /// The current problem with it, if any.
    pub trouble: Option<String>,
    /// Whether it is known to use the same policy.
    pub agrees: bool,
}

/// Bytes of one job in one second.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the Unix epoch.
    pub second: u64,
    /// The label of the job.
    pub label: String,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
}

/// State of a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The server.
    pub server: ServerId,
    /// Program version.
    pub version: String,
    /// Incarnation of its store.
    pub incarnation: Incarnation,
    /// Process id.
    pub pid: u32,
    /// Seconds since it began to serve.
    pub uptime: u64,
    /// The directory of its store.
    pub store: String,
    /// Medium of the regions: `tmpfs, huge pages`, `tmpfs`, `disk`.
    pub medium: String,
    /// Capacity and usage.
    pub usage: Usage,
    /// Size of a region in bytes.
    pub region_size: u64,
    /// Regions by state.
    pub regions: RegionCounts,
    /// Number of open connections.
    pub connections: u32,
    /// Clients with a session.
    pub sessions: u32,
    /// Open files.
    pub opens: u64,
    /// Number of requests waiting for the scheduler.
    pub waiting: u64,
    /// Result of the recovery at the start of the server.
    pub recovery: RecoverySummary,
    /// Corruption found since the start: one sentence each.
    pub damage: Vec<String>,
    /// Its membership in the service.
    pub standing: Standing,
    /// Jobs seen, busiest first.
    pub jobs: Vec<JobStatus>,
    /// State of the drain, if there is a back end.
    pub drain: Option<DrainStatus>,
    /// Buffered and direct writes, if there is a back end.
    pub route: Option<RouteStatus>,
}

/// A server's membership in its service, as it sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// It is a member and serves requests.
    Joined,
    /// It waits for servers that must confirm it; names them.
    Waiting(String),
    /// Other servers refuse it, with the reason.
    Refused(String),
}

/// Number of regions in each state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RegionCounts {
    /// Empty.
    pub free: u32,
    /// Being written.
    pub filling: u32,
    /// Full.
    pub sealed: u32,
    /// Being drained.
    pub draining: u32,
    /// Empty, but retained until the replacing data is durable or the readers are done.
    pub resting: u32,
}

/// Result of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RecoverySummary {
    /// Number of replayed records.
    pub records: u64,
    /// Bytes of live file data.
    pub live_bytes: u64,
    /// Number of torn records, which were dropped.
    pub torn: u64,
    /// Number of records older than a truncation or deletion.
    pub superseded: u64,
    /// Whether the machine had crashed, in which case payload checksums were verified.
    pub machine_crash: bool,
    /// Whether the last shutdown was clean.
    pub clean: bool,
    /// Duration in milliseconds.
    pub millis: u64,
}

/// A job, as a server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobStatus {
    /// The id.
    pub id: JobId,
    /// The job.
    pub job: Job,
    /// Bytes written.
    pub written: u64,
    /// Of these, bytes written directly, bypassing the buffer.
    pub direct: u64,
    /// Bytes read.
    pub read: u64,
    /// Number of requests of all kinds.
    pub requests: u64,
    /// Time of its last request.
    pub seen: Stamp,
    /// Number of open connections.
    pub connections: u32,
    /// The state.
    pub state: JobState,
    /// Number of scheduling turns: one per operation, and one more for every further slice of a large one.
    pub operations: u64,
    /// Total nanoseconds that its requests waited for their turns.
    pub waited: u64,
    /// Number of requests that wait now.
    pub waiting: u32,
    /// Its current share of this server, in millionths.
    pub share: u32,
    /// Bytes moved in the last full second.
    pub recent: u64,
}

/// Buffered and direct writes since the server started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RouteStatus {
    /// The write route.
    pub mode: String,
    /// Whether the drain runs while writes arrive.
    pub pipeline: bool,
    /// Whether a write that finds no space bypasses the buffer; otherwise it waits.
    pub bypass: bool,
    /// Bytes that were buffered.
    pub buffered: u64,
    /// Bytes written directly, bypassing the buffer.
    pub direct: u64,
    /// How often a writer waited for buffer space.
    pub waits: u64,
    /// Total nanoseconds of these waits.
    pub waited: u64,
    /// Jobs whose writers wait for space now, with the number of these writers.
    pub waiting: Vec<(String, u32)>,
    /// Nanoseconds spent on routing decisions.
    pub decided: u64,
    /// Nanoseconds spent on the buffer's index and on ordering the drain.
    pub indexed: u64,
    /// Number of extents in the index.
    pub extents: u64,
    /// Maximum size of the index in bytes.
    pub index: u64,
}

/// Activity of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobState {
    /// It has sent requests lately, or has requests waiting.
    Active,
    /// It is connected.
    Idle,
    /// Its last connection is closed.
    Gone,
}
