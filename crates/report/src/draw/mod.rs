//! Charts become scenes, scenes become SVG.

pub mod chart;
pub mod svg;
