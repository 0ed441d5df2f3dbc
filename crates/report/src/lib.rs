//! What people write, and what they read: scenarios and plans in TOML, quantities with units, tables, charts, pages.
//!
//! ```text
//! keys       reads TOML key by key; every error names file, line and key
//! quantity   quantities with units, read and shown
//! human      numbers, times and modes in human-readable form
//! table      aligned columns
//! draw       charts become scenes, scenes become SVG
//! plan       the input file of a plan; its answer as text, JSON and a page
//! topology   `topology.toml`: where files may lie
//! sim        the scenario of a simulation; its result as text, JSON and files
//! figures    the papers' figures as charts and a page
//! ```
//!
//! **Invariant**: text in, text out; the same input gives the same text, to the last byte.
//!
//! **Deliberately absent**: files, clocks, terminals, and anything that computes what is reported: that is in
//! `forebay-planner`, `forebay-sim` and `forebay-bench`.

#![forbid(unsafe_code)]

pub mod draw;
pub mod figures;
pub mod human;
pub mod keys;
pub mod plan;
pub mod quantity;
pub mod sim;
mod table;
pub mod topology;

pub use table::table;
