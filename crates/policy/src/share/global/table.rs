//! Job tables of the servers, and the checks before a table is accepted.

use super::super::cost::Tick;
use forebay_model::{Job, JobId, ServerId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// Most jobs in one server's table.
pub const MAX_TABLE: usize = 16_384;

/// Most nodes of a job; no machine has more.
const MAX_NODES: u32 = 1 << 20;

/// The jobs that are active on one server, as it sends them to its peers.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// The server.
    pub server: ServerId,
    /// Version of the table: larger is newer. A server starts at its start time in nanoseconds, so that
    /// versions keep increasing across a restart.
    pub version: u64,
    /// Throughput of the server, in any unit that all servers use; 1.0 if unknown.
    pub capacity: f64,
    /// The jobs, each once.
    pub jobs: Vec<Job>,
}

/// A job and the servers on which it is active.
#[derive(Clone, PartialEq, Debug)]
pub struct Presence {
    /// The job.
    pub job: Job,
    /// The servers, in order.
    pub servers: Vec<ServerId>,
}

/// Why a table was ignored.
#[derive(Clone, PartialEq, Debug)]
pub enum Ignored {
    /// The sender is not a member.
    Stranger(ServerId),
    /// A table at least as new is known already.
    Old {
        /// The version of the ignored table.
        version: u64,
        /// The version that is known.
        known: u64,
    },
    /// It has more than [`MAX_TABLE`] jobs.
    Large(usize),
    /// Its capacity is not a positive number.
    Capacity(f64),
    /// It lists a job twice.
    Twice(JobId),
    /// A job's description is impossible.
    Absurd {
        /// The job.
        job: JobId,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ignored::Stranger(server) => write!(f, "server {server} is not a member"),
            Ignored::Old { version, known } => write!(f, "version {version} is not newer than {known}"),
            Ignored::Large(jobs) => write!(f, "{jobs} jobs are more than the {MAX_TABLE} a table may have"),
            Ignored::Capacity(capacity) => write!(f, "a server's capacity cannot be {capacity}"),
            Ignored::Twice(job) => write!(f, "job {job} is in it twice"),
            Ignored::Absurd { job, why } => write!(f, "job {job}: {why}"),
        }
    }
}

/// The newest accepted table of every member.
#[derive(Debug)]
pub struct Peers {
    members: HashSet<ServerId>,
    max_age: Tick,
    tables: BTreeMap<ServerId, (Table, Tick)>,
}

impl Peers {
    /// Tables of these servers count for `max_age` (a few λ) after they arrive.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = ServerId>, max_age: Tick) -> Peers {
        Peers { members: members.into_iter().collect(), max_age, tables: BTreeMap::new() }
    }

    /// Adds a member.
    pub fn admit(&mut self, server: ServerId) {
        self.members.insert(server);
    }

    /// Whether tables of this server are accepted.
    #[must_use]
    pub fn is_member(&self, server: ServerId) -> bool {
        self.members.contains(&server)
    }

    /// Accepts a table, possibly this server's own. On an error the previous table stays.
    pub fn offer(&mut self, table: Table, now: Tick) -> Result<(), Ignored> {
        if !self.members.contains(&table.server) {
            return Err(Ignored::Stranger(table.server));
        }
        if let Some((known, _)) = self.tables.get(&table.server)
            && table.version <= known.version
        {
            return Err(Ignored::Old { version: table.version, known: known.version });
        }
        check(&table)?;
        self.tables.insert(table.server, (table, now));
        Ok(())
    }

    /// The members whose tables count now, with their capacities.
    #[must_use]
    pub fn capacities(&self, now: Tick) -> Vec<(ServerId, f64)> {
        self.current(now).map(|table| (table.server, table.capacity)).collect()
    }

    /// All jobs of the tables that count now, by job id. Where servers describe a job differently, the fewest
    /// nodes and the lowest priority count: a false description on one server gains nothing.
    #[must_use]
    pub fn jobs(&self, now: Tick) -> Vec<Presence> {
        let mut found: HashMap<JobId, Presence> = HashMap::new();
        for table in self.current(now) {
            for job in &table.jobs {
                let entry = found
                    .entry(job.id())
                    .or_insert_with(|| Presence { job: job.clone(), servers: Vec::new() });
                entry.servers.push(table.server);
                let key = |job: &Job| (job.nodes, job.priority, job.user.clone(), job.group.clone());
                if key(job) < key(&entry.job) {
                    entry.job = job.clone();
                }
            }
        }
        let mut all: Vec<Presence> = found.into_values().collect();
        all.sort_by_key(|presence| presence.job.id());
        all
    }

    fn current(&self, now: Tick) -> impl Iterator<Item = &Table> {
        let fresh = move |came: Tick| now.since(came) <= self.max_age;
        self.tables.values().filter(move |(_, came)| fresh(*came)).map(|(table, _)| table)
    }
}

fn check(table: &Table) -> Result<(), Ignored> {
    if table.jobs.len() > MAX_TABLE {
        return Err(Ignored::Large(table.jobs.len()));
    }
    if !(table.capacity > 0.0 && table.capacity < 1e18) {
        return Err(Ignored::Capacity(table.capacity));
    }
    let mut seen = HashSet::new();
    for job in &table.jobs {
        let id = job.id();
        if !seen.insert(id) {
            return Err(Ignored::Twice(id));
        }
        let large = || format!("no machine has {} nodes", job.nodes);
        if let Some(why) = job.fault().or_else(|| (job.nodes > MAX_NODES).then(large)) {
            return Err(Ignored::Absurd { job: id, why });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, nodes: u32) -> Job {
        Job { label: id.to_string(), user: "u".into(), group: "g".into(), nodes, priority: 1 }
    }

    fn table(server: u16, version: u64, jobs: &[(u64, u32)]) -> Table {
        let jobs = jobs.iter().map(|&(id, nodes)| job(id, nodes)).collect();
        Table { server: ServerId(server), version, capacity: 1.0, jobs }
    }

    fn peers() -> Peers {
        Peers::new([ServerId(1), ServerId(2)], Tick::ms(1_500))
    }

    #[test]
    fn impossible_job_tables_are_ignored_with_a_reason() {
        let mut peers = peers();
        peers.offer(table(1, 10, &[(1, 4)]), Tick(0)).unwrap();
        let capacity = |capacity| Table { capacity, ..table(1, 11, &[]) };
        let many: Vec<(u64, u32)> = (0..=MAX_TABLE as u64).map(|id| (id, 1)).collect();
        for (bad, says) in [
            (table(3, 11, &[]), "server 3 is not a member"),
            (table(1, 10, &[]), "version 10 is not newer than 10"),
            (table(1, 9, &[]), "version 9 is not newer than 10"),
            (table(1, 11, &many), "16385 jobs are more"),
            (capacity(-1.0), "capacity cannot be -1"),
            (capacity(0.0), "capacity cannot be 0"),
            (capacity(f64::NAN), "capacity cannot be NaN"),
            (capacity(f64::INFINITY), "capacity cannot be inf"),
            (table(1, 11, &[(5, 1), (5, 2)]), "job 5 is in it twice"),
            (table(1, 11, &[(5, 0)]), "job 5: a job has at least one node"),
            (table(1, 11, &[(5, u32::MAX)]), "job 5: no machine has 4294967295 nodes"),
            (
                Table { jobs: vec![Job { user: String::new(), ..job(5, 1) }], ..table(1, 11, &[]) },
                "job 5: a job's user",
            ),
        ] {
            let why = peers.offer(bad, Tick(0)).expect_err(says).to_string();
            assert!(why.contains(says), "wanted {says}, got {why}");
        }
        assert_eq!(peers.jobs(Tick(0)), [Presence { job: job(1, 4), servers: vec![ServerId(1)] }]);
    }

    #[test]
    fn lost_peer_ages_out_and_smallest_job_description_counts() {
        let mut peers = peers();
        peers.offer(table(1, 1, &[(1, 64), (2, 8)]), Tick(0)).unwrap();
        peers.offer(table(2, 7, &[(1, 16)]), Tick::ms(1_000)).unwrap();
        let both = vec![ServerId(1), ServerId(2)];
        assert_eq!(peers.jobs(Tick::ms(1_000))[0], Presence { job: job(1, 16), servers: both });
        assert_eq!(peers.jobs(Tick::ms(1_600)), [Presence { job: job(1, 16), servers: vec![ServerId(2)] }]);
        assert_eq!(peers.capacities(Tick::ms(1_600)), [(ServerId(2), 1.0)]);
        assert!(peers.jobs(Tick::ms(2_501)).is_empty());
    }
}
