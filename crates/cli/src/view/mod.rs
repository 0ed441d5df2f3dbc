//! Output of commands: each view is text (`Display`) and JSON (`Serialize`).

mod bytes;
mod demo;
mod drain;
mod entry;
mod jobs;
mod lost;
mod people;
mod place;
mod route;
mod run;
mod servers;
mod service;
mod shares;
mod sharing;
mod started;
mod store;
mod transfer;

pub(crate) use bytes::lossy;
pub(crate) use demo::{Crash, DemoReport, JobReport};
pub(crate) use drain::DrainState;
pub(crate) use entry::{Entries, Entry, Facts, Sum, Sums};
pub(crate) use forebay_report::table;
pub(crate) use jobs::JobTable;
pub(crate) use lost::LostList;
pub(crate) use people::People;
pub(crate) use place::Placed;
pub(crate) use run::{Drained, Ended, RunReport};
pub(crate) use servers::Servers;
pub(crate) use service::{Status, Usage};
pub(crate) use shares::{JobShare, ServerShares, Shares};
pub(crate) use sharing::Sharing;
pub(crate) use started::Started;
pub(crate) use store::{Checked, Inspected, Removed, Replaced};
pub(crate) use transfer::{Direction, Summary};
