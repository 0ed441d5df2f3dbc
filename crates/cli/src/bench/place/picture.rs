//! A scenario in the manner of the paper's figures.

use super::report::{Measured, Report, Run};
use crate::draw::chart::{Chart, Scene, Shape};
use crate::draw::svg;

/// Most numbers of nodes whose runs are drawn one by one.
const MOST: usize = 6;

/// Bandwidth (Figs 5 and 8), gain (Figs 6 and 9), time (Fig. 7) and deviation by nodes, then the gain of each run (Fig. 4).
pub(super) fn picture(report: &Report) -> String {
    let mut scenes = vec![
        bandwidth(report).scene(),
        gain(report).scene(),
        by_nodes(report, "time to write", "seconds", true, 0, &|one| one.seconds).scene(),
        by_nodes(report, "deviation between repetitions", "of the mean", false, 0, &|one| one.variation)
            .scene(),
    ];
    scenes.extend(report.runs.iter().rev().take(MOST).rev().map(|run| each_run(run).scene()));
    svg::alone(&Scene::grid(&report.title, scenes, 2))
}

fn named(title: String, x: &str, y: &str, names: Vec<String>, plain: bool) -> Chart {
    Chart { title, x: x.to_owned(), y: y.to_owned(), names, plain, ..Chart::default() }
}

fn nodes(report: &Report) -> Vec<String> {
    report.runs.iter().map(|run| run.nodes.to_string()).collect()
}

fn variants(run: Option<&Run>) -> impl Iterator<Item = (usize, &Measured)> {
    run.into_iter().flat_map(|run| run.variants.iter().enumerate())
}

fn by_nodes(
    report: &Report,
    title: &str,
    y: &str,
    plain: bool,
    from: usize,
    of: &dyn Fn(&Measured) -> f64,
) -> Chart {
    let chart = named(title.to_owned(), "nodes", y, nodes(report), plain);
    variants(report.runs.first()).skip(from).fold(chart, |chart, (variant, first)| {
        let values = report.runs.iter().enumerate().map(|(at, run)| (at as f64, of(&run.variants[variant])));
        chart.with(first.placement, variant, Shape::Bars, values.collect())
    })
}

fn bandwidth(report: &Report) -> Chart {
    const GIGA: f64 = 1e9;
    let chart = named("bandwidth, ± a deviation".to_owned(), "nodes", "GB/s", nodes(report), true);
    variants(report.runs.first()).fold(chart, |chart, (variant, first)| {
        let found: Vec<&Measured> = report.runs.iter().map(|run| &run.variants[variant]).collect();
        let edges = found.iter().map(|one| {
            ((one.bandwidth - one.deviation).max(0.0) / GIGA, (one.bandwidth + one.deviation) / GIGA)
        });
        let middle = found.iter().enumerate().map(|(at, one)| (at as f64, one.bandwidth / GIGA));
        let points: Vec<(f64, f64)> = middle.collect();
        chart.with(first.placement, variant, Shape::Ribbon(edges.collect()), points.clone()).with(
            first.placement,
            variant,
            Shape::Line,
            points,
        )
    })
}

/// Over the default where there is nothing else, and over the best that can be had without choosing targets.
fn gain(report: &Report) -> Chart {
    let count = report.runs.first().map_or(0, |run| run.variants.len());
    let over = if count > 2 { "the optimised" } else { "the default" };
    let title = format!("gain of balanced over {over} placement");
    let last = count.saturating_sub(1);
    by_nodes(report, &title, "gain", false, last, &|one| one.gain_over_previous.max(0.0))
}

fn each_run(run: &Run) -> Chart {
    let title = format!("{} nodes: gain over the default, run by run", run.nodes);
    let mean = |rates: &Vec<f64>| rates.iter().sum::<f64>() / rates.len() as f64;
    let count = run.variants.first().map_or(0, |first| first.repetitions.len());
    let names = (1..=count).map(|number| number.to_string()).collect();
    let usual: Vec<f64> = run.variants[0].repetitions.iter().map(mean).collect();
    let chart = named(title, "run", "gain", names, false);
    variants(Some(run)).skip(1).fold(chart, |chart, (variant, one)| {
        let gains = one.repetitions.iter().zip(&usual).enumerate();
        let gains = gains.map(|(at, (rates, usual))| (at as f64, (mean(rates) / usual - 1.0).max(0.0)));
        chart.with(one.placement, variant, Shape::Bars, gains.collect())
    })
}
