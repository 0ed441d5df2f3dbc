//! The papers' figures as charts and a page.

mod page;

use crate::draw::chart::{Chart, Scene, Shape};
use forebay_sim::figures::{Drawn, Figure, Panel, Style};
pub use page::render as page;

/// A figure, or the error.
pub struct Made {
    /// The figure.
    pub figure: &'static Figure,
    /// What was drawn, or why it cannot be made.
    pub drawn: Result<Drawn, String>,
}

/// A panel as a chart.
pub fn chart(panel: &Panel) -> Chart {
    let mut chart = Chart {
        title: format!("{}, {}", panel.title, panel.y),
        x: panel.x.clone(),
        y: panel.y.clone(),
        names: panel.names.clone(),
        plain: !panel.percent,
        x_percent: panel.x_percent,
        ..Chart::default()
    };
    for (ink, line) in panel.lines.iter().enumerate() {
        let shape = match &line.style {
            Style::Line => Shape::Line,
            Style::Dashed => Shape::Dashed,
            Style::Dots => Shape::Dots,
            Style::Bars => Shape::Bars,
            Style::Ribbon(edges) => Shape::Ribbon(edges.clone()),
        };
        chart = chart.with(&line.name, ink, shape, line.points.clone());
    }
    chart
}

/// All panels of a figure in one scene.
pub fn scene(title: &str, drawn: &Drawn) -> Scene {
    let scenes: Vec<Scene> = drawn.panels.iter().map(|panel| chart(panel).scene()).collect();
    let columns = scenes.len().clamp(1, 2);
    Scene::grid(title, scenes, columns)
}
