//! Charts of a scenario like the paper's figures.

use super::report::{Measured, Report, Run};
use forebay_report::draw::chart::{Chart, Scene, Shape};
use forebay_report::draw::svg;

/// Maximum number of node counts whose runs are drawn one by one.
const MOST: usize = 6;

/// Bandwidth (Figs 5 and 8), gain (Figs 6 and 9), time (Fig. 7) and deviation by nodes, then the gain of each
/// run (Fig. 4).
pub(super) fn picture(report: &Report) -> String {
    let mut scenes = vec![
        bandwidth(report).scene(),
        gain(report).scene(),
        by_nodes(report, "seconds to write everything", true, 0, &|one| one.seconds).scene(),
        by_nodes(report, "deviation between repetitions, of the mean", false, 0, &|one| one.variation)
            .scene(),
    ];
    scenes.extend(report.runs.iter().rev().take(MOST).rev().map(|run| each_run(run).scene()));
    svg::alone(&Scene::grid(&report.title, scenes, 2))
}

fn named(title: String, x: &str, names: Vec<String>, plain: bool) -> Chart {
    Chart { title, x: x.to_owned(), names, plain, ..Chart::default() }
}

fn nodes(report: &Report) -> Vec<String> {
    report.runs.iter().map(|run| run.nodes.to_string()).collect()
}

fn variants(run: Option<&Run>) -> impl Iterator<Item = (usize, &Measured)> {
    run.into_iter().flat_map(|run| run.variants.iter().enumerate())
}

fn by_nodes(report: &Report, title: &str, plain: bool, from: usize, of: &dyn Fn(&Measured) -> f64) -> Chart {
    let chart = named(title.to_owned(), "nodes", nodes(report), plain);
    variants(report.runs.first()).skip(from).fold(chart, |chart, (variant, first)| {
        let values = report.runs.iter().enumerate().map(|(at, run)| (at as f64, of(&run.variants[variant])));
        chart.with(first.placement, variant, Shape::Bars, values.collect())
    })
}

fn bandwidth(report: &Report) -> Chart {
    const GIGA: f64 = 1e9;
    let chart = named("bandwidth in GB/s, ± a deviation".to_owned(), "nodes", nodes(report), true);
    variants(report.runs.first()).fold(chart, |chart, (variant, first)| {
        let found: Vec<&Measured> = report.runs.iter().map(|run| &run.variants[variant]).collect();
        let edges = found.iter().map(|one| {
            ((one.bandwidth - one.deviation).max(0.0) / GIGA, (one.bandwidth + one.deviation) / GIGA)
        });
        let middle = found.iter().enumerate().map(|(at, one)| (at as f64, one.bandwidth / GIGA));
        let points: Vec<(f64, f64)> = middle.collect();
        chart.with(first.placement, variant, Shape::Ribbon(edges.collect()), points)
    })
}

/// The baseline of balanced placement: the best without a choice of targets.
fn other(run: Option<&Run>) -> &'static str {
    run.and_then(|run| run.variants.iter().rev().nth(1)).map_or("", |other| other.placement)
}

fn gain(report: &Report) -> Chart {
    let title = format!("gain of balanced over {} placement", other(report.runs.first()));
    let last = report.runs.first().map_or(0, |run| run.variants.len().saturating_sub(1));
    by_nodes(report, &title, false, last, &|one| one.gain_over_previous.max(0.0))
}

/// The gain of each run. Bars begin at zero; the title reports a loss.
fn each_run(run: &Run) -> Chart {
    let mean = |rates: &Vec<f64>| rates.iter().sum::<f64>() / rates.len() as f64;
    let means = |one: &Measured| one.repetitions.iter().map(mean).collect::<Vec<f64>>();
    let last = run.variants.len().saturating_sub(1);
    let (balanced, before) = (means(&run.variants[last]), means(&run.variants[last.saturating_sub(1)]));
    let gains: Vec<f64> =
        balanced.iter().zip(&before).map(|(balanced, before)| balanced / before - 1.0).collect();
    let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
    let title = format!(
        "{} nodes, run by run: at least {:+.1} % over {}",
        run.nodes,
        100.0 * least,
        other(Some(run))
    );
    let step = gains.len().div_ceil(10);
    let name = |number: usize| if number.is_multiple_of(step) { number.to_string() } else { String::new() };
    let chart = named(title, "run", (1..=gains.len()).map(name).collect(), false);
    let bars = gains.iter().enumerate().map(|(at, gain)| (at as f64, gain.max(0.0)));
    chart.with(run.variants[last].placement, last, Shape::Bars, bars.collect())
}
