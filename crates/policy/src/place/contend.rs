//! Duration of a write phase on shared resources.
//!
//! Every resource moves its bytes at its rate, and the phase ends when the busiest resource is done. A
//! target's rate depends on the number of concurrent writers, as its curve defines.

use super::topology::Topology;
use crate::device::Curve;
use std::collections::BTreeSet;

/// Throughput of resources, in bytes per second.
#[derive(Clone, PartialEq, Debug)]
pub struct Rates {
    /// A client.
    pub client: f64,
    /// A router of capacity one.
    pub router: f64,
    /// A server.
    pub server: f64,
    /// A target, by its number of writers.
    pub target: Curve,
}

/// Bytes from a writer to a target.
#[derive(Clone, PartialEq, Debug)]
pub struct Flow {
    /// The writer; equal numbers are the same writer.
    pub writer: u32,
    /// The client it runs on.
    pub client: u32,
    /// The target.
    pub target: u32,
    /// The number of bytes.
    pub bytes: f64,
    /// Whether the phase waits for this flow; other flows only add load.
    pub counts: bool,
}

/// Load of the resources of one kind, and whether a counted flow uses each.
struct Through(Vec<(f64, bool)>);

impl Through {
    fn new(count: usize) -> Through {
        Through(vec![(0.0, false); count])
    }

    fn add(&mut self, number: u32, flow: &Flow) {
        let (bytes, counts) = &mut self.0[number as usize];
        *bytes += flow.bytes;
        *counts |= flow.counts;
    }

    /// The longest time among resources that a counted flow uses.
    fn longest(&self, rate: impl Fn(usize) -> f64) -> f64 {
        let waited = self.0.iter().enumerate().filter(|(_, (_, counts))| *counts);
        waited.fold(0.0, |longest, (number, (bytes, _))| longest.max(bytes / rate(number)))
    }
}

/// Seconds until all counted flows are done; `None` if one of them has no path.
#[must_use]
pub fn seconds(topology: &Topology, rates: &Rates, flows: &[Flow]) -> Option<f64> {
    let of = topology.description();
    let mut clients = Through::new(of.clients.len());
    let mut routers = Through::new(of.routers.len());
    let mut servers = Through::new(of.servers.len());
    let mut targets = Through::new(of.targets.len());
    let mut writers: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); of.targets.len()];
    for flow in flows {
        for &router in topology.route(flow.client, flow.target as usize)? {
            routers.add(router, flow);
        }
        clients.add(flow.client, flow);
        servers.add(topology.server_of[flow.target as usize], flow);
        targets.add(flow.target, flow);
        writers[flow.target as usize].insert(flow.writer);
    }
    let at_target = |number: usize| rates.target.rate(writers[number].len() as u32);
    let all = [
        clients.longest(|_| rates.client),
        routers.longest(|number| rates.router * of.routers[number].capacity),
        servers.longest(|_| rates.server),
        targets.longest(at_target),
    ];
    Some(all.into_iter().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::super::{Client, Description, Router, Routers, Server, State, Target};
    use super::*;
    use forebay_model::Bytes;

    fn topology() -> Topology {
        let target = |index: u32| Target {
            name: format!("t{index}"),
            server: format!("s{}", index / 2),
            index,
            capacity: 1.0,
            free: None,
            state: State::Active,
        };
        let router = |name: &str| Router { name: name.to_owned(), capacity: 1.0, leads_to: None };
        let client = |name: &str, router: &str| Client {
            name: name.to_owned(),
            routers: Routers::Preferred(router.to_owned()),
        };
        Topology::new(Description {
            routers: vec![router("r0"), router("r1")],
            servers: ["s0", "s1"].map(|name| Server { name: name.to_owned(), capacity: None }).to_vec(),
            targets: (0..4).map(target).collect(),
            clients: vec![client("c0", "r0"), client("c1", "r1")],
        })
        .expect("valid topology")
    }

    #[test]
    fn phase_lasts_as_long_as_its_busiest_resource() {
        let curve = Curve::new(&[(1, Bytes(100)), (2, Bytes(150))]).expect("a curve");
        let rates = Rates { client: 1000.0, router: 400.0, server: 180.0, target: curve };
        let flow = |writer, client, target| Flow { writer, client, target, bytes: 100.0, counts: writer < 5 };
        for (flows, time, what) in [
            (vec![flow(0, 0, 0)], 1.0, "one target"),
            (vec![flow(0, 0, 0), flow(1, 0, 0)], 200.0 / 150.0, "one target, two writers"),
            (vec![flow(0, 0, 0), flow(0, 0, 0)], 2.0, "one target, one writer twice"),
            (vec![flow(0, 0, 0), flow(1, 0, 1)], 200.0 / 180.0, "one server"),
            (vec![flow(0, 0, 0), flow(1, 1, 2)], 1.0, "nothing shared"),
            (vec![], 0.0, "nothing"),
            (vec![flow(0, 0, 0), flow(9, 1, 2), flow(9, 1, 2)], 1.0, "others elsewhere"),
            (vec![flow(0, 0, 0), flow(9, 1, 0)], 200.0 / 150.0, "others in the way"),
        ] {
            assert_eq!(seconds(&topology(), &rates, &flows), Some(time), "{what}");
        }
        let slow = Rates { router: 50.0, ..rates.clone() };
        assert_eq!(seconds(&topology(), &slow, &[flow(0, 0, 0), flow(1, 0, 2)]), Some(4.0), "one router");
        assert_eq!(seconds(&topology(), &slow, &[flow(0, 0, 0), flow(1, 1, 2)]), Some(2.0), "a router each");
        let slow = Rates { client: 20.0, ..rates };
        assert_eq!(seconds(&topology(), &slow, &[flow(0, 0, 0), flow(1, 0, 2)]), Some(10.0), "one client");
    }
}
