//! The result of the demo.

use super::table;
use crate::human;
use forebay_bench::{DrainedReport, RoutedReport, SharedReport};
use forebay_wire::RecoverySummary;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The result of one job.
#[derive(Serialize)]
pub(crate) struct JobReport {
    pub(crate) label: &'static str,
    pub(crate) written: u64,
    pub(crate) seconds: f64,
    pub(crate) longest_wait: f64,
    pub(crate) verified: u64,
    pub(crate) wrong: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_wrong: Option<String>,
}

/// The crash of the server and its restart. Times in seconds since the kill.
#[derive(Serialize)]
pub(crate) struct Crash {
    /// Bytes acknowledged before the kill.
    pub(crate) acknowledged: u64,
    /// Time until the next server served.
    pub(crate) restart: f64,
    /// Time until the first byte was acknowledged after the kill.
    pub(crate) outage: Option<f64>,
    pub(crate) recovery: RecoverySummary,
}

/// The result of the whole demo.
#[derive(Serialize)]
pub(crate) struct DemoReport {
    pub(crate) jobs: Vec<JobReport>,
    /// Bytes that should have been written.
    pub(crate) expected: u64,
    pub(crate) writing: f64,
    pub(crate) reading: f64,
    pub(crate) crash: Option<Crash>,
    /// Two jobs that shared a modelled device by policy.
    pub(crate) sharing: Vec<SharedReport>,
    /// A sequential and a random job with a modelled disk as back end.
    pub(crate) routing: Vec<RoutedReport>,
    /// The same data drained in two orders.
    pub(crate) draining: Vec<DrainedReport>,
}

impl DemoReport {
    fn sum(&self, field: fn(&JobReport) -> u64) -> u64 {
        self.jobs.iter().map(field).sum()
    }

    /// Returns an error if the result is not as expected.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let (written, verified, wrong) =
            (self.sum(|job| job.written), self.sum(|job| job.verified), self.sum(|job| job.wrong));
        if wrong > 0 {
            let first = self.jobs.iter().find_map(|job| job.first_wrong.as_deref()).unwrap_or("somewhere");
            return Err(format!(
                "{} differ, the first at {first}: please report this",
                human::counted(wrong, "byte")
            ));
        }
        if written != self.expected || verified != self.expected {
            return Err(format!(
                "{} of {} were written and {} verified: please report this",
                written, self.expected, verified
            ));
        }
        match self.crash {
            Some(_) => Ok(()),
            None => {
                Err("the jobs were done before the server could be killed: write more with --size".to_owned())
            }
        }
    }
}

fn seconds(seconds: f64) -> String {
    human::duration(Duration::from_secs_f64(seconds))
}

fn rate(bytes: u64, seconds: f64) -> String {
    human::rate(bytes, Duration::from_secs_f64(seconds))
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.jobs_table(f)?;
        self.totals(f)?;
        if let Some(crash) = &self.crash {
            crash.fmt(f)?;
        }
        self.policies(f)?;
        match self.verdict() {
            Ok(()) => write!(
                f,
                "\n  every acknowledged byte is there\n  your program:  forebay run --pfs DIR -- CMD    (what it writes to /fb at \
                 memory speed is in DIR at the end)"
            ),
            Err(_) => write!(f, "\n  the result is wrong"),
        }
    }
}

impl DemoReport {
    fn jobs_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["job", "written", "rate", "longest wait", "verified", "wrong"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.jobs.iter().map(|job| {
            [
                job.label.to_owned(),
                human::size(job.written),
                rate(job.written, job.seconds),
                seconds(job.longest_wait),
                human::size(job.verified),
                job.wrong.to_string(),
            ]
        }));
        writeln!(f)?;
        table(f, "lrrrrr", 2, &rows)?;
        writeln!(f, "\n")
    }

    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (written, verified) = (self.sum(|job| job.written), self.sum(|job| job.verified));
        writeln!(
            f,
            "  written    {} in {} ({}), the crash included",
            human::size(written),
            seconds(self.writing),
            rate(written, self.writing)
        )?;
        writeln!(
            f,
            "  verified   {} in {} ({}), every byte compared",
            human::size(verified),
            seconds(self.reading),
            rate(verified, self.reading)
        )
    }

    /// What sharing, routing and draining did.
    fn policies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for job in &self.sharing {
            writeln!(
                f,
                "  sharing    {} ({}): {}/s, {:.1} % of the device; due under size-fair: {:.0} %",
                job.label,
                human::counted(u64::from(job.nodes), "node"),
                human::size(job.throughput as u64),
                job.share * 100.0,
                job.due * 100.0
            )?;
        }
        for job in &self.routing {
            writeln!(f, "  routing    {job}")?;
        }
        for DrainedReport { order, bandwidth, of_best, jobs } in &self.draining {
            let jobs: Vec<String> = jobs.iter().map(|&time| seconds(time)).collect();
            writeln!(
                f,
                "  draining   {order}: {}/s, {:.0} % of what the targets can take; small, middle and large job drained after {}",
                human::size(*bandwidth as u64),
                of_best * 100.0,
                jobs.join(", ")
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoverySummary { records, live_bytes, torn, millis, .. } = self.recovery;
        writeln!(f, "  crash      killed (SIGKILL) with {} acknowledged", human::size(self.acknowledged))?;
        let outage = self.outage.map_or("never".to_owned(), seconds);
        writeln!(
            f,
            "  outage     {outage} until the next byte was acknowledged; served again after {}",
            seconds(self.restart)
        )?;
        writeln!(
            f,
            "  recovery   {} replayed, {} live, {torn} torn, in {}",
            human::counted(records, "record"),
            human::size(live_bytes),
            human::duration(Duration::from_millis(millis))
        )
    }
}
