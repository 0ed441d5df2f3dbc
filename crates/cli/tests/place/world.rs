//! A directory with the emulated file system, and programs that run in it.

use crate::lustre::{Layout, Mounted, Stripes};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub(crate) const TARGETS: u32 = 8;
/// The id of the job of all programs.
pub(crate) const JOB: u64 = 4711;

pub(crate) struct World {
    pub(crate) fs: Mounted,
    dir: TempDir,
}

pub(crate) fn skip(what: &str) {
    forebay_testkit::skip("place", what);
}

/// The binary with its own home.
pub(crate) fn forebay(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env("HOME", home).env("FOREBAY_JOB_ID", JOB.to_string()).current_dir(home);
    command.env_remove("XDG_CACHE_HOME").env_remove("FOREBAY_SERVICE");
    command
}

/// The output of a command, which must succeed.
pub(crate) fn well(output: &Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {err}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl World {
    /// With eight targets; prints a note and returns `None` where mounting is impossible.
    pub(crate) fn new(inactive: &[u32]) -> Option<World> {
        let dir = tempfile::Builder::new().prefix("fbplace-").tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("pfs")).expect("a directory");
        match Mounted::at(&dir.path().join("pfs"), TARGETS, inactive) {
            Ok(fs) => Some(World { fs, dir }),
            Err(why) => {
                skip(&format!("{why}, so programs were not placed"));
                None
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `forebay place exec` with more options, up to the command.
    pub(crate) fn placed(&self, options: &[&str]) -> Command {
        let mut command = forebay(self.dir());
        command
            .args(["place", "exec", "--pfs", "pfs", "--log", "log", "--targets", "8"])
            .args(options)
            .arg("--");
        command
    }

    /// Runs a shell command line with placement.
    pub(crate) fn shell(&self, line: &str) -> String {
        well(&self.placed(&[]).args(["sh", "-c", line]).output().expect("a shell"))
    }

    /// The stripes of a file with a plain layout.
    pub(crate) fn stripes(&self, name: &str) -> Stripes {
        match self.fs.lock().layout(name) {
            Layout::Plain(stripes) => stripes,
            other => panic!("{name}: {other:?}: {}", self.log()),
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Compiles a program beside these tests; prints a note and returns `None` without the compiler.
    pub(crate) fn compiled(&self, source: &str, compiler: &str, options: &[&str]) -> Option<PathBuf> {
        let path = self.path(&format!("{source}.{compiler}"));
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/place/programs").join(source);
        match Command::new(compiler)
            .arg("-o")
            .arg(&path)
            .arg(from)
            .args(options)
            .current_dir(self.dir())
            .output()
        {
            Ok(output) if output.status.success() => Some(path),
            Ok(output) => panic!("{source}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                skip(&format!("{compiler} cannot be run ({error}), so {source} was not placed"));
                None
            }
        }
    }
}

/// The number of files on each target, given the first target of each.
pub(crate) fn heights(firsts: &[u32]) -> Vec<usize> {
    (0..TARGETS).map(|target| firsts.iter().filter(|&&first| first == target).count()).collect()
}
