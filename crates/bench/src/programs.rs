//! An unmodified program, fio, that writes and reads: through the preload library, through the mount, and on what both
//! are compared with. The figures are fio's own, so that starting it costs nobody anything.

use crate::Outcome;
use crate::board::Board;
use crate::near::{self, Near};
use crate::places::Places;
use crate::plan::{Party, Size, Socket, Work};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Who fio works with: Forebay's ways first, then the others, in turn.
const PARTIES: [Party; 5] = [Party::Library, Party::Mount, Party::Tmpfs, Party::Disk, Party::PassThrough];

/// Everything that fio is let loose on.
pub(crate) struct Programs {
    forebay: PathBuf,
    service: String,
    places: Places,
}

impl Programs {
    /// `None` where fio or Forebay's binary is missing, which is said.
    pub(crate) fn start(near: &Near) -> Outcome<Option<Programs>> {
        let forebay = near::forebay()?;
        if !forebay.exists() {
            eprintln!("left out: fio, since {} is not built: use cargo xtask bench", forebay.display());
            return Ok(None);
        }
        if Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("left out: fio, which is not installed");
            return Ok(None);
        }
        let service = near.client(Socket::Unix)?.address.to_string();
        let places = Places::start(&service)?;
        if let Some(trouble) = &places.trouble {
            eprintln!("left out: mounts ({trouble})");
        }
        Ok(Some(Programs { forebay, service, places }))
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
        match party {
            Party::Library => {
                let removed = self.within().args(["rm", "-f", "/fb/fio"]).status()?;
                if removed.success() { Ok(Some("/fb/fio".into())) } else { Err("rm failed".into()) }
            }
            Party::Mount if self.places.trouble.is_none() => gone(self.places.mount().join("fio.mount")),
            Party::PassThrough if self.places.trouble.is_none() => self.places.passed().map(Some),
            Party::Tmpfs => gone(self.places.memory.join("fio")),
            Party::Disk => gone(self.places.disk.join("fio")),
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
        let output = command.current_dir(&self.places.disk).output()?;
        if !output.status.success() {
            return Err(format!("fio, {party}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let rate = said["jobs"][0][how]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0);
        rate.ok_or_else(|| format!("fio, {party}: it measured nothing").into())
    }
}
