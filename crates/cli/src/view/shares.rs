//! The shares that a policy would give jobs.

use crate::keys::Name;
use forebay_policy::share::Line;
use serde::{Serialize, Serializer};
use std::fmt;

/// Shares of jobs in all servers and in each server.
#[derive(Serialize)]
pub(crate) struct Shares {
    pub(crate) policy: String,
    pub(crate) jobs: Vec<JobShare>,
    pub(crate) servers: Vec<ServerShares>,
    /// The same as a tree.
    #[serde(skip)]
    pub(crate) tree: Vec<Line>,
    #[serde(skip)]
    pub(crate) is_fifo: bool,
}

#[derive(Serialize)]
pub(crate) struct JobShare {
    pub(crate) id: Name,
    pub(crate) share: f64,
}

#[derive(Serialize)]
pub(crate) struct ServerShares {
    pub(crate) id: String,
    #[serde(serialize_with = "as_map")]
    pub(crate) shares: Vec<(Name, f64)>,
}

fn as_map<S: Serializer>(shares: &[(Name, f64)], out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(shares.iter().map(|(name, share)| (name.to_string(), share)))
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        if self.is_fifo {
            write!(f, " promises no shares; evenly shared, they would be")?;
        }
        let names = branches(&self.tree);
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        for (name, line) in names.iter().zip(&self.tree) {
            write!(f, "\n{name:<width$}  {:>7.2} %", line.share * 100.0)?;
        }
        if self.servers.is_empty() {
            return Ok(());
        }
        let width = self.jobs.iter().map(|job| job.id.to_string().chars().count()).max().unwrap_or(0);
        write!(f, "\n\nof all servers together")?;
        for job in &self.jobs {
            write!(f, "\n  job {:<width$}  {:>7.2} %", job.id.to_string(), job.share * 100.0)?;
        }
        for server in &self.servers {
            write!(f, "\nof server {}", server.id)?;
            for (name, share) in &server.shares {
                write!(f, "\n  job {:<width$}  {:>7.2} %", name.to_string(), share * 100.0)?;
            }
        }
        Ok(())
    }
}

/// The names of a tree with the lines that connect them.
fn branches(tree: &[Line]) -> Vec<String> {
    let last = |at: usize, depth: usize| {
        let below = tree[at + 1..].iter().take_while(|line| line.depth >= depth);
        !below.into_iter().any(|line| line.depth == depth)
    };
    let mut open: Vec<bool> = Vec::new();
    let draw = |(at, line): (usize, &Line)| {
        open.truncate(line.depth);
        let mut text: String = open.iter().map(|&goes_on| if goes_on { "│  " } else { "   " }).collect();
        let ends = last(at, line.depth);
        text.push_str(if ends { "└─ " } else { "├─ " });
        open.push(!ends);
        text + &line.name
    };
    tree.iter().enumerate().map(draw).collect()
}
