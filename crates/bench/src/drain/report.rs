//! The result of a scenario: a table, JSON, a chart.

use super::bars::{Bar, bars};
use super::scenario::{Point, Scenario};
use super::variant::Variant;
use super::{Measured, Ran};
use crate::Charted;
use forebay_report::draw::chart::{Chart, Scene, Shape};
use forebay_report::draw::svg;
use forebay_report::table;
use serde::Serialize;
use std::fmt;

/// All runs of a scenario, in the modelled world.
#[derive(Serialize)]
pub(super) struct Report {
    title: String,
    device: String,
    /// Modelled bytes per real byte.
    grain: u32,
    orders: u32,
    runs: Vec<Row>,
    /// The checks that apply to this scenario.
    bars: Vec<Bar>,
    #[serde(skip)]
    points: Vec<Point>,
    #[serde(skip)]
    variants: Vec<Variant>,
}

/// A drain of several jobs to modelled targets in one order.
#[derive(Serialize)]
pub struct DrainedReport {
    /// The order.
    pub order: String,
    /// Bytes per second.
    pub bandwidth: f64,
    /// As a share of the highest bandwidth of the targets.
    pub of_best: f64,
    /// Seconds until each job was drained, the smallest first.
    pub jobs: Vec<f64>,
}

/// One variant at one point.
#[derive(Serialize)]
pub(super) struct Row {
    pattern: &'static str,
    targets: u32,
    processes: u32,
    servers: u16,
    /// Factor by which the model is slower than the device.
    slower: f64,
    #[serde(rename = "way")]
    name: String,
    /// Bytes per second, on average over the runs.
    pub(super) bandwidth: f64,
    /// As a share of the highest bandwidth of the targets.
    pub(super) of_best: f64,
    /// Seconds until a job is drained, on average over jobs and runs.
    pub(super) mean_job_seconds: f64,
    /// Seconds until everything is drained, on average over the runs.
    pub(super) total_seconds: f64,
    /// For each run, seconds from the first request until the last byte was drained, per job.
    pub(super) response_seconds: Vec<Vec<f64>>,
    #[serde(skip)]
    pub(super) point: Point,
    #[serde(skip)]
    pub(super) variant: Variant,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

fn last(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

impl Report {
    pub(super) fn new(scenario: &Scenario, measured: &[Measured]) -> Report {
        let best = forebay_backend::device(&scenario.device).map_or(f64::NAN, |device| device.curve.best().1);
        let rows: Vec<Row> = measured.iter().map(|one| Row::new(scenario, one, best)).collect();
        let bars = bars(&rows);
        Report {
            title: scenario.title.clone(),
            device: scenario.device.clone(),
            grain: scenario.grain,
            orders: scenario.orders,
            runs: rows,
            bars,
            points: scenario.points(),
            variants: scenario.compare.clone(),
        }
    }

    /// The summary for the demo.
    pub(super) fn summary(self) -> Vec<DrainedReport> {
        let report = |row: Row| DrainedReport {
            order: row.name,
            bandwidth: row.bandwidth,
            of_best: row.of_best,
            jobs: row.response_seconds.into_iter().next().unwrap_or_default(),
        };
        self.runs.into_iter().map(report).collect()
    }

    fn row(&self, point: Point, variant: &Variant) -> Option<&Row> {
        self.runs.iter().find(|row| row.point == point && row.variant == *variant)
    }

    fn bars_of(&self, title: &str, unit: &str, value: impl Fn(&Row) -> f64) -> Scene {
        let names = self.points.iter().map(|point| self.label(*point)).collect();
        let mut chart = Chart {
            title: format!("{title} ({unit})"),
            y: unit.to_owned(),
            names,
            plain: true,
            ..Chart::default()
        };
        for (ink, variant) in self.variants.iter().enumerate() {
            let rows =
                self.points.iter().enumerate().filter_map(|(place, &point)| {
                    self.row(point, variant).map(|row| (place as f64, value(row)))
                });
            chart = chart.with(&variant.to_string(), ink, Shape::Bars, rows.collect());
        }
        chart.scene()
    }

    /// The number of drained jobs over time, over all runs at the last point.
    fn curve(&self) -> Scene {
        let mut chart = Chart {
            title: "drained jobs, of all".to_owned(),
            x: "seconds".to_owned(),
            y: "jobs".to_owned(),
            y_top: Some(1.05),
            ..Chart::default()
        };
        for (ink, variant) in self.variants.iter().enumerate() {
            let Some(row) = self.points.last().and_then(|&point| self.row(point, variant)) else { continue };
            let mut times: Vec<f64> = row.response_seconds.iter().flatten().copied().collect();
            times.sort_by(f64::total_cmp);
            let all = times.len() as f64;
            let steps = times
                .iter()
                .enumerate()
                .flat_map(|(count, &time)| [(time, count as f64 / all), (time, (count + 1) as f64 / all)]);
            chart = chart.with(
                &variant.to_string(),
                ink,
                Shape::Line,
                std::iter::once((0.0, 0.0)).chain(steps).collect(),
            );
        }
        chart.scene()
    }

    /// The label that distinguishes a point from the others.
    fn label(&self, point: Point) -> String {
        let varies = |of: fn(&Point) -> u32| self.points.iter().any(|other| of(other) != of(&self.points[0]));
        let mut words = vec![point.pattern.word().to_owned()];
        if varies(|point| point.processes) {
            words.push(point.processes.to_string());
        }
        if varies(|point| point.targets) {
            words.push(format!("{} targets", point.targets));
        }
        words.join(" ")
    }
}

impl Row {
    fn new(scenario: &Scenario, measured: &Measured, best: f64) -> Row {
        let Measured { point, variant, runs } = measured;
        let seconds =
            |run: &Ran| run.jobs.iter().map(|job| job / scenario.slower(*point)).collect::<Vec<f64>>();
        let response_seconds: Vec<Vec<f64>> = runs.iter().map(seconds).collect();
        let totals = || response_seconds.iter().map(|jobs| last(jobs));
        let bytes = runs.first().map_or(0, |run| run.bytes) as f64 * f64::from(scenario.grain);
        let bandwidth = mean(totals().map(|total| bytes / total.max(1e-9)));
        Row {
            pattern: point.pattern.word(),
            targets: point.targets,
            processes: point.processes,
            servers: point.servers,
            slower: scenario.slower(*point),
            name: variant.to_string(),
            bandwidth,
            of_best: bandwidth / (best * f64::from(point.targets)),
            mean_job_seconds: mean(response_seconds.iter().flatten().copied()),
            total_seconds: mean(totals()),
            response_seconds,
            point: *point,
            variant: variant.clone(),
        }
    }
}

impl Charted for Report {
    /// Bandwidth and job time by point, and the distribution of job times at the last point.
    fn picture(&self) -> String {
        let mut scenes = vec![
            self.bars_of("bandwidth", "GB/s", |row| row.bandwidth / 1e9),
            self.bars_of("until all is drained", "seconds", |row| row.total_seconds),
        ];
        if self.runs.iter().any(|row| row.response_seconds[0].len() > 1) {
            scenes.push(
                self.bars_of("until a job is drained, on average", "seconds", |row| row.mean_job_seconds),
            );
            scenes.push(self.curve());
        }
        svg::alone(&Scene::grid(&self.title, scenes, 2))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        let head =
            ["", "targets", "processes", "servers", "way", "MB/s", "of the best", "mean job", "all drained"];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.runs.iter().map(|row| {
            [
                row.pattern.to_owned(),
                row.targets.to_string(),
                row.processes.to_string(),
                row.servers.to_string(),
                row.name.clone(),
                format!("{:.0}", row.bandwidth / 1e6),
                format!("{:.1} %", row.of_best * 100.0),
                format!("{:.2} s", row.mean_job_seconds),
                format!("{:.2} s", row.total_seconds),
            ]
        }));
        table(f, "lrrrlrrrr", 0, &rows)?;
        for bar in &self.bars {
            write!(f, "\n{bar}")?;
        }
        Ok(())
    }
}
