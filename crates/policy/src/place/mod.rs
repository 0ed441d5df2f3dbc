//! Placement of new files over targets, so that a job spreads its files evenly.
//!
//! A writer reaches a target through routers and the server that has the target. The cost of such a path is Σ
//! wᵢ·Rᵢ over its resources, where Rᵢ is the job's load on a resource in proportion to the resource's
//! capacity. Each file, or each stripe of a shared file, takes the cheapest path.
//!
//! ```text
//! topology   routers, servers, targets and clients, checked
//! weigh      weight of each kind of resource
//! ledger     a job's load per resource; the cheapest path for the next file
//! level      evens out the files of a whole job, as far as the topology allows
//! pattern    stripe count and stripe size for a set of writers
//! job        places all files of a job
//! setting    settings for a program that places its own files
//! contend    time that writing takes on shared resources
//! lov        Lustre's layout format
//! measure    load and imbalance
//! ```
//!
//! **Invariant**: a file is only placed on targets that are active, have enough free space and are reachable
//! by all its writers. Equal inputs give equal results in every process, so the processes of a job need not
//! communicate.
//!
//! **Deliberately absent**: the load of other jobs (a job knows only its own load, and each job breaks ties
//! differently), the creation of files, names of file systems.

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
pub use pattern::{Component, Limits, Note, PART, Pattern, Shape, Stripes, width};
pub use setting::{SETTING, Service, Setting};
pub use topology::{
    Capacities, Client, Description, Flaw, Part, Router, Routers, Server, State, Target, Topology,
};
pub use weigh::Weights;
