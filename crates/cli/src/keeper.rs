//! A server of this command's own: a process in a directory of its own, which ends when the command ends.

use crate::failure::{Failure, Outcome};
use crate::view::Started;
use forebay_model::Bytes;
use forebay_store::Store;
use forebay_wire::RecoverySummary;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// What it is told beside its arguments.
const SETTINGS: &str = "[server.drain]\nverify = 'read_back'\n";
const GLANCE: Duration = Duration::from_millis(10);

/// The directory, and the server in it while there is one. Dropping it ends the server; the store stays.
pub(crate) struct Keeper {
    dir: PathBuf,
    socket: PathBuf,
    capacity: Option<Bytes>,
    policy: Option<String>,
    /// The directory behind it, if there is one.
    behind: Option<PathBuf>,
    server: Option<Child>,
}

impl Keeper {
    pub(crate) fn new(dir: &Path, capacity: Option<Bytes>) -> Keeper {
        let (dir, socket) = (dir.to_owned(), dir.join("sock"));
        Keeper { dir, socket, capacity, policy: None, behind: None, server: None }
    }

    /// Jobs are to share it by this policy.
    pub(crate) fn sharing(mut self, policy: Option<String>) -> Keeper {
        self.policy = policy;
        self
    }

    /// It is to stand before a directory, if one is given.
    pub(crate) fn before(mut self, behind: Option<&Path>) -> Keeper {
        self.behind = behind.map(Path::to_owned);
        self
    }

    /// It is to stand before this directory when it is started.
    pub(crate) fn stand_before(&mut self, behind: &Path) {
        self.behind = Some(behind.to_owned());
    }

    /// It is to listen at another socket of the directory, where nobody knows it.
    pub(crate) fn apart(mut self, name: &str) -> Keeper {
        self.socket = self.dir.join(name);
        self
    }

    /// Where the server listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The same, as clients are told.
    pub(crate) fn service(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Starts the server, waits until it serves, and says what it found.
    pub(crate) fn start(&mut self) -> Outcome<RecoverySummary> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        let log = self.dir.join("log");
        let file = File::create(&log).map_err(|error| Failure::local("make", &log, &error))?;
        let mut command = Command::new(&program);
        // Somebody's settings are not those of this server.
        let settings = self.dir.join("forebay.toml");
        std::fs::write(&settings, SETTINGS).map_err(|error| Failure::local("write", &settings, &error))?;
        command.args(["up", "--background", "--with-parent", "--memory", "--config"]).arg(&settings);
        if let Some(behind) = &self.behind {
            let mut name = OsString::from("dir:");
            name.push(behind);
            command.arg("--backend").arg(name);
        }
        command.arg("--store").arg(self.store()).arg("--socket").arg(&self.socket);
        command.arg("--key").arg(self.dir.join("key"));
        if let Some(capacity) = self.capacity {
            command.args(["--capacity", &capacity.0.to_string()]);
        }
        if let Some(policy) = &self.policy {
            command.args(["--policy", policy]);
        }
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
            Failure::Failed(format!("the server did not start: {}", why.unwrap_or("it ended")))
        })
    }

    /// How the server ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.server.as_mut().and_then(|server| server.try_wait().ok().flatten())
    }

    /// Kills the server without a warning.
    pub(crate) fn kill(&mut self) -> Outcome {
        if let Some(mut server) = self.server.take() {
            let killed = server.kill().and_then(|()| server.wait());
            killed.map_err(|error| Failure::Failed(format!("cannot kill the server: {error}")))?;
        }
        Ok(())
    }

    /// Ends the server in order, or at least.
    pub(crate) fn end(&mut self) {
        let Some(mut server) = self.server.take() else { return };
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

    /// Ends the server and removes the store.
    pub(crate) fn clear(&mut self) -> Outcome {
        self.end();
        let store = self.store();
        if store.join("store").exists() {
            Store::remove(&store)?;
        }
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}
