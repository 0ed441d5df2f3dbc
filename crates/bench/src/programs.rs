//! Unmodified programs: fio, and small ones of our own. They run within the preload library, on the mount, and on what
//! both are compared with. The figures are fio's own, so that starting it costs nobody anything.

use crate::Outcome;
use crate::board::Board;
use crate::near::Near;
use crate::places::Places;
use crate::plan::{Crew, Fio, How, KIB, MIB, Party, Plan, Size, Socket, Work};
use crate::steps;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Who fio works with: Forebay's ways first, then the others, in turn.
const ALL: &[Party] = &[Party::Library, Party::Mount, Party::Tmpfs, Party::Disk, Party::PassThrough];
/// Those that are near memory.
const CLOSE: &[Party] = &[Party::Library, Party::Tmpfs, Party::Disk];

/// What fio does with one file, or two, one thing after the other.
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

/// Everything that programs are let loose on.
pub(crate) struct Programs {
    /// Whether fio is there.
    fio: bool,
    service: String,
    places: Places,
}

impl Programs {
    /// What is missing is said, and left out.
    pub(crate) fn start(plan: &Plan, near: &Near) -> Outcome<Programs> {
        let fio = Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !fio {
            (plan.say)("left out: fio, which is not installed");
        }
        let service = near.client(Socket::Unix)?.address.to_string();
        let places = Places::start(plan, &service)?;
        if let Some(trouble) = &places.trouble {
            (plan.say)(&format!("left out: mounts ({trouble})"));
        }
        Ok(Programs { fio, service, places })
    }

    /// Lets them work, with everybody in turn; if `check`, fio also verifies what it has written.
    pub(crate) fn run(&self, plan: &Plan, check: bool, board: &mut Board) -> Outcome {
        if self.fio {
            for case in &CASES {
                self.case(case, plan.amount(case.chunk), check, board)?;
            }
        }
        steps::copies(plan.amount(MIB), board)?;
        for &party in CLOSE.iter().chain(&[Party::Mount]) {
            if let Some(dir) = self.dir(party) {
                steps::names(|| self.within(party), &dir, party, plan.names, board)?;
            }
        }
        Ok(())
    }

    fn case(&self, case: &Case, size: Size, check: bool, board: &mut Board) -> Outcome {
        for &party in case.parties {
            let Some(dir) = self.dir(party) else { continue };
            self.clear(party, &dir)?;
            for &how in case.hows {
                let fio = Fio { how, chunk: case.chunk, crew: case.crew };
                let rate = self.fio(party, &dir, fio, size, check)?;
                let took = Duration::from_secs_f64(size.bytes() as f64 / rate);
                board.moved(Work::Fio(fio), party, size, took);
            }
            self.clear(party, &dir)?;
        }
        Ok(())
    }

    /// Where a party's files are; `None` if it is not there.
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

    /// Takes fio's files away.
    fn clear(&self, party: Party, dir: &Path) -> Outcome {
        if party == Party::PassThrough {
            return self.places.empty_passed();
        }
        let files = ["fio", "fio.0", "fio.1"].map(|name| dir.join(name));
        let removed = self.within(party).args(["rm", "-f"]).args(files).status()?;
        if removed.success() { Ok(()) } else { Err(format!("rm, {party}: {removed}").into()) }
    }

    /// A command that runs what follows as the party would.
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

    /// Bytes a second, as fio has measured it.
    fn fio(&self, party: Party, dir: &Path, fio: Fio, size: Size, check: bool) -> Outcome<f64> {
        let mut command = self.within(party);
        command.args(["fio", "--name=bench", "--ioengine=psync", "--fallocate=none", "--invalidate=0"]);
        command.args(["--output-format=json", "--create_on_open=1", "--group_reporting"]);
        let (rw, said) = match fio.how {
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
        if check && said == "write" {
            command.args(["--verify=crc32c", "--do_verify=1"]);
        }
        let output = command.current_dir(&self.places.disk).output()?;
        if !output.status.success() {
            return Err(format!("{fio}, {party}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        // Warnings come before it, also on standard output.
        let start = output.stdout.iter().position(|byte| *byte == b'{').unwrap_or(0);
        let told: Value = serde_json::from_slice(&output.stdout[start..])?;
        let rate = told["jobs"][0][said]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0);
        rate.ok_or_else(|| format!("{fio}, {party}: it measured nothing").into())
    }
}
