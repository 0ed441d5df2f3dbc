//! `forebay plan figures`: the sizing model's figures, drawn from fresh data, with their claims checked.

use crate::draw::chart::{Chart, Scene, Shape};
use forebay_planner::{
    Claim, Error, FIGURE_BANDWIDTH, Lazy, LoadPanel, Panel, claims2, claims3, claims4, claims56, figure2,
    figure3, figure4, figure56,
};

/// A figure's file name and drawing.
pub(super) type Figure = (&'static str, Scene);

/// Everything: the drawings and the verdicts.
pub(super) fn all(seed: u64) -> Result<(Vec<Figure>, Vec<Claim>), Error> {
    // The two that take longest side by side.
    let (three, lazy) = std::thread::scope(|scope| {
        let three = scope.spawn(|| figure3(seed));
        let lazy = figure56(seed);
        (three.join().expect("a figure does not panic"), lazy)
    });
    let (two, three, lazy) = (figure2(seed)?, three?, lazy?);
    let (four, stretched) = (figure4(seed, 1.0)?, figure4(seed, 4.0)?);
    let mut claims = claims2(&two);
    claims.extend(claims3(&three));
    claims.extend(claims4(&four, &stretched));
    claims.extend(claims56(&lazy));
    let fits = four.iter().map(|panel| {
        let edge = |f: &forebay_planner::Fit| {
            ((f.simulated.mean - f.simulated.half_width).max(0.0), f.simulated.mean + f.simulated.half_width)
        };
        let means = panel.points.iter().map(|f| (f.capacity as f64, f.simulated.mean)).collect();
        let title = format!("p_max {}, α {}", panel.p_max, panel.alpha);
        Chart { title, x: "capacity".into(), y: "idle time".into(), ..Chart::default() }
            .with(
                "discrete events, 95 % interval",
                1,
                Shape::Ribbon(panel.points.iter().map(edge).collect()),
                means,
            )
            .with(
                "Markov chain",
                0,
                Shape::Line,
                panel.points.iter().map(|f| (f.capacity as f64, f.chain)).collect(),
            )
            .scene()
    });
    let figures = vec![
        (
            "fig2",
            Scene::grid("2: load of a time unit, mean load = bandwidth", two.iter().map(load).collect(), 2),
        ),
        ("fig3", Scene::grid("3: idle time against capacity", by_alpha(&three), 2)),
        ("fig4", Scene::grid("4: Markov chain against discrete events", fits.collect(), 3)),
        (
            "fig5",
            Scene::grid("5: idle time against threshold, S = 500", lazily(&lazy, "idle time", |p| p.idle), 2),
        ),
        (
            "fig6",
            Scene::grid(
                "6: quiet time against threshold, S = 500",
                lazily(&lazy, "quiet time", |p| p.quiet),
                2,
            ),
        ),
    ];
    Ok((figures, claims))
}

fn load(panel: &LoadPanel) -> Scene {
    let end = (5 * FIGURE_BANDWIDTH).min(panel.exact.len());
    let curve = |values: &[f64]| values[..end].iter().enumerate().map(|(x, v)| (x as f64, *v)).collect();
    let title = format!("p_max {}", panel.p_max);
    let flags = vec![(FIGURE_BANDWIDTH as f64, "B".into())];
    Chart {
        title, x: "load x".into(), y: "P(load ≤ x)".into(), y_top: Some(1.0), flags, ..Chart::default()
    }
    .with("P(load ≤ x), exact", 0, Shape::Filled, curve(&panel.exact))
    .with("lower bound", 1, Shape::Dashed, curve(&panel.lower))
    .with("upper bound", 2, Shape::Dashed, curve(&panel.upper))
    .scene()
}

/// Panels that share their load factor, as one chart each.
fn groups<P>(panels: &[Panel<P>]) -> impl Iterator<Item = &[Panel<P>]> {
    panels.chunk_by(|a, b| a.alpha == b.alpha)
}

fn by_alpha(panels: &[Panel<(f64, f64)>]) -> Vec<Scene> {
    groups(panels)
        .map(|group| {
            let title = format!("α {}", group[0].alpha);
            let chart = Chart { title, x: "capacity".into(), y: "idle time".into(), ..Chart::default() };
            let seen = |points: &[(f64, f64)]| points.iter().copied().filter(|p| p.0 <= 800.0).collect();
            let add = |chart: Chart, (i, p): (usize, &Panel<(f64, f64)>)| {
                chart.with(&format!("p_max {}", p.p_max), i, Shape::Line, seen(&p.points))
            };
            group.iter().enumerate().fold(chart, add).scene()
        })
        .collect()
}

fn lazily(panels: &[Panel<Lazy>], what: &str, pick: fn(&Lazy) -> f64) -> Vec<Scene> {
    groups(panels)
        .map(|group| {
            let title = format!("α {}", group[0].alpha);
            let chart =
                Chart { title, x: "threshold".into(), y: what.into(), x_percent: true, ..Chart::default() };
            let add = |chart: Chart, (i, p): (usize, &Panel<Lazy>)| {
                let points = p.points.iter().map(|l| (l.threshold, pick(l))).collect();
                chart.with(&format!("p_max {}", p.p_max), i, Shape::Line, points)
            };
            group.iter().enumerate().fold(chart, add).scene()
        })
        .collect()
}
