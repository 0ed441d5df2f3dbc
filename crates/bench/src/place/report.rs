//! The result of a scenario: a table and JSON.

use super::play::{Played, Variant};
use super::scenario::{Real, Scenario};
use forebay_report::human;
use forebay_report::table;
use serde::Serialize;
use std::fmt;

/// All runs of a scenario.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) title: String,
    runs_of_each: u32,
    repetitions: u32,
    pub(super) runs: Vec<Run>,
    /// With real data, if the scenario has it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    real: Vec<Measured>,
}

#[derive(Serialize)]
pub(super) struct Run {
    pub(super) nodes: u32,
    pub(super) variants: Vec<Measured>,
}

#[derive(Serialize)]
pub(super) struct Measured {
    pub(super) placement: &'static str,
    /// Mean bytes per second.
    pub(super) bandwidth: f64,
    /// Seconds to write everything at that rate.
    pub(super) seconds: f64,
    /// Standard deviation between the repetitions of a run.
    pub(super) deviation: f64,
    /// Deviation relative to the mean.
    pub(super) variation: f64,
    /// Gain over the default, relative to it.
    gain: f64,
    /// Gain over the previous placement, relative to it.
    pub(super) gain_over_previous: f64,
    /// Bytes per second of each repetition of each run.
    pub(super) repetitions: Vec<Vec<f64>>,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        played: Vec<Played>,
        real: Vec<(Variant, Vec<Vec<f64>>)>,
    ) -> Report {
        let each = scenario.size.0 as f64 * f64::from(scenario.processes) * f64::from(scenario.phases);
        let run = |played: Played| Run {
            nodes: played.nodes,
            variants: measured(played.variants, each * f64::from(played.nodes)),
        };
        let all = scenario.real.as_ref().map_or(0.0, Real::bytes);
        Report {
            title: scenario.title.clone(),
            runs_of_each: scenario.runs,
            repetitions: scenario.repetitions,
            runs: played.into_iter().map(run).collect(),
            real: measured(real, all),
        }
    }
}

fn measured(found: Vec<(Variant, Vec<Vec<f64>>)>, bytes: f64) -> Vec<Measured> {
    let mut variants: Vec<Measured> = Vec::new();
    for (variant, repetitions) in found {
        let (bandwidth, deviation) = spread(&repetitions);
        let over = |other: Option<&Measured>| other.map_or(0.0, |other| bandwidth / other.bandwidth - 1.0);
        variants.push(Measured {
            placement: variant.word(),
            bandwidth,
            seconds: bytes / bandwidth,
            deviation,
            variation: deviation / bandwidth,
            gain: over(variants.first()),
            gain_over_previous: over(variants.last()),
            repetitions,
        });
    }
    variants
}

/// The mean of all, and the standard deviation within runs, which use the same nodes.
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
