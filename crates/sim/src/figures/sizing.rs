//! The sizing model: the planner's figures.

use super::{Drawn, Panel, Result, Settings, Style};
use forebay_planner::{
    Claim, FIGURE_BANDWIDTH, Fit, Lazy, LoadPanel, Panel as Curves, claims2, claims3, claims4, claims56,
    figure2, figure3, figure4, figure56,
};

fn add_claims(drawn: &mut Drawn, claims: Vec<Claim>, figure: u8) {
    for claim in claims.into_iter().filter(|claim| claim.figure == figure) {
        drawn.claim(claim.text, claim.holds, claim.detail);
    }
}

fn wrong(error: forebay_planner::Error) -> String {
    error.to_string()
}

pub(super) fn two(settings: &Settings) -> Result {
    let data = figure2(settings.seed).map_err(wrong)?;
    let mut drawn = Drawn { panels: data.iter().map(load).collect(), ..Drawn::default() };
    add_claims(&mut drawn, claims2(&data), 2);
    Ok(drawn)
}

fn load(panel: &LoadPanel) -> Panel {
    let end = (5 * FIGURE_BANDWIDTH).min(panel.exact.len());
    let curve = |values: &[f64]| values[..end].iter().enumerate().map(|(x, v)| (x as f64, *v)).collect();
    Panel::new(format!("p_max {}, B = {FIGURE_BANDWIDTH}", panel.p_max), "load x", "P(load ≤ x)")
        .in_percent()
        .with("P(load ≤ x), exact", Style::Line, curve(&panel.exact))
        .with("lower bound", Style::Dashed, curve(&panel.lower))
        .with("upper bound", Style::Dashed, curve(&panel.upper))
}

/// Curves with the same load factor, as one panel each.
fn by_alpha<P>(all: &[Curves<P>], x: &str, y: &str, points: impl Fn(&P) -> (f64, f64)) -> Vec<Panel> {
    all.chunk_by(|a, b| a.alpha == b.alpha)
        .map(|group| {
            let panel = Panel::new(format!("α {}", group[0].alpha), x, y).in_percent();
            group.iter().fold(panel, |panel, curve| {
                let points = curve.points.iter().map(&points).collect();
                panel.with(format!("p_max {}", curve.p_max), Style::Line, points)
            })
        })
        .collect()
}

pub(super) fn three(settings: &Settings) -> Result {
    let data = figure3(settings.seed).map_err(wrong)?;
    let seen: Vec<Curves<(f64, f64)>> = data
        .iter()
        .map(|curve| Curves {
            points: curve.points.iter().copied().filter(|point| point.0 <= 800.0).collect(),
            ..*curve
        })
        .collect();
    let panels = by_alpha(&seen, "capacity", "idle time", |point| *point);
    let mut drawn = Drawn { panels, ..Drawn::default() };
    add_claims(&mut drawn, claims3(&data), 3);
    Ok(drawn)
}

pub(super) fn four(settings: &Settings) -> Result {
    let data = figure4(settings.seed, 1.0).map_err(wrong)?;
    let stretched = figure4(settings.seed, 4.0).map_err(wrong)?;
    let panels = data.iter().map(|curve| {
        let edge = |fit: &Fit| {
            let (mean, half) = (fit.simulated.mean, fit.simulated.half_width);
            ((mean - half).max(0.0), mean + half)
        };
        let seen = curve.points.iter().map(|fit| (fit.capacity as f64, fit.simulated.mean)).collect();
        let chain = curve.points.iter().map(|fit| (fit.capacity as f64, fit.chain)).collect();
        let title = format!("p_max {}, α {}", curve.p_max, curve.alpha);
        Panel::new(title, "capacity", "idle time").in_percent().with("Markov chain", Style::Line, chain).with(
            "discrete events, 95 %",
            Style::Ribbon(curve.points.iter().map(edge).collect()),
            seen,
        )
    });
    let mut drawn = Drawn { panels: panels.collect(), ..Drawn::default() };
    add_claims(&mut drawn, claims4(&data, &stretched), 4);
    drawn.note("15 runs of 1000 time units from random starts, as in the paper.");
    Ok(drawn)
}

fn lazy_figure(settings: &Settings, figure: u8, y: &str, pick: fn(&Lazy) -> f64) -> Result {
    let data = figure56(settings.seed).map_err(wrong)?;
    let mut panels = by_alpha(&data, "threshold", y, |point| (point.threshold, pick(point)));
    panels.iter_mut().for_each(|panel| panel.x_percent = true);
    let mut drawn = Drawn { panels, ..Drawn::default() };
    add_claims(&mut drawn, claims56(&data), figure);
    Ok(drawn)
}

pub(super) fn five(settings: &Settings) -> Result {
    lazy_figure(settings, 5, "idle time", |point| point.idle)
}

pub(super) fn six(settings: &Settings) -> Result {
    lazy_figure(settings, 6, "quiet time", |point| point.quiet)
}
