//! Jobs below users below groups, as the policy says, with a choice at every node.
//!
//! The choice goes from the top down among those awake, so an idle job's share goes to its siblings, an idle user's
//! to the other users of the group, and so on. Drawing at every node is drawing once over the product of the
//! transition matrices of those awake, without having to multiply them at every change.

use super::book::Book;
use super::dice::Dice;
use super::matrix::label;
use super::policy::Policy;
use super::sums::Sums;
use std::collections::HashMap;

/// How one node chooses between its children, which are known by their place.
pub(super) trait Pick: Default {
    /// The weight of a child has changed.
    fn weigh(&mut self, place: usize, weight: f64);
    /// A child that was never here before: its place may have been another's.
    fn reset(&mut self, place: usize, weight: f64);
    /// A sleeping child wants to be chosen.
    fn wake(&mut self, place: usize);
    /// A child that is awake has nothing more to be chosen for.
    fn sleep(&mut self, place: usize);
    /// Chooses one of those awake; there is one.
    fn pick(&mut self, dice: &mut Dice) -> usize;
    /// So much was done for a child, or less than nothing if less was done than charged before.
    fn charge(&mut self, place: usize, cost: f64);
    /// How many are awake.
    fn awake(&self) -> usize;
}

const ROOT: usize = 0;
const NONE: usize = usize::MAX;

/// The tree over the slots of a book.
#[derive(Debug)]
pub(super) struct Tree<P> {
    policy: Policy,
    nodes: Vec<Node<P>>,
    free: Vec<usize>,
    inner: HashMap<(usize, String), usize>,
    /// Node of each slot.
    leaves: Vec<usize>,
    /// Shares that the servers have agreed on, by slot; `None`: the policy's own.
    assigned: Option<Assigned>,
    awake: usize,
}

#[derive(Debug)]
struct Assigned {
    shares: HashMap<usize, f64>,
    average: f64,
}

#[derive(Debug)]
struct Node<P> {
    parent: usize,
    /// Its place among its parent's children.
    place: usize,
    weight: f64,
    kind: Kind<P>,
}

#[derive(Debug)]
enum Kind<P> {
    Leaf(usize),
    Inner { name: String, pick: P, children: Vec<usize>, vacant: Vec<usize> },
}

impl<P: Pick> Tree<P> {
    pub(super) fn new(policy: &Policy) -> Tree<P> {
        let root = Node { parent: NONE, place: 0, weight: 1.0, kind: Kind::inner("") };
        Tree {
            policy: policy.clone(),
            nodes: vec![root],
            free: Vec::new(),
            inner: HashMap::new(),
            leaves: Vec::new(),
            assigned: None,
            awake: 0,
        }
    }

    /// The same jobs under another policy.
    pub(super) fn rebuild(&mut self, policy: &Policy, book: &Book, slots: &[usize]) {
        *self = Tree { assigned: self.assigned.take(), ..Tree::new(policy) };
        for &slot in slots {
            self.add(book, slot);
        }
    }

    /// A job has come.
    pub(super) fn add(&mut self, book: &Book, slot: usize) {
        let job = book.job(slot);
        let mut at = ROOT;
        for level in self.policy.clone().inner() {
            let key = (at, label(level, job).to_owned());
            at = match self.inner.get(&key) {
                Some(&node) => node,
                None => {
                    // With assigned shares it grows by those of its jobs.
                    let weight = if self.assigned.is_some() { f64::MIN_POSITIVE } else { 1.0 };
                    let node = self.attach(at, weight, Kind::inner(&key.1));
                    self.inner.insert(key, node);
                    node
                }
            };
        }
        let weight = match &self.assigned {
            Some(assigned) => assigned.shares.get(&slot).copied().unwrap_or(assigned.average),
            None => self.policy.leaf().weight(job),
        };
        let leaf = self.attach(at, weight, Kind::Leaf(slot));
        if slot >= self.leaves.len() {
            self.leaves.resize(slot + 1, NONE);
        }
        self.leaves[slot] = leaf;
        if self.assigned.is_some() {
            self.add_weight(at, weight);
        }
        if book.head(slot).is_some() {
            self.wake(slot);
        }
    }

    /// A job has gone, or is to be put elsewhere.
    pub(super) fn remove(&mut self, slot: usize, awake: bool) {
        if awake {
            self.sleep(slot);
        }
        let leaf = std::mem::replace(&mut self.leaves[slot], NONE);
        if let Some(assigned) = &mut self.assigned {
            assigned.shares.remove(&slot);
            self.add_weight(self.nodes[leaf].parent, -self.nodes[leaf].weight);
        }
        self.detach(leaf);
    }

    pub(super) fn has(&self, slot: usize) -> bool {
        self.leaves.get(slot).is_some_and(|&node| node != NONE)
    }

    /// Uses these shares by slot, or the policy's own if there are none.
    pub(super) fn assign(&mut self, book: &Book, shares: &[(usize, f64)]) {
        let total: f64 = shares.iter().map(|(_, share)| share).sum();
        let average = total / shares.len().max(1) as f64;
        let usable = average.is_finite() && average > 0.0;
        self.assigned = usable.then(|| {
            let floor = average / 1_000.0;
            let shares = shares.iter().map(|&(slot, share)| (slot, share.max(floor))).collect();
            Assigned { shares, average }
        });
        self.reweigh(book, ROOT);
    }

    /// Sets the weights of all below a node; the sum of its leaves' shares.
    fn reweigh(&mut self, book: &Book, node: usize) -> f64 {
        let leaf = match &self.nodes[node].kind {
            Kind::Leaf(slot) => Some(*slot),
            Kind::Inner { .. } => None,
        };
        let weight = match (leaf, &self.assigned) {
            (Some(slot), Some(assigned)) => assigned.shares.get(&slot).copied().unwrap_or(assigned.average),
            (Some(slot), None) => self.policy.leaf().weight(book.job(slot)),
            (None, assigned) => {
                let even = assigned.is_none();
                let sum: f64 = self.children(node).into_iter().map(|child| self.reweigh(book, child)).sum();
                if even { 1.0 } else { sum }
            }
        };
        self.set_weight(node, weight);
        weight
    }

    fn children(&self, node: usize) -> Vec<usize> {
        match &self.nodes[node].kind {
            Kind::Leaf(_) => Vec::new(),
            Kind::Inner { children, .. } => children.iter().copied().filter(|&child| child != NONE).collect(),
        }
    }

    /// Adds to the weight of a node and of all above it.
    fn add_weight(&mut self, node: usize, more: f64) {
        let mut at = node;
        while at != NONE {
            self.set_weight(at, (self.nodes[at].weight + more).max(f64::MIN_POSITIVE));
            at = self.nodes[at].parent;
        }
    }

    fn set_weight(&mut self, node: usize, weight: f64) {
        let (parent, place) = (self.nodes[node].parent, self.nodes[node].place);
        self.nodes[node].weight = weight;
        if parent != NONE {
            self.pick_of(parent).weigh(place, weight);
        }
    }

    fn attach(&mut self, parent: usize, weight: f64, kind: Kind<P>) -> usize {
        let node = self.free.pop().unwrap_or(self.nodes.len());
        let Kind::Inner { pick, children, vacant, .. } = &mut self.nodes[parent].kind else {
            unreachable!("only an inner node has children")
        };
        let place = vacant.pop().unwrap_or_else(|| {
            children.push(NONE);
            children.len() - 1
        });
        children[place] = node;
        pick.reset(place, weight);
        let new = Node { parent, place, weight, kind };
        if node == self.nodes.len() {
            self.nodes.push(new);
        } else {
            self.nodes[node] = new;
        }
        node
    }

    /// Takes a node out, and its parents that have no other child.
    fn detach(&mut self, node: usize) {
        let mut at = node;
        loop {
            let (parent, place) = (self.nodes[at].parent, self.nodes[at].place);
            if let Kind::Inner { name, .. } = &mut self.nodes[at].kind {
                let name = std::mem::take(name);
                self.inner.remove(&(parent, name));
            }
            self.free.push(at);
            let Kind::Inner { children, vacant, .. } = &mut self.nodes[parent].kind else {
                unreachable!("a parent is an inner node")
            };
            children[place] = NONE;
            vacant.push(place);
            if parent == ROOT || vacant.len() < children.len() {
                return;
            }
            at = parent;
        }
    }

    fn pick_of(&mut self, node: usize) -> &mut P {
        match &mut self.nodes[node].kind {
            Kind::Inner { pick, .. } => pick,
            Kind::Leaf(_) => unreachable!("a parent is an inner node"),
        }
    }

    /// A job has requests again.
    pub(super) fn wake(&mut self, slot: usize) {
        self.awake += 1;
        let mut at = self.leaves[slot];
        while at != ROOT {
            let (parent, place) = (self.nodes[at].parent, self.nodes[at].place);
            let pick = self.pick_of(parent);
            pick.wake(place);
            if pick.awake() > 1 {
                return;
            }
            at = parent;
        }
    }

    /// A job's last request was taken.
    pub(super) fn sleep(&mut self, slot: usize) {
        self.awake -= 1;
        let mut at = self.leaves[slot];
        while at != ROOT {
            let (parent, place) = (self.nodes[at].parent, self.nodes[at].place);
            let pick = self.pick_of(parent);
            pick.sleep(place);
            if pick.awake() > 0 {
                return;
            }
            at = parent;
        }
    }

    /// The slot of the job that is next, if any is awake.
    pub(super) fn pick(&mut self, dice: &mut Dice) -> Option<usize> {
        if self.awake == 0 {
            return None;
        }
        let mut at = ROOT;
        loop {
            match &mut self.nodes[at].kind {
                Kind::Leaf(slot) => return Some(*slot),
                Kind::Inner { pick, children, .. } => at = children[pick.pick(dice)],
            }
        }
    }

    /// So much was done for a job.
    pub(super) fn charge(&mut self, slot: usize, cost: f64) {
        let mut at = self.leaves[slot];
        while at != ROOT {
            let (parent, place) = (self.nodes[at].parent, self.nodes[at].place);
            self.pick_of(parent).charge(place, cost);
            at = parent;
        }
    }

    /// How many jobs are awake.
    pub(super) fn awake(&self) -> usize {
        self.awake
    }
}

impl Tree<Sums> {
    /// The share of a job among those awake.
    pub(super) fn share(&self, slot: usize) -> f64 {
        let mut share = 1.0;
        let mut at = self.leaves[slot];
        while at != ROOT {
            let node = &self.nodes[at];
            match &self.nodes[node.parent].kind {
                Kind::Inner { pick, .. } => share *= pick.part(node.place),
                Kind::Leaf(_) => unreachable!("a parent is an inner node"),
            }
            at = node.parent;
        }
        share
    }
}

impl<P: Pick> Kind<P> {
    fn inner(name: &str) -> Kind<P> {
        Kind::Inner { name: name.to_owned(), pick: P::default(), children: Vec::new(), vacant: Vec::new() }
    }
}
