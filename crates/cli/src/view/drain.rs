//! The state of the drain.

use super::table;
use crate::human;
use forebay_wire::{DrainReport, DrainStatus, DrainTicket};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The drain of a server.
#[derive(Serialize)]
pub(crate) struct Draining {
    #[serde(flatten)]
    status: DrainStatus,
    /// Seconds until everything queued is drained, at the current rate; `None` if nothing moves.
    eta: Option<u64>,
    /// Bytes that are only in the buffer, queued or not; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    undrained: Option<u64>,
}

impl From<DrainStatus> for Draining {
    fn from(status: DrainStatus) -> Draining {
        let eta = eta(&status);
        Draining { status, eta, undrained: None }
    }
}

impl Draining {
    /// With the number of live bytes in the buffer; drained data is no longer live.
    pub(crate) fn new(status: DrainStatus, live: u64) -> Draining {
        Draining { undrained: Some(live), ..Draining::from(status) }
    }

    pub(super) fn undrained(&self) -> Option<u64> {
        self.undrained
    }

    /// Everything that hinders the drain, each on its own line that begins with a newline.
    pub(super) fn troubles(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.status.waiting;
        if waiting > 0 {
            write!(f, "\n  FULL      {} for space", human::plural(waiting, "writer waits", "writers wait"))?;
        }
        if self.status.resting {
            write!(f, "\n  PAUSED    all writes to the back end fail: the drain retries shortly")?;
        }
        for failing in &self.status.failing {
            let (path, user, why) = (&failing.path, failing.user, &failing.why);
            write!(f, "\n  FAILED    {path} of user {user}, tried {} times: {why}", failing.tries)?;
        }
        let more = self.status.failures.saturating_sub(self.status.failing.len() as u64);
        match more {
            0 => Ok(()),
            more => write!(f, "\n  FAILED    and {} more", human::count(more)),
        }
    }
}

/// The slowest target determines the time.
fn eta(status: &DrainStatus) -> Option<u64> {
    let waits = status.targets.iter().filter(|target| target.queued > 0);
    waits
        .map(|target| (target.rate > 0).then(|| target.queued.div_ceil(target.rate)))
        .max_by_key(|eta| eta.unwrap_or(u64::MAX))?
}

impl fmt::Display for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DrainStatus { backend, order, threshold, queued, files, written, .. } = &self.status;
        write!(f, "  drain     to {backend}, {order}, above {threshold} %: ")?;
        if let Some(undrained) = self.undrained {
            write!(f, "{} undrained, ", human::size(undrained))?;
        }
        write!(
            f,
            "{} of {} queued, {} drained since the start",
            human::size(*queued),
            human::counted(*files, "file"),
            human::size(*written)
        )?;
        if let Some(eta) = self.eta {
            write!(f, ", {} left", human::duration(Duration::from_secs(eta)))?;
        }
        let (read_cache, most) = self.status.read_cache;
        if read_cache > 0 {
            write!(
                f,
                "\n  cached    {} of {} in the read cache",
                human::size(read_cache),
                human::size(most)
            )?;
        }
        self.troubles(f)?;
        let head = ["target", "queued", "rate", "writers", "α", "drained"].map(str::to_owned);
        let mut rows = vec![head];
        rows.extend(self.status.targets.iter().map(|target| {
            [
                target.name.clone(),
                human::size(target.queued),
                human::rate(target.rate, Duration::from_secs(1)),
                target.writers.to_string(),
                if target.alpha > 0 { target.alpha.to_string() } else { "?".to_owned() },
                human::size(target.written),
            ]
        }));
        writeln!(f)?;
        table(f, "lrrrrr", 4, &rows)
    }
}

/// The result of a requested drain.
#[derive(Serialize)]
pub(crate) struct DrainState {
    #[serde(flatten)]
    ticket: Option<DrainTicket>,
    drain: Draining,
}

impl From<DrainReport> for DrainState {
    fn from(report: DrainReport) -> DrainState {
        DrainState { ticket: report.ticket, drain: report.status.into() }
    }
}

impl fmt::Display for DrainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ticket) = self.ticket else { return write!(f, "{}", self.drain) };
        let (files, bytes) = (human::plural(ticket.files, "entry", "entries"), human::size(ticket.bytes));
        match ticket.done {
            true => write!(f, "{bytes} of {files} are drained")?,
            false => write!(
                f,
                "drain {} is under way: {} of {files} are left",
                ticket.id,
                human::count(ticket.left)
            )?,
        }
        if ticket.skipped > 0 {
            write!(f, "; {} cannot be stored in the back end", human::count(ticket.skipped))?;
        }
        if ticket.failed > 0 {
            write!(f, "; {} failed, stay in the buffer, and are retried", human::count(ticket.failed))?;
            for failing in &self.drain.status.failing {
                write!(f, "\n  {} of user {}: {}", failing.path, failing.user, failing.why)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::TargetStatus;

    fn status(targets: &[(u64, u64)]) -> DrainStatus {
        let target = |&(queued, rate): &(u64, u64)| TargetStatus {
            name: "t".to_owned(),
            queued,
            written: 0,
            rate,
            alpha: 2,
            writers: 1,
        };
        DrainStatus {
            backend: "dir:/x".to_owned(),
            order: "trio".to_owned(),
            threshold: 20,
            queued: 0,
            files: 0,
            waiting: 0,
            written: 0,
            freed: 0,
            read_cache: (0, 0),
            targets: targets.iter().map(target).collect(),
            failing: Vec::new(),
            failures: 0,
            resting: false,
            notes: Vec::new(),
        }
    }

    #[test]
    fn slowest_target_determines_time_left() {
        for (targets, expected) in [
            (&[][..], None),
            (&[(0, 0)], None),
            (&[(100, 10)], Some(10)),
            (&[(100, 10), (50, 1), (0, 0)], Some(50)),
            (&[(100, 10), (50, 0)], None),
        ] {
            assert_eq!(eta(&status(targets)), expected, "{targets:?}");
        }
    }
}
