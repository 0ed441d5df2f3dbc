//! `shard`: commands for one shard of several.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use clap::{Args, Subcommand};
use forebay_model::ServerId;
use std::convert::Infallible;

#[derive(Subcommand)]
pub(crate) enum Shard {
    /// Give up the lost store of a shard, so that the shard can join with a new store
    Replace(Replace),
}

#[derive(Args)]
pub(crate) struct Replace {
    /// Number of the shard
    number: u16,
    #[command(flatten)]
    service: Service,
}

/// The name that these commands had.
#[derive(Args)]
pub(crate) struct Retired {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<String>,
}

impl Retired {
    pub(crate) fn run(&self) -> Outcome {
        let words = self.words.join(" ");
        Err(Failure::Usage(format!("\"forebay server\" has another name: run \"forebay shard {words}\"")))
    }
}

/// Refuses `--servers`, and names the option that takes its place.
pub(crate) fn refuse_servers(number: &str) -> Result<Infallible, String> {
    Err(format!("this option has another name: use --shards {number}"))
}

impl Shard {
    pub(crate) fn run(&self) -> Outcome {
        let Shard::Replace(replace) = self;
        replace.run()
    }
}

impl Replace {
    /// Informs every other shard. The command has to be repeated for shards that do not answer.
    fn run(&self) -> Outcome {
        let (lost, members) = (ServerId(self.number), self.service.connect()?.welcome()?.members);
        if !members.contains(lost) || members.is_single() {
            return Err(Failure::Usage(format!("shard {lost} is not one of several shards: {members}")));
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
                "not all shards were informed: run this again when they are back: {}",
                missed.join("; ")
            );
            return Err(Failure::Failed(text));
        }
        output::text(format_args!("shard {lost} may join with a new store; what its old one held is lost"))
    }
}
