//! The result of a copy.

use crate::human;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Put,
    Got,
}

/// Counts and rate of a copy.
#[derive(Serialize)]
pub(crate) struct Summary {
    direction: Direction,
    files: u64,
    directories: u64,
    bytes: u64,
    seconds: f64,
    failed: u64,
}

impl Summary {
    pub(crate) fn new(direction: Direction, counts: [u64; 4], time: Duration) -> Summary {
        let [files, directories, bytes, failed] = counts;
        Summary { direction, files, directories, bytes, seconds: time.as_secs_f64(), failed }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Duration::from_secs_f64(self.seconds);
        let verb = match self.direction {
            Direction::Put => "put",
            Direction::Got => "got",
        };
        write!(
            f,
            "{verb} {}, {} in {} ({})",
            human::counted(self.files, "file"),
            human::size(self.bytes),
            human::duration(time),
            human::rate(self.bytes, time)
        )?;
        match self.failed {
            0 => Ok(()),
            failed => write!(f, "; {failed} failed"),
        }
    }
}
