//! What a scenario came to: a table, JSON, a picture.

use super::play::{Played, Variant};
use super::scenario::Scenario;
use crate::draw::chart::{Chart, Scene, Shape};
use crate::draw::svg;
use crate::human;
use crate::view::table;
use serde::Serialize;
use std::fmt;

/// All runs of a scenario.
#[derive(Serialize)]
pub(super) struct Report {
    title: String,
    runs_of_each: u32,
    repetitions: u32,
    runs: Vec<Run>,
    /// With real bytes, if the scenario has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    real: Vec<Measured>,
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
    /// Standard deviation between the repetitions of a run.
    deviation: f64,
    /// Deviation as a part of the mean.
    variation: f64,
    /// How much more than the default, as a part of it.
    gain: f64,
    /// How much more than the placement before it, as a part of that.
    gain_over_previous: f64,
    /// Bytes a second of each repetition of each run.
    repetitions: Vec<Vec<f64>>,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        played: Vec<Played>,
        real: Vec<(Variant, Vec<Vec<f64>>)>,
    ) -> Report {
        let run = |played: Played| Run { nodes: played.nodes, variants: measured(played.variants) };
        Report {
            title: scenario.title.clone(),
            runs_of_each: scenario.runs,
            repetitions: scenario.repetitions,
            runs: played.into_iter().map(run).collect(),
            real: measured(real),
        }
    }

    /// Bandwidth and gain by nodes, and the repetitions of the largest run one by one.
    pub(super) fn picture(&self) -> String {
        let all = self.runs.iter().flat_map(|run| &run.variants);
        let top = all.flat_map(|variant| variant.repetitions.iter().flatten().copied()).fold(0.0, f64::max);
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
            let each = last.variants[variant].repetitions.iter().flatten().enumerate();
            let each = each.map(|(number, rate)| (number as f64 + 1.0, rate / top)).collect();
            single = single.with(name, variant, Shape::Line, each);
        }
        let scenes = vec![bandwidth.scene(), gain.scene(), single.scene()];
        svg::alone(&Scene::grid(&self.title, scenes, 2))
    }
}

fn measured(found: Vec<(Variant, Vec<Vec<f64>>)>) -> Vec<Measured> {
    let mut variants: Vec<Measured> = Vec::new();
    for (variant, repetitions) in found {
        let (bandwidth, deviation) = spread(&repetitions);
        let over = |other: Option<&Measured>| other.map_or(0.0, |other| bandwidth / other.bandwidth - 1.0);
        variants.push(Measured {
            placement: variant.word(),
            bandwidth,
            deviation,
            variation: deviation / bandwidth,
            gain: over(variants.first()),
            gain_over_previous: over(variants.last()),
            repetitions,
        });
    }
    variants
}

/// The mean of all, and the standard deviation within runs: what varies although the nodes are the same.
fn spread(runs: &[Vec<f64>]) -> (f64, f64) {
    let mean = |found: &[f64]| found.iter().sum::<f64>() / found.len() as f64;
    let variance = |run: &Vec<f64>| {
        let mean = mean(run);
        run.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (run.len() as f64 - 1.0).max(1.0)
    };
    let variances: Vec<f64> = runs.iter().map(variance).collect();
    (mean(&runs.concat()), mean(&variances).sqrt())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, again) = (human::counted(self.runs_of_each.into(), "run"), self.repetitions);
        writeln!(f, "{}, {runs} of {again}", self.title)?;
        let head = ["nodes", "placement", "bandwidth", "± (1σ)", "± %", "gain", "over the one before"];
        let mut rows = vec![head.map(str::to_owned)];
        let named = self.runs.iter().map(|run| (run.nodes.to_string(), &run.variants));
        for (nodes, variants) in named.chain([("real".to_owned(), &self.real)]) {
            for variant in variants {
                rows.push([
                    nodes.clone(),
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
