//! The place of the demo: a temporary directory with a store and a server, and how all of it goes away again.

use super::plan::Plan;
use crate::failure::{Failure, Outcome};
use crate::view::Started;
use forebay_model::Bytes;
use forebay_store::Store;
use forebay_wire::RecoverySummary;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
const GLANCE: Duration = Duration::from_millis(10);

/// Where everything is.
pub(super) struct Stage {
    dir: TempDir,
    service: String,
    capacity: Bytes,
    server: Option<Child>,
    struck: bool,
}

impl Stage {
    pub(super) fn build(plan: &Plan) -> Outcome<Stage> {
        let dir = tempfile::Builder::new().prefix("forebay-demo-").tempdir();
        let dir =
            dir.map_err(|error| Failure::local("make a directory in", &std::env::temp_dir(), &error))?;
        let service = format!("unix:{}", dir.path().join("sock").display());
        Ok(Stage { dir, service, capacity: plan.capacity, server: None, struck: false })
    }

    /// Where the jobs find the server.
    pub(super) fn service(&self) -> &str {
        &self.service
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Starts a server process, waits until it serves, and says what it found.
    pub(super) fn start_server(&mut self) -> Outcome<RecoverySummary> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        let log = self.dir.path().join("log");
        let file = File::create(&log).map_err(|error| Failure::local("make", &log, &error))?;
        let mut command = Command::new(&program);
        // Somebody's settings are not those of the demo.
        command.args(["up", "--background", "--with-parent", "--memory", "--config", "/dev/null"]);
        command.arg("--store").arg(self.store()).arg("--socket").arg(self.dir.path().join("sock"));
        command.arg("--key").arg(self.dir.path().join("key"));
        command.args(["--capacity", &self.capacity.0.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let server = command.spawn().map_err(|error| Failure::local("start", &program, &error))?;
        let server = self.server.insert(server);
        let mut line = String::new();
        if let Some(stdout) = server.stdout.take() {
            // A server that ends instead says nothing here, and why in its log.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        serde_json::from_str::<Started>(&line).map(|started| started.recovery()).map_err(|_| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let why = log.lines().rev().find_map(|line| line.strip_prefix("forebay: "));
            Failure::Failed(format!("the demo's server did not start: {}", why.unwrap_or("it ended")))
        })
    }

    /// Kills the server without a warning.
    pub(super) fn kill_server(&mut self) -> Outcome {
        if let Some(mut server) = self.server.take() {
            let killed = server.kill().and_then(|()| server.wait());
            killed.map_err(|error| Failure::Failed(format!("cannot kill the demo's server: {error}")))?;
        }
        Ok(())
    }

    /// Stops the server and removes everything.
    pub(super) fn strike(mut self) -> Outcome {
        self.clear()
    }

    fn clear(&mut self) -> Outcome {
        if std::mem::replace(&mut self.struck, true) {
            return Ok(());
        }
        if let Some(mut server) = self.server.take() {
            end(&mut server);
        }
        let store = self.store();
        if store.join("store").exists() {
            Store::remove(&store)?;
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Whoever wanted to know has called `strike`.
        let _ = self.clear();
    }
}

/// Ends a server in order, or at least.
fn end(server: &mut Child) {
    let deadline = Instant::now() + PATIENCE;
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    let asked = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
    while asked && Instant::now() < deadline {
        if !matches!(server.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(GLANCE);
    }
    let _ = server.kill();
    let _ = server.wait();
}
