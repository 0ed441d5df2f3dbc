//! Two jobs that share a device by policy, shown live.

use super::live::Live;
use crate::human;
use forebay_bench::Glimpse;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

const STYLE: &str = "  {prefix:9} {bar:24} {msg}";
const LINE_EVERY: Duration = Duration::from_millis(500);

/// The display of the two jobs.
pub(super) struct Duel<'a> {
    live: &'a Live,
    bars: Vec<ProgressBar>,
    /// Which jobs were running at the last update.
    here: Vec<bool>,
    last: Instant,
}

impl<'a> Duel<'a> {
    pub(super) fn new(live: &'a Live) -> Duel<'a> {
        Duel { live, bars: Vec::new(), here: Vec::new(), last: Instant::now() }
    }

    /// Shows the current shares.
    pub(super) fn show(&mut self, jobs: &[Glimpse]) {
        self.here.resize(jobs.len(), false);
        if self.bars.is_empty() {
            self.bars = jobs.iter().filter_map(|job| self.live.add(bar(job))).collect();
        }
        for (job, here) in jobs.iter().zip(&mut self.here) {
            if std::mem::replace(here, job.here) != *here {
                let what = if *here { "takes part" } else { "has gone" };
                let nodes = human::counted(u64::from(job.nodes), "node");
                // A failure to print shows up at the next line that is checked.
                let _ = self.live.event(format_args!("job {} of {nodes} {what}", job.label));
            }
        }
        for (bar, job) in self.bars.iter().zip(jobs) {
            // After a change the last known value stays until there is a new one.
            if job.now.is_some() || !job.here {
                bar.set_position(job.now.map_or(0, |now| (now.share * 1000.0) as u64));
                bar.set_message(story(job).unwrap_or_default());
            }
        }
        if self.bars.is_empty() && self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            let parts = jobs.iter().filter_map(|job| Some(format!("{} {}", job.label, story(job)?)));
            let parts: Vec<String> = parts.collect();
            if !parts.is_empty() {
                let _ = self.live.event(format_args!("shares: {}", parts.join("; ")));
            }
        }
    }

    /// Removes the bars.
    pub(super) fn finish(&self) {
        self.bars.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn story(job: &Glimpse) -> Option<String> {
    let now = job.now?;
    let (rate, share, due) = (human::size(now.rate as u64), now.share * 100.0, now.due * 100.0);
    Some(format!("{rate}/s, {share:.1} % of the device (due: {due:.0} %)"))
}

fn bar(job: &Glimpse) -> ProgressBar {
    let style = ProgressStyle::with_template(STYLE).expect("the constant template is valid");
    let bar = ProgressBar::new(1000).with_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
    bar.with_prefix(job.label.clone())
}
