//! The batch job of a request.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest label of a job, user or group in a job's identity, in bytes.
pub const MAX_LABEL: usize = 64;

/// A job's id. Numeric labels keep their number, others get a hash of their label with the top bit set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl JobId {
    /// The id of a label such as `4711` or `alice@login3`.
    #[must_use]
    pub fn from_label(label: &str) -> JobId {
        match label.parse::<u64>() {
            Ok(number) if number >> 63 == 0 => JobId(number),
            _ => JobId(fnv1a(label.as_bytes()) | 1 << 63),
        }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A job as its client describes it in the handshake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The label the batch system gave it.
    pub label: String,
    /// The user it runs for.
    pub user: String,
    /// The group or account it is charged to.
    pub group: String,
    /// Its number of nodes.
    pub nodes: u32,
    /// Its priority; larger is more important.
    pub priority: u32,
}

impl Job {
    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        JobId::from_label(&self.label)
    }

    /// The error in this identity, if any.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        for (what, label) in [("label", &self.label), ("user", &self.user), ("group", &self.group)] {
            if label.is_empty() || label.len() > MAX_LABEL {
                return Some(format!("a job's {what} has 1 to {MAX_LABEL} bytes, not {}", label.len()));
            }
        }
        (self.nodes == 0).then(|| "a job has at least one node".to_owned())
    }
}
