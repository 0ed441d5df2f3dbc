//! A server process that belongs to this command: it has its own directory and stops when the command ends.

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
/// Settings of the server beside its arguments: it serves only the user who started it.
const SETTINGS: &str =
    "[server]\nowner_only = true\nroot_mode = 0o700\n[server.drain]\nverify = 'read_back'\n";
const POLL: Duration = Duration::from_millis(10);

/// A directory, and the server that runs in it. Dropping it stops the server; the store stays.
pub(crate) struct ServerProcess {
    dir: PathBuf,
    socket: PathBuf,
    /// A socket that admits other users.
    programs_socket: Option<PathBuf>,
    capacity: Option<Bytes>,
    policy: Option<String>,
    /// The directory of the back end, if there is one.
    backing: Option<PathBuf>,
    server: Option<Child>,
}

impl ServerProcess {
    pub(crate) fn new(dir: &Path, capacity: Option<Bytes>) -> ServerProcess {
        let (dir, socket) = (dir.to_owned(), dir.join("sock"));
        let (programs_socket, policy, backing) = (None, None, None);
        ServerProcess { dir, socket, programs_socket, capacity, policy, backing, server: None }
    }

    /// Sets the sharing policy.
    pub(crate) fn with_policy(mut self, policy: Option<String>) -> ServerProcess {
        self.policy = policy;
        self
    }

    /// Sets the directory of the back end.
    pub(crate) fn with_backing(mut self, backing: Option<&Path>) -> ServerProcess {
        self.backing = backing.map(Path::to_owned);
        self
    }

    /// Sets the directory of the back end for the next start.
    pub(crate) fn set_backing(&mut self, backing: &Path) {
        self.backing = Some(backing.to_owned());
    }

    /// Listens on another socket in the directory, which other commands do not know.
    pub(crate) fn with_socket(mut self, name: &str) -> ServerProcess {
        self.socket = self.dir.join(name);
        self
    }

    /// Also listens on a socket that admits every user who can reach it.
    pub(crate) fn with_programs_socket(mut self, path: &Path) -> ServerProcess {
        self.programs_socket = Some(path.to_owned());
        self
    }

    /// The path of the socket that admits every user who can reach it.
    pub(crate) fn programs_socket(&self) -> Option<&Path> {
        self.programs_socket.as_deref()
    }

    /// The path of the server's socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The address of the server, as clients take it.
    pub(crate) fn service(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Starts the server, waits until it serves, and returns its recovery report.
    pub(crate) fn start(&mut self) -> Outcome<RecoverySummary> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        let log = self.dir.join("log");
        let file = File::create(&log).map_err(|error| Failure::local("make", &log, &error))?;
        let mut command = Command::new(&program);
        // The user's own forebay.toml must not configure this server.
        let settings = self.dir.join("forebay.toml");
        std::fs::write(&settings, SETTINGS).map_err(|error| Failure::local("write", &settings, &error))?;
        command.args(["up", "--background", "--with-parent", "--memory", "--config"]).arg(&settings);
        if let Some(backing) = &self.backing {
            let mut name = OsString::from("dir:");
            name.push(backing);
            command.arg("--backend").arg(name);
        }
        command.arg("--store").arg(self.store()).arg("--socket").arg(&self.socket);
        command.arg("--key").arg(self.dir.join("key"));
        if let Some(socket) = &self.programs_socket {
            command.arg("--programs-socket").arg(socket);
        }
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
            // A server that fails prints nothing to standard output; its log has the reason.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        serde_json::from_str::<Started>(&line).map(|started| started.recovery()).map_err(|_| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let why = log.lines().rev().find_map(|line| line.strip_prefix("forebay: "));
            Failure::Failed(format!("the server did not start: {}", why.unwrap_or("its process ended")))
        })
    }

    /// The exit status of the server, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.server.as_mut().and_then(|server| server.try_wait().ok().flatten())
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) -> Outcome {
        if let Some(mut server) = self.server.take() {
            let killed = server.kill().and_then(|()| server.wait());
            killed.map_err(|error| Failure::Failed(format!("cannot kill the server: {error}")))?;
        }
        Ok(())
    }

    /// Stops the server with SIGTERM; kills it if it does not stop in time.
    pub(crate) fn end(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let deadline = Instant::now() + PATIENCE;
        let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
        let signaled = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        while signaled && Instant::now() < deadline {
            if !matches!(server.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(POLL);
        }
        let _ = server.kill();
        let _ = server.wait();
    }

    /// Stops the server and removes the store.
    pub(crate) fn clear(&mut self) -> Outcome {
        self.end();
        let store = self.store();
        if Store::exists(&store) {
            Store::remove(&store)?;
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.end();
    }
}
