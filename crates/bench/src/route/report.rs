//! The result of a scenario: a table, JSON, a chart.

use super::play::Ran;
use super::scenario::{Point, Scenario, Way};
use crate::Charted;
use forebay_report::draw::chart::{Chart, Scene, Shape};
use forebay_report::draw::svg;
use forebay_report::human;
use forebay_report::table;
use serde::Serialize;
use std::fmt;

/// All runs of a scenario.
#[derive(Serialize)]
pub(super) struct Report {
    title: String,
    /// The parameter on the horizontal axis.
    varied: &'static str,
    runs: Vec<Run>,
}

/// One run.
#[derive(Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    point: Point,
    way: Way,
    seconds: f64,
    /// Modelled bytes per second.
    throughput: f64,
    /// Share of the data that was buffered.
    buffered: f64,
    /// Share of the buffer that was still used when the last burst began.
    left: f64,
    /// Seconds that writers waited for space, in total.
    waited: f64,
    /// Gain over the first way at the same point, relative to it.
    gain: f64,
    /// Time for routing decisions and for sorting buffered data, relative to the modelled time of the run.
    overhead: f64,
    /// Largest number of index bytes per extent at the end.
    index: f64,
}

impl Run {
    pub(super) fn new(scenario: &Scenario, point: Point, way: Way, ran: &Ran) -> Run {
        let written = (ran.buffered + ran.direct).max(1) as f64;
        Run {
            point,
            way,
            seconds: ran.seconds,
            throughput: written * f64::from(scenario.grain) / ran.seconds.max(f64::MIN_POSITIVE)
                * scenario.slower,
            buffered: ran.buffered as f64 / written,
            left: ran.left,
            waited: ran.waited,
            gain: 0.0,
            overhead: (ran.decided + ran.indexed) / ran.seconds.max(f64::MIN_POSITIVE) * scenario.slower,
            index: ran.index,
        }
    }
}

impl Report {
    pub(super) fn new(scenario: &Scenario, mut runs: Vec<Run>) -> Report {
        for some in runs.chunks_mut(scenario.ways.len()) {
            let first = some[0].throughput;
            some.iter_mut().for_each(|run| run.gain = run.throughput / first - 1.0);
        }
        let varied = [
            ("writers", scenario.writers.len()),
            ("capacity in % of the data", scenario.capacity.len()),
            ("queue", scenario.queue.len()),
            ("compute time in ms", scenario.compute_ms.len()),
        ];
        let (varied, _) = varied.into_iter().max_by_key(|(_, count)| *count).expect("there are four");
        Report { title: scenario.title.clone(), varied, runs }
    }

    fn place(&self, run: &Run) -> u64 {
        match self.varied {
            "writers" => u64::from(run.point.writers),
            "queue" => run.point.queue as u64,
            "compute time in ms" => run.point.compute_ms,
            _ => u64::from(run.point.capacity),
        }
    }

    /// The parameters that are constant along a line.
    fn others(&self, run: &Run) -> Point {
        match self.varied {
            "writers" => Point { writers: 0, ..run.point },
            "queue" => Point { queue: 0, ..run.point },
            "compute time in ms" => Point { compute_ms: 0, ..run.point },
            _ => Point { capacity: 0, ..run.point },
        }
    }

    fn words(&self, point: &Point) -> String {
        let all = [
            (u64::from(point.writers), "writers"),
            (u64::from(point.capacity), "%"),
            (point.compute_ms, "ms"),
        ];
        let some = all.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        some.collect::<Vec<_>>().join(", ")
    }
}

fn word(way: Way) -> &'static str {
    match way {
        Way::Plain => "plain",
        Way::Direct => "direct",
        Way::Buffer => "buffer",
        Way::BufferPipeline => "buffer, pipeline",
        Way::TrafficNoPipeline => "traffic, no pipeline",
        Way::Traffic => "traffic",
        Way::Overflow => "overflow",
    }
}

impl Charted for Report {
    /// Throughput by the parameter with most values, with a line for each combination of the others.
    fn picture(&self) -> String {
        let top = self.runs.iter().map(|run| run.throughput).fold(0.0, f64::max);
        let mut places: Vec<u64> = self.runs.iter().map(|run| self.place(run)).collect();
        places.sort_unstable();
        places.dedup();
        let chart = |title: &str, y: String| Chart {
            title: title.to_owned(),
            x: self.varied.to_owned(),
            y,
            names: places.iter().map(u64::to_string).collect(),
            ..Chart::default()
        };
        let mut throughput = chart("throughput", format!("of {}/s", human::size(top as u64)));
        let mut buffered = chart("share of the data that was buffered", String::new());
        let mut ways: Vec<(Way, Point)> = Vec::new();
        for run in &self.runs {
            let line = (run.way, self.others(run));
            if !ways.contains(&line) {
                ways.push(line);
            }
        }
        let many = ways.iter().any(|(_, point)| *point != ways[0].1);
        for (ink, (way, others)) in ways.iter().enumerate() {
            let of = |value: &dyn Fn(&Run) -> f64| -> Vec<(f64, f64)> {
                let runs = self.runs.iter().filter(|run| (run.way, self.others(run)) == (*way, *others));
                let at = |run: &Run| places.iter().position(|place| *place == self.place(run)).unwrap_or(0);
                runs.map(|run| (at(run) as f64, value(run))).collect()
            };
            let name = match many {
                true => format!("{} {}", word(*way), self.words(others)),
                false => word(*way).to_owned(),
            };
            throughput = throughput.with(&name, ink, Shape::Line, of(&|run| run.throughput / top));
            buffered = buffered.with(&name, ink, Shape::Line, of(&|run| run.buffered));
        }
        svg::alone(&Scene::grid(&self.title, vec![throughput.scene(), buffered.scene()], 2))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let head = [
            "writers",
            "capacity",
            "compute",
            "queue",
            "way",
            "throughput",
            "gain",
            "buffered",
            "waited",
            "overhead",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        for run in &self.runs {
            let Point { writers, capacity, compute_ms, queue } = run.point;
            rows.push([
                writers.to_string(),
                format!("{capacity} %"),
                format!("{compute_ms} ms"),
                queue.to_string(),
                word(run.way).to_owned(),
                format!("{}/s", human::size(run.throughput as u64)),
                format!("{:+.1} %", run.gain * 100.0),
                format!("{:.1} %", run.buffered * 100.0),
                format!("{:.1} s", run.waited),
                format!("{:.2} %", run.overhead * 100.0),
            ]);
        }
        table(f, "rrrrlrrrrr", 2, &rows)
    }
}
