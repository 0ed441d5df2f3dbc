//! What a program is told that places its own files.

use super::pattern::Limits;
use super::topology::Description;
use super::weigh::Weights;
use forebay_model::Job;
use serde::{Deserialize, Serialize};

/// The variable that names the file with the setting.
pub const SETTING: &str = "FOREBAY_PLACE";

/// Everything a process must know to place its files.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setting {
    /// Files below this are placed.
    pub prefix: Vec<u8>,
    /// The file system.
    pub description: Description,
    /// What each resource counts.
    pub weights: Weights,
    /// What the file system accepts.
    pub limits: Limits,
    /// The job, by which equal costs are decided.
    pub job: u64,
    /// A file with a counter, by which processes without a rank take turns.
    pub turns: Option<Vec<u8>>,
    /// A running Forebay that counts turns for processes on all machines, if one was named.
    pub service: Option<Service>,
    /// Where each file's layout and all trouble is told; standard error has only the first trouble.
    pub log: Option<Vec<u8>>,
    /// Where counters are added when the process ends.
    pub counts: Option<Vec<u8>>,
}

/// A running Forebay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Service {
    /// Where it listens: `unix:/path` or `tcp:host:port`.
    pub address: String,
    /// Its key file, for TCP.
    pub key: Option<Vec<u8>>,
    /// Whose job this is.
    pub job: Job,
}
