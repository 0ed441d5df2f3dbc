//! `exec`: a program that knows nothing of Forebay, with the library in it; `library`: the library by itself.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::{library, output};
use clap::Args;
use forebay_client::{ClientConfig, Credential};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    service: Service,
    /// Where the program finds Forebay's files
    #[arg(long, value_name = "DIR", env = "FOREBAY_PREFIX", default_value = "/fb", hide_env_values = true)]
    prefix: PathBuf,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    with_parent: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Exec {
    pub(crate) fn run(self) -> Outcome {
        check_prefix(&self.prefix)?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        prepare(&mut command, &self.service.resolve()?, &self.prefix)?;
        if self.with_parent {
            // The program inherits the wish.
            set_parent_process_death_signal(Some(Signal::TERM))
                .map_err(|error| Failure::Failed(format!("cannot watch the parent process: {error}")))?;
        }
        // Returns only if it failed.
        let error = command.exec();
        Err(Failure::local("run", Path::new(&self.command[0]), &error))
    }
}

/// Refuses what cannot be a place for Forebay's files.
pub(crate) fn check_prefix(prefix: &Path) -> Outcome {
    if prefix.is_absolute() && prefix != Path::new("/") {
        return Ok(());
    }
    Err(Failure::Usage(format!("the prefix {} cannot be used: name a path such as /fb", prefix.display())))
}

#[derive(Args)]
pub(crate) struct Library {
    /// Print the C header instead
    #[arg(long)]
    header: bool,
}

impl Library {
    pub(crate) fn run(self) -> Outcome {
        match self.header {
            true => output::text(library::HEADER.trim_end()),
            false => output::text(library::lay_down(&library::FOREBAY)?.display()),
        }
    }
}

/// Gives a command the library, and tells the library about the service.
fn prepare(command: &mut Command, config: &ClientConfig, prefix: &Path) -> Outcome {
    let preload = library::before(library::lay_down(&library::FOREBAY)?);
    command
        .env("LD_PRELOAD", preload)
        .env("FOREBAY_SERVICE", config.address.to_string())
        .env("FOREBAY_PREFIX", prefix);
    if let Credential::File(key) = &config.credential {
        command.env("FOREBAY_KEY", key);
    }
    Ok(())
}
