//! Over which targets a new file lies: those that its job has used least.
//!
//! A file of up to 64 MiB lies on one target, a larger one on as many more as it has such parts: what many processes wrote
//! into one file needs many targets, and what each wrote into its own does not.

use super::Engine;
use crate::service::Service;
use forebay_backend::Layout;
use forebay_model::{FileId, JobId};
use forebay_policy::Tick;
use forebay_policy::place::{Job, Ledger, Limits, Pattern, Shape, State, Topology, Weights, Writer, place};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What one target gets of a file.
const PART: u64 = 64 << 20;
const STRIPE: u64 = 1 << 20;
/// Most jobs of which it is known what they put where.
const JOBS: usize = 1024;
/// A target that was full is tried again after this.
const FULL: Duration = Duration::from_secs(60);
/// What all back ends with targets accept.
const LIMITS: Limits = Limits { progressive: false, ..Limits::LUSTRE };

/// Chooses targets for new files.
pub(super) struct Placement {
    targets: u32,
    known: Mutex<Known>,
}

struct Known {
    topology: Arc<Topology>,
    ledgers: HashMap<JobId, Ledger>,
    /// Targets without room, and since when.
    full: BTreeMap<u32, Instant>,
}

impl Placement {
    pub(super) fn new(targets: usize) -> Placement {
        let targets = u32::try_from(targets).unwrap_or(u32::MAX);
        let topology = Arc::new(Topology::flat(targets));
        let known = Known { topology, ledgers: HashMap::new(), full: BTreeMap::new() };
        Placement { targets, known: Mutex::new(known) }
    }

    /// How a file of a job that is about to be made should lie; as the back end likes where there is nothing to choose.
    pub(super) fn layout(&self, now: Tick, job: JobId, size: u64) -> Option<Layout> {
        if self.targets < 2 {
            return None;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.look(Instant::now());
        if known.ledgers.len() >= JOBS && !known.ledgers.contains_key(&job) {
            known.ledgers.clear();
        }
        let usable = self.targets.saturating_sub(known.full.len() as u32).max(1);
        let count =
            u32::try_from(size.div_ceil(PART)).unwrap_or(u32::MAX).clamp(1, usable.min(LIMITS.stripes));
        let topology = known.topology.clone();
        let ledger =
            known.ledgers.entry(job).or_insert_with(|| Ledger::new(topology, Weights::default(), job.0));
        ledger.advance(now);
        let job = Job {
            writers: &[Writer { client: None, bytes: Some(size) }],
            pattern: Pattern::PerProcess,
            file_size: Some(size),
            stripe_count: Some(count),
            stripe_size: Some(STRIPE),
            limits: &LIMITS,
        };
        let placed = place(ledger, &job).map(|plan| plan.files.into_iter().next().map(|file| file.shape));
        match placed {
            Ok(Some(Shape::Striped(stripes))) => {
                Some(Layout { targets: stripes.targets, stripe: stripes.size })
            }
            Ok(_) => None,
            Err(trouble) => {
                tracing::debug!(%trouble, "a file is placed as the back end likes");
                None
            }
        }
    }

    /// A target has no room: new files lie elsewhere for a while.
    pub(super) fn filled(&self, target: u32) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.full.insert(target, Instant::now()).is_none() {
            known.survey();
        }
    }
}

impl Engine {
    /// How a file should lie that is about to be made behind.
    pub(crate) fn wish(&self, service: &Service, file: FileId) -> impl Fn(u64) -> Option<Layout> {
        let now = Tick(service.store.data().now().0);
        let newest = service.store.data().dirty(file).into_iter().max_by_key(|piece| piece.stamp);
        let job = newest.map_or(JobId(0), |piece| piece.job);
        move |size| self.placement.layout(now, job, size)
    }
}

impl Known {
    /// Tries targets again that were full long ago.
    fn look(&mut self, now: Instant) {
        let before = self.full.len();
        self.full.retain(|_, since| now.duration_since(*since) < FULL);
        if self.full.len() < before {
            self.survey();
        }
    }

    /// What jobs may use has changed.
    fn survey(&mut self) {
        let mut description = self.topology.description().clone();
        for target in &mut description.targets {
            let full = self.full.contains_key(&target.index);
            target.state = if full { State::Inactive } else { State::Active };
        }
        if let Ok(topology) = Topology::new(description) {
            self.topology = Arc::new(topology);
            self.ledgers.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(placement: &Placement, job: u64, files: u32, size: u64) -> Vec<u32> {
        let mut counts = vec![0; placement.targets as usize];
        for _ in 0..files {
            let layout = placement.layout(Tick(0), JobId(job), size).expect("there is something to choose");
            layout.targets.iter().for_each(|&target| counts[target as usize] += 1);
        }
        counts
    }

    #[test]
    fn the_files_of_each_job_are_spread_evenly() {
        let placement = Placement::new(4);
        assert_eq!(spread(&placement, 1, 8, 1 << 20), [2; 4]);
        let uneven = spread(&placement, 2, 5, 64 << 20);
        assert_eq!((uneven.iter().min(), uneven.iter().max()), (Some(&1), Some(&2)), "{uneven:?}");
        // A large file has a part everywhere.
        assert_eq!(spread(&placement, 3, 1, 1 << 30), [1; 4]);
        assert_eq!(spread(&placement, 4, 2, 100 << 20), [1; 4]);
        assert_eq!(Placement::new(1).layout(Tick(0), JobId(1), 1), None);
    }

    #[test]
    fn a_full_target_is_left_alone_and_tried_again() {
        let placement = Placement::new(4);
        placement.filled(2);
        assert_eq!(spread(&placement, 1, 9, 1), [3, 3, 0, 3]);
        assert_eq!(spread(&placement, 2, 1, 1 << 30), [1, 1, 0, 1]);
        let mut known = placement.known.lock().expect("nobody panicked");
        known.look(Instant::now() + FULL);
        drop(known);
        assert_eq!(spread(&placement, 3, 8, 1), [2; 4]);
    }
}
