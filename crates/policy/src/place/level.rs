//! Evens out the files of a whole job, as far as the topology allows.
//!
//! A writer that chooses early does not know that later writers reach fewer targets. So after all have
//! chosen, a file moves from the fullest target to an emptier one, if need be along a chain: another file
//! leaves the intermediate target for a target that only its writer reaches. When no such chain is left, no
//! placement of the job has a lower maximum load.

use super::job::{Writer, charge_and_fill};
use super::ledger::{Ledger, Path};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Files by their target and the class of their writer.
type Where = HashMap<(u32, u32), Vec<u32>>;

/// Moves files until no chain of moves helps. Only files with equal load can replace each other.
pub(super) fn level(ledger: &mut Ledger, writers: &[Writer], works: &[f64], paths: &mut [Path]) {
    let even = works.windows(2).all(|pair| pair[0] == pair[1]);
    let mut counts =
        ledger.topology.target.iter().zip(&ledger.topology.usable).filter(|(_, usable)| **usable);
    let alike = counts.next().is_none_or(|(first, _)| counts.all(|(count, _)| count == first));
    // A single file already has its cheapest target.
    if works.len() < 2 || !even || !alike || !ledger.levels() {
        return;
    }
    let mut state = Leveller::new(ledger, writers, works[0], paths);
    while let Some(&(_, fullest)) = state.heights.last() {
        match state.row(fullest) {
            Ok(row) => state.shift(&row),
            // All targets reachable from this one are as full, or nearly: they are level.
            Err(level) => level.iter().for_each(|&target| state.done(target)),
        }
    }
}

struct Leveller<'a> {
    ledger: &'a mut Ledger,
    writers: &'a [Writer],
    work: f64,
    paths: &'a mut [Path],
    at: Where,
    /// Writer classes with files on each target.
    kinds: Vec<BTreeSet<u32>>,
    /// Targets that are not yet known to be level, by remaining capacity in files of this job, the least
    /// first.
    heights: BTreeSet<(u64, u32)>,
}

impl<'a> Leveller<'a> {
    fn new(ledger: &'a mut Ledger, writers: &'a [Writer], work: f64, paths: &'a mut [Path]) -> Leveller<'a> {
        let mut at = Where::new();
        let mut kinds = vec![BTreeSet::new(); ledger.topology.target.len()];
        for (number, (writer, path)) in writers.iter().zip(&*paths).enumerate() {
            let class = ledger.topology.class(writer.client);
            at.entry((path.target, class)).or_default().push(number as u32);
            kinds[path.target as usize].insert(class);
        }
        let all = (0..ledger.topology.target.len() as u32)
            .filter(|&target| ledger.topology.usable[target as usize]);
        let heights = all.map(|target| (ledger.level(target).to_bits(), target)).collect();
        Leveller { ledger, writers, work, paths, at, kinds, heights }
    }

    fn done(&mut self, target: u32) {
        self.heights.remove(&(self.ledger.level(target).to_bits(), target));
    }

    /// The shortest chain of moves from a target to one that is emptier even after it gets one more file:
    /// targets, each with the writer class that moves on from it. Otherwise all reachable targets.
    fn row(&self, start: u32) -> Result<Vec<(u32, u32)>, Vec<u32>> {
        let step = self.work * self.ledger.topology.target[start as usize];
        let enough = self.ledger.level(start) - 1.5 * step;
        let bytes = self.writers[0].bytes.unwrap_or(0);
        let mut from: HashMap<u32, (u32, u32)> = HashMap::new();
        let mut seen_kinds = BTreeSet::new();
        let (mut queue, mut seen) = (VecDeque::from([start]), vec![start]);
        while let Some(target) = queue.pop_front() {
            for &kind in &self.kinds[target as usize] {
                if !seen_kinds.insert(kind) {
                    continue;
                }
                for next in self.reached(kind) {
                    if next == start || from.contains_key(&next) || !self.ledger.fits(next, bytes) {
                        continue;
                    }
                    from.insert(next, (target, kind));
                    if self.ledger.level(next) <= enough {
                        return Ok(back(next, start, &from));
                    }
                    seen.push(next);
                    queue.push_back(next);
                }
            }
        }
        Err(seen)
    }

    fn reached(&self, kind: u32) -> impl Iterator<Item = u32> {
        let topology = self.ledger.topology.clone();
        let count = topology.target.len() as u32;
        (0..count).filter(move |&target| topology.gate(kind, topology.server_of[target as usize]).is_some())
    }

    /// Moves one file from each target of a chain to the next.
    fn shift(&mut self, row: &[(u32, u32)]) {
        for pair in row.windows(2) {
            let ((from, kind), (to, _)) = (pair[0], pair[1]);
            let files = self.at.get_mut(&(from, kind)).expect("the target has a file of this class");
            let file = files.pop().expect("the target has a file of this class");
            if files.is_empty() {
                self.kinds[from as usize].remove(&kind);
            }
            for target in [from, to] {
                self.done(target);
            }
            let bytes = self.writers[file as usize].bytes.unwrap_or(0);
            let path = &mut self.paths[file as usize];
            charge_and_fill(self.ledger, path, -self.work, bytes, false);
            *path = self.ledger.path(&[kind], to, path.cost);
            charge_and_fill(self.ledger, path, self.work, bytes, true);
            self.at.entry((to, kind)).or_default().push(file);
            self.kinds[to as usize].insert(kind);
            for target in [from, to] {
                self.heights.insert((self.ledger.level(target).to_bits(), target));
            }
        }
    }
}

/// Reconstructs a chain from its start; the last target has no class that moves on.
fn back(end: u32, start: u32, from: &HashMap<u32, (u32, u32)>) -> Vec<(u32, u32)> {
    let mut row = vec![(end, u32::MAX)];
    let mut at = end;
    while at != start {
        let (before, kind) = from[&at];
        row.push((before, kind));
        at = before;
    }
    row.reverse();
    row
}
