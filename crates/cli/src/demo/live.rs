//! Live output of the demo: bars on a terminal, plain lines elsewhere.

use super::crew::Crew;
use super::plan::{JobPlan, Plan};
use crate::failure::Outcome;
use crate::{human, output};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::fmt::Arguments;
use std::time::{Duration, Instant};

const STYLE: &str = "  {prefix:9} {bar:24} {bytes:>10}  {binary_bytes_per_sec:>12}  {msg}";
const LINE_EVERY: Duration = Duration::from_secs(1);

/// The output while the demo runs.
pub(super) struct Live {
    jobs: Vec<JobPlan>,
    kind: Kind,
    begin: Instant,
}

enum Kind {
    Bars(MultiProgress, Vec<ProgressBar>),
    Lines { last: Cell<Instant> },
    Nothing,
}

impl Live {
    pub(super) fn new(plan: &Plan, quiet: bool) -> Live {
        let kind = match (quiet, output::is_watched()) {
            (true, _) => Kind::Nothing,
            (false, false) => Kind::Lines { last: Cell::new(Instant::now()) },
            (false, true) => {
                let all = MultiProgress::new();
                let bars = plan.jobs.iter().map(|job| all.add(bar(job))).collect();
                Kind::Bars(all, bars)
            }
        };
        Live { jobs: plan.jobs.clone(), kind, begin: Instant::now() }
    }

    /// Prints an event.
    pub(super) fn event(&self, what: Arguments<'_>) -> Outcome {
        let line = format!("{:6.2} s  {what}", self.begin.elapsed().as_secs_f64());
        match &self.kind {
            Kind::Bars(all, _) => all.suspend(|| output::text(line)),
            Kind::Lines { .. } => output::text(line),
            Kind::Nothing => Ok(()),
        }
    }

    /// Shows the progress of the jobs.
    pub(super) fn progress(&self, crew: &Crew, verb: &'static str) {
        match &self.kind {
            Kind::Bars(_, bars) => {
                for ((bar, bytes), job) in bars.iter().zip(crew.bytes()).zip(&self.jobs) {
                    bar.set_position(bytes);
                    bar.set_message(format!("{verb}: {}", job.story()));
                }
            }
            Kind::Lines { last } if last.get().elapsed() >= LINE_EVERY => {
                last.set(Instant::now());
                let parts = self
                    .jobs
                    .iter()
                    .zip(crew.bytes())
                    .map(|(job, bytes)| format!("{} {}", job.label, human::percent(bytes, job.total())));
                let parts: Vec<String> = parts.collect();
                // A failure to print shows up at the next line that is checked.
                let _ = self.event(format_args!("{verb}: {}", parts.join(", ")));
            }
            Kind::Lines { .. } | Kind::Nothing => {}
        }
    }

    /// Resets the progress of the jobs.
    pub(super) fn again(&self) {
        if let Kind::Bars(_, bars) = &self.kind {
            bars.iter().for_each(ProgressBar::reset);
        }
    }

    /// Adds a bar below the others, on a terminal.
    pub(super) fn add(&self, bar: ProgressBar) -> Option<ProgressBar> {
        match &self.kind {
            Kind::Bars(all, _) => Some(all.add(bar)),
            Kind::Lines { .. } | Kind::Nothing => None,
        }
    }

    /// Removes the bars of the jobs.
    pub(super) fn finish(&self) {
        if let Kind::Bars(_, bars) = &self.kind {
            bars.iter().for_each(ProgressBar::finish_and_clear);
        }
    }
}

fn bar(job: &JobPlan) -> ProgressBar {
    let style = ProgressStyle::with_template(STYLE).expect("the constant template is valid");
    let bar = ProgressBar::new(job.total()).with_style(style.progress_chars("█▉▊▋▌▍▎▏ "));
    bar.with_prefix(job.label)
}
