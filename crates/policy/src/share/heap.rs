//! A virtual-time fair queue over the children of one node (start-time fair queueing).
//!
//! Every child has a tag: the virtual time at which its next request starts. The child with the smallest tag
//! is next; serving a cost advances its tag by cost ÷ weight. The node's own virtual time is the tag served
//! last. A waking child starts at the larger of the node's virtual time and its own tag, so sleeping neither
//! earns credit nor cancels debt.

use super::rng::Rng;
use super::tree::Pick;

/// The children of one node by virtual time.
#[derive(Debug, Default)]
pub(super) struct Heap {
    now: f64,
    children: Vec<Child>,
    /// A 4-ary heap by tag, then place: fewer levels than a binary heap, and siblings share a cache line.
    awake: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Child {
    tag: f64,
    weight: f64,
    /// Its index in `awake`, or `ASLEEP`.
    at: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: f64,
    place: u32,
}

impl Entry {
    fn before(self, other: Entry) -> bool {
        self.tag < other.tag || (self.tag == other.tag && self.place < other.place)
    }
}

const ASLEEP: u32 = u32::MAX;
/// Beyond this, virtual time is rebased, so that small costs never vanish in the rounding of large tags.
const FAR: f64 = (1_u64 << 48) as f64;
const FAN: usize = 4;

impl Heap {
    fn put(&mut self, at: usize, entry: Entry) {
        self.awake[at] = entry;
        self.children[entry.place as usize].at = at as u32;
    }

    fn up(&mut self, mut at: usize) {
        let entry = self.awake[at];
        while at > 0 {
            let parent = (at - 1) / FAN;
            if !entry.before(self.awake[parent]) {
                break;
            }
            self.put(at, self.awake[parent]);
            at = parent;
        }
        self.put(at, entry);
    }

    fn down(&mut self, mut at: usize) {
        let entry = self.awake[at];
        loop {
            let first = FAN * at + 1;
            let end = (first + FAN).min(self.awake.len());
            if first >= end {
                break;
            }
            let mut least = first;
            for child in first + 1..end {
                if self.awake[child].before(self.awake[least]) {
                    least = child;
                }
            }
            if !self.awake[least].before(entry) {
                break;
            }
            self.put(at, self.awake[least]);
            at = least;
        }
        self.put(at, entry);
    }

    /// Rebases virtual time: now becomes zero.
    fn start_anew(&mut self) {
        let now = std::mem::take(&mut self.now);
        self.children.iter_mut().for_each(|child| child.tag -= now);
        self.awake.iter_mut().for_each(|entry| entry.tag -= now);
    }

    /// Resets in the same memory to the given number of sleeping children, all with the same weight and no
    /// debt.
    pub(super) fn restart(&mut self, children: usize, weight: f64) {
        self.now = 0.0;
        self.awake.clear();
        self.children.clear();
        self.children.resize(children, Child { tag: 0.0, weight, at: ASLEEP });
    }

    /// Sets a child's weight and whether it is awake. Only valid after [`restart`](Self::restart), in
    /// ascending order of place: all tags are zero, so no entry has to move.
    pub(super) fn set_child(&mut self, place: usize, weight: f64, awake: bool) {
        self.children[place].weight = weight;
        if awake {
            let last = self.awake.last().copied();
            assert!(last.is_none_or(|last| last.tag == 0.0 && (last.place as usize) < place), "in order");
            self.children[place].at = self.awake.len() as u32;
            self.awake.push(Entry { tag: 0.0, place: place as u32 });
        }
    }

    /// Grows the table to hold a child.
    fn hold(&mut self, place: usize) {
        if place >= self.children.len() {
            self.children.resize(place + 1, Child { tag: 0.0, weight: 1.0, at: ASLEEP });
        }
    }

    /// Sets a child's tag and restores the heap order.
    fn move_to(&mut self, place: usize, tag: f64) {
        let old = std::mem::replace(&mut self.children[place].tag, tag);
        let at = self.children[place].at;
        if at != ASLEEP {
            self.awake[at as usize].tag = tag;
            if tag > old { self.down(at as usize) } else { self.up(at as usize) }
        }
    }
}

impl Pick for Heap {
    fn weigh(&mut self, place: usize, weight: f64) {
        self.hold(place);
        let Child { tag, weight: old, .. } = self.children[place];
        self.children[place].weight = weight;
        // The lead is service the child already got: keep the amount of service, rescaled to the new weight.
        self.move_to(place, self.now + (tag - self.now) * (old / weight));
    }

    fn reset(&mut self, place: usize, weight: f64) {
        self.hold(place);
        self.children[place].weight = weight;
        self.move_to(place, self.now);
    }

    fn wake(&mut self, place: usize) {
        assert_eq!(self.children[place].at, ASLEEP, "a child wakes once");
        let child = &mut self.children[place];
        child.tag = child.tag.max(self.now);
        self.awake.push(Entry { tag: child.tag, place: place as u32 });
        self.up(self.awake.len() - 1);
    }

    fn sleep(&mut self, place: usize) {
        let at = std::mem::replace(&mut self.children[place].at, ASLEEP) as usize;
        let last = self.awake.pop().expect("a child that goes to sleep was awake");
        if at < self.awake.len() {
            self.put(at, last);
            self.up(at);
            self.down(self.children[last.place as usize].at as usize);
        }
    }

    fn pick(&mut self, _rng: &mut Rng) -> usize {
        let first = self.awake[0];
        self.now = self.now.max(first.tag);
        if self.now > FAR {
            self.start_anew();
        }
        first.place as usize
    }

    fn charge(&mut self, place: usize, cost: f64) {
        let Child { tag, weight, .. } = self.children[place];
        self.move_to(place, tag + cost / weight);
    }

    fn awake(&self) -> usize {
        self.awake.len()
    }

    fn prefetch(&self, place: usize) -> usize {
        self.children[place].at as usize + self.awake.first().map_or(0, |first| first.place as usize)
    }
}
