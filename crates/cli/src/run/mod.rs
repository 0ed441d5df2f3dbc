//! `run`: a program with a buffer of its own, whose files are brought out when it has ended.
//!
//! The buffer is a directory in `/dev/shm` with a store and a server process that stands before the target and drains to it;
//! the program has the library in it. However this ends, the data is either in the target, verified, or still in that
//! directory, from where `--resume` brings it out.

mod berth;
mod drain;
mod program;
mod ranks;

use crate::exec::check_prefix;
use crate::failure::{Failure, Outcome};
use crate::view::{Drained, Ended, RunReport};
use crate::{human, output, policy};
use berth::{Berth, Note};
use clap::Args;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig, Listing, job_of_this_process};
use forebay_model::{Bytes, Identity};
use program::Ears;
use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};
use std::time::{Duration, Instant};

/// How long processes that have just ended may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct Run {
    /// Bytes that files can fill, such as 4GiB
    #[arg(long, value_name = "SIZE")]
    capacity: Option<Bytes>,
    /// What stands behind the buffer, and where its files go; made if it is not there
    #[arg(long, value_name = "DIR")]
    pfs: Option<PathBuf>,
    /// How jobs share the buffer, such as user-then-size-fair
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Where the program finds the buffer
    #[arg(long, value_name = "DIR", env = "FOREBAY_PREFIX", default_value = "/fb", hide_env_values = true)]
    prefix: PathBuf,
    /// Bring out what an earlier run has left in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["capacity", "policy", "command"])]
    resume: Option<PathBuf>,
    /// Print the summary as one line of JSON; as always, on standard error
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(
        required_unless_present = "resume",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(&self) -> Outcome {
        refuse_to_be_many()?;
        match &self.resume {
            Some(dir) => self.resume(dir),
            None => self.afresh(),
        }
    }

    fn afresh(&self) -> Outcome {
        check_prefix(&self.prefix)?;
        if let Some(policy) = &self.policy {
            policy::read("--policy", policy)?;
        }
        let pfs = self.pfs.as_deref().map(|pfs| prepare(pfs, &self.prefix)).transpose()?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let note = Note { pfs, command: words.join(" ") };
        let left = berth::left_behind();
        let mut berth = Berth::make(self.capacity, self.policy.clone(), note)?;
        for (dir, note) in left {
            let advice = advice(&dir, note.pfs.as_deref());
            output::note(format_args!("an earlier run of \"{}\" has left its data: {advice}", note.command));
        }
        let ears = Ears::open()?;
        let begun = berth.keeper.start().and_then(|_| self.announce(&berth)).and_then(|()| ears.check());
        if let Err(failure) = begun {
            // There is nothing in it yet.
            let _ = berth.remove();
            return Err(failure);
        }
        let begin = Instant::now();
        let status = program::run(&ears, &mut berth, &self.prefix, &self.command)?;
        let ended = Ended { code: program::code(status), seconds: begin.elapsed().as_secs_f64() };
        self.conclude(berth, &ears, Some(ended))
    }

    fn resume(&self, dir: &Path) -> Outcome {
        let dir = absolute(dir).map_err(|error| Failure::local("use", dir, &error))?;
        let mut berth = Berth::take_over(&dir)?;
        if !berth.has_store() {
            output::note(format_args!("{} holds no data", dir.display()));
            return berth.remove();
        }
        if let Some(pfs) = &self.pfs {
            berth.stand_before(prepare(pfs, &self.prefix)?);
        }
        if berth.note.pfs.is_none() {
            return Err(Failure::Usage("where is the data to go? name a directory with --pfs".to_owned()));
        }
        let ears = Ears::open()?;
        berth.keeper.start()?;
        self.conclude(berth, &ears, None)
    }

    /// Where the data is, for whoever has to find it if nobody can say so later.
    fn announce(&self, berth: &Berth) -> Outcome {
        let client = connect(berth)?;
        let target = match &berth.note.pfs {
            Some(pfs) => format!("go to {} as it fills, and at the end", pfs.display()),
            None => "stay there (no --pfs)".to_owned(),
        };
        output::note(format_args!(
            "{} is a buffer of {}, kept in {}; its files {target}",
            self.prefix.display(),
            human::size(client.status()?.usage.capacity),
            berth.dir().display(),
        ));
        let nodes = job_of_this_process().nodes;
        if nodes > 1 {
            output::note(format_args!(
                "this job has {nodes} nodes, and the buffer serves programs on this one only: start a service that all \
                 nodes reach (\"forebay up --listen\") and use \"forebay exec\" for more"
            ));
        }
        Ok(())
    }

    /// The program is done: brings its files out, says what came of everything, and ends as the program did.
    fn conclude(&self, berth: Berth, ears: &Ears, ended: Option<Ended>) -> Outcome {
        let mut report = RunReport::new(berth.counts(), ended);
        let drained = bring_out(&berth, ears, &mut report);
        let verdict = match (&drained, report.drained()) {
            (Err(failure), _) => Some(failure.text().unwrap_or_default().to_owned()),
            (Ok(()), Some(Drained { failed: 1.., .. })) => {
                Some("not everything could be brought out".to_owned())
            }
            (Ok(()), None) if report.has_files() => Some("nobody said where the files are to go".to_owned()),
            _ => None,
        };
        output::report(&report, self.json)?;
        let code = report.code();
        let Some(why) = verdict else {
            berth.remove()?;
            return if code == 0 { Ok(()) } else { Err(Failure::Program(code)) };
        };
        let pfs = berth.note.pfs.clone();
        output::note(format_args!("{why}: the data is kept; {}", advice(berth.dir(), pfs.as_deref())));
        drop(berth);
        Err(match (code, drained) {
            (0, Err(Failure::Interrupted)) => Failure::Program(130),
            (0, Ok(())) if pfs.is_none() => return Ok(()),
            (0, _) => Failure::Reported,
            (code, _) => Failure::Program(code),
        })
    }
}

/// Drains everything to the target, if there is one.
fn bring_out(berth: &Berth, ears: &Ears, report: &mut RunReport) -> Outcome {
    let client = connect(berth)?;
    ears.check()?;
    let status = await_farewells(&client)?;
    report.served(&status, client.read_dir("/", Listing::Names)?.next().is_some());
    let Some(pfs) = &berth.note.pfs else { return Ok(()) };
    let drained = drain::bring_out(&client.as_identity(Identity::root()), ears.stop());
    report.drain(pfs, drained?);
    // Files that were open without a name: nobody can have them open any more.
    let _ = std::fs::remove_dir(pfs.join(".forebay"));
    Ok(())
}

/// Waits a moment for processes that are ending; says so if some are not.
fn await_farewells(client: &Client) -> Outcome<forebay_wire::Status> {
    let begin = Instant::now();
    loop {
        let status = client.status()?;
        // One is ours; sessions would not do, since a killed process has one for a while.
        let others = status.connections.saturating_sub(1);
        if others == 0 {
            return Ok(status);
        }
        if begin.elapsed() > FAREWELL {
            output::note(format_args!(
                "processes that the program has left behind are still at work: what they write from now on is lost"
            ));
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn connect(berth: &Berth) -> Outcome<Client> {
    Ok(Client::connect(ClientConfig::new(Address::Unix(berth.keeper.socket().to_owned())))?)
}

/// How to bring out what is in a directory, or to give it up.
fn advice(dir: &Path, pfs: Option<&Path>) -> String {
    let dir = dir.display();
    let target = if pfs.is_some() { "" } else { " --pfs DIR" };
    format!("bring it out with \"forebay run --resume {dir}{target}\", or give it up with \"rm -r {dir}\"")
}

/// Makes the target, and sees that files can be made in it before anybody has worked for hours.
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

/// One of several ranks would have a buffer that the others do not see.
fn refuse_to_be_many() -> Outcome {
    let Some(rank) = ranks::rank(|name| std::env::var(name).ok()) else { return Ok(()) };
    if rank.number > 0 {
        // The first one says it for all.
        return Err(Failure::Program(2));
    }
    Err(Failure::Usage(format!(
        "each of {} ranks would have a buffer of its own: put \"forebay run\" in front of the launcher \
         (\"forebay run -- mpiexec -n {} CMD\")",
        rank.of, rank.of
    )))
}
