//! Settings for a program that places its own files.

use super::pattern::Limits;
use super::topology::Description;
use super::weigh::Weights;
use forebay_model::Job;
use serde::{Deserialize, Serialize};

/// The environment variable that names the settings file.
pub const SETTING: &str = "FOREBAY_PLACE";

/// Settings that a process needs to place its files.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setting {
    /// Placement applies to files below this path.
    pub prefix: Vec<u8>,
    /// The topology of the file system.
    pub description: Description,
    /// Weight of each kind of resource.
    pub weights: Weights,
    /// Limits of the file system.
    pub limits: Limits,
    /// The job, which breaks ties.
    pub job: u64,
    /// A file with a counter, from which processes without a rank take turns.
    pub turns: Option<Vec<u8>>,
    /// A running Forebay that counts turns for processes on all machines, if configured.
    pub service: Option<Service>,
    /// Log of each file's layout and of all errors; standard error gets only the first error.
    pub log: Option<Vec<u8>>,
    /// File that the process adds its counters to when it ends.
    pub counts: Option<Vec<u8>>,
}

/// A running Forebay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Service {
    /// Its address: `unix:/path` or `tcp:host:port`.
    pub address: String,
    /// Its key file, for TCP.
    pub key: Option<Vec<u8>>,
    /// The job and its user.
    pub job: Job,
}
