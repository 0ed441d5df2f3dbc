//! Two jobs with a modelled disk as back end: how much of each is buffered.

use super::live::Live;
use crate::failure::Outcome;
use forebay_bench::{RoutedReport, two_jobs};
use std::sync::atomic::AtomicBool;

/// Runs a sequential and a random job, and returns how their writes were routed.
pub(super) fn play(live: &Live, stop: &AtomicBool) -> Outcome<Vec<RoutedReport>> {
    live.event(format_args!(
        "a sequential and a random job write to a modelled disk; only writes that would make it seek are buffered"
    ))?;
    let routed = two_jobs(stop)?;
    for job in &routed {
        live.event(format_args!("{job}"))?;
    }
    Ok(routed)
}
