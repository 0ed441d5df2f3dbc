//! A simulation: its scenario and its report.

mod report;
mod scenario;
mod words;

pub use report::Report;
pub use scenario::{Devices, Read, read};
