//! A plan: how large the buffer must be, and when it should drain.
//!
//! The planner crate computes; this module reads the plan and renders the answer.

mod answer;
mod input;
mod json;
mod page;
mod sweep;
mod text;

pub use answer::{Answer, Options, Point, Recommended, answer, points};
pub use input::{Plan, Scale, read};
pub use json::render as json;
pub use page::{charts, render as page};
pub use sweep::{Key, Sweep};
pub use text::render as text;
