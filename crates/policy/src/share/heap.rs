//! A virtual-time fair queue over the children of one node (start-time fair queueing).
//!
//! Every child has a tag: where its next request starts in virtual time. The child with the smallest tag is next;
//! serving a cost moves its tag on by cost ÷ weight. The node's own virtual time is the tag last served; a child
//! that wakes starts there, so sleeping earns nothing, and starts behind its own tag, so sleeping forgives nothing.

use super::dice::Dice;
use super::tree::Pick;

/// The children of one node by virtual time.
#[derive(Debug, Default)]
pub(super) struct Heap {
    now: f64,
    children: Vec<Child>,
    /// Places of those awake, as a binary heap by tag, then place.
    awake: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Child {
    tag: f64,
    weight: f64,
    /// Index in `awake`, or `ASLEEP`.
    at: usize,
}

const ASLEEP: usize = usize::MAX;

impl Heap {
    fn before(&self, one: usize, other: usize) -> bool {
        let (a, b) = (self.children[one].tag, self.children[other].tag);
        a < b || (a == b && one < other)
    }

    fn put(&mut self, at: usize, place: usize) {
        self.awake[at] = place;
        self.children[place].at = at;
    }

    fn up(&mut self, mut at: usize) {
        let place = self.awake[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.before(place, self.awake[parent]) {
                break;
            }
            self.put(at, self.awake[parent]);
            at = parent;
        }
        self.put(at, place);
    }

    fn down(&mut self, mut at: usize) {
        let place = self.awake[at];
        loop {
            let mut child = 2 * at + 1;
            if child >= self.awake.len() {
                break;
            }
            if child + 1 < self.awake.len() && self.before(self.awake[child + 1], self.awake[child]) {
                child += 1;
            }
            if !self.before(self.awake[child], place) {
                break;
            }
            self.put(at, self.awake[child]);
            at = child;
        }
        self.put(at, place);
    }

    /// Restores the order after a child's tag has changed.
    fn settle(&mut self, place: usize) {
        let at = self.children[place].at;
        if at != ASLEEP {
            self.up(at);
            self.down(self.children[place].at);
        }
    }
}

impl Pick for Heap {
    fn weigh(&mut self, place: usize, weight: f64) {
        if place >= self.children.len() {
            self.children.resize(place + 1, Child { tag: 0.0, weight: 1.0, at: ASLEEP });
        }
        let now = self.now;
        let child = &mut self.children[place];
        // What it is ahead is service it had: kept as service, whatever that is worth now.
        child.tag = now + (child.tag - now) * (child.weight / weight);
        child.weight = weight;
        self.settle(place);
    }

    fn reset(&mut self, place: usize, weight: f64) {
        self.weigh(place, weight);
        self.children[place].tag = self.now;
        self.settle(place);
    }

    fn wake(&mut self, place: usize) {
        let now = self.now;
        let child = &mut self.children[place];
        assert_eq!(child.at, ASLEEP, "a child wakes once");
        child.tag = child.tag.max(now);
        child.at = self.awake.len();
        self.awake.push(place);
        self.up(self.awake.len() - 1);
    }

    fn sleep(&mut self, place: usize) {
        let at = std::mem::replace(&mut self.children[place].at, ASLEEP);
        let last = self.awake.pop().expect("who sleeps was awake");
        if last != place {
            self.put(at, last);
            self.settle(last);
        }
    }

    fn pick(&mut self, _dice: &mut Dice) -> usize {
        let place = self.awake[0];
        self.now = self.now.max(self.children[place].tag);
        place
    }

    fn charge(&mut self, place: usize, cost: f64) {
        let child = &mut self.children[place];
        child.tag += cost / child.weight;
        self.settle(place);
    }

    fn awake(&self) -> usize {
        self.awake.len()
    }
}
