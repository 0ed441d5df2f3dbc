//! The result of a scenario: a table, JSON, a chart.

use super::measure::Measured;
use super::run::Record;
use super::scenario::ShareScenario;
use forebay_policy::share::Discipline;
use forebay_report::draw::chart::{Chart, Scene, Shape};
use forebay_report::draw::svg;
use forebay_report::human;
use forebay_report::table;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// All runs of a scenario.
#[derive(Serialize)]
pub struct ShareReport {
    title: String,
    policy: String,
    device_rate: u64,
    servers: u16,
    lambda_ms: u64,
    runs: Vec<Measured>,
    /// The timelines.
    #[serde(skip)]
    pub(super) picture: String,
}

impl ShareReport {
    pub(super) fn new(
        scenario: &ShareScenario,
        runs: Vec<Measured>,
        records: &[(Discipline, Record)],
    ) -> ShareReport {
        ShareReport {
            title: scenario.title.clone(),
            policy: scenario.policy.to_string(),
            device_rate: scenario.rate.0,
            servers: scenario.servers,
            lambda_ms: u64::try_from(scenario.lambda.as_millis()).unwrap_or(u64::MAX),
            runs,
            picture: picture(scenario, records),
        }
    }
}

impl fmt::Display for ShareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, {} of {}/s",
            self.title,
            self.policy,
            human::counted(u64::from(self.servers), "server"),
            human::size(self.device_rate)
        )?;
        for run in &self.runs {
            let fifo =
                run.against_fifo.map_or(String::new(), |part| format!(", {:.1} % of fifo", part * 100.0));
            let fair = run.time_to_fairness.map_or(String::new(), |time| format!(", fair after {time:.1} s"));
            let total = human::size(run.throughput as u64);
            writeln!(f, "\n\n{}: {total}/s, {:.0} requests/s{fifo}{fair}", run.scheduler, run.requests)?;
            rows(f, run)?;
        }
        Ok(())
    }
}

/// All scenarios of a directory.
#[derive(Serialize)]
pub struct ShareReports {
    /// Their reports, in order.
    pub scenarios: Vec<ShareReport>,
}

impl fmt::Display for ShareReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for report in &self.scenarios {
            writeln!(f, "{report}\n")?;
        }
        writeln!(f, "All of them:\n")?;
        let head = [
            "scenario",
            "scheduler",
            "MiB/s",
            "of fifo",
            "fair after",
            "worst error",
            "got (due), %",
            "slowdown",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        for report in &self.scenarios {
            rows.extend(report.runs.iter().map(|run| summary(&report.title, run)));
        }
        table(f, "llrrrrll", 0, &rows)
    }
}

/// The result of a run in one line.
fn summary(title: &str, run: &Measured) -> [String; 8] {
    let none = || "–".to_owned();
    let worst = run.jobs.iter().filter_map(|job| job.error).reduce(f64::max);
    let list = |parts: Vec<String>| if parts.is_empty() { none() } else { parts.join(", ") };
    let got = run.jobs.iter().filter_map(|job| {
        let (share, due) = job.share.zip(job.due)?;
        Some(format!("{:.1} ({:.1})", share * 100.0, due * 100.0))
    });
    let slower = run.jobs.iter().filter_map(|job| Some(format!("{} {:.1} %", job.id, job.slowdown? * 100.0)));
    [
        title.to_owned(),
        run.scheduler.clone(),
        format!("{:.1}", run.throughput / f64::from(1 << 20)),
        run.against_fifo.map_or_else(none, |part| format!("{:.1} %", part * 100.0)),
        run.time_to_fairness.map_or_else(none, |time| format!("{time:.1} s")),
        worst.map_or_else(none, |error| format!("{:.2} %", error * 100.0)),
        list(got.collect()),
        list(slower.collect()),
    ]
}

fn rows(f: &mut fmt::Formatter<'_>, run: &Measured) -> fmt::Result {
    let head =
        ["job", "op", "mean", "requests/s", "± (1σ)", "share", "due", "error", "mean wait", "slowdown"];
    let mut rows = vec![head.map(str::to_owned)];
    let percent = |part: Option<f64>| part.map_or("–".to_owned(), |part| format!("{:.2} %", part * 100.0));
    for job in &run.jobs {
        let moves = !matches!(job.op, "stat" | "create");
        let deviation = if moves {
            format!("{}/s", human::size(job.deviation as u64))
        } else {
            format!("{:.0}/s", job.deviation)
        };
        rows.push([
            job.id.clone(),
            job.op.to_owned(),
            format!("{}/s", human::size(job.throughput as u64)),
            format!("{:.0}", job.requests),
            deviation,
            percent(job.share),
            percent(job.due),
            percent(job.error),
            human::duration(Duration::from_secs_f64(job.mean_wait.max(0.0))),
            percent(job.slowdown),
        ]);
    }
    table(f, "llrrrrrrrr", 2, &rows)
}

/// The timelines of all runs, relative to the capacity of the servers.
fn picture(scenario: &ShareScenario, records: &[(Discipline, Record)]) -> String {
    let all = scenario.rate.0 as f64 * f64::from(scenario.servers);
    let scenes = records.iter().map(|(discipline, record)| {
        let mut chart = Chart {
            title: format!("{} under {discipline}", scenario.policy),
            x: "seconds".to_owned(),
            y: format!("throughput, of {}/s", human::size(all as u64)),
            y_top: Some(1.1),
            ..Chart::default()
        };
        for (number, job) in scenario.jobs.iter().enumerate() {
            let points = record.notes.windows(2).map(|pair| {
                let ((begin, before), (end, after)) = (&pair[0], &pair[1]);
                let cost = (after[number].bytes - before[number].bytes)
                    + (after[number].requests - before[number].requests) * forebay_policy::OPERATION.0 as f64;
                (*end, cost / (end - begin) / all)
            });
            chart = chart.with(&format!("job {}", job.id), number, Shape::Line, points.collect());
        }
        chart.scene()
    });
    let columns = records.len().min(2);
    svg::alone(&Scene::grid(&scenario.title, scenes.collect(), columns))
}
