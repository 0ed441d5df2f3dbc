//! Shell completions.

use crate::failure::Outcome;
use crate::{Cli, output};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

#[derive(Args)]
pub(crate) struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "forebay", &mut script);
        output::bytes(&script)
    }
}
