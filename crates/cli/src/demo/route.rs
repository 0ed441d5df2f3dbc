//! Two jobs before a modelled disk: what is buffered of each.

use super::live::Live;
use crate::bench;
use crate::failure::Outcome;
use crate::view::RoutedReport;
use std::sync::atomic::AtomicBool;

/// A sequential and a random job, and what went which way.
pub(super) fn play(live: &Live, stop: &AtomicBool) -> Outcome<Vec<RoutedReport>> {
    live.say(format_args!(
        "a sequential and a random job write before a modelled disk; only what would make it seek is buffered"
    ))?;
    let told = bench::two_jobs(stop)?;
    for job in &told {
        live.say(format_args!("{job}"))?;
    }
    Ok(told)
}
