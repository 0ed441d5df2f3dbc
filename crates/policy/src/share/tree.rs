//! Tree of groups, users and jobs as the policy defines it, with a choice at every node.
//!
//! The choice descends among the awake children, so an idle job's share goes to its siblings, an idle user's
//! to the other users of the group, and so on. Drawing at every node equals drawing once over the product of
//! the transition matrices of the awake entities, without multiplying them at every change.

use super::job_table::JobTable;
use super::matrix::label;
use super::policy::Policy;
use super::rng::Rng;
use super::sums::Sums;
use std::collections::HashMap;

/// How one node chooses between its children. A child is identified by its place.
pub(super) trait Pick: Default {
    /// Changes the weight of a child.
    fn weigh(&mut self, place: usize, weight: f64);
    /// Adds a new child at a place that an earlier child may have used.
    fn reset(&mut self, place: usize, weight: f64);
    /// A sleeping child has requests now.
    fn wake(&mut self, place: usize);
    /// An awake child has no more requests.
    fn sleep(&mut self, place: usize);
    /// Chooses an awake child; at least one must be awake.
    fn pick(&mut self, rng: &mut Rng) -> usize;
    /// Charges a child for the given work; negative if less was done than charged before.
    fn charge(&mut self, place: usize, cost: f64);
    /// How many children are awake.
    fn awake(&self) -> usize;
    /// Prefetches the memory that choosing this child reads.
    fn prefetch(&self, _place: usize) -> usize {
        self.awake()
    }
}

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// The tree over the slots of a job table.
#[derive(Debug)]
pub(super) struct Tree<P> {
    policy: Policy,
    nodes: Vec<Node<P>>,
    free: Vec<u32>,
    names: HashMap<(u32, String), u32>,
    /// By slot.
    leaves: Vec<Link>,
    /// Shares computed from all servers' tables, by slot; `None`: the policy's own.
    assigned: Option<Assigned>,
    awake: usize,
}

#[derive(Debug)]
struct Assigned {
    shares: HashMap<usize, f64>,
    average: f64,
}

impl Assigned {
    fn share(&self, slot: usize) -> f64 {
        self.shares.get(&slot).copied().unwrap_or(self.average)
    }
}

/// Position in the tree: the parent node and the place there.
#[derive(Clone, Copy, Debug)]
struct Link {
    parent: u32,
    place: u32,
    weight: f64,
}

const LOOSE: Link = Link { parent: NONE, place: 0, weight: 1.0 };

/// A group, a user, or the root.
#[derive(Debug)]
struct Node<P> {
    link: Link,
    pick: P,
    children: Vec<Child>,
    vacant: Vec<u32>,
    name: String,
}

#[derive(Clone, Copy, Debug)]
enum Child {
    Vacant,
    Slot(u32),
    Node(u32),
}

impl<P: Pick> Node<P> {
    fn new(name: &str, link: Link) -> Node<P> {
        let (children, vacant) = (Vec::new(), Vec::new());
        Node { link, pick: P::default(), children, vacant, name: name.to_owned() }
    }

    /// Adds a child.
    fn adopt(&mut self, me: u32, child: Child, weight: f64) -> Link {
        let place = self.vacant.pop().unwrap_or(self.children.len() as u32);
        if place as usize == self.children.len() {
            self.children.push(child);
        } else {
            self.children[place as usize] = child;
        }
        self.pick.reset(place as usize, weight);
        Link { parent: me, place, weight }
    }
}

impl<P: Pick> Tree<P> {
    pub(super) fn new(policy: &Policy) -> Tree<P> {
        Tree {
            policy: policy.clone(),
            nodes: vec![Node::new("", LOOSE)],
            free: Vec::new(),
            names: HashMap::new(),
            leaves: Vec::new(),
            assigned: None,
            awake: 0,
        }
    }

    /// Rebuilds the tree of the same jobs under another policy.
    pub(super) fn rebuild(&mut self, policy: &Policy, job_table: &JobTable, slots: &[usize]) {
        *self = Tree { assigned: self.assigned.take(), ..Tree::new(policy) };
        for &slot in slots {
            self.add(job_table, slot);
        }
    }

    /// Adds a job.
    pub(super) fn add(&mut self, job_table: &JobTable, slot: usize) {
        let job = job_table.job(slot);
        let levels: Vec<_> = self.policy.inner().collect();
        let at = levels.into_iter().fold(ROOT, |at, level| self.below(at, label(level, job)));
        let weight = match &self.assigned {
            Some(assigned) => assigned.share(slot),
            None => self.policy.leaf().weight(job),
        };
        if slot >= self.leaves.len() {
            self.leaves.resize(slot + 1, LOOSE);
        }
        self.leaves[slot] = self.nodes[at as usize].adopt(at, Child::Slot(slot as u32), weight);
        if self.assigned.is_some() {
            self.add_weight(at, weight);
        }
        if job_table.head(slot).is_some() {
            self.wake(slot);
        }
    }

    /// The node of this name below another, created if missing.
    fn below(&mut self, parent: u32, name: &str) -> u32 {
        let key = (parent, name.to_owned());
        if let Some(&node) = self.names.get(&key) {
            return node;
        }
        let node = self.free.pop().unwrap_or(self.nodes.len() as u32);
        // With assigned shares its weight is the sum of its jobs' shares, added later.
        let weight = if self.assigned.is_some() { f64::MIN_POSITIVE } else { 1.0 };
        let link = self.nodes[parent as usize].adopt(parent, Child::Node(node), weight);
        let new = Node::new(name, link);
        if node as usize == self.nodes.len() {
            self.nodes.push(new);
        } else {
            self.nodes[node as usize] = new;
        }
        self.names.insert(key, node);
        node
    }

    /// Removes a job, or takes it out to insert it elsewhere.
    pub(super) fn remove(&mut self, slot: usize, awake: bool) {
        if awake {
            self.sleep(slot);
        }
        let mut link = std::mem::replace(&mut self.leaves[slot], LOOSE);
        if let Some(assigned) = &mut self.assigned {
            assigned.shares.remove(&slot);
            self.add_weight(link.parent, -link.weight);
        }
        // Remove parents that have no other child.
        loop {
            let parent = &mut self.nodes[link.parent as usize];
            parent.children[link.place as usize] = Child::Vacant;
            parent.vacant.push(link.place);
            if link.parent == ROOT || parent.vacant.len() < parent.children.len() {
                return;
            }
            self.free.push(link.parent);
            let name = std::mem::take(&mut parent.name);
            link = parent.link;
            self.names.remove(&(link.parent, name));
        }
    }

    pub(super) fn has(&self, slot: usize) -> bool {
        self.leaves.get(slot).is_some_and(|link| link.parent != NONE)
    }

    /// Uses these shares by slot, which sum to one, or the policy's own if the list is empty.
    pub(super) fn assign(&mut self, job_table: &JobTable, shares: &[(usize, f64)]) {
        let average = 1.0 / shares.len() as f64;
        self.assigned = (!shares.is_empty()).then(|| Assigned {
            shares: shares.iter().map(|&(slot, share)| (slot, share.max(average / 1_000.0))).collect(),
            average,
        });
        self.reweigh(job_table, ROOT);
    }

    /// Sets the weights of all entities below a node. Returns their sum if shares are assigned, else one.
    fn reweigh(&mut self, job_table: &JobTable, node: u32) -> f64 {
        let mut sum = 0.0;
        for place in 0..self.nodes[node as usize].children.len() {
            let weight = match self.nodes[node as usize].children[place] {
                Child::Vacant => continue,
                Child::Node(child) => {
                    let weight = self.reweigh(job_table, child);
                    self.nodes[child as usize].link.weight = weight;
                    weight
                }
                Child::Slot(slot) => {
                    let slot = slot as usize;
                    let weight = match &self.assigned {
                        Some(assigned) => assigned.share(slot),
                        None => self.policy.leaf().weight(job_table.job(slot)),
                    };
                    self.leaves[slot].weight = weight;
                    weight
                }
            };
            sum += weight;
            self.nodes[node as usize].pick.weigh(place, weight);
        }
        if self.assigned.is_some() { sum } else { 1.0 }
    }

    /// Adds to the weight of a node and of all its ancestors.
    fn add_weight(&mut self, node: u32, more: f64) {
        let mut at = node;
        while at != ROOT {
            let link = &mut self.nodes[at as usize].link;
            link.weight = (link.weight + more).max(f64::MIN_POSITIVE);
            let Link { parent, place, weight } = *link;
            self.nodes[parent as usize].pick.weigh(place as usize, weight);
            at = parent;
        }
    }

    /// A job has waiting requests again.
    pub(super) fn wake(&mut self, slot: usize) {
        self.awake += 1;
        let mut link = self.leaves[slot];
        while link.parent != NONE {
            let parent = &mut self.nodes[link.parent as usize];
            parent.pick.wake(link.place as usize);
            if parent.pick.awake() > 1 {
                return;
            }
            link = parent.link;
        }
    }

    /// A job's last waiting request was taken.
    pub(super) fn sleep(&mut self, slot: usize) {
        self.awake -= 1;
        let mut link = self.leaves[slot];
        while link.parent != NONE {
            let parent = &mut self.nodes[link.parent as usize];
            parent.pick.sleep(link.place as usize);
            if parent.pick.awake() > 0 {
                return;
            }
            link = parent.link;
        }
    }

    /// The slot of the job to serve next, if any is awake.
    pub(super) fn pick(&mut self, rng: &mut Rng) -> Option<usize> {
        if self.awake == 0 {
            return None;
        }
        let mut at = ROOT;
        loop {
            let node = &mut self.nodes[at as usize];
            match node.children[node.pick.pick(rng)] {
                Child::Slot(slot) => return Some(slot as usize),
                Child::Node(child) => at = child,
                Child::Vacant => unreachable!("a vacant place is never awake"),
            }
        }
    }

    /// Charges a job for the given work.
    pub(super) fn charge(&mut self, slot: usize, cost: f64) {
        let mut link = self.leaves[slot];
        while link.parent != NONE {
            let parent = &mut self.nodes[link.parent as usize];
            parent.pick.charge(link.place as usize, cost);
            link = parent.link;
        }
    }

    /// Prefetches the memory that serving this job reads.
    pub(super) fn prefetch(&self, slot: usize, step: usize) -> usize {
        let mut link = self.leaves.get(slot).copied().unwrap_or(LOOSE);
        let mut seen = self.nodes[ROOT as usize].pick.awake();
        while step > 1 && link.parent != NONE {
            let parent = &self.nodes[link.parent as usize];
            let place = link.place as usize;
            seen += parent.children.len() + parent.pick.awake();
            if step > 2 {
                let child = matches!(parent.children[place], Child::Vacant);
                seen += parent.pick.prefetch(place) + usize::from(child);
            }
            link = parent.link;
        }
        seen + link.place as usize
    }

    /// How many nodes and leaves there are.
    pub(super) fn size(&self) -> usize {
        self.nodes.len() + self.leaves.len()
    }

    /// How many jobs are awake.
    pub(super) fn awake(&self) -> usize {
        self.awake
    }
}

impl Tree<Sums> {
    /// The share of a job among the awake jobs.
    pub(super) fn share(&self, slot: usize) -> f64 {
        let mut share = 1.0;
        let mut link = self.leaves[slot];
        while link.parent != NONE {
            let parent = &self.nodes[link.parent as usize];
            share *= parent.pick.part(link.place as usize);
            link = parent.link;
        }
        share
    }
}
