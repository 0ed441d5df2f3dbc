//! Chooses the targets of a new file: those that its job has used least.
//!
//! A large file lies on several targets (`forebay_policy::place::width`). The back end reports periodically, if it can,
//! which targets exist, on which servers, and which of them are inactive or full.

use super::DrainEngine;
use super::settings::Described;
use forebay_backend::Layout;
use forebay_model::{Error, ErrorKind, FileId, JobId, Result, ServerId};
use forebay_policy::Tick;
use forebay_policy::place::{
    Description, Job, Ledger, Limits, PART, Pattern, Shape, State, Target, Topology, Weights, Writer, place,
    width,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Most jobs whose use of targets is remembered.
const JOBS: usize = 1024;
/// A full target is tried again after this time, and the back end's report on its targets is refreshed.
const REFRESH: Duration = Duration::from_secs(60);
const LIMITS: &Limits = &Limits::BACK_END;

/// Chooses targets for new files.
pub(super) struct Placement {
    /// Servers choose independently: each breaks ties in its own way, so that they do not all choose the same target.
    server: u64,
    targets: u32,
    weights: Weights,
    /// Whether the topology was described, so that the back end is not queried.
    is_described: bool,
    known: Mutex<Known>,
}

struct Known {
    topology: Arc<Topology>,
    ledgers: HashMap<JobId, Ledger>,
    /// Full targets, and since when.
    full: BTreeMap<u32, Instant>,
    /// When the back end was last queried.
    queried: Instant,
}

impl Placement {
    /// For `targets` targets, with the description of the administrator or of the back end if there is one.
    pub(super) fn new(
        server: ServerId,
        targets: usize,
        described: Option<Described>,
        reported: Option<Description>,
    ) -> Result<Placement> {
        let targets = u32::try_from(targets).unwrap_or(u32::MAX);
        let is_described = described.is_some();
        let weights = described.as_ref().map_or_else(Weights::default, |described| described.weights);
        let topology = match described {
            Some(Described { description, weights }) => {
                let beyond = description.targets.iter().find(|target| target.index >= targets);
                if let Some(target) = beyond {
                    let Target { name, index, .. } = target;
                    let text = format!(
                        "drain.topology: \"{name}\" has the number {index}, but the back end has {targets} targets"
                    );
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
                let description =
                    if weights.space > 0.0 { description } else { without_free_space(description) };
                let wrong = |flaw| Error::new(ErrorKind::Invalid, format!("drain.topology: {flaw}"));
                Topology::new(description).map_err(wrong)?
            }
            None => {
                let reported =
                    reported.map(without_free_space).and_then(|reported| Topology::new(reported).ok());
                reported.unwrap_or_else(|| Topology::flat(targets))
            }
        };
        let known = Known {
            topology: Arc::new(topology),
            ledgers: HashMap::new(),
            full: BTreeMap::new(),
            queried: Instant::now(),
        };
        // The server's number is in the upper bits, above the numbers of jobs.
        let server = u64::from(server.0) << 48;
        Ok(Placement { server, targets, weights, is_described, known: Mutex::new(known) })
    }

    /// Whether the report of the back end is due to be refreshed.
    fn is_due(&self, now: Instant) -> bool {
        let known = self.known.lock();
        !self.is_described && now.duration_since(known.queried) >= REFRESH
    }

    /// Takes the back end's new report on its targets.
    fn refresh(&self, reported: Option<Description>, now: Instant) {
        let mut known = self.known.lock();
        known.queried = now;
        if let Some(reported) = reported.map(without_free_space) {
            known.update(reported);
        }
    }

    /// The layout of a new file of a job; `None`, the back end's default, where there is nothing to choose.
    pub(super) fn layout(&self, now: Tick, job: JobId, size: u64) -> Option<Layout> {
        if self.targets < 2 {
            return None;
        }
        let mut known = self.known.lock();
        known.retry_full(Instant::now());
        let usable = known.usable();
        if known.ledgers.len() >= JOBS && !known.ledgers.contains_key(&job) {
            known.ledgers.clear();
        }
        let count = width(size, usable, LIMITS);
        let (topology, seed) = (known.topology.clone(), job.0 ^ self.server);
        let fresh = || Ledger::new(topology.clone(), self.weights, seed);
        let ledger = known.ledgers.entry(job).or_insert_with(fresh);
        ledger.advance(now);
        let job = Job {
            writers: &[Writer { client: topology.client(host()), bytes: Some(size) }],
            pattern: Pattern::PerProcess,
            file_size: Some(size),
            stripe_count: Some(count),
            stripe_size: Some(LIMITS.usual),
            limits: LIMITS,
        };
        let placed = place(ledger, &job).map(|plan| plan.files.into_iter().next().map(|file| file.shape));
        match placed {
            Ok(Some(Shape::Striped(stripes))) => {
                let number = |target: u32| topology.description().targets[target as usize].index;
                Some(Layout {
                    targets: stripes.targets.into_iter().map(number).collect(),
                    stripe: stripes.size,
                })
            }
            Ok(_) => None,
            Err(trouble) => {
                tracing::debug!(%trouble, "cannot choose targets for a new file; the back end chooses");
                None
            }
        }
    }

    /// A target is full: new files avoid it for a while.
    pub(super) fn filled(&self, target: u32) {
        let mut known = self.known.lock();
        if known.full.insert(target, Instant::now()).is_none() {
            let description = known.topology.description().clone();
            known.update(description);
        }
    }
}

impl DrainEngine {
    /// Returns a function that chooses the layout of a file that is about to be created in the back end.
    pub(super) fn choose_layout(&self, file: FileId) -> impl Fn(u64) -> Option<Layout> {
        let at = Instant::now();
        if self.placement.is_due(at) {
            let reported = self.backing.ask(|backend| backend.topology());
            self.placement.refresh(reported, at);
        }
        let now = Tick(self.store.data().now().0);
        let newest = self.store.data().dirty(file).into_iter().max_by_key(|piece| piece.stamp);
        let job = newest.map_or(JobId(0), |piece| piece.job);
        move |size| self.placement.layout(now, job, size)
    }
}

/// The name of this machine, without its domain.
fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let whole = rustix::system::uname().nodename().to_string_lossy().into_owned();
        whole.split('.').next().unwrap_or_default().to_owned()
    })
}

/// Treats a target without space for one part as inactive, and drops all free-space figures, which change all the time.
fn without_free_space(mut reported: Description) -> Description {
    for target in &mut reported.targets {
        if target.free.take().is_some_and(|free| free < PART) && target.state == State::Active {
            target.state = State::Inactive;
        }
    }
    reported
}

impl Known {
    fn usable(&self) -> u32 {
        let active = |state: State| state == State::Active;
        let targets = &self.topology.description().targets;
        (targets.iter().filter(|target| active(target.state)).count() as u32).max(1)
    }

    /// Tries targets again that were full long ago.
    fn retry_full(&mut self, now: Instant) {
        let again: Vec<u32> = self
            .full
            .iter()
            .filter(|(_, since)| now.duration_since(**since) >= REFRESH)
            .map(|(&target, _)| target)
            .collect();
        if again.is_empty() {
            return;
        }
        self.full.retain(|target, _| !again.contains(target));
        let mut description = self.topology.description().clone();
        for target in description.targets.iter_mut().filter(|target| again.contains(&target.index)) {
            target.state = State::Active;
        }
        self.update(description);
    }

    /// Takes a new description; what is known of jobs is reset if it differs.
    fn update(&mut self, mut description: Description) {
        for target in &mut description.targets {
            if self.full.contains_key(&target.index) {
                target.state = State::Inactive;
            }
        }
        if description == *self.topology.description() {
            return;
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
    use forebay_policy::place::{Client, Router, Routers, Server};

    fn placement(targets: usize) -> Placement {
        Placement::new(ServerId(0), targets, None, None).expect("it makes sense")
    }

    fn spread(placement: &Placement, job: u64, files: u32, size: u64) -> Vec<u32> {
        let mut counts = vec![0; placement.targets as usize];
        for _ in 0..files {
            let layout = placement.layout(Tick(0), JobId(job), size).expect("there is something to choose");
            layout.targets.iter().for_each(|&target| counts[target as usize] += 1);
        }
        counts
    }

    #[test]
    fn files_of_each_job_are_spread_evenly_over_targets() {
        let placement = placement(4);
        assert_eq!(spread(&placement, 1, 8, 1 << 20), [2; 4]);
        let uneven = spread(&placement, 2, 5, 64 << 20);
        assert_eq!((uneven.iter().min(), uneven.iter().max()), (Some(&1), Some(&2)), "{uneven:?}");
        // A large file has a part everywhere.
        assert_eq!(spread(&placement, 3, 1, 1 << 30), [1; 4]);
        assert_eq!(spread(&placement, 4, 2, 100 << 20), [1; 4]);
        let one = Placement::new(ServerId(0), 1, None, None).expect("it makes sense");
        assert_eq!(one.layout(Tick(0), JobId(1), 1), None);
    }

    #[test]
    fn full_target_is_avoided_and_tried_again_later() {
        let placement = placement(4);
        placement.filled(2);
        assert_eq!(spread(&placement, 1, 9, 1), [3, 3, 0, 3]);
        assert_eq!(spread(&placement, 2, 1, 1 << 30), [1, 1, 0, 1]);
        let mut known = placement.known.lock();
        known.retry_full(Instant::now() + REFRESH);
        drop(known);
        assert_eq!(spread(&placement, 3, 8, 1), [2; 4]);
    }
    /// Targets 0, 1, 2 and 7 of two servers.
    fn reported(state: [State; 4], free: [u64; 4]) -> Description {
        let mut reported = Topology::flat(4).description().clone();
        for (number, target) in reported.targets.iter_mut().enumerate() {
            target.index = [0, 1, 2, 7][number];
            (target.state, target.free) = (state[number], Some(free[number]));
        }
        reported
    }

    #[test]
    fn placement_follows_the_target_states_of_the_back_end() {
        const MUCH: u64 = 1 << 40;
        let all = [State::Active; 4];
        let placement =
            Placement::new(ServerId(0), 8, None, Some(reported(all, [MUCH; 4]))).expect("it makes sense");
        assert_eq!(spread(&placement, 1, 8, 1), [2, 2, 2, 0, 0, 0, 0, 2]);
        assert_eq!(spread(&placement, 1, 1, 1 << 40), [1, 1, 1, 0, 0, 0, 0, 1]);
        let now = Instant::now();
        assert!(!placement.is_due(now) && placement.is_due(now + REFRESH));
        let inactive = [State::Active, State::Inactive, State::Active, State::Active];
        placement.refresh(Some(reported(inactive, [MUCH, MUCH, PART - 1, MUCH])), now + REFRESH);
        assert_eq!(spread(&placement, 1, 8, 1), [4, 0, 0, 0, 0, 0, 0, 4]);
        assert!(!placement.is_due(now + REFRESH));
        placement.refresh(None, now);
        assert_eq!(spread(&placement, 2, 2, 1), [1, 0, 0, 0, 0, 0, 0, 1], "no report changes nothing");
    }

    #[test]
    fn servers_begin_at_different_targets() {
        let first = |server: u16| {
            let placement = Placement::new(ServerId(server), 64, None, None).expect("it makes sense");
            placement.layout(Tick(0), JobId(9), 1).expect("there is something to choose").targets[0]
        };
        let starts: std::collections::BTreeSet<u32> = (0..16).map(first).collect();
        assert!(starts.len() > 8, "sixteen servers begin at {starts:?}");
    }

    #[test]
    fn placement_follows_a_described_topology() {
        const MUCH: u64 = 1 << 40;
        let mut description = reported([State::Active; 4], [MUCH, MUCH, MUCH, 3 * MUCH]);
        let [router, other] = ["near", "far"].map(|name| Router {
            name: name.to_owned(),
            capacity: 1.0,
            leads_to: Some(vec![if name == "near" { "server0" } else { "server1" }.to_owned()]),
        });
        description.servers.push(Server { name: "server1".to_owned(), capacity: None });
        description.targets[1].server = "server1".to_owned();
        description.routers = vec![router, other];
        let near = Routers::Near(vec![("near".to_owned(), 0)]);
        description.clients = vec![Client { name: host().to_owned(), routers: near }];
        let weights = Weights { router: 0.0, server: 0.0, target: 0.0, space: 1.0 };
        let new = |description: &Description, targets| {
            let described = Described { description: description.clone(), weights };
            Placement::new(ServerId(0), targets, Some(described), None)
        };
        let placement = new(&description, 8).expect("it makes sense");
        // Target 1 cannot be reached from this host, and target 7 has three times the space.
        assert_eq!(spread(&placement, 1, 5, 1), [1, 0, 1, 0, 0, 0, 0, 3]);
        assert!(!placement.is_due(Instant::now() + REFRESH), "the back end is not queried");
        let few = new(&description, 7).err().expect("there is no target 7").to_string();
        assert!(few.contains("\"target3\" has the number 7, but the back end has 7 targets"), "{few}");
        description.routers[1].leads_to = Some(vec!["far".to_owned()]);
        let cycle = new(&description, 8).err().expect("a circle").to_string();
        assert!(cycle.contains("drain.topology: leads_to: the routers lead in a circle"), "{cycle}");
    }
}
