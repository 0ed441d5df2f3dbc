//! A progress bar.

use crate::failure::Failure;
use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const STYLE: &str = "{bar:32} {bytes:>11} of {total_bytes:<11} {binary_bytes_per_sec:>12}  {eta} left";

/// A bar on a terminal, nothing elsewhere.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new() -> Progress {
        let target = match output::is_watched() {
            true => ProgressDrawTarget::stderr_with_hz(8),
            false => ProgressDrawTarget::hidden(),
        };
        let style = ProgressStyle::with_template(STYLE).expect("the constant template is valid");
        Progress(ProgressBar::with_draw_target(Some(0), target).with_style(style.progress_chars("█▉▊▋▌▍▎▏ ")))
    }

    pub(crate) fn expect(&self, bytes: u64) {
        self.0.inc_length(bytes);
    }

    pub(crate) fn copied(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Prints a failure without disturbing the bar.
    pub(crate) fn complain(&self, failure: &Failure) {
        self.0.suspend(|| output::complain(failure));
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
