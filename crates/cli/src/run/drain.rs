//! The final drain of a run.

use crate::drain::Bars;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::Drained;
use forebay_client::blocking::Client;
use forebay_wire::DrainReport;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(50);

/// Drains everything until `stop` is set, and reports each failure.
pub(super) fn drain_all(client: &Client, stop: &AtomicBool) -> Outcome<Drained> {
    let begin = Instant::now();
    let report = await_end(client, stop)?;
    let ticket = report.ticket.ok_or_else(|| Failure::Failed("the server does not drain".to_owned()))?;
    for failing in &report.status.failing {
        let why = format!("cannot drain {} of user {}: {}", failing.path, failing.user, failing.why);
        output::complain(&Failure::Failed(why));
    }
    let left_out = (ticket.skipped > 0).then(|| {
        format!("{} pipes, sockets or devices were left out: the target cannot store them", ticket.skipped)
    });
    Ok(Drained {
        entries: ticket.files,
        bytes: report.status.written,
        seconds: begin.elapsed().as_secs_f64(),
        failed: ticket.failed,
        notes: left_out.into_iter().chain(report.status.notes).collect(),
    })
}

fn await_end(client: &Client, stop: &AtomicBool) -> Outcome<DrainReport> {
    let mut report = client.drain_last()?;
    let bars = Bars::new(&report);
    while let Some(ticket) = report.ticket.filter(|ticket| !ticket.done) {
        if stop.load(Ordering::Relaxed) {
            bars.clear();
            return Err(Failure::Interrupted);
        }
        bars.show(&report);
        std::thread::sleep(POLL);
        report = client.drain_state(Some(ticket.id))?;
    }
    bars.clear();
    Ok(report)
}
