//! What a scenario came to: a table, JSON, a picture.

use super::play::Played;
use super::scenario::Scenario;
use crate::human;
use crate::plan::chart::{Chart, Scene, Shape};
use crate::plan::svg;
use crate::view::table;
use serde::Serialize;
use std::fmt;

/// All runs of a scenario.
#[derive(Serialize)]
pub(super) struct Report {
    title: String,
    repetitions: u32,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    nodes: u32,
    variants: Vec<Measured>,
}

#[derive(Serialize)]
struct Measured {
    placement: &'static str,
    /// Mean bytes a second.
    bandwidth: f64,
    /// Standard deviation between repetitions.
    deviation: f64,
    /// Deviation as a part of the mean.
    variation: f64,
    /// How much more than the default, as a part of it.
    gain: f64,
    /// How much more than the placement before it, as a part of that.
    gain_over_previous: f64,
    repetitions: Vec<f64>,
}

impl Report {
    pub(super) fn new(scenario: &Scenario, played: Vec<Played>) -> Report {
        let runs = played.into_iter().map(|played| {
            let mut variants: Vec<Measured> = Vec::new();
            for (variant, found) in played.variants {
                let (bandwidth, deviation) = spread(&found);
                let over =
                    |other: Option<&Measured>| other.map_or(0.0, |other| bandwidth / other.bandwidth - 1.0);
                variants.push(Measured {
                    placement: variant.word(),
                    bandwidth,
                    deviation,
                    variation: deviation / bandwidth,
                    gain: over(variants.first()),
                    gain_over_previous: over(variants.last()),
                    repetitions: found,
                });
            }
            Run { nodes: played.nodes, variants }
        });
        Report { title: scenario.title.clone(), repetitions: scenario.repetitions, runs: runs.collect() }
    }

    /// Bandwidth and gain by nodes, and the repetitions of the largest run one by one.
    pub(super) fn picture(&self) -> String {
        let all = self.runs.iter().flat_map(|run| &run.variants);
        let top = all.flat_map(|variant| variant.repetitions.iter().copied()).fold(0.0, f64::max);
        let count = self.runs.first().map_or(0, |run| run.variants.len());
        let by_nodes = |variant: usize, of: &dyn Fn(&Measured) -> f64| -> Vec<(f64, f64)> {
            self.runs.iter().map(|run| (f64::from(run.nodes), of(&run.variants[variant]))).collect()
        };
        let chart = |title: &str, x: &str, y: String| Chart {
            title: title.to_owned(),
            x: x.to_owned(),
            y,
            ..Chart::default()
        };
        let of_top = format!("of {}/s", human::size(top as u64));
        let mut bandwidth = chart("bandwidth", "nodes", of_top.clone());
        let mut gain = chart("gain over the default", "nodes", "gain".to_owned());
        let mut single = chart("repetitions of the largest run", "repetition", of_top);
        for variant in 0..count {
            let Some(last) = self.runs.last() else { break };
            let name = last.variants[variant].placement;
            bandwidth = bandwidth.with(name, variant, Shape::Line, by_nodes(variant, &|m| m.bandwidth / top));
            if variant > 0 {
                gain = gain.with(name, variant, Shape::Line, by_nodes(variant, &|m| m.gain.max(0.0)));
            }
            let each = last.variants[variant].repetitions.iter().enumerate();
            let each = each.map(|(number, rate)| (number as f64 + 1.0, rate / top)).collect();
            single = single.with(name, variant, Shape::Line, each);
        }
        let scenes = vec![bandwidth.scene(), gain.scene(), single.scene()];
        svg::alone(&Scene::grid(&self.title, scenes, 2))
    }
}

/// Mean and standard deviation.
fn spread(found: &[f64]) -> (f64, f64) {
    let count = found.len() as f64;
    let mean = found.iter().sum::<f64>() / count;
    let variance = found.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, variance.sqrt())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {}", self.title, human::counted(self.repetitions.into(), "repetition"))?;
        let head = ["nodes", "placement", "bandwidth", "± (1σ)", "± %", "gain", "over the one before"];
        let mut rows = vec![head.map(str::to_owned)];
        for run in &self.runs {
            for variant in &run.variants {
                rows.push([
                    run.nodes.to_string(),
                    variant.placement.to_owned(),
                    format!("{}/s", human::size(variant.bandwidth as u64)),
                    format!("{}/s", human::size(variant.deviation as u64)),
                    format!("{:.1} %", variant.variation * 100.0),
                    format!("{:+.1} %", variant.gain * 100.0),
                    format!("{:+.1} %", variant.gain_over_previous * 100.0),
                ]);
            }
        }
        table(f, "rlrrrrr", 2, &rows)
    }
}
