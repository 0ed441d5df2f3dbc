//! The layout of the next file.

use crate::crew::{self, Crew};
use crate::setting::{self, Ready};
use crate::turns::Turns;
use crate::{hdf5, report};
use forebay_policy::place::lov::Lov;
use forebay_policy::place::{Job, Ledger, Note, Pattern, Shape, Stripes, Writer, place};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Up to this many processes plan each of their files for all ranks; more plan once and then rotate.
const PLANNED_AGAIN: u32 = 256;
/// How often, and how long each time, a thread waits for another that decides.
const PATIENCE: u32 = 10_000;
const WAIT: Duration = Duration::from_micros(100);
/// Number of different group sizes with a ledger of their own.
const GROUPS: usize = 64;
/// Number of name patterns whose last file is remembered.
const REMEMBERED: usize = 1024;

/// Known properties of a file that is about to be created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FileHint {
    /// Number of writers.
    pub(crate) writers: u32,
    /// The source of that number, for the log.
    pub(crate) source: &'static str,
    pub(crate) bytes: Option<u64>,
    pub(crate) stripe_count: Option<u32>,
    pub(crate) stripe_size: Option<u64>,
}

/// The plan of this process so far.
struct Decider {
    ready: &'static Ready,
    /// Files per process: the same in all ranks, as long as they create the same files.
    ledger: Ledger,
    /// Shared files, by the number of their writers: the same in all ranks that create one for their group.
    together: HashMap<u32, Ledger>,
    /// Turns that the first ledger includes, for processes without a rank.
    taken: u64,
    /// The turn counter.
    turns: Turns,
    /// Whether the first ledger includes earlier runs of this job.
    is_replayed: bool,
    /// The targets of all ranks, if there are too many to plan again.
    wave: Vec<u32>,
    files: usize,
    /// The last file of each name pattern.
    earlier: HashMap<Vec<u8>, Vec<u8>>,
}

static DECIDER: OnceLock<Option<Mutex<Decider>>> = OnceLock::new();

/// The layout of the next file, or `None` for the file system's default. Threads wait for each other, but not
/// forever: after a fork, the thread that held the lock does not exist in the child.
pub(crate) fn decide(path: &[u8], hint: FileHint) -> Option<Lov> {
    let decider = DECIDER.get_or_init(|| {
        let ready = setting::ready()?;
        Some(Mutex::new(Decider {
            ready,
            ledger: fresh(ready),
            together: HashMap::new(),
            taken: 0,
            turns: Turns::default(),
            is_replayed: false,
            wave: Vec::new(),
            files: 0,
            earlier: HashMap::new(),
        }))
    });
    let decider = decider.as_ref()?;
    let locked = (0..PATIENCE).find_map(|_| {
        decider.try_lock().ok().or_else(|| {
            std::thread::sleep(WAIT);
            None
        })
    });
    let Some(mut decider) = locked else {
        report::trouble(format_args!(
            "{}: default layout: another thread holds the plan",
            path.escape_ascii()
        ));
        return None;
    };
    decider.decide(path, hint)
}

fn fresh(ready: &Ready) -> Ledger {
    Ledger::new(ready.topology.clone(), ready.setting.weights, ready.setting.job)
}

/// Replays earlier runs: each run of a job continues where the one before it began.
fn replay(ledger: &mut Ledger, job: &Job<'_>, runs: u32) -> Result<(), String> {
    (0..runs).try_for_each(|_| place(ledger, job).map(drop).map_err(|trouble| trouble.to_string()))
}

impl Decider {
    fn decide(&mut self, path: &[u8], mut hint: FileHint) -> Option<Lov> {
        if hint.writers > 1 {
            self.complete(path, &mut hint);
        } else if let Some(bytes) = hdf5::member().filter(|_| hint.bytes.is_none()) {
            hint.bytes = Some(bytes);
            report::note(format_args!("{}: {bytes} bytes, member of an HDF5 family", path.escape_ascii()));
        }
        let planned = match hint.writers {
            0 | 1 if hint.stripe_count.unwrap_or(1) <= 1 => self.own(hint),
            _ => self.shared(hint),
        };
        self.files += 1;
        let (shape, notes) = match planned {
            Ok(planned) => planned,
            Err(trouble) => {
                report::trouble(format_args!("{}: default layout: {trouble}", path.escape_ascii()));
                return None;
            }
        };
        for note in notes {
            report::note(format_args!("{}: {note}", path.escape_ascii()));
        }
        self.encode(&shape)
    }

    /// Completes the properties of a shared file from other sources.
    fn complete(&mut self, path: &[u8], hint: &mut FileHint) {
        let shown = path.escape_ascii();
        report::note(format_args!("{shown}: {} writers, from {}", hint.writers, hint.source));
        let earlier = self.earlier_size(path);
        let inferred = hint.bytes.is_none();
        hint.bytes = hint.bytes.or(earlier);
        match hint.bytes {
            Some(bytes) if inferred => {
                report::note(format_args!("{shown}: {bytes} bytes, as in the previous file"));
            }
            Some(_) => {}
            // With a known size each writer has its own stripe, whatever the alignment.
            None if hint.stripe_size.is_none() => {
                let unit = self.ready.setting.limits.unit;
                hint.stripe_size = hdf5::alignment().filter(|&size| size.is_multiple_of(unit));
                if let Some(size) = hint.stripe_size {
                    report::note(format_args!("{shown}: stripes of {size} bytes, from the HDF5 alignment"));
                }
            }
            None => {}
        }
    }

    /// A file per process: for this rank when all ranks create one, or for the process whose turn it is.
    fn own(&mut self, hint: FileHint) -> Result<(Shape, Vec<Note>), String> {
        let limits = self.ready.setting.limits;
        let crew = crew::crew();
        let (writers, mine): (Vec<Writer>, usize) = match crew {
            Some(crew) => (writers(crew, hint.bytes), crew.rank as usize),
            None => {
                let client = self.ready.topology.client(&crew::host());
                (vec![Writer { client, bytes: hint.bytes }], 0)
            }
        };
        let job = Job {
            writers: &writers,
            pattern: Pattern::PerProcess,
            file_size: None,
            stripe_count: None,
            stripe_size: hint.stripe_size,
            limits: &limits,
        };
        let shape = match crew {
            Some(crew) if crew.size > PLANNED_AGAIN => return self.rotated(&job, crew),
            Some(crew) => {
                if !std::mem::replace(&mut self.is_replayed, true) {
                    replay(&mut self.ledger, &job, crew.run)?;
                }
                &place(&mut self.ledger, &job).map_err(|trouble| trouble.to_string())?.files[mine].shape
            }
            None => &self.in_turn(&job)?,
        };
        Ok((shape.clone(), Vec::new()))
    }

    /// Without a rank: the processes take turns, and each replays the turns before it.
    fn in_turn(&mut self, job: &Job<'_>) -> Result<Shape, String> {
        let turn = self.turns.next(self.ready).map_err(|error| format!("cannot take a turn: {error}"))?;
        let turn = turn.unwrap_or(self.files as u64);
        // After as many turns as there are targets the plan starts over, so that no process has to replay a
        // long history.
        let round = self.ready.topology.description().targets.len() as u64;
        if turn < self.taken || turn / round != self.taken / round {
            self.ledger = fresh(self.ready);
            self.taken = turn - turn % round;
        }
        while self.taken < turn {
            place(&mut self.ledger, job).map_err(|trouble| trouble.to_string())?;
            self.taken += 1;
        }
        self.taken += 1;
        let plan = place(&mut self.ledger, job).map_err(|trouble| trouble.to_string())?;
        Ok(plan.files[0].shape.clone())
    }

    /// Many ranks: the first files are planned for all; later files use the targets of the next rank's first
    /// file.
    fn rotated(&mut self, job: &Job<'_>, crew: &Crew) -> Result<(Shape, Vec<Note>), String> {
        let size = job.stripe_size.unwrap_or(job.limits.usual);
        if self.wave.is_empty() {
            let plan = place(&mut self.ledger, job).map_err(|trouble| trouble.to_string())?;
            let first = |shape: &Shape| match shape {
                Shape::Striped(stripes) => stripes.targets[0],
                _ => unreachable!("one writer's file is striped"),
            };
            self.wave = plan.files.iter().map(|file| first(&file.shape)).collect();
        }
        let rank = crew.rank as usize;
        let moved = rank + self.files + crew.run as usize;
        let target = self.wave[moved % self.wave.len()];
        let reached = self.ready.topology.reaches(crew.clients[rank], target as usize);
        let target = if reached { target } else { self.wave[rank] };
        Ok((Shape::Striped(Stripes { targets: vec![target], size }), Vec::new()))
    }

    /// A shared file: one of as many as there are groups of its size among all ranks.
    fn shared(&mut self, hint: FileHint) -> Result<(Shape, Vec<Note>), String> {
        let limits = self.ready.setting.limits;
        let count = hint.writers.max(1);
        let alone = Crew { rank: 0, size: count, clients: vec![None; count as usize], run: 0 };
        let crew = crew::crew().filter(|crew| crew.size >= count).unwrap_or(&alone);
        let writers = writers(crew, None);
        let job = Job {
            writers: &writers,
            pattern: Pattern::Grouped(count),
            file_size: hint.bytes,
            stripe_count: hint.stripe_count,
            stripe_size: hint.stripe_size,
            limits: &limits,
        };
        if self.together.len() >= GROUPS {
            self.together.clear();
        }
        let ledger = match self.together.entry(count) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let ledger = new.insert(fresh(self.ready));
                replay(ledger, &job, crew.run)?;
                ledger
            }
        };
        let mut plan = place(ledger, &job).map_err(|trouble| trouble.to_string())?;
        let group = (crew.rank / count) as usize;
        Ok((plan.files.swap_remove(group).shape, plan.notes))
    }

    /// The size of the last file whose name differs in digits only.
    fn earlier_size(&mut self, path: &[u8]) -> Option<u64> {
        let pattern: Vec<u8> =
            path.iter().map(|&byte| if byte.is_ascii_digit() { b'#' } else { byte }).collect();
        if self.earlier.len() >= REMEMBERED {
            self.earlier.clear();
        }
        let before = self.earlier.insert(pattern, path.to_vec())?;
        let size = std::fs::metadata(OsString::from_vec(before)).ok()?.len();
        (size > 0).then_some(size)
    }

    fn encode(&self, shape: &Shape) -> Option<Lov> {
        let targets = &self.ready.topology.description().targets;
        let numbers = |stripes: &Stripes| -> Vec<u32> {
            stripes.targets.iter().map(|&target| targets[target as usize].index).collect()
        };
        let size = |stripes: &Stripes| u32::try_from(stripes.size).unwrap_or(!0xffff);
        match shape {
            Shape::Striped(stripes) => Some(Lov::specific(&numbers(stripes), size(stripes))),
            Shape::Progressive(parts) => {
                let part = |part: &forebay_policy::place::Component| {
                    (part.end, numbers(&part.stripes), size(&part.stripes))
                };
                Some(Lov::growing(&parts.iter().map(part).collect::<Vec<_>>()))
            }
            Shape::Usual => None,
        }
    }
}

fn writers(crew: &Crew, bytes: Option<u64>) -> Vec<Writer> {
    crew.clients.iter().map(|&client| Writer { client, bytes }).collect()
}
