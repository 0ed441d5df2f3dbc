//! Servers in a temporary directory, each in its own process, and their removal.

use super::scenario::{Op, ShareScenario};
use crate::failure::{Failure, Outcome};
use crate::servers::is_serving;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig};
use forebay_model::Job;
use forebay_policy::share::Discipline;
use forebay_store::Store;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Capacity of a store beyond three times the jobs' files.
const SPARE: u64 = 96 << 20;

/// The servers. Dropping it kills them and removes their data.
pub(super) struct Stage {
    dir: TempDir,
    servers: Vec<Child>,
}

impl Stage {
    pub(super) fn build(scenario: &ShareScenario, discipline: Discipline) -> Outcome<Stage> {
        let dir = tempfile::Builder::new().prefix("forebay-bench-").tempdir();
        let dir = dir.map_err(|error| Failure::local("make a directory in", &std::env::temp_dir(), error))?;
        let mut stage = Stage { dir, servers: Vec::new() };
        let places = places(scenario.servers)?;
        for number in 0..scenario.servers {
            stage.start(scenario, discipline, number, &places)?;
        }
        Ok(stage)
    }

    /// The socket of a server.
    pub(super) fn socket(&self, server: u16) -> PathBuf {
        self.dir.path().join(format!("{server}.sock"))
    }

    fn store(&self, server: u16) -> PathBuf {
        self.dir.path().join(format!("{server}"))
    }

    /// A client that only reads statistics.
    pub(super) fn observer(&self, server: u16) -> Outcome<Client> {
        let (user, group) = ("bench".to_owned(), "bench".to_owned());
        let job = Job { label: "bench".to_owned(), user, group, nodes: 1, priority: 1 };
        let config = ClientConfig::new(Address::Unix(self.socket(server)));
        Ok(Client::connect(ClientConfig { job, ..config })?)
    }

    fn start(
        &mut self,
        scenario: &ShareScenario,
        discipline: Discipline,
        number: u16,
        places: &[SocketAddr],
    ) -> Outcome {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        let log = self.dir.path().join(format!("{number}.log"));
        let file = File::create(&log).map_err(|error| Failure::local("make", &log, error))?;
        let mut command = Command::new(&program);
        // The user's own forebay.toml must not configure the scenario.
        command.args(["up", "--background", "--with-parent", "--memory", "--config", "/dev/null"]);
        command.arg("--store").arg(self.store(number)).arg("--socket").arg(self.socket(number));
        command.arg("--key").arg(self.dir.path().join("key"));
        command.args(["--capacity", &capacity(scenario).to_string(), "--server", &number.to_string()]);
        command.args(["--policy", &scenario.policy.to_string(), "--scheduler", discipline.name()]);
        command.args(["--device-rate", &scenario.rate.0.to_string()]);
        command.args(["--lambda", &scenario.lambda.as_millis().to_string()]);
        if scenario.servers > 1 {
            command.args(["--listen", &places[usize::from(number)].to_string()]);
            for (_, place) in places.iter().enumerate().filter(|(other, _)| *other != usize::from(number)) {
                command.args(["--peer", &format!("tcp:{place}")]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let server = command.spawn().map_err(|error| Failure::local("start", &program, error))?;
        self.servers.push(server);
        if self.servers.last_mut().is_some_and(is_serving) {
            return Ok(());
        }
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let why = log.lines().rev().find_map(|line| line.strip_prefix("forebay: "));
        Err(Failure::Failed(format!(
            "a server of the scenario did not start: {}",
            why.unwrap_or("its process ended")
        )))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for (number, server) in (0..).zip(&mut self.servers) {
            // None of the data is kept.
            let _ = server.kill();
            let _ = server.wait();
            let store = self.dir.path().join(format!("{number}"));
            if store.join("store").exists() {
                let _ = Store::remove(&store);
            }
        }
    }
}

/// Addresses that are free now, and most likely still free when the servers bind them.
fn places(count: u16) -> Outcome<Vec<SocketAddr>> {
    let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held: std::io::Result<Vec<TcpListener>> = (0..count).map(listen).collect();
    let places = held.and_then(|held| held.iter().map(TcpListener::local_addr).collect());
    places.map_err(|error| Failure::Failed(format!("cannot find free ports: {error}")))
}

/// Bytes that the files of all jobs need.
fn capacity(scenario: &ShareScenario) -> u64 {
    let file = |op: Op, request: u64| match op {
        Op::Read | Op::Prefetch => 8 * request,
        Op::Cycle => 10_000_000,
        Op::Write | Op::WriteRead => request,
        Op::Stat | Op::Create => 0,
    };
    let files = scenario
        .jobs
        .iter()
        .map(|job| u64::from(job.processes) * u64::from(job.streams) * file(job.op, job.request.0));
    3 * files.sum::<u64>() + SPARE
}
