//! The result of a scenario as text, JSON and files. It does not depend on the machine that ran the simulation.

use crate::draw::chart::{Chart, Shape};
use crate::draw::svg;
use crate::human;
use crate::table;
use forebay_sim::{JobReport, Ledger};
use serde::Serialize;
use std::fmt;

/// Maximum number of lines in a chart.
const LINES: usize = 10;

/// The report.
#[derive(Serialize)]
pub struct Report {
    title: String,
    seed: u64,
    /// Virtual seconds until the end of the simulation.
    ended: f64,
    events: u64,
    most_planned: usize,
    most_requests: usize,
    most_writes: usize,
    ledger: Ledger,
    jobs: Vec<JobReport>,
    /// Targets that received data.
    targets: Targets,
    #[serde(skip)]
    names: Vec<String>,
}

#[derive(Serialize)]
struct Targets {
    count: usize,
    most_bytes: u64,
    least_bytes: u64,
    seeks: u64,
}

impl Report {
    /// The report of a scenario with this title and these names of jobs.
    pub fn new(title: String, seed: u64, names: Vec<String>, seen: &forebay_sim::Report) -> Report {
        let bytes = || seen.targets.iter().map(|target| target.0);
        Report {
            title,
            seed,
            ended: seen.ended,
            events: seen.events,
            most_planned: seen.most_planned,
            most_requests: seen.most_requests,
            most_writes: seen.most_writes,
            ledger: seen.ledger,
            jobs: seen.jobs.clone(),
            targets: Targets {
                count: seen.targets.len(),
                most_bytes: bytes().max().unwrap_or(0),
                least_bytes: bytes().min().unwrap_or(0),
                seeks: seen.targets.iter().map(|target| target.1).sum(),
            },
            names,
        }
    }

    /// The files of a report, by name.
    pub fn files(&self, seen: &forebay_sim::Report) -> serde_json::Result<Vec<(&'static str, String)>> {
        let json = serde_json::to_string_pretty(self)?;
        Ok(vec![
            ("report.json", json + "\n"),
            ("series.csv", self.series(seen)),
            ("throughput.svg", svg::alone(&self.chart(seen).scene())),
        ])
    }

    fn series(&self, seen: &forebay_sim::Report) -> String {
        let mut out = String::from("seconds,job,bytes\n");
        let window = seen.series.window().secs();
        for (number, name) in self.names.iter().enumerate() {
            for (at, bytes) in seen.series.job(number).iter().enumerate() {
                out += &format!("{},{name},{bytes}\n", at as f64 * window);
            }
        }
        out
    }

    fn chart(&self, seen: &forebay_sim::Report) -> Chart {
        let window = seen.series.window().secs();
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        order.sort_by_key(|&job| std::cmp::Reverse(self.jobs[job].written + self.jobs[job].read));
        let chart = Chart {
            title: self.title.clone(),
            x: "seconds".into(),
            y: "MB/s".into(),
            plain: true,
            ..Chart::default()
        };
        order.into_iter().take(LINES).enumerate().fold(chart, |chart, (ink, job)| {
            let rate =
                |(at, bytes): (usize, &u64)| ((at as f64 + 0.5) * window, *bytes as f64 / window / 1e6);
            chart.with(
                &self.names[job],
                ink,
                Shape::Line,
                seen.series.job(job).iter().enumerate().map(rate).collect(),
            )
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ledger { taken, direct, drained, held, most_held } = self.ledger;
        writeln!(f, "{}: {:.1} s of virtual time", self.title, self.ended)?;
        let [taken, direct, drained, held, most] = [taken, direct, drained, held, most_held].map(human::size);
        writeln!(
            f,
            "written {taken}: {direct} directly, {drained} through buffers, {held} still buffered; the fullest buffer held {most}\n"
        )?;
        let secs = |at: Option<f64>| at.map_or("-".to_owned(), |at| format!("{at:.2} s"));
        let mut rows =
            vec![["job", "written", "read", "ended", "drained", "reading and writing"].map(str::to_owned)];
        for job in self.jobs.iter().take(50) {
            rows.push([
                job.label.clone(),
                human::size(job.written),
                human::size(job.read),
                secs(job.ended),
                secs(job.settled),
                secs(Some(job.moving)),
            ]);
        }
        table(f, "lrrrrr", 0, &rows)?;
        if self.jobs.len() > 50 {
            write!(f, "\nand {} jobs more", self.jobs.len() - 50)?;
        }
        Ok(())
    }
}
