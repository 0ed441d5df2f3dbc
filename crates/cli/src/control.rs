//! `status`, `df`: the state of the whole service.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::{self, LostList};
use clap::Args;
use forebay_client::blocking::Client;
use forebay_model::ErrorKind;
use forebay_wire::Standing;

#[derive(Args)]
pub(crate) struct Status {
    /// Show each server separately
    #[arg(long)]
    long: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Df {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

impl Status {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        if client.welcome()?.members.is_single() {
            return output::show(&status_view(&client, &client.status()?), self.json);
        }
        let all = client.statuses()?.into_iter();
        let all: Vec<_> = all
            .map(|(server, status)| (server, status.map(|status| status_view(&client, &status))))
            .collect();
        let servers = view::Servers::new(all, self.long);
        output::show(&servers, self.json)?;
        fail_if_unreachable(&servers.away())
    }
}

/// Fails if some servers do not answer; the output covers the others.
fn fail_if_unreachable(away: &[String]) -> Outcome {
    match away {
        [] => Ok(()),
        away => Err(Failure::Away(away.join("; "))),
    }
}

/// The status of a server with the list of lost data. The server sends that list only to its owner.
fn status_view(client: &Client, status: &forebay_wire::Status) -> view::Status {
    let lost = match (&status.standing, client.losses(status.server)) {
        (_, Ok(losses)) => LostList::new(losses),
        (Standing::Joined, Err(error)) if error.kind() != ErrorKind::NotPermitted => {
            LostList::unlisted(error.to_string())
        }
        _ => LostList::default(),
    };
    view::Status::new(status, lost)
}

impl Df {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        output::show(&view::Usage::from(client.statfs()?), self.json)?;
        let statuses = if client.welcome()?.members.is_single() { Vec::new() } else { client.statuses()? };
        let away = statuses.into_iter().filter_map(|(server, status)| {
            let error = status.err()?;
            Some(format!("the space of server {server}, which does not answer, is not counted: {error}"))
        });
        fail_if_unreachable(&away.collect::<Vec<_>>())
    }
}
