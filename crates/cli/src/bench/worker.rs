//! One process of a job of `bench share`.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use clap::Args;
use forebay_bench::{Op, Process};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct BenchJob {
    /// Prefix of its file names
    #[arg(long)]
    name: String,
    #[arg(long)]
    op: Op,
    #[arg(long)]
    request: usize,
    #[arg(long)]
    streams: u32,
    #[arg(long)]
    seconds: f64,
    /// End after this number of bytes
    #[arg(long)]
    amount: Option<u64>,
    /// Computation time after each request
    #[arg(long)]
    pause_ms: u64,
    #[command(flatten)]
    service: Service,
}

impl BenchJob {
    pub(crate) fn run(&self) -> Outcome {
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| Failure::Failed(format!("cannot watch the parent process: {error}")))?;
        let streams = self.streams as usize;
        let client = self.service.connect_with(|config| config.data_connections = streams)?;
        let process = Process {
            name: self.name.clone(),
            op: self.op,
            request: self.request,
            streams: self.streams,
            length: Duration::from_secs_f64(self.seconds),
            amount: self.amount,
            pause: Duration::from_millis(self.pause_ms),
        };
        output::message(&process.run(&client)?)
    }
}
