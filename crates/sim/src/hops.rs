//! Links, routers and storage servers: whatever passes is served in turn, one after the other.

use crate::scenario::HopGroup;
use forebay_policy::share::{Dice, Tick};

const NONE: u32 = u32::MAX;

/// One place on the way.
struct Hop {
    /// Nanoseconds a byte takes.
    pace: f64,
    latency: u64,
    unrest: f64,
    /// Busy until then.
    free: u64,
    /// Where the way goes on.
    next: u32,
}

/// All of them. A group's members are dealt evenly to the members of the group behind it.
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

    /// Where one of so many enters a group.
    pub(crate) fn entry(&self, group: Option<usize>, one: u32, of: u32) -> u32 {
        group.map_or(NONE, |group| {
            let (first, count) = self.groups[group];
            first + (u64::from(one) * u64::from(count) / u64::from(of.max(1))) as u32
        })
    }

    /// When so many bytes that enter now are through. Places are taken in the order of asking.
    pub(crate) fn pass(&mut self, entry: u32, bytes: u64, now: Tick, dice: &mut Dice) -> Tick {
        let (mut at, mut place) = (now.0, entry);
        while place != NONE {
            let hop = &mut self.hops[place as usize];
            let came = at;
            hop.free = at.max(hop.free) + (bytes as f64 * hop.pace).ceil() as u64;
            at = hop.free + hop.latency;
            if hop.unrest > 0.0 {
                at += (hop.unrest * dice.unit() * (hop.free - came) as f64) as u64;
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
    fn what_passes_waits_its_turn_at_every_hop() {
        let group =
            |count, rate, latency, to| HopGroup { count, rate, latency: Tick(latency), unrest: 0.0, to };
        let mut dice = Dice::new(1);
        // Four links of 1 byte/ns, two routers of 0.5 bytes/ns behind them, one of 1 byte/ns behind all.
        let plans = [group(4, 1e9, 10, Some(1)), group(2, 5e8, 0, Some(2)), group(1, 1e9, 0, None)];
        let mut hops = Hops::new(&plans);
        let mut pass =
            |one, bytes, now| hops.pass(hops.entry(Some(0), one, 4), bytes, Tick(now), &mut dice).0;
        assert_eq!(pass(0, 100, 0), 100 + 10 + 200 + 100);
        assert_eq!(pass(1, 100, 0), 310 + 200 + 100, "the same router, after the first");
        assert_eq!(pass(3, 100, 0), 610 + 100, "another router, but the last hop is taken");
        assert_eq!(hops.pass(hops.entry(None, 3, 4), 100, Tick(7), &mut dice).0, 7, "no way takes no time");
    }
}
