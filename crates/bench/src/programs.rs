//! Unmodified programs: fio, and small ones of our own. They run with the preload library, on the mount, and
//! on the file systems for comparison. The figures are fio's own, so they exclude its start.

use crate::Outcome;
use crate::near::Near;
use crate::places::Places;
use crate::plan::{Crew, Fio, How, KIB, MIB, Party, Plan, Size, Socket, Work};
use crate::results::Results;
use crate::steps;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The parties of fio: Forebay's first, then the others, in turn.
const ALL: &[Party] = &[Party::Library, Party::Mount, Party::Tmpfs, Party::Disk, Party::PassThrough];
/// The parties with memory speed.
const CLOSE: &[Party] = &[Party::Library, Party::Tmpfs, Party::Disk];

/// A sequence of fio runs on one file, or on two.
struct Case {
    chunk: usize,
    crew: Crew,
    hows: &'static [How],
    parties: &'static [Party],
}

const CASES: [Case; 7] = [
    Case { chunk: MIB, crew: Crew::One, hows: &[How::Write, How::Overwrite, How::Read], parties: ALL },
    Case { chunk: 4 * KIB, crew: Crew::One, hows: &[How::Write, How::Read], parties: ALL },
    Case {
        chunk: 4 * KIB,
        crew: Crew::OneFile,
        hows: &[How::Write, How::Overwrite, How::RandomWrite, How::RandomRead],
        parties: CLOSE,
    },
    Case { chunk: 64 * KIB, crew: Crew::One, hows: &[How::Write, How::Read], parties: CLOSE },
    Case { chunk: 16 * MIB, crew: Crew::One, hows: &[How::Write, How::Read], parties: CLOSE },
    Case { chunk: MIB, crew: Crew::FileEach, hows: &[How::Write, How::Read], parties: CLOSE },
    Case { chunk: MIB, crew: Crew::OneFile, hows: &[How::Write, How::Read], parties: CLOSE },
];

/// State of the program benchmarks.
pub(crate) struct Programs {
    /// Whether fio is installed.
    fio: bool,
    service: String,
    places: Places,
}

impl Programs {
    /// Skips and reports missing tools.
    pub(crate) fn start(plan: &Plan, near: &Near) -> Outcome<Programs> {
        let fio = Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !fio {
            (plan.progress)("skipped: fio is not installed");
        }
        let service = near.client(Socket::Unix)?.addresses.to_string();
        let places = Places::start(plan, &service)?;
        if let Some(trouble) = &places.trouble {
            (plan.progress)(&format!("skipped: mounts ({trouble})"));
        }
        Ok(Programs { fio, service, places })
    }

    /// Runs all programs with all parties in turn; with `check`, fio also verifies its data.
    pub(crate) fn run(&self, plan: &Plan, check: bool, results: &mut Results) -> Outcome {
        if self.fio {
            for case in &CASES {
                self.case(case, plan.amount(case.chunk), check, results)?;
            }
        }
        steps::copies(plan.amount(MIB), results)?;
        for &party in CLOSE.iter().chain(&[Party::Mount]) {
            if let Some(dir) = self.dir(party) {
                steps::names(|| self.within(party), &dir, party, plan.names, results)?;
            }
        }
        Ok(())
    }

    fn case(&self, case: &Case, size: Size, check: bool, results: &mut Results) -> Outcome {
        for &party in case.parties {
            let Some(dir) = self.dir(party) else { continue };
            self.clear(party, &dir)?;
            for &how in case.hows {
                let fio = Fio { how, chunk: case.chunk, crew: case.crew };
                let rate = self.fio(party, &dir, fio, size, check)?;
                let took = Duration::from_secs_f64(size.bytes() as f64 / rate);
                results.moved(Work::Fio(fio), party, size, took);
            }
            self.clear(party, &dir)?;
        }
        Ok(())
    }

    /// A party's directory; `None` if the party is not available.
    fn dir(&self, party: Party) -> Option<PathBuf> {
        let mounted = self.places.trouble.is_none();
        match party {
            Party::Library => Some("/fb".into()),
            Party::Mount => mounted.then(|| self.places.mount()),
            Party::PassThrough => mounted.then(|| self.places.passed()),
            Party::Tmpfs => Some(self.places.memory.clone()),
            Party::Disk => Some(self.places.disk.clone()),
            _ => None,
        }
    }

    /// Removes fio's files.
    fn clear(&self, party: Party, dir: &Path) -> Outcome {
        if party == Party::PassThrough {
            return self.places.empty_passed();
        }
        let files = ["fio", "fio.0", "fio.1"].map(|name| dir.join(name));
        let removed = self.within(party).args(["rm", "-f"]).args(files).status()?;
        if removed.success() { Ok(()) } else { Err(format!("rm, {party}: {removed}").into()) }
    }

    /// A command that runs its arguments as the party would.
    fn within(&self, party: Party) -> Command {
        match (party, std::env::current_exe()) {
            (Party::Library, Ok(forebay)) => {
                let mut command = Command::new(forebay);
                command.args(["exec", "--config", "/dev/null", "--service", &self.service, "--"]);
                command
            }
            _ => Command::new("env"),
        }
    }

    /// Bytes per second, as measured by fio.
    fn fio(&self, party: Party, dir: &Path, fio: Fio, size: Size, check: bool) -> Outcome<f64> {
        let mut command = self.within(party);
        command.args(["fio", "--name=bench", "--ioengine=psync", "--fallocate=none", "--invalidate=0"]);
        command.args(["--output-format=json", "--create_on_open=1", "--group_reporting"]);
        let (rw, direction) = match fio.how {
            How::Write | How::Overwrite => ("write", "write"),
            How::Read => ("read", "read"),
            How::RandomWrite => ("randwrite", "write"),
            How::RandomRead => ("randread", "read"),
        };
        let processes = fio.crew.processes();
        command.arg(format!("--rw={rw}")).arg(format!("--bs={}", fio.chunk));
        command.arg(format!("--numjobs={processes}")).arg(format!("--size={}", size.bytes() / processes));
        let file = if party == Party::PassThrough { crate::pass::NAME } else { "fio" };
        match fio.crew {
            Crew::FileEach => command
                .arg(format!("--directory={}", dir.display()))
                .arg(format!("--filename_format={file}.$jobnum")),
            Crew::One | Crew::OneFile => command
                .arg(format!("--filename={}", dir.join(file).display()))
                .arg(format!("--offset_increment={}", size.bytes() / processes)),
        };
        if check && direction == "write" {
            command.args(["--verify=crc32c", "--do_verify=1"]);
        }
        let output = command.current_dir(&self.places.disk).output()?;
        if !output.status.success() {
            return Err(format!("{fio}, {party}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        // Warnings may precede the JSON, also on standard output.
        let start = output.stdout.iter().position(|byte| *byte == b'{').unwrap_or(0);
        let report: Value = serde_json::from_slice(&output.stdout[start..])?;
        let rate = report["jobs"][0][direction]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0);
        rate.ok_or_else(|| format!("{fio}, {party}: fio reported no bandwidth").into())
    }
}
