//! `drain`: what leaves for the back end.

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

const GLANCE: Duration = Duration::from_millis(100);
const STYLE: &str = "{prefix:24!} {bar:32} {bytes:>11} of {total_bytes:<11} {msg}";

#[derive(Args)]
pub(crate) struct Drain {
    /// What is to leave; everything if not given
    path: Option<PathBuf>,
    /// Wait until it is out
    #[arg(long)]
    wait: bool,
    /// In which order things leave from now on: arrival, offset, target, trio
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
        conclude(report, self.json)
    }
}

pub(crate) fn begin(client: &Client, path: Option<&Path>, order: Option<&str>) -> Outcome<DrainReport> {
    Ok(client.drain(path, order)?)
}

/// Waits for the end of what was begun, with a bar for each target for whoever watches.
pub(crate) fn await_end(client: &Client, mut report: DrainReport) -> Outcome<DrainReport> {
    let bars = Bars::new(&report);
    while let Some(ticket) = report.ticket.filter(|ticket| !ticket.done) {
        bars.show(&report);
        std::thread::sleep(GLANCE);
        report = client.drain_state(Some(ticket.id))?;
    }
    bars.clear();
    Ok(report)
}

pub(crate) fn conclude(report: DrainReport, json: bool) -> Outcome {
    let failed = report.ticket.is_some_and(|ticket| ticket.failed > 0);
    output::show(&DrainState::from(report), json)?;
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

/// A bar for each target, on a terminal.
pub(crate) struct Bars {
    all: MultiProgress,
    bars: Vec<ProgressBar>,
    /// What each had taken before.
    before: Vec<u64>,
}

impl Bars {
    pub(crate) fn new(report: &DrainReport) -> Bars {
        let target = match output::is_watched() {
            true => ProgressDrawTarget::stderr_with_hz(8),
            false => ProgressDrawTarget::hidden(),
        };
        let all = MultiProgress::with_draw_target(target);
        let style = ProgressStyle::with_template(STYLE).expect("the template is a constant that works");
        let style = style.progress_chars("█▉▊▋▌▍▎▏ ");
        let bar = |name: &str| {
            let bar = ProgressBar::new(0).with_style(style.clone()).with_prefix(name.to_owned());
            all.add(bar)
        };
        let bars = report.status.targets.iter().map(|target| bar(&target.name)).collect();
        let before = report.status.targets.iter().map(|target| target.written).collect();
        Bars { all, bars, before }
    }

    pub(crate) fn show(&self, report: &DrainReport) {
        for ((bar, before), target) in self.bars.iter().zip(&self.before).zip(&report.status.targets) {
            let out = target.written.saturating_sub(*before);
            bar.set_length(out + target.queued);
            bar.set_position(out);
            let left = match target.rate {
                0 => String::new(),
                rate => {
                    let left = Duration::from_secs(target.queued.div_ceil(rate));
                    format!(
                        "{} {} left",
                        crate::human::rate(rate, Duration::from_secs(1)),
                        crate::human::duration(left)
                    )
                }
            };
            bar.set_message(left);
        }
    }

    pub(crate) fn clear(&self) {
        // Whoever does not see the bars misses nothing.
        let _ = self.all.clear();
    }
}
