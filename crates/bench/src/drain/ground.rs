//! Targets in memory, empty files on them, and which process writes which part of which file.

use super::scenario::{Pattern, Point, Scenario};
use crate::failure::{Failure, Outcome};
use forebay_backend::{Backend, Creation, Layout};
use forebay_model::{Gid, Name, Uid};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// The value of all bytes in all files.
pub(super) const FILLING: u8 = 0x5a;
/// Bytes compared at once.
const LOOK: usize = 8 << 20;

/// The data of one process: a part of a file, request by request.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) job: usize,
    pub(super) file: usize,
    pub(super) start: u64,
    pub(super) len: u64,
}

/// A file and the names on its path.
pub(super) struct Planned {
    pub(super) path: Vec<Name>,
    pub(super) size: u64,
}

impl Planned {
    /// The path as clients use it.
    pub(super) fn shown(&self) -> String {
        self.path.iter().map(|name| format!("/{name}")).collect()
    }
}

/// The back end of a run. Dropping it removes it.
pub(super) struct Ground {
    dir: TempDir,
    stripes: String,
    plain: Arc<dyn Backend>,
    pub(super) files: Vec<Planned>,
    pub(super) processes: Vec<Process>,
}

impl Ground {
    /// Creates targets, and a directory for each job.
    pub(super) fn new(scenario: &Scenario, point: Point) -> Outcome<Ground> {
        let memory = PathBuf::from("/dev/shm");
        let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("forebay-bench-").tempdir_in(&above);
        let dir = dir.map_err(|error| Failure::local("make a directory in", &above, error))?;
        let mut paths = Vec::new();
        for number in 0..point.targets {
            let path = dir.path().join(format!("target{number}"));
            std::fs::create_dir(&path).map_err(|error| Failure::local("make", &path, error))?;
            paths.push(path.display().to_string());
        }
        let stripes = format!("stripes:{}", paths.join(","));
        let plain = forebay_backend::open(&stripes)?;
        for job in 0..scenario.jobs.len() {
            plain.make_dir(&[job_dir(job)?], me(), 0o755)?;
        }
        Ok(Ground { dir, stripes, plain, files: Vec::new(), processes: Vec::new() })
    }

    /// The address of the modelled back end.
    pub(super) fn modelled(&self, scenario: &Scenario, point: Point) -> String {
        format!("{}:{}", scenario.model(point), self.stripes)
    }

    pub(super) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Creates all files, empty. Processes are assigned to nodes in turn; `name` names the file of a job that
    /// begins on a node.
    pub(super) fn plan(
        &mut self,
        scenario: &Scenario,
        point: Point,
        mut name: impl FnMut(usize, u32, u16) -> Outcome<Name>,
    ) -> Outcome {
        for (number, job) in scenario.jobs.iter().enumerate() {
            let (count, len) = (job.processes.unwrap_or(point.processes), scenario.real_bytes(job.size));
            for process in 0..count {
                let node = (process % u32::from(point.servers)) as u16;
                let mut file = |size: u64| {
                    let path = vec![job_dir(number)?, name(number, process, node)?];
                    self.file(scenario, point, path, size)
                };
                let (file, start) = match point.pattern {
                    Pattern::PerProcess => (file(len)?, 0),
                    Pattern::Shared if process == 0 => (file(len * u64::from(count))?, 0),
                    Pattern::Shared => (self.files.len() - 1, u64::from(process) * len),
                };
                self.processes.push(Process { job: number, file, start, len });
            }
        }
        Ok(())
    }

    /// Creates a file over its targets, in turn; it does not begin on the target of the file before.
    fn file(&mut self, scenario: &Scenario, point: Point, path: Vec<Name>, size: u64) -> Outcome<usize> {
        let count = scenario.stripes.unwrap_or(point.targets).min(point.targets);
        let first = self.files.len() as u32;
        let layout = Layout {
            targets: (0..count).map(|stripe| (first + stripe) % point.targets).collect(),
            stripe: scenario.real_bytes(scenario.stripe),
        };
        let creation = Creation { owner: me(), mode: 0o644, stripes: None };
        drop(self.plain.create_on(&path, &creation, &layout)?);
        self.files.push(Planned { path, size });
        Ok(self.files.len() - 1)
    }

    /// Verifies that all data is in the back end.
    pub(super) fn check(&self) -> Outcome {
        for file in &self.files {
            let found = self.plain.find(&file.path)?.map(|found| found.version.size);
            if found != Some(file.size) {
                let has = found.map_or_else(|| "is missing".to_owned(), |size| format!("has {size}"));
                let text =
                    format!("{} should have {} bytes in the back end: it {has}", file.shown(), file.size);
                return Err(Failure::Failed(text));
            }
            let object = self.plain.open(&file.path)?;
            let mut bytes = vec![0; LOOK];
            for at in (0..file.size).step_by(LOOK) {
                let count = object.read_at(at, &mut bytes)?;
                if let Some(wrong) = bytes[..count].iter().position(|byte| *byte != FILLING) {
                    let place = at + wrong as u64;
                    return Err(Failure::Failed(format!("{} has wrong data at {place}", file.shown())));
                }
            }
        }
        Ok(())
    }
}

fn job_dir(job: usize) -> Outcome<Name> {
    Ok(Name::new(format!("job{job}"))?)
}

fn me() -> (Uid, Gid) {
    (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()))
}
