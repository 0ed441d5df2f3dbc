//! The files of a whole job at once, as level as the topology allows.
//!
//! Who chooses first does not know that those who come later reach fewer targets. So when all have chosen, a file moves
//! from the fullest target to an emptier one, if need be along a row: its writer's other target gives up a file of
//! somebody who can go further. When no such row is left, no way of placing the job has a less loaded fullest target.

use super::job::{Writer, settle};
use super::ledger::{Ledger, Path};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Files by the target they are on and the kind of their writer.
type Where = HashMap<(u32, u32), Vec<u32>>;

/// Moves files until no row of moves helps. Only files that count the same can take each other's place.
pub(super) fn level(ledger: &mut Ledger, writers: &[Writer], works: &[f64], paths: &mut [Path]) {
    let even = works.windows(2).all(|pair| pair[0] == pair[1]);
    let mut counts =
        ledger.topology.target.iter().zip(&ledger.topology.usable).filter(|(_, usable)| **usable);
    let alike = counts.next().is_none_or(|(first, _)| counts.all(|(count, _)| count == first));
    // One alone has what was cheapest for it.
    if works.len() < 2 || !even || !alike || !ledger.levels() {
        return;
    }
    let mut state = Leveller::new(ledger, writers, works[0], paths);
    while let Some(&(_, fullest)) = state.heights.last() {
        match state.row(fullest) {
            Ok(row) => state.shift(&row),
            // All that can be reached from here is as full, or nearly: it is level.
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
    /// Kinds of writers with files on each target.
    kinds: Vec<BTreeSet<u32>>,
    /// Targets that are not yet known to be level, by how many of this job's files they could have had: the least first.
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

    /// The shortest row of moves from a target to one that is emptier even after it has got one more, as targets with
    /// the kind of writer that moves on from each; or all targets that can be reached.
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

    /// Moves one file from each target of a row to the next.
    fn shift(&mut self, row: &[(u32, u32)]) {
        for pair in row.windows(2) {
            let ((from, kind), (to, _)) = (pair[0], pair[1]);
            let files = self.at.get_mut(&(from, kind)).expect("somebody of this kind is there");
            let file = files.pop().expect("somebody of this kind is there");
            if files.is_empty() {
                self.kinds[from as usize].remove(&kind);
            }
            for target in [from, to] {
                self.done(target);
            }
            let bytes = self.writers[file as usize].bytes.unwrap_or(0);
            let path = &mut self.paths[file as usize];
            settle(self.ledger, path, -self.work, bytes, false);
            *path = self.ledger.path(&[kind], to, path.cost);
            settle(self.ledger, path, self.work, bytes, true);
            self.at.entry((to, kind)).or_default().push(file);
            self.kinds[to as usize].insert(kind);
            for target in [from, to] {
                self.heights.insert((self.ledger.level(target).to_bits(), target));
            }
        }
    }
}

/// A row, from its start on; what moves on from the last is nothing.
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
