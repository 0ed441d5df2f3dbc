//! The same work in every way that Forebay is deployed, against tmpfs and the disk's page cache.
//!
//! A *crowd* of processes writes large and small requests, and makes, looks at and removes names and small files. It
//! knows nothing of Forebay: the preload library serves it. All its processes begin each part at the same moment.

use crate::Outcome;
use crate::crowd::{Crowd, PARTS, Part};
use crate::far::Far;
use crate::near::{self, Near};
use crate::plan::{KIB, MIB, Party, Plan, Size, Socket, Work};
use crate::results::Results;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A way to deploy Forebay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deployment {
    /// `forebay run --pfs`, with a new buffer.
    RunAtOnce,
    /// The same after the crowd has done its work in it once.
    RunWarm,
    /// A service before a directory.
    Before,
    /// A service without a back end.
    Alone,
    /// The same, used by another user than the server's.
    OtherUser,
    /// Several servers in one process.
    Shards,
}

pub(crate) const DEPLOYMENTS: [Deployment; 6] = [
    Deployment::RunAtOnce,
    Deployment::RunWarm,
    Deployment::Before,
    Deployment::Alone,
    Deployment::OtherUser,
    Deployment::Shards,
];

/// Capacity of the buffer of `forebay run`.
const CAPACITY: &str = "2GiB";
/// Id of the other user and of its group.
const OTHER: u32 = 65534;
/// Directory of the crowd.
const NAME: &str = "crowd";

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Deployment::RunAtOnce => "run --pfs, at once",
            Deployment::RunWarm => "run --pfs, warm",
            Deployment::Before => "service before a directory",
            Deployment::Alone => "service",
            Deployment::OtherUser => "service, another user",
            Deployment::Shards => "service of 4 servers",
        })
    }
}

/// The services and directories of all deployments.
pub(crate) struct Deployments {
    before: Near,
    shards: Near,
    memory: TempDir,
    disk: TempDir,
    /// Whether this process may start others as another user, who can reach the service.
    other_user: bool,
}

/// The numbers of processes: one, two, and one for each core.
fn crews() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut crews = vec![1, 2, cores];
    crews.sort_unstable();
    crews.dedup();
    crews
}

impl Deployments {
    /// Starts the services. Reports it if another user cannot use the first.
    pub(crate) fn start(plan: &Plan, near: &Near) -> Outcome<Deployments> {
        let deployments = Deployments {
            before: Near::start(plan, Far::Before)?,
            shards: Near::start(plan, Far::Shards)?,
            memory: tempfile::tempdir_in(near::memory())?,
            disk: tempfile::tempdir_in(&plan.disk)?,
            other_user: true,
        };
        let trouble = match deployments.trouble_of_other_user(near) {
            Ok(trouble) => trouble,
            // Without the privilege to become another user the program is not even started.
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = trouble {
            (plan.progress)(&format!("skipped: {} ({})", Deployment::OtherUser, why.trim()));
            return Ok(Deployments { other_user: false, ..deployments });
        }
        Ok(deployments)
    }

    /// Why another user cannot use the service, if so.
    fn trouble_of_other_user(&self, near: &Near) -> Outcome<Option<String>> {
        let mut probe = self.exec(near, Deployment::OtherUser)?;
        let output = probe.args(["ls", "-d", "/fb"]).stdin(Stdio::null()).output()?;
        Ok((!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Runs the crowd in every deployment and on the file systems for comparison, in turn.
    pub(crate) fn run(&self, plan: &Plan, near: &Near, results: &mut Results) -> Outcome {
        for processes in crews() {
            for party in [Party::Tmpfs, Party::Disk].into_iter().chain(DEPLOYMENTS.map(Party::Deployed)) {
                if party == Party::Deployed(Deployment::OtherUser) && !self.other_user {
                    continue;
                }
                let (within, dir) = self.place(near, party)?;
                let passes = if party == Party::Deployed(Deployment::RunWarm) { 2 } else { 1 };
                let crowd = Crowd {
                    dir: dir.join(NAME),
                    processes,
                    large: plan.large / MIB / processes,
                    small: plan.small / (4 * KIB) / processes,
                    names: plan.names / processes,
                    passes,
                };
                let took = crowd.run(within).map_err(|error| format!("{party}: {error}"))?;
                note(results, party, &crowd, &took);
            }
        }
        Ok(())
    }

    /// A command that runs its arguments as a party would, and the party's directory.
    fn place(&self, near: &Near, party: Party) -> Outcome<(Command, PathBuf)> {
        Ok(match party {
            Party::Deployed(deployment) => (self.exec(near, deployment)?, "/fb".into()),
            Party::Disk => (Command::new("env"), self.disk.path().to_owned()),
            _ => (Command::new("env"), self.memory.path().to_owned()),
        })
    }

    fn exec(&self, near: &Near, deployment: Deployment) -> Outcome<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        let service = match deployment {
            Deployment::RunAtOnce | Deployment::RunWarm => {
                let target = self.disk.path().join("target");
                command.args(["run", "--capacity", CAPACITY, "--pfs"]).arg(target).arg("--");
                return Ok(command);
            }
            Deployment::Before => &self.before,
            Deployment::Shards => &self.shards,
            Deployment::Alone | Deployment::OtherUser => near,
        };
        let service = service.client(Socket::Unix)?.addresses.to_string();
        command.args(["exec", "--config", "/dev/null", "--service", &service, "--"]);
        if deployment == Deployment::OtherUser {
            command.uid(OTHER).gid(OTHER).env("HOME", Path::new("/"));
        }
        Ok(command)
    }
}

fn note(results: &mut Results, party: Party, crowd: &Crowd, took: &[Duration]) {
    for (&part, &took) in PARTS.iter().zip(took) {
        let work = Work::Crowd { part, processes: crowd.processes };
        match part {
            Part::Large => {
                results.moved(work, party, Size { chunk: MIB, count: crowd.large * crowd.processes }, took);
            }
            Part::Small => {
                results.moved(
                    work,
                    party,
                    Size { chunk: 4 * KIB, count: crowd.small * crowd.processes },
                    took,
                );
            }
            _ => results.done(work, party, crowd.names * crowd.processes, took),
        }
    }
}
