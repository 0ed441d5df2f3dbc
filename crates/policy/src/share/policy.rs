//! The sharing policy: one line written by the administrator.

use super::parse::{PolicyError, parse};
use forebay_model::Job;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What one level of a policy divides capacity between.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Level {
    /// Groups, evenly.
    Group,
    /// Users, evenly.
    User,
    /// Jobs, evenly.
    Job,
    /// Jobs, by their number of nodes.
    Size,
    /// Jobs, by their priority.
    Priority,
}

impl Level {
    pub(super) const ALL: [Level; 5] = [Level::Group, Level::User, Level::Job, Level::Size, Level::Priority];

    /// Its word in a policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Level::Group => "group",
            Level::User => "user",
            Level::Job => "job",
            Level::Size => "size",
            Level::Priority => "priority",
        }
    }

    /// Whether it divides between jobs, so that no level can follow.
    #[must_use]
    pub fn is_leaf(self) -> bool {
        matches!(self, Level::Job | Level::Size | Level::Priority)
    }

    /// A job's weight against its siblings at this level; a value of zero counts as one.
    pub(super) fn weight(self, job: &Job) -> f64 {
        match self {
            Level::Group | Level::User | Level::Job => 1.0,
            Level::Size => f64::from(job.nodes.max(1)),
            Level::Priority => f64::from(job.priority.max(1)),
        }
    }
}

/// How a server's work is shared: `fifo`, or levels from the top down such as
/// `group-then-user-then-size-fair`.
///
/// Parses every name of the papers (`then` may be omitted), prints the canonical one.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Policy {
    /// Empty for `fifo`. Each level occurs at most once, and a leaf only at the end.
    levels: Vec<Level>,
}

impl Policy {
    /// First come, first served.
    pub const FIFO: Policy = Policy { levels: Vec::new() };

    pub(super) fn new(levels: Vec<Level>) -> Policy {
        Policy { levels }
    }

    /// Whether requests are served in order of arrival.
    #[must_use]
    pub fn is_fifo(&self) -> bool {
        self.levels.is_empty()
    }

    /// The levels, from the top down.
    #[must_use]
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// The levels above jobs.
    pub(super) fn inner(&self) -> impl Iterator<Item = Level> + '_ {
        self.levels.iter().copied().filter(|level| !level.is_leaf())
    }

    /// How capacity is divided between the jobs at the bottom: evenly unless the policy names a leaf level.
    pub(super) fn leaf(&self) -> Level {
        self.levels.last().copied().filter(|level| level.is_leaf()).unwrap_or(Level::Job)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fifo() {
            return f.write_str("fifo");
        }
        for (i, level) in self.levels.iter().enumerate() {
            let joint = if i == 0 { "" } else { "-then-" };
            write!(f, "{joint}{}", level.word())?;
        }
        f.write_str("-fair")
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        parse(text)
    }
}

impl TryFrom<String> for Policy {
    type Error = PolicyError;

    fn try_from(text: String) -> Result<Policy, PolicyError> {
        parse(&text)
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> String {
        policy.to_string()
    }
}
