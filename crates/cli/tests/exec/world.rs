//! A server, and programs that run with the library.

use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig};
use forebay_model::{Bytes, Striping};
use forebay_server::{Config, Medium, Running, Server};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub(crate) struct World {
    dir: TempDir,
    config: Config,
    _running: Vec<Running>,
}

impl World {
    pub(crate) fn new() -> World {
        World::of(1)
    }

    /// The same with so many servers, over which the bytes of all files are spread.
    pub(crate) fn of(servers: u16) -> World {
        let dir = tempfile::Builder::new().prefix("fbpl-").tempdir().expect("a temporary directory");
        let config = Config {
            capacity: Bytes::mib(256),
            region: Some(Bytes::mib(4)),
            medium: Medium::Disk,
            tcp: false,
            ..Config::for_store(dir.path().join("store"))
        };
        let running = Server::start_several(&config, servers).expect("the servers start");
        let world = World { dir, config, _running: running };
        if servers > 1 {
            let striping = Striping { width: 0, stripe: 64 << 10 };
            world.client().set_layout("/", Some(striping)).expect("the owner may");
        }
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(ClientConfig::new(Address::Unix(self.config.socket_path())))
            .expect("the server answers")
    }

    /// A command with the library in it.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command
            .args(["exec", "--"])
            .arg(program)
            .current_dir(self.dir.path())
            .env("FOREBAY_SERVICE", format!("unix:{}", self.config.socket_path().display()))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    /// Runs a script with and without the library, `$D` being a directory of Forebay's or of this machine; both must
    /// come to the same.
    pub(crate) fn same(&self, script: &str) {
        let local = self.path("local");
        let _ = std::fs::remove_dir_all(&local);
        std::fs::create_dir(&local).expect("a directory");
        let shell = |command: &mut Command, dir: &Path, scratch: &str| {
            let scratch = self.path(scratch);
            let _ = std::fs::remove_dir_all(&scratch);
            std::fs::create_dir(&scratch).expect("a directory");
            command.args(["-c", &format!("set -e\n{script}")]).env("D", dir).env("S", &scratch);
            command.current_dir(&scratch);
            let output = command.output().expect("bash runs");
            let text =
                |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&dir.display().to_string(), "$D");
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        let expected = shell(&mut Command::new("bash"), &local, "plain");
        let made = self.command("bash").args(["-c", "rm -rf /fb/w && mkdir /fb/w"]).status();
        assert!(made.expect("bash runs").success(), "a fresh directory");
        let found = shell(&mut self.command("bash"), Path::new("/fb/w"), "with");
        assert_eq!(found, expected, "{script}");
        assert_eq!(expected.0, Some(0), "{script}: {}", expected.2);
    }

    /// Compiles one of the programs beside these tests.
    pub(crate) fn compile(&self, name: &str) -> PathBuf {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/programs").join(format!("{name}.c"));
        let program = self.path(name);
        let mut command = Command::new("cc");
        command.args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(&source);
        let output = command.output().expect("a C compiler is there: install gcc and libc6-dev");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }
}

/// What a program printed, if it succeeded.
pub(crate) fn succeed(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}\n{err}");
    out.into_owned()
}

/// Whether a tool is installed; says aloud if not.
pub(crate) fn has(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        skip(&format!("{tool} is not installed"));
    }
    found
}

fn skip(what: &str) {
    let line = format!("skipped: preload: {what}\n");
    // A note that cannot be written is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("FOREBAY_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _ = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }
}
