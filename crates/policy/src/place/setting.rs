//! What a program is told that places its own files.

use super::pattern::Limits;
use super::topology::Description;
use super::weigh::Weights;
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
    /// Where each file's layout and all trouble is told; standard error has only the first trouble.
    pub log: Option<Vec<u8>>,
    /// Where counters are added when the process ends.
    pub counts: Option<Vec<u8>>,
}
