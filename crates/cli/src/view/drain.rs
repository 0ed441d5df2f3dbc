//! What leaves for the back end.

use super::table;
use crate::human;
use forebay_wire::{DrainReport, DrainStatus, DrainTicket};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What leaves a server for the back end.
#[derive(Serialize)]
pub(crate) struct Draining {
    #[serde(flatten)]
    status: DrainStatus,
    /// Seconds until everything that waits is out, at the rate of now; none if nothing moves.
    eta: Option<u64>,
}

impl From<DrainStatus> for Draining {
    fn from(status: DrainStatus) -> Draining {
        let eta = eta(&status);
        Draining { status, eta }
    }
}

/// The slowest target decides.
fn eta(status: &DrainStatus) -> Option<u64> {
    let waits = status.targets.iter().filter(|target| target.queued > 0);
    waits
        .map(|target| (target.rate > 0).then(|| target.queued.div_ceil(target.rate)))
        .max_by_key(|eta| eta.unwrap_or(u64::MAX))?
}

impl fmt::Display for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DrainStatus { backend, order, threshold, queued, files, waiting, written, .. } = &self.status;
        write!(
            f,
            "  drain     to {backend}, {order}, above {threshold} %: {} of {} on the way, {} out since the start",
            human::size(*queued),
            human::counted(*files, "file"),
            human::size(*written)
        )?;
        if let Some(eta) = self.eta {
            write!(f, ", {} left", human::duration(Duration::from_secs(eta)))?;
        }
        let (near, most) = self.status.near;
        if near > 0 {
            write!(
                f,
                "\n  near      {} of {} from behind, to be read soon",
                human::size(near),
                human::size(most)
            )?;
        }
        if *waiting > 0 {
            write!(f, "\n  FULL      {} for room", human::plural(*waiting, "writer waits", "writers wait"))?;
        }
        if self.status.resting {
            write!(f, "\n  RESTS     the back end fails everything: it is tried again in a moment")?;
        }
        for failing in &self.status.failing {
            let (path, user, why) = (&failing.path, failing.user, &failing.why);
            write!(f, "\n  NOT OUT   {path} of user {user}, tried {} times: {why}", failing.tries)?;
        }
        let more = self.status.failures.saturating_sub(self.status.failing.len() as u64);
        if more > 0 {
            write!(f, "\n  NOT OUT   and {} more", human::count(more))?;
        }
        let head = ["target", "queued", "rate", "writers", "α", "out"].map(str::to_owned);
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

/// What became of a drain that somebody asked for.
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
            true => write!(f, "{bytes} of {files} are out")?,
            false => write!(
                f,
                "drain {} is under way: {} of {files} are left",
                ticket.id,
                human::count(ticket.left)
            )?,
        }
        if ticket.skipped > 0 {
            write!(f, "; {} cannot be held by the back end", human::count(ticket.skipped))?;
        }
        if ticket.failed > 0 {
            write!(f, "; {} failed, stay here, and are tried again", human::count(ticket.failed))?;
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
            near: (0, 0),
            targets: targets.iter().map(target).collect(),
            failing: Vec::new(),
            failures: 0,
            resting: false,
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_slowest_target_decides_when_it_ends() {
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
