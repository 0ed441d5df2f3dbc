//! Over which targets a new file lies, so that no job piles its files on a few of them.
//!
//! A writer reaches a target through routers and the server that has it. The cost of such a path is Σ wᵢ·Rᵢ over its
//! resources, where Rᵢ is what the job has already put on a resource in proportion to its capacity; each file, or each
//! stripe of a shared one, takes the cheapest path there is.
//!
//! ```text
//! topology   what leads where, checked
//! weigh      what each resource counts
//! ledger     what a job has put where; the cheapest path for the next
//! level      the files of a whole job at once, as level as the topology allows
//! pattern    how many stripes, of which size, for which writers
//! job        a whole job
//! setting    what a program is told that places its own files
//! contend    how long writing takes where resources are shared
//! lov        layouts as Lustre writes them
//! measure    how even it came out
//! ```
//!
//! **Invariant**: a file is only ever placed on targets that are active, have room and are reached by all who write
//! there; equal inputs have equal results, whoever computes them, so that the processes of a job need not speak to each
//! other.
//!
//! **Deliberately absent**: what other jobs do (each is told what it did itself, and equal costs are decided differently
//! for each), the making of files, names of file systems.

mod contend;
mod job;
mod ledger;
mod level;
pub mod lov;
mod measure;
mod pattern;
mod setting;
mod topology;
mod weigh;

pub use contend::{Flow, Rates, seconds};
pub use job::{FilePlan, Job, Plan, Trouble, Writer, place};
pub use ledger::{HALF_LIFE, Ledger};
pub use measure::{Load, imbalance};
pub use pattern::{Component, Limits, Note, Pattern, Shape, Stripes};
pub use setting::{SETTING, Service, Setting};
pub use topology::{
    Capacities, Client, Description, Flaw, Part, Router, Routers, Server, State, Target, Topology,
};
pub use weigh::Weights;
