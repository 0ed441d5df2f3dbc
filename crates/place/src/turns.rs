//! Whose turn it is, among processes that share nothing else: counted by a running Forebay, or by a file on each machine.

use crate::report;
use crate::service::Line;
use crate::setting::{self, Ready};
use std::io::{Read, Result, Seek, SeekFrom, Write};

/// What is mixed into a job's number for the row that counts its runs.
#[cfg(not(feature = "wrap"))]
const RUNS: u64 = 0x5275_6e73_5275_6e73;

/// Who counts for the processes of a job, wherever they run.
#[derive(Default)]
pub(crate) struct Turns {
    /// The service, while it does.
    line: Option<Line>,
    /// It was asked in vain: the machine's own turns count from then on.
    is_alone: bool,
}

impl Turns {
    /// The next turn of this job; `None` if nobody counts.
    pub(crate) fn next(&mut self, ready: &Ready) -> Result<Option<u64>> {
        match (self.common(ready, ready.setting.job), &ready.setting.turns) {
            (Some(turn), _) => Ok(Some(turn)),
            (None, Some(path)) => next_in(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The next number of a row that all processes share, if a Forebay counts them.
    fn common(&mut self, ready: &Ready, row: u64) -> Option<u64> {
        let service = ready.setting.service.as_ref().filter(|_| !self.is_alone)?;
        // A line that was idle for long, or is another process's, is made anew: once.
        let known = self.line.take().filter(Line::is_ours);
        let kept = known.and_then(|mut line| Some((line.number(row).ok()?, line)));
        let taken = kept.map_or_else(
            || {
                let mut line = Line::open(service)?;
                Ok((line.number(row)?, line))
            },
            Ok,
        );
        match taken {
            Ok((turn, line)) => {
                self.line = Some(line);
                Some(turn)
            }
            Err(error) => {
                self.is_alone = true;
                let (address, error): (_, std::io::Error) = (&service.address, error);
                report::note(format_args!("turns are those of this machine: cannot ask {address}: {error}"));
                None
            }
        }
    }
}

/// How many programs of this job have been started with MPI before this one; 0 if nobody knows.
#[cfg(not(feature = "wrap"))]
pub(crate) fn runs_before() -> u64 {
    let Some(ready) = setting::ready() else { return 0 };
    let beside = |path: &Vec<u8>| [path, b".runs".as_slice()].concat();
    let here = || ready.setting.turns.as_ref().map(beside).map_or(Ok(0), |path| next_in(&path));
    Turns::default().common(ready, ready.setting.job ^ RUNS).map_or_else(here, Ok).unwrap_or_else(|error| {
        report::note(format_args!("every run begins at the same targets: cannot count them: {error}"));
        0
    })
}

/// The next turn: a number in a file, under a lock that the kernel takes back from whoever dies.
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
    fn turns_follow_each_other() {
        let file = std::env::temp_dir().join(format!("forebay-turns-{}", std::process::id()));
        let path = file.as_os_str().as_encoded_bytes().to_vec();
        let turns: Vec<u64> = (0..3).map(|_| next_in(&path).expect("a turn")).collect();
        assert_eq!(turns, [0, 1, 2]);
        std::fs::remove_file(&file).expect("it is there");
        let nowhere = [&path[..], b"/nowhere"].concat();
        assert!(next_in(&nowhere).is_err());
    }
}
