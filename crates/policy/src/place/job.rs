//! Placement of all files of a job.

use super::ledger::{Ledger, Path};
use super::level;
use super::measure::Load;
use super::pattern::{self, Component, Limits, Note, Pattern, Shape, StripeHint, Stripes};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;

/// Most writers of a job.
const MOST_WRITERS: usize = 1 << 24;

/// One writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The client it runs on; `None`: a client that the topology does not describe.
    pub client: Option<u32>,
    /// Bytes it writes, if known.
    pub bytes: Option<u64>,
}

/// A job's upcoming writes.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The writers, by rank.
    pub writers: &'a [Writer],
    /// Which writer writes which file.
    pub pattern: Pattern,
    /// The size of each shared file, if known; else the sum of its writers' bytes.
    pub file_size: Option<u64>,
    /// Requested number of targets.
    pub stripe_count: Option<u32>,
    /// Requested stripe size.
    pub stripe_size: Option<u64>,
    /// Limits of the back end.
    pub limits: &'a Limits,
}

/// A file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilePlan {
    /// Its writers.
    pub writers: Range<usize>,
    /// Its layout.
    pub shape: Shape,
}

/// The files of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The files, in order of their writers.
    pub files: Vec<FilePlan>,
    /// Number of stripes on each resource.
    pub load: Load,
    /// Fallbacks that were taken because something was unknown or impossible, once each.
    pub notes: Vec<Note>,
}

/// Why a job cannot be placed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// No writers, or too many.
    Writers(usize),
    /// No usable target that this writer reaches has enough free space.
    NoTarget {
        /// The writer.
        writer: usize,
        /// Bytes to place.
        bytes: u64,
    },
    /// The requested stripe count exceeds the back end's limit.
    TooWide {
        /// The requested count.
        wanted: u32,
        /// The limit.
        most: u32,
    },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Writers(0) => write!(f, "the job has no writers: it needs at least one"),
            Trouble::Writers(count) => write!(f, "{count} writers are too many: at most {MOST_WRITERS}"),
            Trouble::NoTarget { writer, bytes } => write!(
                f,
                "writer {writer} reaches no target that is active, not excluded and has room for {bytes} bytes: free \
                 space, or let a router lead to more servers"
            ),
            Trouble::TooWide { wanted, most } => {
                write!(f, "{wanted} targets for one file are more than the back end allows: at most {most}")
            }
        }
    }
}

/// Places the files of a job, and charges the ledger for them.
pub fn place(ledger: &mut Ledger, job: &Job<'_>) -> Result<Plan, Trouble> {
    if job.writers.is_empty() || job.writers.len() > MOST_WRITERS {
        return Err(Trouble::Writers(job.writers.len()));
    }
    if let Some(wanted) = job.stripe_count.filter(|&count| count > job.limits.stripes) {
        return Err(Trouble::TooWide { wanted, most: job.limits.stripes });
    }
    let per_file = match job.pattern {
        Pattern::PerProcess if job.stripe_count.unwrap_or(1) <= 1 => return per_process(ledger, job),
        Pattern::PerProcess => 1,
        Pattern::Shared => job.writers.len(),
        Pattern::Grouped(count) => count.max(1) as usize,
    };
    let mut plan = Plan { files: Vec::new(), load: Load::new(&ledger.topology), notes: Vec::new() };
    for start in (0..job.writers.len()).step_by(per_file) {
        let writers = start..(start + per_file).min(job.writers.len());
        let shape = shared(ledger, job, writers.clone(), &mut plan)?;
        plan.files.push(FilePlan { writers, shape });
    }
    Ok(plan)
}

/// Load of a file in mebibytes.
fn work(bytes: u64) -> f64 {
    bytes.max(1) as f64 / f64::from(1 << 20)
}

fn per_process(ledger: &mut Ledger, job: &Job<'_>) -> Result<Plan, Trouble> {
    let mut paths = Vec::with_capacity(job.writers.len());
    let mut works: Vec<f64> = Vec::with_capacity(job.writers.len());
    for (number, writer) in job.writers.iter().enumerate() {
        let class = ledger.topology.class(writer.client);
        let bytes = writer.bytes.unwrap_or(0);
        let Some(path) = ledger.cheapest(&[class], bytes) else {
            for (number, (path, work)) in paths.iter().zip(&works).enumerate() {
                charge_and_fill(ledger, path, -*work, job.writers[number].bytes.unwrap_or(0), false);
            }
            return Err(Trouble::NoTarget { writer: number, bytes });
        };
        if let Some(bytes) = writer.bytes {
            ledger.typical = work(bytes);
        }
        charge_and_fill(ledger, &path, ledger.typical, bytes, true);
        works.push(ledger.typical);
        paths.push(path);
    }
    level::level(ledger, job.writers, &works, &mut paths);
    let mut load = Load::new(&ledger.topology);
    let size = job.limits.accepted(job.stripe_size.unwrap_or(job.limits.usual));
    let files = paths.iter().enumerate().map(|(number, path)| {
        load.add(&ledger.topology, path);
        let shape = Shape::Striped(Stripes { targets: vec![path.target], size });
        FilePlan { writers: number..number + 1, shape }
    });
    Ok(Plan { files: files.collect(), load, notes: Vec::new() })
}

/// Charges a path and fills its target, or reverts both.
pub(super) fn charge_and_fill(ledger: &mut Ledger, path: &Path, work: f64, bytes: u64, take: bool) {
    ledger.charge(path, work);
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    ledger.fill(path.target, if take { bytes } else { -bytes });
}

fn shared(
    ledger: &mut Ledger,
    job: &Job<'_>,
    writers: Range<usize>,
    plan: &mut Plan,
) -> Result<Shape, Trouble> {
    let of = &job.writers[writers.clone()];
    let bytes = job.file_size.or_else(|| of.iter().map(|writer| writer.bytes).sum());
    let count = writers.len() as u32;
    let mut most = ledger.topology.usable.iter().filter(|&&usable| usable).count() as u32;
    let hint = StripeHint { count: job.stripe_count, size: job.stripe_size };
    let mut note = |note| {
        if !plan.notes.contains(&note) {
            plan.notes.push(note);
        }
    };
    loop {
        let outline = pattern::outline(job.limits, count, bytes.unwrap_or(0), most, hint);
        let file = SharedFile { job, writers: writers.clone(), bytes };
        let tried = match bytes {
            None if hint.count.is_none() && !job.limits.progressive => {
                note(Note::Usual);
                return Ok(Shape::Usual);
            }
            None => file.growing(ledger, outline.count, &mut plan.load),
            Some(bytes) => {
                let each = bytes.div_ceil(u64::from(outline.count));
                let paths = file.assign(ledger, outline.count, each, work(each));
                paths.map(|paths| {
                    paths.iter().for_each(|path| plan.load.add(&ledger.topology, path));
                    let targets = paths.iter().map(|path| path.target).collect();
                    Shape::Striped(Stripes { targets, size: outline.size })
                })
            }
        };
        match tried {
            Ok(shape) => {
                outline.note.filter(|_| bytes.is_some()).into_iter().for_each(&mut note);
                if matches!(shape, Shape::Progressive(_)) {
                    note(Note::Grows);
                }
                return Ok(shape);
            }
            // Fewer, larger stripes may still find targets that all their writers reach.
            Err(_) if outline.count > 1 => most = outline.count - 1,
            Err(trouble) => return Err(trouble),
        }
    }
}

/// A shared file whose stripes are assigned to its writers.
struct SharedFile<'a> {
    job: &'a Job<'a>,
    writers: Range<usize>,
    bytes: Option<u64>,
}

impl SharedFile<'_> {
    /// The client classes of the writers whose blocks a stripe holds.
    fn classes(&self, ledger: &Ledger, stripe: u32, count: u32) -> Vec<u32> {
        let len = self.writers.len();
        let (stripe, count) = (stripe as usize, count as usize);
        let of = match self.bytes {
            // Blocks are consecutive: each stripe holds this many.
            Some(_) if count <= len => {
                let together = len.div_ceil(count);
                let start = (stripe * together).min(len - 1);
                start..(start + together).min(len)
            }
            // More stripes than writers: a writer has several.
            Some(_) => stripe * len / count..stripe * len / count + 1,
            // The size is unknown, so any writer may write to any stripe.
            None => 0..len,
        };
        let writers = &self.job.writers[self.writers.start + of.start..self.writers.start + of.end];
        let mut classes: Vec<u32> =
            writers.iter().map(|writer| ledger.topology.class(writer.client)).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }

    /// A different target for each stripe. Charges nothing if there are too few.
    fn assign(&self, ledger: &mut Ledger, count: u32, each: u64, work: f64) -> Result<Vec<Path>, Trouble> {
        let mut assignment = Assignment { file: self, count, each, work, paths: Vec::new() };
        let complete = (0..count).all(|_| assignment.next(ledger) || assignment.free_target(ledger));
        let Assignment { paths, .. } = assignment;
        for path in &paths {
            ledger.offer(path.target);
            if !complete {
                charge_and_fill(ledger, path, -work, each, false);
            }
        }
        match complete {
            true => Ok(paths),
            false => {
                let writer = self.writers.start + paths.len() * self.writers.len() / count as usize;
                Err(Trouble::NoTarget { writer, bytes: each })
            }
        }
    }

    /// A layout with more targets as the file grows.
    fn growing(&self, ledger: &mut Ledger, count: u32, load: &mut Load) -> Result<Shape, Trouble> {
        let limits = self.job.limits;
        let size = limits.accepted(self.job.stripe_size.unwrap_or(limits.usual));
        let growth = match self.job.stripe_count {
            Some(_) => vec![(None, count)],
            None => pattern::growth(limits, count),
        };
        let mut parts: Vec<(Option<u64>, Vec<Path>, f64)> = Vec::new();
        for (end, count) in growth {
            // Only the last component is long.
            let work = if end.is_some() { ledger.typical / 64.0 } else { ledger.typical };
            match self.assign(ledger, count, 0, work) {
                Ok(paths) => parts.push((end, paths, work)),
                Err(trouble) => {
                    for (path, work) in
                        parts.iter().flat_map(|(_, paths, work)| paths.iter().zip(std::iter::repeat(*work)))
                    {
                        ledger.charge(path, -work);
                    }
                    return Err(trouble);
                }
            }
        }
        let component = |(end, paths, _): (Option<u64>, Vec<Path>, f64)| {
            if end.is_none() {
                paths.iter().for_each(|path| load.add(&ledger.topology, path));
            }
            let targets = paths.iter().map(|path| path.target).collect();
            Component { end, stripes: Stripes { targets, size } }
        };
        let mut components: Vec<Component> = parts.into_iter().map(component).collect();
        Ok(match components.len() {
            1 => Shape::Striped(components.remove(0).stripes),
            _ => Shape::Progressive(components),
        })
    }
}

/// Partial assignment of a file's stripes, each to a target of its own.
struct Assignment<'a> {
    file: &'a SharedFile<'a>,
    count: u32,
    each: u64,
    work: f64,
    paths: Vec<Path>,
}

impl Assignment<'_> {
    fn classes(&self, ledger: &Ledger, stripe: usize) -> Vec<u32> {
        self.file.classes(ledger, stripe as u32, self.count)
    }

    fn take(&self, ledger: &mut Ledger, path: &Path) {
        charge_and_fill(ledger, path, self.work, self.each, true);
        ledger.withhold(path.target);
    }

    /// Assigns the cheapest remaining target to the next stripe. Returns false if there is none.
    fn next(&mut self, ledger: &mut Ledger) -> bool {
        let classes = self.classes(ledger, self.paths.len());
        let Some(path) = ledger.cheapest(&classes, self.each) else { return false };
        self.take(ledger, &path);
        self.paths.push(path);
        true
    }

    /// All targets that the next stripe reaches are taken: takes one from another stripe that can move, if
    /// need be along a chain of moves (an augmenting path).
    fn free_target(&mut self, ledger: &mut Ledger) -> bool {
        let next = self.paths.len();
        // In the order of targets, so that every process finds the same result.
        let holder: BTreeMap<u32, usize> =
            self.paths.iter().enumerate().map(|(stripe, path)| (path.target, stripe)).collect();
        // The stripe that would take each stripe's place.
        let mut after: HashMap<usize, usize> = HashMap::new();
        let mut queue = VecDeque::from([next]);
        while let Some(stripe) = queue.pop_front() {
            let classes = self.classes(ledger, stripe);
            if stripe != next && ledger.cheapest(&classes, self.each).is_some() {
                self.shift(ledger, stripe, &after);
                return true;
            }
            for (&target, &other) in &holder {
                let reached = classes.iter().all(|&class| {
                    ledger.topology.gate(class, ledger.topology.server_of[target as usize]).is_some()
                });
                if reached && other != stripe && !after.contains_key(&other) {
                    after.insert(other, stripe);
                    queue.push_back(other);
                }
            }
        }
        false
    }

    /// Moves the stripe that has a free target; each stripe of the chain takes the target of the one before
    /// it.
    fn shift(&mut self, ledger: &mut Ledger, free: usize, after: &HashMap<usize, usize>) {
        let next = self.paths.len();
        let mut stripe = free;
        let mut place =
            ledger.cheapest(&self.classes(ledger, free), self.each).expect("free_target found a free target");
        while stripe != next {
            let left = std::mem::replace(&mut self.paths[stripe], place.clone());
            charge_and_fill(ledger, &left, -self.work, self.each, false);
            self.take(ledger, &place);
            stripe = after[&stripe];
            place = ledger.path(&self.classes(ledger, stripe), left.target, left.cost);
        }
        self.take(ledger, &place);
        self.paths.push(place);
    }
}
