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
    /// Reads what is read when a child is chosen.
    fn glance(&self, _place: usize) -> usize {
        self.awake()
    }
}

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// The tree over the slots of a book.
#[derive(Debug)]
pub(super) struct Tree<P> {
    policy: Policy,
    nodes: Vec<Node<P>>,
    free: Vec<u32>,
    names: HashMap<(u32, String), u32>,
    /// By slot.
    leaves: Vec<Link>,
    /// Shares that the servers have agreed on, by slot; `None`: the policy's own.
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

/// Where something hangs: below which node, at which place.
#[derive(Clone, Copy, Debug)]
struct Link {
    parent: u32,
    place: u32,
    weight: f64,
}

const LOOSE: Link = Link { parent: NONE, place: 0, weight: 1.0 };

/// A group or a user; the root.
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
    Nobody,
    Slot(u32),
    Node(u32),
}

impl<P: Pick> Node<P> {
    fn new(name: &str, link: Link) -> Node<P> {
        let (children, vacant) = (Vec::new(), Vec::new());
        Node { link, pick: P::default(), children, vacant, name: name.to_owned() }
    }

    /// Takes a child in.
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
        if book.head(slot).is_some() {
            self.wake(slot);
        }
    }

    /// The node of this name below another, made if need be.
    fn below(&mut self, parent: u32, name: &str) -> u32 {
        let key = (parent, name.to_owned());
        if let Some(&node) = self.names.get(&key) {
            return node;
        }
        let node = self.free.pop().unwrap_or(self.nodes.len() as u32);
        // With assigned shares it grows by those of its jobs.
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

    /// A job has gone, or is to be put elsewhere.
    pub(super) fn remove(&mut self, slot: usize, awake: bool) {
        if awake {
            self.sleep(slot);
        }
        let mut link = std::mem::replace(&mut self.leaves[slot], LOOSE);
        if let Some(assigned) = &mut self.assigned {
            assigned.shares.remove(&slot);
            self.add_weight(link.parent, -link.weight);
        }
        // Parents that have no other child go with it.
        loop {
            let parent = &mut self.nodes[link.parent as usize];
            parent.children[link.place as usize] = Child::Nobody;
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

    /// Uses these shares by slot, which sum to one, or the policy's own if there are none.
    pub(super) fn assign(&mut self, book: &Book, shares: &[(usize, f64)]) {
        let average = 1.0 / shares.len() as f64;
        self.assigned = (!shares.is_empty()).then(|| Assigned {
            shares: shares.iter().map(|&(slot, share)| (slot, share.max(average / 1_000.0))).collect(),
            average,
        });
        self.reweigh(book, ROOT);
    }

    /// Sets the weights of all below a node; their sum if shares are assigned, else one.
    fn reweigh(&mut self, book: &Book, node: u32) -> f64 {
        let mut sum = 0.0;
        for place in 0..self.nodes[node as usize].children.len() {
            let weight = match self.nodes[node as usize].children[place] {
                Child::Nobody => continue,
                Child::Node(child) => {
                    let weight = self.reweigh(book, child);
                    self.nodes[child as usize].link.weight = weight;
                    weight
                }
                Child::Slot(slot) => {
                    let slot = slot as usize;
                    let weight = match &self.assigned {
                        Some(assigned) => assigned.share(slot),
                        None => self.policy.leaf().weight(book.job(slot)),
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

    /// Adds to the weight of a node and of all above it.
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

    /// A job has requests again.
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

    /// A job's last request was taken.
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

    /// The slot of the job that is next, if any is awake.
    pub(super) fn pick(&mut self, dice: &mut Dice) -> Option<usize> {
        if self.awake == 0 {
            return None;
        }
        let mut at = ROOT;
        loop {
            let node = &mut self.nodes[at as usize];
            match node.children[node.pick.pick(dice)] {
                Child::Slot(slot) => return Some(slot as usize),
                Child::Node(child) => at = child,
                Child::Nobody => unreachable!("nobody is never awake"),
            }
        }
    }

    /// So much was done for a job.
    pub(super) fn charge(&mut self, slot: usize, cost: f64) {
        let mut link = self.leaves[slot];
        while link.parent != NONE {
            let parent = &mut self.nodes[link.parent as usize];
            parent.pick.charge(link.place as usize, cost);
            link = parent.link;
        }
    }

    /// Reads what is read when a job's turn comes or goes.
    pub(super) fn glance(&self, slot: usize, step: usize) -> usize {
        let mut link = self.leaves.get(slot).copied().unwrap_or(LOOSE);
        let mut seen = self.nodes[ROOT as usize].pick.awake();
        while step > 1 && link.parent != NONE {
            let parent = &self.nodes[link.parent as usize];
            let place = link.place as usize;
            seen += parent.children.len() + parent.pick.awake();
            if step > 2 {
                let child = matches!(parent.children[place], Child::Nobody);
                seen += parent.pick.glance(place) + usize::from(child);
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
    /// The share of a job among those awake.
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
