//! Links, routers and storage servers: each serves its traffic in order of arrival.

use crate::scenario::HopGroup;
use forebay_policy::share::{Rng, Tick};

const NONE: u32 = u32::MAX;

/// One hop.
struct Hop {
    /// Nanoseconds per byte.
    pace: f64,
    latency: u64,
    unrest: f64,
    /// Busy until then.
    free: u64,
    /// The next hop.
    next: u32,
}

/// All hops. The members of a group are spread evenly over the members of the next group.
pub(crate) struct Hops {
    hops: Vec<Hop>,
    /// First member and number of members of each group.
    groups: Vec<(u32, u32)>,
}

impl Hops {
    pub(crate) fn new(plans: &[HopGroup]) -> Hops {
        let mut groups = Vec::new();
        let mut first = 0;
        for plan in plans {
            groups.push((first, plan.count));
            first += plan.count;
        }
        let member = |group: usize, one: u32, of: u32| {
            let (first, count) = groups[group];
            first + (u64::from(one) * u64::from(count) / u64::from(of)) as u32
        };
        let mut hops = Vec::new();
        for plan in plans {
            for one in 0..plan.count {
                let next = plan.to.map_or(NONE, |to| member(to, one, plan.count));
                let HopGroup { rate, latency, unrest, .. } = *plan;
                hops.push(Hop { pace: 1e9 / rate, latency: latency.0, unrest, free: 0, next });
            }
        }
        Hops { hops, groups }
    }

    /// The hop at which member `one` of `of` enters a group.
    pub(crate) fn entry(&self, group: Option<usize>, one: u32, of: u32) -> u32 {
        group.map_or(NONE, |group| {
            let (first, count) = self.groups[group];
            first + (u64::from(one) * u64::from(count) / u64::from(of.max(1))) as u32
        })
    }

    /// When the given bytes that enter now have passed all hops. Hops serve in the order of the calls.
    pub(crate) fn pass(&mut self, entry: u32, bytes: u64, now: Tick, rng: &mut Rng) -> Tick {
        let (mut at, mut place) = (now.0, entry);
        while place != NONE {
            let hop = &mut self.hops[place as usize];
            let came = at;
            hop.free = at.max(hop.free) + (bytes as f64 * hop.pace).ceil() as u64;
            at = hop.free + hop.latency;
            if hop.unrest > 0.0 {
                at += (hop.unrest * rng.unit() * (hop.free - came) as f64) as u64;
            }
            place = hop.next;
        }
        Tick(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_queues_at_every_hop() {
        let group =
            |count, rate, latency, to| HopGroup { count, rate, latency: Tick(latency), unrest: 0.0, to };
        let mut rng = Rng::new(1);
        // Four links of 1 byte/ns, then two routers of 0.5 bytes/ns, then one of 1 byte/ns.
        let plans = [group(4, 1e9, 10, Some(1)), group(2, 5e8, 0, Some(2)), group(1, 1e9, 0, None)];
        let mut hops = Hops::new(&plans);
        let mut pass = |one, bytes, now| hops.pass(hops.entry(Some(0), one, 4), bytes, Tick(now), &mut rng).0;
        assert_eq!(pass(0, 100, 0), 100 + 10 + 200 + 100);
        assert_eq!(pass(1, 100, 0), 310 + 200 + 100, "the same router, after the first");
        assert_eq!(pass(3, 100, 0), 610 + 100, "another router, but the last hop is taken");
        assert_eq!(
            hops.pass(hops.entry(None, 3, 4), 100, Tick(7), &mut rng).0,
            7,
            "a path without hops takes no time"
        );
    }
}
