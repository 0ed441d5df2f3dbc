//! `drain`: copies written data to the back end.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::DrainState;
use clap::Args;
use forebay_client::blocking::Client;
use forebay_wire::DrainReport;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(100);
const STYLE: &str = "{prefix:24!} {bar:32} {bytes:>11} of {total_bytes:<11} {msg}";

#[derive(Args)]
pub(crate) struct Drain {
    /// File or directory to drain; everything if not given
    path: Option<PathBuf>,
    /// Wait until the data is in the back end
    #[arg(long)]
    wait: bool,
    /// Order of the drain from now on: arrival, offset, target, trio
    #[arg(long, value_name = "ORDER")]
    order: Option<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

impl Drain {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        let report = begin(&client, self.path.as_deref(), self.order.as_deref())?;
        let report = if self.wait { await_end(&client, report)? } else { report };
        report_result(report, self.json)
    }
}

pub(crate) fn begin(client: &Client, path: Option<&Path>, order: Option<&str>) -> Outcome<DrainReport> {
    Ok(client.drain(path, order)?)
}

/// Waits until the drain is complete; shows a progress bar for each target on a terminal.
pub(crate) fn await_end(client: &Client, mut report: DrainReport) -> Outcome<DrainReport> {
    let bars = Bars::new(&report);
    while let Some(ticket) = report.ticket.filter(|ticket| !ticket.done) {
        bars.show(&report);
        std::thread::sleep(POLL);
        report = client.drain_state(Some(ticket.id))?;
    }
    bars.clear();
    Ok(report)
}

pub(crate) fn report_result(report: DrainReport, json: bool) -> Outcome {
    let failed = report.ticket.is_some_and(|ticket| ticket.failed > 0);
    output::show(&DrainState::from(report), json)?;
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

/// A progress bar for each target and one for all together, on a terminal.
pub(crate) struct Bars {
    all: MultiProgress,
    bars: Vec<ProgressBar>,
    whole: ProgressBar,
    /// Bytes that each target had received before.
    before: Vec<u64>,
}

impl Bars {
    pub(crate) fn new(report: &DrainReport) -> Bars {
        let target = match output::is_watched() {
            true => ProgressDrawTarget::stderr_with_hz(8),
            false => ProgressDrawTarget::hidden(),
        };
        let all = MultiProgress::with_draw_target(target);
        let style = ProgressStyle::with_template(STYLE).expect("the constant template is valid");
        let style = style.progress_chars("█▉▊▋▌▍▎▏ ");
        let bar = |name: &str| {
            let bar = ProgressBar::no_length().with_style(style.clone()).with_prefix(name.to_owned());
            all.add(bar)
        };
        let bars = report.status.targets.iter().map(|target| bar(&target.name)).collect();
        let before = report.status.targets.iter().map(|target| target.written).collect();
        let whole = bar("all");
        Bars { all, bars, whole, before }
    }

    pub(crate) fn show(&self, report: &DrainReport) {
        for ((bar, before), target) in self.bars.iter().zip(&self.before).zip(&report.status.targets) {
            let out = target.written.saturating_sub(*before);
            draw(bar, (out, out + target.queued), target.rate, seconds(target.queued, target.rate));
        }
        let Whole { out, bytes, rate, left } = Whole::new(report, &self.before);
        draw(&self.whole, (out, bytes), rate, left);
    }

    pub(crate) fn clear(&self) {
        // Errors of the terminal do not matter to the drain.
        let _ = self.all.clear();
    }
}

fn draw(bar: &ProgressBar, (out, bytes): (u64, u64), rate: u64, left: Option<u64>) {
    if bytes > 0 {
        bar.set_length(bytes);
    }
    bar.set_position(out);
    bar.set_message(match left {
        None => String::new(),
        Some(left) => {
            let (second, left) = (Duration::from_secs(1), Duration::from_secs(left));
            format!("{} {} left", crate::human::rate(rate, second), crate::human::duration(left))
        }
    });
}

/// Seconds that `bytes` take at `rate`; `None` if the rate is 0.
fn seconds(bytes: u64, rate: u64) -> Option<u64> {
    bytes.checked_div(rate).map(|whole| whole + u64::from(!bytes.is_multiple_of(rate)))
}

/// The whole of the data waited for. Data that is not queued yet counts only by its size.
#[derive(PartialEq, Eq, Debug)]
struct Whole {
    out: u64,
    bytes: u64,
    rate: u64,
    left: Option<u64>,
}

impl Whole {
    fn new(report: &DrainReport, before: &[u64]) -> Whole {
        let targets = &report.status.targets;
        let out: u64 =
            targets.iter().zip(before).map(|(target, before)| target.written.saturating_sub(*before)).sum();
        let queued: u64 = targets.iter().map(|target| target.queued).sum();
        let bytes = report.ticket.map_or(0, |ticket| ticket.bytes).max(out + queued);
        let rate = targets.iter().map(|target| target.rate).sum();
        // The slowest target determines the remaining time as well.
        let busy = targets.iter().filter(|target| target.queued > 0);
        let slowest = busy.map(|target| seconds(target.queued, target.rate));
        let left = slowest.chain([seconds(bytes - out, rate)]).collect::<Option<Vec<u64>>>();
        Whole { out, bytes, rate, left: left.and_then(|left| left.into_iter().max()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::{DrainStatus, DrainTicket, TargetStatus};

    #[test]
    fn unqueued_bytes_and_slowest_target_determine_time_left() {
        let status = |targets: &[(u64, u64, u64)]| {
            let target = |&(written, queued, rate): &(u64, u64, u64)| TargetStatus {
                name: "t".to_owned(),
                queued,
                written,
                rate,
                alpha: 2,
                writers: 1,
            };
            DrainStatus { targets: targets.iter().map(target).collect(), ..DrainStatus::default() }
        };
        let ticket =
            |bytes| DrainTicket { id: 1, done: false, files: 1, left: 1, bytes, failed: 0, skipped: 0 };
        for (bytes, targets, expected) in [
            (1000, &[(150, 50, 10), (150, 50, 10)][..], (200, 1000, 20, Some(40))),
            (200, &[(150, 50, 10), (150, 50, 1)], (200, 300, 11, Some(50))),
            (200, &[(150, 50, 10), (150, 50, 0)], (200, 300, 10, None)),
            (200, &[(50, 0, 0), (50, 0, 0)], (0, 200, 0, None)),
            (200, &[(50, 0, 0), (250, 0, 3)], (200, 200, 3, Some(0))),
        ] {
            let report =
                DrainReport { ticket: Some(ticket(bytes)), fetched: 0, full: false, status: status(targets) };
            let (out, bytes, rate, left) = expected;
            assert_eq!(Whole::new(&report, &[50, 50]), Whole { out, bytes, rate, left }, "{targets:?}");
        }
    }
}
