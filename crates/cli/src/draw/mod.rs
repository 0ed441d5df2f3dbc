//! Charts become scenes, scenes become SVG or PNG.

pub(crate) mod chart;
pub(crate) mod png;
mod strokes;
pub(crate) mod svg;
