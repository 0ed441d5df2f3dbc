//! An unmodified program, fio, that writes and reads: through the preload library, through the mount, and on what both
//! are compared with. The figures are fio's own, so that starting it costs nobody anything.

use crate::Outcome;
use crate::board::Board;
use crate::near::{self, Near};
use crate::pass;
use crate::plan::{Party, Size, Socket, Work};
use fuser::BackgroundSession;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

/// Who fio works with: Forebay's ways first, then the others, in turn.
const PARTIES: [Party; 5] = [Party::Library, Party::Mount, Party::Tmpfs, Party::Disk, Party::PassThrough];

/// Everything that fio is let loose on.
pub(crate) struct Programs {
    forebay: PathBuf,
    service: String,
    memory: TempDir,
    disk: TempDir,
    /// What is mounted; `None` where nothing can be.
    mounts: Option<Mounts>,
}

struct Mounts {
    served: Child,
    forebay: PathBuf,
    dir: PathBuf,
    pass: Option<BackgroundSession>,
    behind: File,
}

impl Programs {
    /// `None` where fio or Forebay's binary is missing, which is said.
    pub(crate) fn start(near: &Near) -> Outcome<Option<Programs>> {
        let forebay = near::disk()?.join("forebay");
        if !forebay.exists() {
            eprintln!("left out: fio, since {} is not built: use cargo xtask bench", forebay.display());
            return Ok(None);
        }
        if Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("left out: fio, which is not installed");
            return Ok(None);
        }
        let service = near.client(Socket::Unix)?.address.to_string();
        let (memory, disk) = (tempfile::tempdir_in(near::memory())?, tempfile::tempdir_in(near::disk()?)?);
        let mounts = match Mounts::start(&forebay, &service, memory.path()) {
            Ok(mounts) => Some(mounts),
            Err(error) => {
                eprintln!("left out: mounts ({error})");
                None
            }
        };
        Ok(Some(Programs { forebay, service, memory, disk, mounts }))
    }

    /// Lets fio write a fresh file and read it back, with everybody in turn.
    pub(crate) fn run(&self, size: Size, board: &mut Board) -> Outcome {
        for party in PARTIES {
            let Some(path) = self.fresh(party)? else { continue };
            for (work, how) in [(Work::FioWrite(size.chunk), "write"), (Work::FioRead(size.chunk), "read")] {
                let rate = self.fio(party, &path, how, size)?;
                board.moved(work, party, size, Duration::from_secs_f64(size.bytes() as f64 / rate));
            }
        }
        Ok(())
    }

    /// A place for a file that is not there, or is empty.
    fn fresh(&self, party: Party) -> Outcome<Option<PathBuf>> {
        let gone = |path: PathBuf| -> Outcome<Option<PathBuf>> {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(Some(path)),
            }
        };
        match (party, &self.mounts) {
            (Party::Library, _) => {
                let removed = self.within().args(["rm", "-f", "/fb/fio"]).status()?;
                if removed.success() { Ok(Some("/fb/fio".into())) } else { Err("rm failed".into()) }
            }
            (Party::Mount, Some(mounts)) => gone(mounts.dir.join("fio.mount")),
            (Party::PassThrough, Some(mounts)) => {
                mounts.behind.set_len(0)?;
                Ok(Some(self.memory.path().join("pass").join(pass::NAME)))
            }
            (Party::Tmpfs, _) => gone(self.memory.path().join("fio")),
            (Party::Disk, _) => gone(self.disk.path().join("fio")),
            _ => Ok(None),
        }
    }

    fn within(&self) -> Command {
        let mut command = Command::new(&self.forebay);
        command.args(["exec", "--config", "/dev/null", "--service", &self.service, "--"]);
        command
    }

    /// Bytes a second, as fio has measured it.
    fn fio(&self, party: Party, path: &Path, how: &str, size: Size) -> Outcome<f64> {
        let mut command = match party {
            Party::Library => self.within(),
            _ => Command::new("env"),
        };
        command.args(["fio", "--name=bench", "--ioengine=psync", "--fallocate=none", "--invalidate=0"]);
        command.args(["--output-format=json", "--create_on_open=1"]);
        command.arg(format!("--filename={}", path.display())).arg(format!("--rw={how}"));
        command.arg(format!("--bs={}", size.chunk)).arg(format!("--size={}", size.bytes()));
        let output = command.current_dir(self.disk.path()).output()?;
        if !output.status.success() {
            return Err(format!("fio, {party}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let rate = said["jobs"][0][how]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0);
        rate.ok_or_else(|| format!("fio, {party}: it measured nothing").into())
    }
}

impl Mounts {
    fn start(forebay: &Path, service: &str, place: &Path) -> Outcome<Mounts> {
        let (dir, passed) = (place.join("mount"), place.join("pass"));
        std::fs::create_dir(&dir)?;
        std::fs::create_dir(&passed)?;
        let behind = tempfile::tempfile_in(place)?;
        let pass = pass::mount(behind.try_clone()?, &passed)?;
        let mut served = Command::new(forebay)
            .args(["mount", "--foreground", "--config", "/dev/null", "--service", service])
            .arg(&dir)
            .stdin(Stdio::null())
            .spawn()?;
        let begin = Instant::now();
        let table = || std::fs::read_to_string("/proc/self/mountinfo");
        while !table()?.contains(&format!(" {} ", dir.display())) {
            if begin.elapsed() > PATIENCE || served.try_wait()?.is_some() {
                return Err("the service was not mounted".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Mounts { served, forebay: forebay.to_owned(), dir, pass: Some(pass), behind })
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        drop(self.pass.take());
        let ended = Command::new(&self.forebay).arg("umount").arg(&self.dir).status();
        if !ended.is_ok_and(|status| status.success()) {
            // It takes its mount along.
            let _ = self.served.kill();
        }
        let _ = self.served.wait();
    }
}
