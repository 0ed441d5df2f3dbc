//! A temporary directory with a server, and helpers that run the binary.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A temporary directory. Servers started in it are killed when it is dropped.
pub(crate) struct World {
    dir: TempDir,
    servers: Vec<u32>,
}

/// The result of a command.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) bytes: Vec<u8>,
}

impl World {
    /// Without a server.
    pub(crate) fn empty() -> World {
        let dir = tempfile::Builder::new().prefix("fbcli-").tempdir().expect("a temporary directory");
        // Lets all users read a library that root extracts to this directory.
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), all).expect("it is ours");
        World { dir, servers: Vec::new() }
    }

    /// With a server on disk in the background.
    pub(crate) fn up() -> World {
        let mut world = World::empty();
        world.start(&[]);
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn service(&self) -> String {
        format!("unix:{}", self.path("sock").display())
    }

    /// Starts a server in the background and returns its JSON output.
    pub(crate) fn start(&mut self, more: &[&str]) -> Value {
        self.start_at("sock", more)
    }

    /// The same on another socket.
    pub(crate) fn start_at(&mut self, socket: &str, more: &[&str]) -> Value {
        let (store, socket) = (self.path("store"), self.path(socket));
        let mut command = self.command(&["up", "--detach", "--json", "--disk", "--capacity", "128MiB"]);
        command.arg("--store").arg(store).arg("--socket").arg(socket).args(more);
        let outcome = run(command).well();
        let started: Value = serde_json::from_str(&outcome.out).expect("JSON");
        self.servers.push(started["pid"].as_u64().expect("a process") as u32);
        started
    }

    /// Kills a process when this world is dropped.
    pub(crate) fn watch(&mut self, pid: u64) {
        self.servers.push(pid as u32);
    }

    /// Kills the server that was started last, and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        end(self.servers.pop().expect("a server"));
    }

    /// The binary with these arguments, in this directory, with a clean environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(args).current_dir(self.dir()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", self.dir());
        command.env("FOREBAY_SERVICE", self.service()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        run(self.command(args))
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn well(&self, args: &[&str]) -> String {
        self.run(args).well().out
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let out = self.well(args);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?} printed no JSON ({error}): {out}"))
    }

    /// Runs a command with bytes on standard input.
    pub(crate) fn fed(&self, args: &[&str], input: &[u8]) -> Ran {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
        ran(child.wait_with_output().expect("it ends"))
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for World {
    fn drop(&mut self) {
        while let Some(pid) = self.servers.pop() {
            end(pid);
        }
    }
}

/// Kills a process and waits until it has ended.
pub(crate) fn end(pid: u32) {
    let raw = Pid::from_raw(pid as i32).expect("a process");
    let deadline = Instant::now() + Duration::from_secs(20);
    while kill_process(raw, Signal::KILL).is_ok() && !is_zombie(pid) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether all threads of a process have ended. Its first thread may be a zombie while others still hold its
/// sockets.
fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let dead = stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'));
    dead && std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1
}

pub(crate) fn run(mut command: Command) -> Ran {
    ran(command.output().expect("the binary runs"))
}

pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        bytes: output.stdout,
    }
}

impl Ran {
    pub(crate) fn well(self) -> Ran {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self
    }

    /// Checks that it failed with this code, and with one line that contains all of these parts.
    pub(crate) fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert!(self.err.starts_with("forebay: "), "{}", self.err);
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        assert!(!self.err.contains("os error"), "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "expected {part:?} in {}", self.err);
        }
    }
}

/// Bytes that depend on their offset.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[5] ^ seed).collect()
}

/// Prints that something could not be tested on this machine.
pub(crate) fn skip(what: &str) {
    forebay_testkit::skip("cli", what);
}

pub(crate) fn text(path: &(impl AsRef<OsStr> + ?Sized)) -> &str {
    path.as_ref().to_str().expect("the path is UTF-8")
}
