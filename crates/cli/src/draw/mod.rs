//! Charts become scenes, scenes become SVG.

pub(crate) mod chart;
pub(crate) mod svg;
