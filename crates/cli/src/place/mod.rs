//! `place`: which storage targets files use, and programs whose files are placed.
//!
//! ```text
//! spec       topology, weights and a job, for a dry run
//! exec       programs whose files are placed, and flags for linkers
//! ```

mod exec;
mod spec;

use crate::failure::{Failure, Outcome};
use crate::view::Placed;
use crate::{library, output};
use clap::{Args, Subcommand};
use forebay_policy::place::{Job, Ledger, place};
use forebay_server::Described;
use spec::Spec;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Place {
    #[command(subcommand)]
    command: Option<Command>,
    /// Dry run: a TOML file with topology, weights and a job
    #[arg(value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program whose new files on a parallel file system are placed
    Exec(exec::Exec),
    /// Print the linker flags for a statically linked program
    Ldflags,
    /// Print the C header of the library
    Header,
}

impl Place {
    pub(crate) fn run(self) -> Outcome {
        match (self.command, self.spec) {
            (Some(Command::Exec(exec)), _) => exec.run(),
            (Some(Command::Ldflags), _) => exec::ldflags(),
            (Some(Command::Header), _) => output::text(library::PLACE_HEADER.trim_end()),
            (None, Some(spec)) => dry(&spec, self.json),
            (None, None) => {
                let text = "nothing to place: give a SPEC.toml, or \"exec\", \"ldflags\" or \"header\" (see \"forebay place --help\")";
                Err(Failure::Usage(text.to_owned()))
            }
        }
    }
}

/// Reads a `topology.toml`, for a server that drains.
pub(crate) fn described(path: &Path) -> Outcome<Described> {
    let written = spec::topology(path, &[])?;
    Ok(Described { description: written.topology.description().clone(), weights: written.weights })
}

fn dry(path: &Path, json: bool) -> Outcome {
    let spec = Spec::load(path)?;
    let topology = Arc::new(spec.written.topology);
    let mut ledger = Ledger::new(topology.clone(), spec.weights, spec.job);
    let job = Job {
        writers: &spec.writers,
        pattern: spec.pattern,
        file_size: spec.file_size,
        stripe_count: spec.stripe_count,
        stripe_size: spec.stripe_size,
        limits: &spec.written.limits,
    };
    let plan = place(&mut ledger, &job)
        .map_err(|trouble| Failure::Failed(format!("{}: {trouble}", path.display())))?;
    for note in &plan.notes {
        output::note(format_args!("{note}"));
    }
    output::show(&Placed::new(&topology, &plan), json)
}
