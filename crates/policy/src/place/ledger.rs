//! Load of a job per resource, and the cheapest path for its next file.

use super::topology::{Chain, Gate, Topology};
use super::weigh::Weights;
use crate::share::{Rng, Tick};
use std::collections::BTreeSet;
use std::sync::Arc;

/// After this time without new files, a job's load counts half.
pub const HALF_LIFE: Tick = Tick::ms(600_000);

/// Cost of a target by itself, and this job's tie-breaker.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Key {
    cost: f64,
    rank: u64,
    target: u32,
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> std::cmp::Ordering {
        self.cost.total_cmp(&other.cost).then(self.rank.cmp(&other.rank)).then(self.target.cmp(&other.target))
    }
}

/// The path of one stripe: its target, and the routers that each class of its writers goes through.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Path {
    pub(super) target: u32,
    pub(super) chains: Vec<Chain>,
    /// Cost before it was charged.
    pub(super) cost: f64,
}

/// Load of one job on every resource.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub(super) topology: Arc<Topology>,
    weights: Weights,
    job: u64,
    router: Vec<f64>,
    server: Vec<f64>,
    target: Vec<f64>,
    free: Vec<Option<u64>>,
    /// The usable targets of each server, cheapest first.
    order: Vec<BTreeSet<Key>>,
    best: Vec<Option<Key>>,
    at: Tick,
    /// Load of a file of unknown size: that of the last file of known size.
    pub(super) typical: f64,
}

impl Ledger {
    /// A job without load. Its id breaks ties.
    #[must_use]
    pub fn new(topology: Arc<Topology>, weights: Weights, job: u64) -> Ledger {
        let mut ledger = Ledger {
            router: vec![0.0; topology.router.len()],
            server: vec![0.0; topology.server.len()],
            target: vec![0.0; topology.target.len()],
            free: topology.free.clone(),
            order: vec![BTreeSet::new(); topology.server.len()],
            best: vec![None; topology.server.len()],
            at: Tick(0),
            typical: 1.0,
            topology,
            weights,
            job,
        };
        ledger.sort();
        ledger
    }

    /// Lets load decay up to `now`.
    pub fn advance(&mut self, now: Tick) {
        let passed = now.0.saturating_sub(self.at.0);
        // Skip small steps: the result hardly changes, and re-sorting all targets is expensive.
        if passed < HALF_LIFE.0 / 64 {
            return;
        }
        self.at = now;
        let factor = (-(passed as f64) / HALF_LIFE.0 as f64).exp2();
        for work in [&mut self.router, &mut self.server, &mut self.target] {
            work.iter_mut().for_each(|work| *work *= factor);
        }
        self.sort();
    }

    /// Current cost of a path to a target through these routers.
    #[must_use]
    pub fn cost(&self, routers: &[u32], target: usize) -> f64 {
        let server = self.topology.server_of[target] as usize;
        self.way(routers) + self.at_server(server) + self.at_target(target)
    }

    fn sort(&mut self) {
        self.order.iter_mut().for_each(BTreeSet::clear);
        for target in (0..self.target.len()).filter(|&target| self.topology.usable[target]) {
            let key = self.key(target);
            self.order[self.topology.server_of[target] as usize].insert(key);
        }
        for server in 0..self.best.len() {
            self.best[server] = self.order[server].first().copied();
        }
    }

    fn key(&self, target: usize) -> Key {
        Key { cost: self.at_target(target), rank: rank(self.job, target as u64), target: target as u32 }
    }

    fn way(&self, chain: &[u32]) -> f64 {
        let works =
            chain.iter().map(|&router| self.router[router as usize] * self.topology.router[router as usize]);
        self.weights.router * works.fold(0.0, f64::max)
    }

    fn at_server(&self, server: usize) -> f64 {
        self.weights.server * self.server[server] * self.topology.server[server]
    }

    fn at_target(&self, target: usize) -> f64 {
        let by_capacity = self.weights.target * self.topology.target[target];
        let by_room = self.weights.space * self.topology.space[target];
        self.target[target] * (by_capacity + by_room)
    }

    /// The cheapest of the equally near chains through a gate.
    fn through<'a>(&self, gate: &'a Gate) -> (f64, &'a Chain) {
        let first = (self.way(&gate.chains[0]), &gate.chains[0]);
        gate.chains[1..].iter().fold(first, |best, chain| {
            let order = |chain: &Chain| rank(!self.job, chain.first().copied().unwrap_or(0).into());
            let cost = self.way(chain);
            let better = cost < best.0 || (cost == best.0 && order(chain) < order(best.1));
            if better { (cost, chain) } else { best }
        })
    }

    /// The cheapest target of a server with enough free space.
    fn first(&self, server: usize, bytes: u64) -> Option<Key> {
        let fits = |key: &Key| self.free[key.target as usize].is_none_or(|free| free >= bytes.max(1));
        let best = self.best[server]?;
        if fits(&best) {
            return Some(best);
        }
        self.order[server].iter().find(|key| fits(key)).copied()
    }

    /// The cheapest path that all these client classes have, to a target with the given free space.
    pub(super) fn cheapest(&self, classes: &[u32], bytes: u64) -> Option<Path> {
        let ways: Vec<Vec<f64>> = classes
            .iter()
            .map(|&class| {
                let gates = &self.topology.classes[class as usize].gates;
                gates.iter().map(|gate| self.through(gate).0).collect()
            })
            .collect();
        let (&first, others) = classes.split_first()?;
        let mut best: Option<(f64, Key)> = None;
        for (gate, &way) in self.topology.classes[first as usize].gates.iter().zip(&ways[0]) {
            for &server in &gate.servers {
                let Some(key) = self.first(server as usize, bytes) else { continue };
                let reach = others.iter().zip(&ways[1..]).try_fold(way, |worst, (&class, ways)| {
                    let gate = self.topology.classes[class as usize].gate_of[server as usize]?;
                    Some(worst.max(ways[gate as usize]))
                });
                let Some(way) = reach else { continue };
                let cost = way + self.at_server(server as usize) + key.cost;
                if best.is_none_or(|(least, other)| cost < least || (cost == least && key.rank < other.rank))
                {
                    best = Some((cost, key));
                }
            }
        }
        best.map(|(cost, key)| self.path(classes, key.target, cost))
    }

    /// The cheapest path of these client classes to a target that all of them reach.
    pub(super) fn path(&self, classes: &[u32], target: u32, cost: f64) -> Path {
        let server = self.topology.server_of[target as usize];
        let chain = |&class: &u32| {
            let gate = self.topology.gate(class, server).expect("the target is reachable");
            self.through(gate).1.clone()
        };
        Path { target, chains: classes.iter().map(chain).collect(), cost }
    }

    /// Adds load to a path; negative work removes it.
    pub(super) fn charge(&mut self, path: &Path, work: f64) {
        let share = work / path.chains.len().max(1) as f64;
        let add = |to: &mut f64, work: f64| *to = (*to + work).max(0.0);
        for &router in path.chains.iter().flatten() {
            add(&mut self.router[router as usize], share);
        }
        let target = path.target as usize;
        let held = self.withhold(path.target);
        add(&mut self.server[self.topology.server_of[target] as usize], work);
        add(&mut self.target[target], work);
        if held {
            self.offer(path.target);
        }
    }

    /// Changes the free space of a target.
    pub(super) fn fill(&mut self, target: u32, bytes: i64) {
        if let Some(free) = &mut self.free[target as usize] {
            *free = free.saturating_add_signed(bytes.saturating_neg());
        }
    }

    /// Whether a target is usable and has enough free space.
    pub(super) fn fits(&self, target: u32, bytes: u64) -> bool {
        self.topology.usable[target as usize]
            && self.free[target as usize].is_none_or(|free| free >= bytes.max(1))
    }

    /// Removes a target from the choice until `offer` puts it back. Returns whether it was in.
    pub(super) fn withhold(&mut self, target: u32) -> bool {
        let (server, key) = (self.topology.server_of[target as usize] as usize, self.key(target as usize));
        let was = self.order[server].remove(&key);
        self.best[server] = self.order[server].first().copied();
        was
    }

    pub(super) fn offer(&mut self, target: u32) {
        let (server, key) = (self.topology.server_of[target as usize] as usize, self.key(target as usize));
        self.order[server].insert(key);
        self.best[server] = self.order[server].first().copied();
    }

    /// Load of a target in proportion to its capacity.
    pub(super) fn level(&self, target: u32) -> f64 {
        self.target[target as usize] * self.topology.target[target as usize]
    }

    /// Whether targets have the largest weight and free space has none.
    pub(super) fn levels(&self) -> bool {
        let Weights { router, server, target, space } = self.weights;
        target >= router && target >= server && space == 0.0
    }
}

/// Tie-breaker for this job: pseudo-random, and the same in every process that knows the job.
fn rank(job: u64, thing: u64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |number: u64| Rng::new(number.wrapping_sub(STEP)).bits();
    mix(mix(job.wrapping_mul(STEP) ^ thing.wrapping_add(0x2545_f491_4f6c_dd1d)))
}
