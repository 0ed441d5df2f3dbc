//! A third process: it holds the directories and mounts that unmodified programs use.
//!
//! Like the server process it ends when its standard input is closed, so also when its parent dies, and then
//! removes everything.

use crate::plan::Plan;
use crate::{Outcome, near, pass};
use fuser::BackgroundSession;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The command-line argument that starts this process.
pub(crate) const WORD: &str = "bench-places";

const PATIENCE: Duration = Duration::from_secs(20);
const MOUNT: &str = "mount";
const PASSED: &str = "passed";
const BEHIND: &str = "behind";

/// The directories, as the client side knows them.
pub(crate) struct Places {
    child: Child,
    pub(crate) memory: PathBuf,
    pub(crate) disk: PathBuf,
    /// Why nothing is mounted, if so.
    pub(crate) trouble: Option<String>,
}

impl Places {
    pub(crate) fn start(plan: &Plan, service: &str) -> Outcome<Places> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WORD)
            .arg(&plan.disk)
            .arg(service)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Control-C goes to the parent: this process ends in order when the parent is gone.
            .process_group(0)
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut next =
            || -> Outcome<String> { Ok(output.next().ok_or("the process with the mounts did not start")??) };
        let (memory, disk, trouble) = (next()?.into(), next()?.into(), next()?);
        Ok(Places { child, memory, disk, trouble: (!trouble.is_empty()).then_some(trouble) })
    }

    /// The mount point of Forebay.
    pub(crate) fn mount(&self) -> PathBuf {
        self.memory.join(MOUNT)
    }

    /// The pass-through mount, with one file.
    pub(crate) fn passed(&self) -> PathBuf {
        self.memory.join(PASSED)
    }

    /// Truncates its file.
    pub(crate) fn empty_passed(&self) -> Outcome {
        Ok(File::options().write(true).open(self.memory.join(BEHIND))?.set_len(0)?)
    }
}

#[expect(clippy::print_stderr, reason = "Drop cannot return an error")]
impl Drop for Places {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        match self.child.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("the process with the mounts ended badly: {status}"),
            Err(error) => eprintln!("the process with the mounts ended badly: {error}"),
        }
    }
}

/// Holds everything until standard input is closed.
pub fn serve(disk: &Path, service: &str) -> Outcome {
    let (memory, disk) = (tempfile::tempdir_in(near::memory())?, tempfile::tempdir_in(disk)?);
    let mounts = Mounts::start(service, memory.path());
    let trouble = mounts.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let mut out = stdout();
    writeln!(out, "{}\n{}\n{}", memory.path().display(), disk.path().display(), trouble.replace('\n', " "))?;
    out.flush()?;
    // A read error also ends it.
    let _ = stdin().read_to_end(&mut Vec::new());
    drop(mounts);
    memory.close()?;
    disk.close()?;
    Ok(())
}

/// The mounts; unmounted when dropped.
struct Mounts {
    served: Child,
    dir: PathBuf,
    _pass: BackgroundSession,
}

impl Mounts {
    fn start(service: &str, place: &Path) -> Outcome<Mounts> {
        let (dir, passed) = (place.join(MOUNT), place.join(PASSED));
        std::fs::create_dir(&dir)?;
        std::fs::create_dir(&passed)?;
        let behind = File::options().read(true).write(true).create_new(true).open(place.join(BEHIND))?;
        let pass = pass::mount(behind, &passed)?;
        let served = Command::new(std::env::current_exe()?)
            .args(["mount", "--foreground", "--config", "/dev/null", "--service", service])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let mut mounts = Mounts { served, dir, _pass: pass };
        let begin = Instant::now();
        let row = format!(" {} ", mounts.dir.display());
        while !std::fs::read_to_string("/proc/self/mountinfo")?.contains(&row) {
            if begin.elapsed() > PATIENCE || mounts.served.try_wait()?.is_some() {
                return Err("the service was not mounted".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(mounts)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let umount = std::env::current_exe()
            .map(|forebay| Command::new(forebay).arg("umount").arg(&self.dir).status());
        if !matches!(umount, Ok(Ok(status)) if status.success()) {
            // Its mount may remain then; the error message reports it.
            let _ = self.served.kill();
        }
        let _ = self.served.wait();
    }
}
