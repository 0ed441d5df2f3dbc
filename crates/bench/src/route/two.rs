//! Two jobs, one after the other, with the same disk: how much of each is buffered.

use super::play::{Ground, job, statuses, write};
use super::scenario::{Burst, Pattern, Point, Scenario, Way};
use crate::failure::Outcome;
use forebay_client::blocking::Client;
use forebay_model::Bytes;
use forebay_report::human;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::AtomicBool;

const WRITERS: u32 = 2;

/// A job that wrote to a buffer with a modelled disk as back end.
#[derive(Serialize)]
pub struct RoutedReport {
    /// Its name.
    pub label: &'static str,
    /// Bytes that it wrote.
    pub written: u64,
    /// Bytes that the buffer took.
    pub buffered: u64,
    /// Bytes that bypassed the buffer.
    pub direct: u64,
}

impl fmt::Display for RoutedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RoutedReport { label, written, buffered, direct } = self;
        let part = |bytes: &u64| human::percent(*bytes, *written);
        write!(
            f,
            "{label}: {} written, {} buffered, {} direct",
            human::size(*written),
            part(buffered),
            part(direct)
        )
    }
}

/// A sequential and a random job under `traffic`.
pub fn two_jobs(stop: &AtomicBool) -> Outcome<Vec<RoutedReport>> {
    let jobs = [("sequential", Pattern::SegmentedContiguous), ("random", Pattern::SegmentedRandom)];
    let bursts = jobs.map(|(_, pattern)| Burst { pattern, bytes: Bytes::mib(32), spacing: Bytes(0) });
    let scenario = Scenario {
        title: "two jobs".to_owned(),
        device: "hdd".to_owned(),
        disks: 1,
        servers: 1,
        slower: 0.1,
        grain: 1,
        link: Bytes::mib(1024),
        request: Bytes::kib(64),
        pause_ms: 0,
        seed: 1,
        ways: vec![Way::Traffic],
        writers: vec![WRITERS],
        capacity: vec![100],
        compute_ms: vec![0],
        queue: vec![128],
        bursts: bursts.to_vec(),
    };
    let point = Point { writers: WRITERS, capacity: 100, compute_ms: 0, queue: 128 };
    let ground = Ground::new(&scenario, point, Way::Traffic)?;
    let mut routed = Vec::new();
    for (number, ((label, _), burst)) in jobs.into_iter().zip(&bursts).enumerate() {
        let clients = (0..WRITERS).map(|_| ground.client(&job(label))).collect::<Outcome<Vec<Client>>>()?;
        write(&scenario, burst, &clients, number, stop)?;
        let statuses = statuses(&clients[0])?;
        let seen = statuses.iter().flat_map(|status| &status.jobs).find(|seen| seen.job.label == label);
        let (written, direct) = seen.map_or((0, 0), |seen| (seen.written, seen.direct));
        routed.push(RoutedReport { label, written, direct, buffered: written.saturating_sub(direct) });
    }
    Ok(routed)
}
