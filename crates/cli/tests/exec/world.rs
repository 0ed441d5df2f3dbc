//! A server, and programs that run with the library.

use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig};
use forebay_model::{Bytes, Striping};
use forebay_server::{Config, Medium, Running, Server};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub(crate) struct World {
    dir: TempDir,
    config: Config,
    running: Vec<Running>,
}

impl World {
    pub(crate) fn new() -> World {
        World::of(1)
    }

    /// The same with several servers, over which all files are striped.
    pub(crate) fn of(servers: u16) -> World {
        let dir = tempfile::Builder::new().prefix("fbpl-").tempdir().expect("a temporary directory");
        // Lets all users read a library that root extracts to this directory.
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), all).expect("it is ours");
        let config = Config {
            capacity: Bytes::mib(256),
            region: Some(Bytes::mib(4)),
            medium: Medium::Disk,
            tcp: false,
            ..Config::for_store(dir.path().join("store"))
        };
        let running = Server::start_cluster(&config, servers).expect("the servers start");
        let world = World { dir, config, running };
        if servers > 1 {
            let striping = Striping { width: 0, stripe: 64 << 10 };
            world.client().set_layout("/", Some(striping)).expect("the owner may");
        }
        world
    }

    /// Whether its files are on several servers.
    pub(crate) fn is_striped(&self) -> bool {
        self.running.len() > 1
    }

    /// Stops the server, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.running.clear();
        self.running = Server::start_cluster(&self.config, 1).expect("the server starts again");
    }

    /// The path of the extracted library.
    pub(crate) fn library(&self) -> PathBuf {
        succeed({
            let mut command = self.command("true");
            command.env("FOREBAY_PREFIX", "/fb");
            command
        });
        let mut shown = Command::new(env!("CARGO_BIN_EXE_forebay"));
        shown.arg("library").env("XDG_CACHE_HOME", self.path("cache")).env("XDG_RUNTIME_DIR", self.path(""));
        PathBuf::from(succeed(shown).trim_end())
    }

    /// Mounts the service until the result is dropped; `None` where mounting is impossible.
    pub(crate) fn mounted(&self) -> Option<Mounted> {
        if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            skip(&format!("/dev/fuse cannot be opened ({error}): nothing was tested on a mount"));
            return None;
        }
        let dir = self.path("mnt");
        std::fs::create_dir_all(&dir).expect("a directory");
        let mut mount = Command::new(env!("CARGO_BIN_EXE_forebay"));
        mount.arg("mount").arg(self.service()).arg(&dir);
        mount.args(["-o", "suid,dev"]).env("HOME", self.dir.path());
        succeed(mount);
        Some(Mounted(dir))
    }

    /// Runs a table of operations on a local file system and in a directory of the service; both must give the
    /// same results.
    pub(crate) fn table(
        &self,
        name: &str,
        way: &str,
        command: impl Fn(&Path) -> Command,
        root: impl AsRef<Path>,
    ) {
        let program = self.compile(name);
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { self.path("") };
        let local =
            tempfile::Builder::new().prefix("fb-table-").tempdir_in(base).expect("a temporary directory");
        let (expected, found) = (self.path("expected"), self.path("found"));
        let mut plain = Command::new(&program);
        plain.arg(local.path()).arg(&expected);
        succeed(plain);
        let dir = root.as_ref().join(format!("{name}-{way}"));
        let mut make = command(Path::new("mkdir"));
        make.arg(&dir);
        succeed(make);
        let mut through = command(&program);
        through.arg(&dir).arg(&found);
        succeed(through);
        let read = |path| std::fs::read_to_string(path).expect("the program has written it");
        let (expected, found) = (read(&expected), read(&found));
        assert!(expected.ends_with("end\n"), "the table ran to its end");
        for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
            assert_eq!(found, expected, "{name} {way}, line {}", number + 1);
        }
        assert_eq!(found.lines().count(), expected.lines().count());
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The service's address.
    pub(crate) fn service(&self) -> String {
        format!("unix:{}", self.config.socket_path().display())
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(ClientConfig::new(Address::Unix(self.config.socket_path())))
            .expect("the server answers")
    }

    /// A command with the library, which is killed if it hangs.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["--foreground", "--signal=KILL", "600", env!("CARGO_BIN_EXE_forebay"), "exec", "--"])
            .arg(program)
            .current_dir(self.dir.path())
            .env("FOREBAY_SERVICE", self.service())
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    /// Runs a script with and without the library; `$D` is a directory of Forebay or a local one. Both must
    /// print the same.
    pub(crate) fn same(&self, script: &str) {
        self.same_with(script, &[]);
    }

    /// The same, with more environment variables.
    pub(crate) fn same_with(&self, script: &str, environment: &[(&str, &str)]) {
        let local = self.path("local");
        let _ = std::fs::remove_dir_all(&local);
        std::fs::create_dir(&local).expect("a directory");
        let shell = |command: &mut Command, dir: &Path, scratch: &str| {
            let scratch = self.path(scratch);
            let _ = std::fs::remove_dir_all(&scratch);
            std::fs::create_dir(&scratch).expect("a directory");
            command.args(["-c", &format!("set -e\n{script}")]).env("D", dir).env("S", &scratch);
            command.current_dir(&scratch).envs(environment.iter().copied());
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
        self.compile_with(name, &["-O1"])
    }

    pub(crate) fn compile_with(&self, name: &str, flags: &[&str]) -> PathBuf {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/programs").join(format!("{name}.c"));
        let program = self.path(name);
        let mut command = Command::new("cc");
        command.args(flags).args(["-w", "-pthread", "-o"]).arg(&program).arg(&source).arg("-lm");
        let output = command.output().expect("a C compiler is there: install gcc and libc6-dev");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }
}

/// A mount, until it is dropped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A mount that cannot be unmounted stays until the machine stops.
        let _ = Command::new(env!("CARGO_BIN_EXE_forebay")).args(["umount", "--lazy"]).arg(&self.0).status();
    }
}

/// The output of a program, which must succeed.
pub(crate) fn succeed(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}\n{err}");
    out.into_owned()
}

/// Whether a tool is installed; prints a note if not.
pub(crate) fn has(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        skip(&format!("{tool} is not installed"));
    }
    found
}

pub(crate) fn skip(what: &str) {
    forebay_testkit::skip("preload", what);
}
