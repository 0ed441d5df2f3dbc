//! `policy`: the sharing policy of the service.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::{output, view};
use clap::{Args, Subcommand};
use forebay_policy::route::Mode;
use forebay_policy::share::Policy;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show the policy, and whether all servers follow it
    Show(Show),
    /// Set the sharing policy of all servers
    Set(Set),
    /// Set how all servers route writes: into the buffer or directly to the back end
    Route(Route),
}

#[derive(Args)]
pub(crate) struct Show {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Set {
    /// fifo, or levels from the top down, such as user-then-size-fair
    #[arg(value_name = "POLICY")]
    policy: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Route {
    /// buffer, traffic, overflow or direct
    #[arg(value_name = "MODE")]
    mode: String,
    #[command(flatten)]
    service: Service,
}

impl Command {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Command::Show(show) => {
                let sharing = show.service.connect()?.policy()?;
                output::show(&view::Sharing::from(sharing), show.json)
            }
            Command::Set(set) => {
                let policy = read("POLICY", &set.policy)?;
                let sharing = set.service.connect()?.set_policy(&policy.to_string())?;
                output::show(&view::Sharing::from(sharing), set.json)
            }
            Command::Route(route) => {
                let mode: Mode =
                    route.mode.parse().map_err(|error| Failure::Usage(format!("MODE: {error}")))?;
                Ok(route.service.connect()?.set_route(mode.name())?)
            }
        }
    }
}

/// Parses a policy; `place` names its source in messages.
pub(crate) fn read(place: &str, text: &str) -> Outcome<Policy> {
    text.parse().map_err(|error| Failure::Pointed(format!("{place}: {error}")))
}
