//! What happens next.

use forebay_policy::share::Tick;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A job begins.
    Start(u32),
    /// A job is told to stop.
    Stop(u32),
    /// A process has computed.
    Wake(u32),
    /// A request leaves its process.
    Leave(u32),
    /// A request has reached its server.
    Arrive(u32),
    /// A server is done with a request.
    Served(u32),
    /// A scheduler asked to be asked again.
    Ask(u32),
    /// A server may empty itself.
    Release(u32),
    /// A write sets out for its target.
    Depart(u32),
    /// A write has reached its target.
    Reach(u32),
    /// A target has taken a write at once.
    Taken(u32),
    /// A target ends a write, unless its plans have changed since: then the number is another.
    End(u32, u32),
    /// Servers tell each other their jobs.
    Tell,
    /// A failure begins.
    Fail(u32),
    /// A failure ends.
    Mend(u32),
}

/// An event and its place among all: by time, and in the order of planning.
#[derive(Clone, Copy)]
struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

impl Entry {
    fn key(&self) -> u128 {
        u128::from(self.at) << 64 | u128::from(self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The heap hands out the largest: the earliest is.
    fn cmp(&self, other: &Entry) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Events by time; those of one moment in the order in which they were planned.
#[derive(Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    planned: u64,
    most: usize,
}

impl Queue {
    pub(crate) fn plan(&mut self, at: Tick, event: Event) {
        self.planned += 1;
        self.heap.push(Entry { at: at.0, number: self.planned, event });
        self.most = self.most.max(self.heap.len());
    }

    pub(crate) fn pop(&mut self) -> Option<(Tick, Event)> {
        self.heap.pop().map(|entry| (Tick(entry.at), entry.event))
    }

    /// The most that were planned at once.
    pub(crate) fn most(&self) -> usize {
        self.most
    }
}

/// Things with small numbers that are used again.
pub(crate) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { items: Vec::new(), free: Vec::new() }
    }
}

impl<T: Copy> Slab<T> {
    pub(crate) fn put(&mut self, item: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.items[place as usize] = item;
            return place;
        }
        self.items.push(item);
        u32::try_from(self.items.len() - 1).expect("fewer than 2^32 things at once")
    }

    pub(crate) fn take(&mut self, place: u32) -> T {
        self.free.push(place);
        self.items[place as usize]
    }

    pub(crate) fn get(&self, place: u32) -> &T {
        &self.items[place as usize]
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> &mut T {
        &mut self.items[place as usize]
    }

    /// The most there ever were.
    pub(crate) fn most(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_planned() {
        let mut queue = Queue::default();
        for (at, job) in [(5, 1), (3, 2), (5, 3), (3, 4)] {
            queue.plan(Tick(at), Event::Start(job));
        }
        let order: Vec<(u64, Event)> =
            std::iter::from_fn(|| queue.pop()).map(|(at, event)| (at.0, event)).collect();
        let start = Event::Start;
        assert_eq!(order, [(3, start(2)), (3, start(4)), (5, start(1)), (5, start(3))]);
        assert_eq!(queue.most(), 4);
    }

    #[test]
    fn places_are_used_again() {
        let mut slab = Slab::default();
        let (one, two) = (slab.put('a'), slab.put('b'));
        assert_eq!((slab.take(one), slab.put('c'), *slab.get(two)), ('a', one, 'b'));
        assert_eq!(slab.most(), 2);
    }
}
