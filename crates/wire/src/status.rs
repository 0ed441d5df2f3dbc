//! What servers say about themselves, to people and to each other.

use crate::drain::DrainStatus;
use forebay_model::{Incarnation, Job, JobId, ServerId, Stamp, Usage};
use serde::{Deserialize, Serialize};

/// Jobs of one server, as it tells the others: a part of its table, which may be too long for one frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// The server.
    pub server: ServerId,
    /// Which of its tables this belongs to: larger is newer.
    pub version: u64,
    /// Bytes a second that it is believed to serve.
    pub capacity: u64,
    /// The policy it follows.
    pub policy: String,
    /// When that policy was set; 0 if it is the one of its configuration. The latest counts everywhere.
    pub policy_set: Stamp,
    /// Which part of the table, from 0.
    pub part: u16,
    /// Of how many.
    pub parts: u16,
    /// The jobs of this part that are active on it.
    pub jobs: Vec<Job>,
}

/// How a service is shared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sharing {
    /// The policy.
    pub policy: String,
    /// When it was set; 0 if it is the one of the configuration.
    pub policy_set: Stamp,
    /// What enforces it.
    pub scheduler: String,
    /// Bytes a second of the modelled device; 0 where there is none.
    pub device_rate: u64,
    /// How often servers tell each other of their jobs, in milliseconds.
    pub lambda_millis: u64,
    /// The other servers.
    pub peers: Vec<PeerStatus>,
}

/// Another server, as a server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Where it is.
    pub address: String,
    /// Its number, once it was met.
    pub server: Option<ServerId>,
    /// What is wrong with it now, if something is.
    pub trouble: Option<String>,
    /// Whether it is known to follow the same policy.
    pub agrees: bool,
}

/// What one job did in one second.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Which second, since the Unix epoch.
    pub second: u64,
    /// The job's label.
    pub label: String,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
}

/// What a server is doing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Which server.
    pub server: ServerId,
    /// Version of the program.
    pub version: String,
    /// Which life of its store.
    pub incarnation: Incarnation,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started to serve.
    pub uptime: u64,
    /// The directory of its store.
    pub store: String,
    /// What holds the regions: `tmpfs, huge pages`, `tmpfs`, `disk`.
    pub medium: String,
    /// How full it is.
    pub usage: Usage,
    /// Bytes in one region.
    pub region_size: u64,
    /// Regions by state.
    pub regions: RegionCounts,
    /// Connections now open.
    pub connections: u32,
    /// Clients with a session.
    pub sessions: u32,
    /// Open files.
    pub opens: u64,
    /// Requests that wait for their turn.
    pub waiting: u64,
    /// What recovery found when the server started.
    pub recovery: RecoverySummary,
    /// Damage found since: one sentence each.
    pub damage: Vec<String>,
    /// Its place in the service.
    pub standing: Standing,
    /// Jobs seen, busiest first.
    pub jobs: Vec<JobStatus>,
    /// What leaves for the back end, where there is one.
    pub drain: Option<DrainStatus>,
    /// What was buffered and what went past the buffer, where there is a back end.
    pub route: Option<RouteStatus>,
}

/// A server's place in its service, as it sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// It serves.
    Joined,
    /// It waits for the servers that have to confirm it: what it waits for.
    Waiting(String),
    /// Others do not let it in: why.
    Refused(String),
}

/// How many regions are in which state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RegionCounts {
    /// Empty.
    pub free: u32,
    /// Being written.
    pub filling: u32,
    /// Full.
    pub sealed: u32,
    /// Being emptied.
    pub draining: u32,
    /// Empty, but kept until what replaced them is durable or their readers are done.
    pub resting: u32,
}

/// What recovery found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RecoverySummary {
    /// Records that were replayed.
    pub records: u64,
    /// Bytes of files that are live.
    pub live_bytes: u64,
    /// Records that were torn and dropped.
    pub torn: u64,
    /// Records older than a truncation or deletion.
    pub superseded: u64,
    /// Whether the machine had crashed, so that payloads were checked first.
    pub machine_crash: bool,
    /// Whether the server had been stopped in order.
    pub clean: bool,
    /// Milliseconds it took.
    pub millis: u64,
}

/// A job as a server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its number.
    pub id: JobId,
    /// Who it is.
    pub job: Job,
    /// Bytes written.
    pub written: u64,
    /// Of these, bytes that went past the buffer.
    pub direct: u64,
    /// Bytes read.
    pub read: u64,
    /// Requests of every kind.
    pub requests: u64,
    /// When it was last heard of.
    pub seen: Stamp,
    /// Connections it has now.
    pub connections: u32,
    /// Whether it works.
    pub state: JobState,
    /// Turns it had: one for every operation, and one more for every further slice of a large one.
    pub operations: u64,
    /// Nanoseconds that its requests waited for their turns, all together.
    pub waited: u64,
    /// Requests of it that wait now.
    pub waiting: u32,
    /// What it is due of this server as things are, in millionths.
    pub share: u32,
    /// Bytes it moved in the last full second.
    pub recent: u64,
}

/// What was buffered and what went past the buffer, since the server started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RouteStatus {
    /// Which writes are buffered.
    pub mode: String,
    /// Whether data leaves while more comes.
    pub pipeline: bool,
    /// Whether a write that finds no room goes past the buffer; otherwise it waits.
    pub bypass: bool,
    /// Bytes that were buffered.
    pub buffered: u64,
    /// Bytes that went past the buffer.
    pub direct: u64,
    /// How often a writer waited for room.
    pub waits: u64,
    /// For how many nanoseconds, all together.
    pub waited: u64,
    /// The jobs whose writers wait for room now, and how many of those.
    pub waiting: Vec<(String, u32)>,
    /// Nanoseconds that went into deciding which way writes go.
    pub decided: u64,
    /// Nanoseconds that went into the index of what is here, and into putting in order what leaves.
    pub indexed: u64,
    /// Pieces of files in regions that the index knows.
    pub extents: u64,
    /// Bytes that the index takes for them, at most.
    pub index: u64,
}

/// Whether a job works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobState {
    /// It has asked for something lately, or waits.
    Active,
    /// It is connected.
    Idle,
    /// Its last connection has ended.
    Gone,
}
