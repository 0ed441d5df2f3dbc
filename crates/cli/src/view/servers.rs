//! All servers of a service: a row for each, their totals, and all faults.

use super::service::Status;
use super::table;
use crate::human;
use forebay_model::{Result, ServerId};
use forebay_wire::Standing;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Maximum number of jobs shown: with three servers everything fits on a screen of 24 lines.
const MOST_JOBS: usize = 8;

/// The state of all servers of a service.
#[derive(Serialize)]
pub(crate) struct Servers {
    servers: Vec<Server>,
    totals: Totals,
    /// Whether each server is shown separately.
    #[serde(skip)]
    long: bool,
}

#[derive(Serialize)]
struct Server {
    server: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

/// Sums over the servers that answer.
#[derive(Default, Serialize)]
struct Totals {
    capacity: u64,
    used: u64,
    live: u64,
    files: u64,
    sessions: u64,
    opens: u64,
    /// Bytes that are only in the buffer; absent without a back end.
    #[serde(skip_serializing_if = "Option::is_none")]
    undrained: Option<u64>,
    /// Servers that do not answer.
    away: u64,
}

impl Servers {
    pub(crate) fn new(all: Vec<(ServerId, Result<Status>)>, long: bool) -> Servers {
        let one = |(server, answer): (ServerId, Result<Status>)| match answer {
            Ok(status) => Server { server: server.0, status: Some(status), trouble: None },
            Err(error) => Server { server: server.0, status: None, trouble: Some(error.to_string()) },
        };
        let servers: Vec<Server> = all.into_iter().map(one).collect();
        let mut totals = Totals::default();
        for server in &servers {
            let Some(status) = &server.status else {
                totals.away += 1;
                continue;
            };
            totals.capacity += status.usage.capacity;
            totals.used += status.usage.used;
            totals.live += status.usage.live;
            totals.files += status.usage.files;
            totals.sessions += u64::from(status.sessions);
            totals.opens += status.opens;
            if let Some(drain) = &status.drain {
                totals.undrained = Some(totals.undrained.unwrap_or(0) + drain.undrained().unwrap_or(0));
            }
        }
        Servers { servers, totals, long }
    }

    /// The servers that do not answer, and why.
    pub(crate) fn away(&self) -> Vec<String> {
        let away = self.servers.iter().filter(|server| server.status.is_none());
        away.map(|Server { server, trouble, .. }| {
            format!("server {server} does not answer: {}", trouble.as_deref().unwrap_or_default())
        })
        .collect()
    }

    fn at_length(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    fn rows(&self) -> Vec<[String; 9]> {
        let head = ["server", "process", "up", "used", "of", "live", "undrained", "clients", "state"];
        let mut rows = vec![head.map(str::to_owned)];
        let undrained = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), human::size);
        rows.extend(self.servers.iter().map(|Server { server, status, .. }| match status {
            Some(status) => [
                server.to_string(),
                status.pid.to_string(),
                human::duration(Duration::from_secs(status.uptime)),
                human::size(status.usage.used),
                human::size(status.usage.capacity),
                human::size(status.usage.live),
                undrained(status.drain.as_ref().and_then(super::drain::Draining::undrained)),
                status.sessions.to_string(),
                state(status).to_owned(),
            ],
            None => {
                let mut row = ["-"; 9].map(str::to_owned);
                (row[0], row[8]) = (server.to_string(), "AWAY".to_owned());
                row
            }
        }));
        let totals = &self.totals;
        rows.push([
            "all".to_owned(),
            String::new(),
            String::new(),
            human::size(totals.used),
            human::size(totals.capacity),
            human::size(totals.live),
            undrained(totals.undrained),
            totals.sessions.to_string(),
            human::percent(totals.used, totals.capacity),
        ]);
        rows
    }

    /// Bytes that jobs moved on all servers together, the busiest first.
    fn jobs(&self) -> Vec<[String; 5]> {
        let mut sums: BTreeMap<(&str, &str, &str), (u64, u64)> = BTreeMap::new();
        for job in self.servers.iter().filter_map(|server| server.status.as_ref()).flat_map(|s| &s.jobs) {
            let sum = sums.entry((&job.label, &job.user, &job.group)).or_default();
            *sum = (sum.0 + job.written, sum.1 + job.read);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, (written, read))| std::cmp::Reverse(written + read));
        let row = |((label, user, group), (written, read)): ((&str, &str, &str), (u64, u64))| {
            [label.to_owned(), user.to_owned(), group.to_owned(), human::size(written), human::size(read)]
        };
        let more = sums.len().saturating_sub(MOST_JOBS);
        let mut rows = vec![["job", "user", "group", "written", "read"].map(str::to_owned)];
        rows.extend(sums.into_iter().take(MOST_JOBS).map(row));
        if more > 0 {
            let text = format!("and {more} more: forebay jobs");
            rows.push([text, String::new(), String::new(), String::new(), String::new()]);
        }
        rows
    }
}

fn state(status: &Status) -> &'static str {
    match &status.standing {
        Standing::Joined if !status.damage.is_empty() => "DAMAGE",
        Standing::Joined => "joined",
        Standing::Waiting(_) => "WAITS",
        Standing::Refused(_) => "REFUSED",
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.long {
            return self.at_length(f);
        }
        let Totals { files, opens, .. } = self.totals;
        writeln!(
            f,
            "{} servers, {}, {}; \"forebay status --long\" shows each",
            self.servers.len(),
            human::plural(files, "entry", "entries"),
            human::counted(opens, "open file")
        )?;
        table(f, "rrrrrrrrl", 2, &self.rows())?;
        for Server { server, status, trouble } in &self.servers {
            match status {
                Some(status) => status.troubles(f)?,
                None => {
                    write!(f, "\n  AWAY      server {server}: {}", trouble.as_deref().unwrap_or_default())?;
                }
            }
        }
        let jobs = self.jobs();
        if jobs.len() > 1 {
            write!(f, "\n\n")?;
            table(f, "lllrr", 2, &jobs)?;
        }
        Ok(())
    }
}
