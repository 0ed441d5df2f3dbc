//! `layout`: how files are striped over servers.

use crate::connect::Service;
use crate::failure::Outcome;
use crate::output;
use crate::shard::refuse_servers;
use clap::{Args, Subcommand};
use forebay_model::{Bytes, Striping};
use serde::Serialize;
use std::convert::Infallible;
use std::fmt;

#[derive(Subcommand)]
pub(crate) enum Layout {
    /// Set the layout of files that will be created in a directory, and in directories created in it
    Set(Set),
    /// Show the layout of a file, or the one that files in a directory will get
    Show(Show),
}

#[derive(Args)]
pub(crate) struct Set {
    /// The directory
    dir: String,
    /// Number of shards; all if not given
    #[arg(long, value_name = "N", default_value_t = 0)]
    shards: u16,
    #[arg(long = "servers", value_name = "N", hide = true, value_parser = refuse_servers)]
    #[allow(dead_code, reason = "it cannot be given")]
    retired: Option<Infallible>,
    /// Bytes on one shard before the next
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    stripe: Bytes,
    /// Let the service choose again: one shard for clients on its machine, all for others
    #[arg(long, conflicts_with_all = ["shards", "stripe"])]
    default: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Show {
    /// A directory or file
    path: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Serialize)]
struct Shown {
    path: String,
    striping: Option<Striping>,
    layout: Option<forebay_model::Layout>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match (&self.layout, self.striping) {
            (Some(layout), _) => {
                let servers: Vec<String> = layout.servers.iter().map(ToString::to_string).collect();
                write!(f, "servers {}, stripes of {}", servers.join(", "), Bytes(layout.stripe))
            }
            (None, Some(Striping { width: 0, stripe })) => {
                write!(f, "all servers, stripes of {}", Bytes(stripe))
            }
            (None, Some(Striping { width, stripe })) => {
                write!(f, "{width} servers, stripes of {}", Bytes(stripe))
            }
            (None, None) => f.write_str("as the servers choose"),
        }
    }
}

impl Layout {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Layout::Set(set) => {
                let striping = Striping { width: set.shards, stripe: set.stripe.0 };
                let striping = (!set.default).then_some(striping);
                Ok(set.service.connect()?.set_layout(&set.dir, striping)?)
            }
            Layout::Show(show) => {
                let (striping, layout) = show.service.connect()?.layout(&show.path)?;
                output::show(&Shown { path: show.path.clone(), striping, layout }, show.json)
            }
        }
    }
}
