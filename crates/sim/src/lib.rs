//! Discrete-event simulator of a machine: processes compute and write, servers buffer, share and drain,
//! targets store.
//!
//! ```text
//! scenario    the machine and its jobs
//! queue       the event queue
//! prefetch    prefetches the memory of upcoming events
//! hops        links, routers and storage servers on the path
//! placement   layouts of files that are placed for a whole job
//! world       the running machine; its parts are processes, servers, drains and targets
//! report      results: jobs, time series, the ledger of bytes
//! figures     reproduces the papers' figures
//! ```
//!
//! **Invariant**: the same scenario and the same seed give the same report, to the last bit. At every moment
//! all accepted bytes are on targets or in buffers. `forebay_policy` decides scheduling, routing, who gets
//! space in a full buffer, when and in what order it drains, and grants, as in the daemon.
//!
//! **Deliberately absent**: decisions, clocks, threads, files, human units, pictures.

#![forbid(unsafe_code)]

mod drains;
mod failures;
pub mod figures;
mod hops;
mod placement;
mod prefetch;
mod processes;
mod queue;
mod report;
mod scenario;
mod servers;
mod targets;
mod world;

pub use report::{JobReport, Ledger, Report, Series};
pub use scenario::{
    Choose, DrainPlan, Failure, Fault, HopGroup, JobPlan, LayoutPlan, Part, Pattern, Phase, Place, Scenario,
    Servers, Spread, TargetGroup, Way,
};
pub use world::{World, simulate};
