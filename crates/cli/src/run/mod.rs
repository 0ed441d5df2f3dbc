//! `run`: runs a program with a buffer of its own and drains its files when it has ended.
//!
//! The buffer is a directory in `/dev/shm` with a store and a server process, which drains to the target
//! directory; the
//! program gets the preload library. However the run ends, the data is either in the target, verified, or still
//! in the
//! directory, from where `--resume` drains it.

mod drain;
mod program;
mod ranks;
mod run_dir;

use crate::exec::{Intercept, check_prefix};
use crate::failure::{Failure, Outcome};
use crate::view::{Drained, Ended, RunReport};
use crate::{human, output, policy};
use clap::Args;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig, Listing, job_of_this_process};
use forebay_model::{Bytes, Identity};
use program::SignalHandler;
use run_dir::{Note, RunDir};
use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};
use std::time::{Duration, Instant};

/// How long to wait for processes of the program that are still ending.
const EXIT_WAIT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct Run {
    /// Capacity of the buffer, such as 4GiB
    #[arg(long, value_name = "SIZE")]
    capacity: Option<Bytes>,
    /// Target directory: its files are visible in the buffer, and the buffer drains to it; created if missing
    #[arg(long, value_name = "DIR")]
    pfs: Option<PathBuf>,
    /// Sharing policy for jobs, such as user-then-size-fair
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Directory under which the program sees the buffer
    #[arg(long, value_name = "DIR", env = "FOREBAY_PREFIX", default_value = "/fb", hide_env_values = true)]
    prefix: PathBuf,
    /// How the program's system calls are intercepted
    #[arg(
        long,
        value_name = "HOW",
        env = "FOREBAY_INTERCEPT",
        default_value = "auto",
        hide_env_values = true
    )]
    intercept: Intercept,
    /// Drain the data that an earlier run has left in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["capacity", "policy", "command"])]
    resume: Option<PathBuf>,
    /// Print the summary as one line of JSON, on standard error
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(required_unless_present = "resume", trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(&self) -> Outcome {
        refuse_several_ranks()?;
        match &self.resume {
            Some(dir) => self.resume(dir),
            None => self.run_program(),
        }
    }

    fn run_program(&self) -> Outcome {
        check_prefix(&self.prefix)?;
        if let Some(policy) = &self.policy {
            policy::read("--policy", policy)?;
        }
        let pfs = self.pfs.as_deref().map(|pfs| prepare(pfs, &self.prefix)).transpose()?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let note = Note { pfs, command: words.join(" ") };
        let left = run_dir::left_behind();
        let mut run_dir = RunDir::make(self.capacity, self.policy.clone(), note)?;
        for (dir, note) in left {
            let advice = advice(&dir, note.pfs.as_deref());
            output::note(format_args!(
                "an earlier run of \"{}\" has left data behind: {advice}",
                note.command
            ));
        }
        let handler = SignalHandler::open()?;
        let begun = run_dir
            .server_process
            .start()
            .and_then(|_| self.announce(&run_dir))
            .and_then(|()| handler.check());
        if let Err(failure) = begun {
            // The directory is still empty.
            let _ = run_dir.remove();
            return Err(failure);
        }
        let begin = Instant::now();
        let status = program::run(&handler, &mut run_dir, (&self.prefix, self.intercept), &self.command)?;
        let ended = Ended { code: program::code(status), seconds: begin.elapsed().as_secs_f64() };
        self.summarize(run_dir, &handler, Some(ended))
    }

    fn resume(&self, dir: &Path) -> Outcome {
        let dir = absolute(dir).map_err(|error| Failure::local("use", dir, &error))?;
        let mut run_dir = RunDir::take_over(&dir)?;
        if !run_dir.has_store() {
            output::note(format_args!("{} holds no data", dir.display()));
            return run_dir.remove();
        }
        if let Some(pfs) = &self.pfs {
            run_dir.set_backing(prepare(pfs, &self.prefix)?);
        }
        if run_dir.note.pfs.is_none() {
            return Err(Failure::Usage("no target directory: name one with --pfs".to_owned()));
        }
        let handler = SignalHandler::open()?;
        run_dir.server_process.start()?;
        self.summarize(run_dir, &handler, None)
    }

    /// Prints where the data is, so that it can be found if this process is killed.
    fn announce(&self, run_dir: &RunDir) -> Outcome {
        let client = connect(run_dir)?;
        let target = match &run_dir.note.pfs {
            Some(pfs) => format!("are drained to {} as it fills, and at the end", pfs.display()),
            None => "stay in the buffer (no --pfs)".to_owned(),
        };
        output::note(format_args!(
            "{} is a buffer of {}, kept in {}; its files {target}",
            self.prefix.display(),
            human::size(client.status()?.usage.capacity),
            run_dir.dir().display(),
        ));
        let nodes = job_of_this_process().nodes;
        if nodes > 1 {
            output::note(format_args!(
                "this job has {nodes} nodes, and the buffer serves programs on this node only: start a service that all \
                 nodes reach (\"forebay up --listen\") and use \"forebay exec\" for more"
            ));
        }
        Ok(())
    }

    /// The program has ended: drains its files, prints the summary, and ends with the program's exit code.
    fn summarize(&self, run_dir: RunDir, handler: &SignalHandler, ended: Option<Ended>) -> Outcome {
        let mut report = RunReport::new(run_dir.counts(), run_dir.was_mounted(), ended);
        let drained = drain_to_target(&run_dir, handler, &mut report);
        let verdict = match (&drained, report.drained()) {
            (Err(failure), _) => Some(failure.text().unwrap_or_default().to_owned()),
            (Ok(()), Some(Drained { failed: 1.., .. })) => Some("not all files could be drained".to_owned()),
            (Ok(()), None) if report.has_files() => Some("no target directory was given".to_owned()),
            _ => None,
        };
        output::report(&report, self.json)?;
        if report.is_unused() {
            output::note(format_args!(
                "no process of the program has used {}: if it should have, check the paths that it was given",
                self.prefix.display()
            ));
        }
        let code = report.code();
        let Some(why) = verdict else {
            run_dir.remove()?;
            return if code == 0 { Ok(()) } else { Err(Failure::Program(code)) };
        };
        let pfs = run_dir.note.pfs.clone();
        output::note(format_args!("{why}: the data is kept; {}", advice(run_dir.dir(), pfs.as_deref())));
        drop(run_dir);
        Err(match (code, drained) {
            (0, Err(Failure::Interrupted)) => Failure::Program(130),
            (0, Ok(())) if pfs.is_none() => return Ok(()),
            (0, _) => Failure::Reported,
            (code, _) => Failure::Program(code),
        })
    }
}

/// Drains everything to the target, if there is one.
fn drain_to_target(run_dir: &RunDir, handler: &SignalHandler, report: &mut RunReport) -> Outcome {
    let client = connect(run_dir)?;
    handler.check()?;
    let status = await_disconnects(&client)?;
    report.served(&status, client.read_dir("/", Listing::Names)?.next().is_some());
    let Some(pfs) = &run_dir.note.pfs else { return Ok(()) };
    let drained = drain::drain_all(&client.as_identity(Identity::root()), handler.stop());
    report.drain(pfs, drained?);
    // Unlinked open files: no process can have them open any more.
    let _ = std::fs::remove_dir(pfs.join(".forebay"));
    Ok(())
}

/// Waits briefly for processes that are ending; warns if some are still connected.
fn await_disconnects(client: &Client) -> Outcome<forebay_wire::Status> {
    let begin = Instant::now();
    loop {
        let status = client.status()?;
        // One connection is this process's own. Sessions do not work, since a killed process keeps one for a
        // while.
        let others = status.connections.saturating_sub(1);
        if others == 0 {
            return Ok(status);
        }
        if begin.elapsed() > EXIT_WAIT {
            output::note(format_args!(
                "processes started by the program are still running: what they write from now on is lost"
            ));
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn connect(run_dir: &RunDir) -> Outcome<Client> {
    Ok(Client::connect(ClientConfig::new(Address::Unix(run_dir.server_process.socket().to_owned())))?)
}

/// How to drain or discard the data in a directory.
fn advice(dir: &Path, pfs: Option<&Path>) -> String {
    let mount = run_dir::mounted_memory(dir).map(|at| format!("umount {} && ", at.display()));
    let (dir, mount) = (dir.display(), mount.unwrap_or_default());
    let target = if pfs.is_some() { "" } else { " --pfs DIR" };
    format!("drain it with \"forebay run --resume {dir}{target}\", or discard it with \"{mount}rm -r {dir}\"")
}

/// Creates the target, and checks before the program runs that files can be created in it.
fn prepare(pfs: &Path, prefix: &Path) -> Outcome<PathBuf> {
    let pfs = absolute(pfs).map_err(|error| Failure::local("use", pfs, &error))?;
    if pfs.starts_with(prefix) {
        let text = format!("--pfs {} is in the buffer itself: name another directory", pfs.display());
        return Err(Failure::Usage(text));
    }
    std::fs::create_dir_all(&pfs).map_err(|error| Failure::local("make", &pfs, &error))?;
    tempfile::tempfile_in(&pfs).map_err(|error| Failure::local("write to", &pfs, &error))?;
    Ok(pfs)
}

/// Refuses to run as one of several ranks, which would each get a buffer that the others do not see.
fn refuse_several_ranks() -> Outcome {
    let Some(rank) = ranks::rank(|name| std::env::var(name).ok()) else { return Ok(()) };
    if rank.number > 0 {
        // Only the first rank prints the message.
        return Err(Failure::Program(2));
    }
    Err(Failure::Usage(format!(
        "each of {} ranks would have a buffer of its own: put \"forebay run\" in front of the launcher \
         (\"forebay run -- mpiexec -n {} CMD\")",
        rank.of, rank.of
    )))
}
