//! `shares`: the share that a policy would give each job, computed without a service.

use crate::failure::{Failure, Outcome};
use crate::keys::{File, Name, Table};
use crate::view::{self, JobShare, ServerShares};
use crate::{output, policy};
use clap::Args;
use forebay_model::{Error, Job, JobId, MAX_LABEL, ServerId};
use forebay_policy::share::{MAX_JOBS, Policy, Presence, divide, outline, shares};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

/// Largest number of nodes, and highest priority, of a job.
const MOST: u32 = 1 << 20;

#[derive(Args)]
pub(crate) struct Shares {
    /// TOML file with a `job` table for each job: id, user, group, nodes, priority, servers
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Use this policy instead of the file's
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Most servers in a file.
const MOST_SERVERS: usize = 4096;

/// A job of the file.
struct Entry {
    id: Name,
    job: Job,
    /// `None` means all servers.
    servers: Option<Vec<String>>,
}

impl Shares {
    pub(crate) fn run(&self) -> Outcome {
        let text = std::fs::read_to_string(&self.file)
            .map_err(|error| Failure::local("read", &self.file, &error))?;
        let name = self.file.display().to_string();
        let file = File { name: &name, text: &text };
        let mut top = Table::top(&file).map_err(Failure::misread)?;
        let written = top.take("policy");
        let policy = match (&self.policy, written) {
            (Some(text), _) => policy::read("--policy", text)?,
            (None, Some(value)) => {
                let text = value.text().map_err(Failure::misread)?.to_owned();
                text.parse().map_err(|error| Failure::Pointed(value.wrong(error).to_string()))?
            }
            (None, None) => {
                return Err(Failure::misread(
                    top.missing("policy", "write one such as \"size-fair\", or give --policy"),
                ));
            }
        };
        let jobs = top.take("job").ok_or_else(|| {
            Failure::misread(top.missing("job", "write each job as a table headed [[job]]"))
        })?;
        let jobs = jobs.tables("job").map_err(Failure::misread)?;
        top.finish("policy, job").map_err(Failure::misread)?;
        let entries = read(jobs).map_err(Failure::misread)?;
        let servers: BTreeSet<&String> =
            entries.iter().flat_map(|entry| entry.servers.iter().flatten()).collect();
        if servers.len() > MOST_SERVERS {
            return Err(Failure::Usage(format!(
                "{name}: {} servers are more than {MOST_SERVERS}",
                servers.len()
            )));
        }
        output::show(&divided(&policy, &entries), self.json)
    }
}

fn read(tables: Vec<Table<'_>>) -> Result<Vec<Entry>, Error> {
    let mut seen: BTreeMap<JobId, Name> = BTreeMap::new();
    let mut entries = Vec::new();
    for mut table in tables {
        let id = table.take("id").ok_or_else(|| table.missing("id", "every job has one"))?;
        let name = id.name()?;
        let text = |value: Option<crate::keys::Value<'_>>| match value {
            None => Ok("-".to_owned()),
            Some(value) => match value.name()?.to_string() {
                text if text.is_empty() || text.len() > MAX_LABEL => {
                    Err(value.wrong(format!("a name has 1 to {MAX_LABEL} bytes, not {}", text.len())))
                }
                text => Ok(text),
            },
        };
        let number =
            |value: Option<crate::keys::Value<'_>>| value.map_or(Ok(1), |value| value.whole(1..=MOST));
        let job = Job {
            label: name.to_string(),
            user: text(table.take("user"))?,
            group: text(table.take("group"))?,
            nodes: number(table.take("nodes"))?,
            priority: number(table.take("priority"))?,
        };
        if let Some(fault) = job.fault() {
            return Err(id.wrong(fault));
        }
        let servers = match table.take("servers") {
            None => None,
            Some(value) => match value.texts()? {
                none if none.is_empty() => {
                    return Err(value.wrong("a job without a server gets nothing: name one"));
                }
                servers => Some(servers),
            },
        };
        if let Some(other) = seen.insert(job.id(), name.clone()) {
            return Err(id.wrong(format!("there is a job {other} already")));
        }
        if seen.len() > MAX_JOBS {
            return Err(id.wrong(format!("a server knows at most {MAX_JOBS} jobs")));
        }
        table.finish("id, user, group, nodes, priority, servers")?;
        entries.push(Entry { id: name, job, servers });
    }
    Ok(entries)
}

fn divided(policy: &Policy, entries: &[Entry]) -> view::Shares {
    let jobs: Vec<Job> = entries.iter().map(|entry| entry.job.clone()).collect();
    let names: BTreeSet<&String> =
        entries.iter().filter_map(|entry| entry.servers.as_ref()).flatten().collect();
    let numbers: BTreeMap<&String, ServerId> =
        names.iter().enumerate().map(|(i, &name)| (name, number(i))).collect();
    let (parts, servers) = match names.is_empty() {
        true => (shares(policy, &jobs), Vec::new()),
        false => {
            let all: Vec<ServerId> = numbers.values().copied().collect();
            let presence = |entry: &Entry| Presence {
                job: entry.job.clone(),
                servers: entry.servers.as_ref().map_or_else(
                    || all.clone(),
                    |servers| servers.iter().map(|name| numbers[name]).collect(),
                ),
            };
            let presences: Vec<Presence> = entries.iter().map(presence).collect();
            let capacities: Vec<(ServerId, f64)> = all.iter().map(|&server| (server, 1.0)).collect();
            let allotment = divide(policy, &capacities, &presences);
            let total: HashMap<JobId, f64> = allotment.jobs.into_iter().collect();
            let of = |entry: &Entry, shares: &HashMap<JobId, f64>| shares.get(&entry.job.id()).copied();
            let servers = names.iter().map(|&name| {
                let shares = allotment.servers.get(&numbers[name]).cloned().unwrap_or_default();
                let shares: HashMap<JobId, f64> = shares.into_iter().collect();
                let listed = entries.iter().filter_map(|entry| Some((entry.id.clone(), of(entry, &shares)?)));
                ServerShares { id: name.clone(), shares: listed.collect() }
            });
            let parts = entries.iter().map(|entry| of(entry, &total).unwrap_or(0.0)).collect();
            (parts, servers.collect())
        }
    };
    let listed = entries.iter().zip(parts).map(|(entry, share)| JobShare { id: entry.id.clone(), share });
    view::Shares {
        policy: policy.to_string(),
        jobs: listed.collect(),
        servers,
        tree: outline(policy, &jobs),
        is_fifo: policy.is_fifo(),
    }
}

fn number(index: usize) -> ServerId {
    ServerId(u16::try_from(index).unwrap_or(u16::MAX))
}
