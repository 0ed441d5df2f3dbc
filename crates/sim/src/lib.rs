//! A machine in virtual time: processes compute and write, servers buffer, share and drain, targets take what comes.
//!
//! ```text
//! scenario    what the machine is, and what runs on it
//! queue       what happens next
//! foresight   what that will need, read before it happens
//! hops        links, routers and storage servers on the way
//! placement   where files lie, when that is decided for a whole job
//! world       the machine at work; its parts are processes, servers, drains and targets
//! report      what was seen: jobs, series, the ledger of bytes
//! figures     the papers' figures, made with all that
//! ```
//!
//! **Invariant**: the same scenario and the same seed give the same report, to the last bit; at every moment all bytes
//! that were taken are behind or held. Whose turn it is, where a write goes, what leaves next and who may write where is
//! decided by `forebay_policy`, as in the daemon.
//!
//! **Deliberately absent**: decisions, clocks, threads, files, human units, pictures.

#![forbid(unsafe_code)]

mod drains;
mod failures;
pub mod figures;
mod foresight;
mod hops;
mod placement;
mod processes;
mod queue;
mod report;
mod scenario;
mod servers;
mod targets;
mod world;

pub use report::{JobReport, Ledger, Report, Series};
pub use scenario::{
    Choose, DrainPlan, Failure, Fault, Full, HopGroup, JobPlan, LayoutPlan, Part, Pattern, Phase, Place,
    Scenario, Servers, Spread, TargetGroup, Way, When,
};
pub use world::{World, simulate};
