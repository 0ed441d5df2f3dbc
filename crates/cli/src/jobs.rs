//! `jobs`: the jobs that share the service, once or every second.

use crate::connect::Service;
use crate::failure::Outcome;
use crate::{output, view};
use clap::Args;
use std::time::Duration;

const BEAT: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct Jobs {
    /// Refresh every second until interrupted
    #[arg(long)]
    watch: bool,
    /// Print as JSON; with --watch one line each second
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

impl Jobs {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        let look =
            || -> Outcome<view::JobTable> { Ok(view::JobTable::new(&client.status()?, &client.policy()?)) };
        if !self.watch {
            return output::show(&look()?, self.json);
        }
        loop {
            let seen = look()?;
            match self.json {
                true => output::message(&seen)?,
                // Clears the screen and moves the cursor home.
                false => output::text(format_args!("\x1b[2J\x1b[H{seen}"))?,
            }
            std::thread::sleep(BEAT);
        }
    }
}
