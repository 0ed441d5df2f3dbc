//! The jobs that share a service.

use super::route::amplification;
use super::table;
use crate::human;
use forebay_wire::JobState;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// All jobs of a server, active ones first.
#[derive(Serialize)]
pub(crate) struct JobTable {
    policy: String,
    scheduler: String,
    jobs: Vec<Job>,
}

#[derive(Serialize)]
struct Job {
    label: String,
    state: &'static str,
    user: String,
    group: String,
    nodes: u32,
    priority: u32,
    /// Its share of this server under the policy.
    share: f64,
    /// Bytes per second, in the last full second.
    throughput: u64,
    written: u64,
    /// Of the written bytes, those that bypassed the buffer.
    direct: u64,
    /// Bytes buffered per byte written.
    write_amplification: f64,
    read: u64,
    operations: u64,
    waiting: u32,
    /// Seconds that an operation waited for its turn, on average.
    mean_wait: f64,
    connections: u32,
}

impl JobTable {
    pub(crate) fn new(status: &forebay_wire::Status, sharing: &forebay_wire::Sharing) -> JobTable {
        let mut seen: Vec<_> = status.jobs.iter().collect();
        let rank = |state| match state {
            JobState::Active => 0,
            JobState::Idle => 1,
            JobState::Gone => 2,
        };
        seen.sort_by_key(|job| (rank(job.state), u32::MAX - job.share, job.id));
        let jobs = seen.into_iter().map(|seen| Job {
            label: seen.job.label.clone(),
            state: word(seen.state),
            user: seen.job.user.clone(),
            group: seen.job.group.clone(),
            nodes: seen.job.nodes,
            priority: seen.job.priority,
            share: f64::from(seen.share) / 1e6,
            throughput: seen.recent,
            written: seen.written,
            direct: seen.direct,
            write_amplification: amplification(seen.written.saturating_sub(seen.direct), seen.written),
            read: seen.read,
            operations: seen.operations,
            waiting: seen.waiting,
            mean_wait: seen.waited as f64 / 1e9 / seen.operations.max(1) as f64,
            connections: seen.connections,
        });
        JobTable {
            policy: sharing.policy.clone(),
            scheduler: sharing.scheduler.clone(),
            jobs: jobs.collect(),
        }
    }
}

fn word(state: JobState) -> &'static str {
    match state {
        JobState::Active => "active",
        JobState::Idle => "idle",
        JobState::Gone => "gone",
    }
}

impl fmt::Display for JobTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, enforced by {}", self.policy, self.scheduler)?;
        let head = [
            "job",
            "state",
            "user",
            "group",
            "nodes",
            "share",
            "now",
            "moved",
            "amplification",
            "operations",
            "waiting",
            "mean wait",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.jobs.iter().map(|job| {
            let share =
                if job.state == "active" { format!("{:.1} %", job.share * 100.0) } else { "–".to_owned() };
            [
                job.label.clone(),
                job.state.to_owned(),
                job.user.clone(),
                job.group.clone(),
                job.nodes.to_string(),
                share,
                format!("{}/s", human::size(job.throughput)),
                human::size(job.written + job.read),
                if job.written == 0 { "–".to_owned() } else { format!("{:.2}", job.write_amplification) },
                human::count(job.operations),
                job.waiting.to_string(),
                human::duration(Duration::from_secs_f64(job.mean_wait)),
            ]
        }));
        table(f, "llllrrrrrrrr", 0, &rows)
    }
}
