//! Turn counters for processes that share nothing else: in a running Forebay, or in a file on each machine.

use crate::report;
use crate::service::Connection;
use crate::setting::{self, Ready};
use std::io::{Read, Result, Seek, SeekFrom, Write};

/// Mixed into a job's id for the counter of its runs.
#[cfg(not(feature = "wrap"))]
const RUNS: u64 = 0x5275_6e73_5275_6e73;

/// The turn counter of a job's processes, on all machines.
#[derive(Default)]
pub(crate) struct Turns {
    /// The connection to the service, while it is open.
    connection: Option<Connection>,
    /// The service was not reachable: this machine's own counter is used from then on.
    is_local: bool,
}

impl Turns {
    /// The next turn of this job; `None` if there is no counter.
    pub(crate) fn next(&mut self, ready: &Ready) -> Result<Option<u64>> {
        match (self.common(ready, ready.setting.job), &ready.setting.turns) {
            (Some(turn), _) => Ok(Some(turn)),
            (None, Some(path)) => next_in(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The next number of a counter that all processes share, if a Forebay counts them.
    fn common(&mut self, ready: &Ready, row: u64) -> Option<u64> {
        let service = ready.setting.service.as_ref().filter(|_| !self.is_local)?;
        // A connection that was idle for long, or belongs to another process, is reopened once.
        let known = self.connection.take().filter(Connection::is_ours);
        let kept = known.and_then(|mut connection| Some((connection.number(row).ok()?, connection)));
        let taken = kept.map_or_else(
            || {
                let mut connection = Connection::open(service)?;
                Ok((connection.number(row)?, connection))
            },
            Ok,
        );
        match taken {
            Ok((turn, connection)) => {
                self.connection = Some(connection);
                Some(turn)
            }
            Err(error) => {
                self.is_local = true;
                let (address, error): (_, std::io::Error) = (&service.address, error);
                report::note(format_args!(
                    "using the turns of this machine only: cannot reach {address}: {error}"
                ));
                None
            }
        }
    }
}

/// How many programs of this job were started with MPI before this one; 0 if unknown.
#[cfg(not(feature = "wrap"))]
pub(crate) fn runs_before() -> u64 {
    let Some(ready) = setting::ready() else { return 0 };
    let beside = |path: &Vec<u8>| [path, b".runs".as_slice()].concat();
    let here = || ready.setting.turns.as_ref().map(beside).map_or(Ok(0), |path| next_in(&path));
    Turns::default().common(ready, ready.setting.job ^ RUNS).map_or_else(here, Ok).unwrap_or_else(|error| {
        report::note(format_args!("every run starts at the same targets: cannot count the runs: {error}"));
        0
    })
}

/// The next turn: a number in a file, under a lock that the kernel releases when a process dies.
fn next_in(path: &[u8]) -> Result<u64> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(setting::path(path))?;
    file.lock()?;
    let mut number = [0; 8];
    let read = file.read(&mut number)?;
    let turn = if read == 8 { u64::from_ne_bytes(number) } else { 0 };
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&(turn + 1).to_ne_bytes())?;
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_consecutive() {
        let file = std::env::temp_dir().join(format!("forebay-turns-{}", std::process::id()));
        let path = file.as_os_str().as_encoded_bytes().to_vec();
        let turns: Vec<u64> = (0..3).map(|_| next_in(&path).expect("a turn")).collect();
        assert_eq!(turns, [0, 1, 2]);
        std::fs::remove_file(&file).expect("it is there");
        let nowhere = [&path[..], b"/nowhere"].concat();
        assert!(next_in(&nowhere).is_err());
    }
}
