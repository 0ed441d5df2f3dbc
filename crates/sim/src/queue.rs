//! The event queue.

use forebay_policy::share::Tick;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A job starts.
    Start(u32),
    /// A job is stopped.
    Stop(u32),
    /// A process has finished computing.
    Wake(u32),
    /// A request leaves its process.
    Leave(u32),
    /// A request has passed the hops of its process.
    Approach(u32),
    /// A request has reached its server.
    Arrive(u32),
    /// A server has completed a request.
    Served(u32),
    /// A scheduler is polled again.
    Poll(u32),
    /// A server offers free space again.
    Offer(u32),
    /// A server looks whether it drains: a burst may be over, or bytes old enough.
    Consider(u32),
    /// A write leaves for its target.
    Depart(u32),
    /// A write has reached its target.
    Reach(u32),
    /// A target has accepted a write at once.
    Taken(u32),
    /// A target completes a write, unless its plan has changed since: then the number differs.
    End(u32, u32),
    /// Servers exchange their job tables.
    Exchange,
    /// A failure begins.
    Fail(u32),
    /// A failure ends.
    Mend(u32),
}

/// One bucket for each bit of a time.
const BUCKETS: usize = 65;
/// Number of events that are sorted and prefetched at once.
const NEAR: usize = 64;
/// Most sorted events.
const MOST_NEAR: usize = 8 * NEAR;

/// Events by time; events of the same time in the order in which they were planned.
///
/// A radix heap: no event is planned before the last one taken, so an event waits in the bucket of the
/// highest bit in which its time differs from that. When all nearer events have happened, the events of a
/// bucket are spread over the buckets before it; if they are few, they are sorted and become the next events.
pub(crate) struct Queue {
    buckets: [Vec<(u64, Event)>; BUCKETS],
    /// The next events, sorted; and how many of them have happened.
    near: Vec<(u64, Event)>,
    first: usize,
    /// Time of the last of these that happened.
    now: u64,
    /// All events up to this time are in `near`.
    last: u64,
    count: usize,
    most: usize,
}

impl Default for Queue {
    fn default() -> Queue {
        let buckets = std::array::from_fn(|_| Vec::new());
        Queue { buckets, near: Vec::new(), first: 0, now: 0, last: 0, count: 0, most: 0 }
    }
}

impl Queue {
    pub(crate) fn plan(&mut self, at: Tick, event: Event) {
        assert!(at.0 >= self.now, "event is planned for the past");
        self.count += 1;
        self.most = self.most.max(self.count);
        if at.0 > self.last {
            self.buckets[bucket(self.last, at.0)].push((at.0, event));
            return;
        }
        if self.first > MOST_NEAR {
            self.near.drain(..std::mem::take(&mut self.first));
        }
        let place = self.first + self.near[self.first..].partition_point(|&(other, _)| other <= at.0);
        self.near.insert(place, (at.0, event));
        if self.near.len() - self.first > MOST_NEAR && place < self.near.len() - 1 {
            self.spill();
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(Tick, Event)> {
        let &(at, event) = self.near.get(self.first)?;
        self.now = at;
        self.first += 1;
        self.count -= 1;
        Some((Tick(at), event))
    }

    /// Whether all events in `near` have happened.
    pub(crate) fn is_due(&self) -> bool {
        self.first == self.near.len()
    }

    /// Sorts the next events after all of `near` have happened. Returns them.
    pub(crate) fn go_on(&mut self) -> &[(u64, Event)] {
        assert!(self.is_due(), "near events are left");
        self.near.clear();
        self.first = 0;
        let first = self.buckets.iter().position(|bucket| !bucket.is_empty());
        if let Some(first) = first.filter(|&first| self.buckets[first].len() > NEAR) {
            self.spread(first);
        }
        for (bits, bucket) in self.buckets.iter_mut().enumerate().filter(|(_, bucket)| !bucket.is_empty()) {
            if self.near.len() + bucket.len() > NEAR {
                break;
            }
            self.near.append(bucket);
            self.last |= u64::MAX >> (u64::BITS - bits as u32);
        }
        self.near.sort_by_key(|&(at, _)| at);
        &self.near
    }

    /// Spreads a bucket over those before it.
    fn spread(&mut self, first: usize) {
        let mut events = std::mem::take(&mut self.buckets[first]);
        self.last = events.iter().map(|&(at, _)| at).min().unwrap_or(self.last);
        for (at, event) in events.drain(..) {
            match at == self.last {
                true => self.near.push((at, event)),
                false => self.buckets[bucket(self.last, at)].push((at, event)),
            }
        }
        self.buckets[first] = events;
    }

    /// Moves events from an overfull `near` back to the buckets. This is rare: the event density must have
    /// grown eightfold.
    fn spill(&mut self) {
        let last = std::mem::replace(&mut self.last, self.near[self.first + NEAR].0);
        let later = self.near.partition_point(|&(at, _)| at <= self.last);
        let mut off = self.near.split_off(later);
        // Events that differ from both times in the same bit stay in their bucket.
        self.buckets[..=bucket(self.last, last)].iter_mut().for_each(|bucket| off.append(bucket));
        for (at, event) in off {
            self.buckets[bucket(self.last, at)].push((at, event));
        }
    }

    /// Largest number of planned events.
    pub(crate) fn most(&self) -> usize {
        self.most
    }
}

/// The highest bit in which two times differ, counted from one; 0 if they are equal.
fn bucket(last: u64, at: u64) -> usize {
    (u64::BITS - (last ^ at).leading_zeros()) as usize
}

/// Items with small, reused indices.
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

    /// Largest number of items.
    pub(crate) fn most(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::share::Rng;

    fn next(queue: &mut Queue) -> Option<(Tick, Event)> {
        if queue.is_due() {
            queue.go_on();
        }
        queue.pop()
    }

    #[test]
    fn events_are_ordered_by_time_then_insertion() {
        let mut queue = Queue::default();
        for (at, job) in [(5, 1), (3, 2), (5, 3), (3, 4)] {
            queue.plan(Tick(at), Event::Start(job));
        }
        let order: Vec<(u64, Event)> =
            std::iter::from_fn(|| next(&mut queue)).map(|(at, event)| (at.0, event)).collect();
        let start = Event::Start;
        assert_eq!(order, [(3, start(2)), (3, start(4)), (5, start(1)), (5, start(3))]);
        assert_eq!(queue.most(), 4);
    }

    #[test]
    fn events_inserted_between_pops_keep_the_order() {
        let (mut queue, mut all, mut rng) = (Queue::default(), Vec::new(), Rng::new(7));
        for number in 0..50 {
            queue.plan(Tick(rng.below(1 << 40)), Event::Start(number));
        }
        let mut number = 50;
        while let Some((at, event)) = next(&mut queue) {
            all.push((at, event));
            for _ in 0..rng.below(if number < 20_000 { 3 } else { 1 }) {
                let later = match rng.below(3) {
                    0 => 0,
                    1 => rng.below(100),
                    _ => {
                        let bits = rng.below(40);
                        rng.below(1 << bits)
                    }
                };
                queue.plan(at.after(Tick(later)), Event::Start(number));
                number += 1;
            }
        }
        assert_eq!(all.len(), number as usize);
        let planned = |event: Event| if let Event::Start(number) = event { number } else { u32::MAX };
        let key = |&(at, event): &(Tick, Event)| (at, planned(event));
        assert!(all.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
    }

    /// Many more events arrive before the next one than are kept sorted.
    #[test]
    fn overfull_near_list_is_spilled_and_stays_in_order() {
        let (mut queue, mut rng) = (Queue::default(), Rng::new(3));
        queue.plan(Tick(1 << 30), Event::Start(0));
        queue.plan(Tick((1 << 30) + 9), Event::Start(1));
        assert_eq!(next(&mut queue), Some((Tick(1 << 30), Event::Start(0))));
        for number in 2..10_000 {
            queue.plan(Tick((1 << 30) + rng.below(2_000)), Event::Start(number));
        }
        let mut all: Vec<(Tick, u32)> = Vec::new();
        while let Some((at, Event::Start(number))) = next(&mut queue) {
            all.push((at, number));
            assert!(queue.near.len() <= 2 * MOST_NEAR, "{} are near", queue.near.len());
        }
        assert_eq!(all.len(), 9_999);
        assert!(all.is_sorted());
    }

    /// Events arrive at increasing density, near and far.
    #[test]
    fn bursts_of_events_stay_in_order() {
        for seed in 1..16 {
            let (mut queue, mut rng, mut number) = (Queue::default(), Rng::new(seed), 0);
            let mut plan = |queue: &mut Queue, at: u64| {
                queue.plan(Tick(at), Event::Start(number));
                number += 1;
                number < 30_000
            };
            let mut more = (0..=rng.below(3_000)).all(|_| plan(&mut queue, rng.below(1 << 20)));
            let (mut last, mut count) = ((Tick(0), 0), 0);
            while let Some((at, Event::Start(number))) = next(&mut queue) {
                assert!((at, number) >= last, "seed {seed}");
                (last, count) = ((at, number), count + 1);
                let storm = if rng.below(50) == 0 { 400 } else { 3 };
                let (come, bits) = (if more { rng.below(storm) } else { 0 }, rng.below(26));
                more &= (0..come).fold(true, |_, _| plan(&mut queue, at.0 + rng.below(1 << bits)));
            }
            assert_eq!(count, number, "seed {seed}");
        }
    }

    #[test]
    fn slab_reuses_indices() {
        let mut slab = Slab::default();
        let (one, two) = (slab.put('a'), slab.put('b'));
        assert_eq!((slab.take(one), slab.put('c'), *slab.get(two)), ('a', one, 'b'));
        assert_eq!(slab.most(), 2);
    }
}
