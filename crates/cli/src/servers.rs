//! `server`: commands for one server of several.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use clap::{Args, Subcommand};
use forebay_model::ServerId;

#[derive(Subcommand)]
pub(crate) enum Server {
    /// Give up the lost store of a server, so that the server can join with a new store
    Replace(Replace),
}

#[derive(Args)]
pub(crate) struct Replace {
    /// Number of the server
    number: u16,
    #[command(flatten)]
    service: Service,
}

impl Server {
    pub(crate) fn run(&self) -> Outcome {
        let Server::Replace(replace) = self;
        replace.run()
    }
}

impl Replace {
    /// Informs every other server. The command has to be repeated for servers that do not answer.
    fn run(&self) -> Outcome {
        let (lost, members) = (ServerId(self.number), self.service.connect()?.welcome()?.members);
        if !members.contains(lost) || members.is_single() {
            return Err(Failure::Usage(format!("server {lost} is not one of several servers: {members}")));
        }
        let mut missed = Vec::new();
        for member in members.all().iter().filter(|member| member.server != lost) {
            let informed =
                self.service.connect_member(member).and_then(|client| Ok(client.replace_server(lost)?));
            if let Err(failure) = informed {
                missed.push(failure.text().unwrap_or_default().to_owned());
            }
        }
        if !missed.is_empty() {
            let text = format!(
                "not all servers were informed: run this again when they are back: {}",
                missed.join("; ")
            );
            return Err(Failure::Failed(text));
        }
        output::text(format_args!("server {lost} may join with a new store; what its old one held is lost"))
    }
}
