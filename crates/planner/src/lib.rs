//! Sizing: how large the buffer must be, and when it should drain.
//!
//! Applications write bursts: in each time unit application *i* moves *bᵢ* units of data with probability
//! *pᵢ*. From that follow the exact distribution of the load, the Markov chain of the buffer's occupancy, and
//! the metrics for planning: how long applications stall, how often the buffer overflows, how full it is.
//!
//! **Invariant**: numbers in, numbers out. In whole model units the results are exact; simulated results
//! carry a confidence interval, and an iterated result is accepted by its residual.
//!
//! **Deliberately absent**: files, clocks, threads, randomness without a seed, pictures, human units (the
//! command line converts both ways).

#![forbid(unsafe_code)]

mod app;
mod bounds;
mod chain;
mod cost;
mod distribution;
mod error;
mod events;
mod figures;
mod fit;
mod generate;
mod gth;
mod metrics;
mod rng;
mod search;
mod sensitivity;
mod slots;
mod solve;
mod split;
mod stats;
mod steps;

pub use app::{App, Content, Fraction, MAX_STATES, Platform, Probability, Route, Units, expected_load};
pub use bounds::Chernoff;
pub use chain::Chain;
pub use cost::{Cost, Prices};
pub use distribution::Distribution;
pub use error::Error;
pub use events::{Effort, Observed, simulate};
pub use figures::{
    Claim, FIGURE_BANDWIDTH, Fit, Lazy, LoadPanel, Panel, SUITABLE, claims2, claims3, claims4, claims56,
    figure2, figure3, figure4, figure56,
};
pub use fit::{Profile, Sample, fit, median};
pub use generate::Recipe;
pub use metrics::Metrics;
pub use rng::Rng;
pub use search::{Choice, Weights, best_threshold, smallest_capacity, solve_at};
pub use sensitivity::{Influence, sensitivity};
pub use slots::{Thrown, Throws, throw};
pub use solve::{RESIDUAL, Stationary, stationary};
pub use split::{Part, mean_idle, split};
pub use stats::Estimate;
pub use steps::{RESTLESS, Steps};
