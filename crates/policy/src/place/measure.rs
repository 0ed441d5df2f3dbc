//! Load and imbalance of a placement.

use super::ledger::Path;
use super::topology::Topology;

/// Stripes on each resource; a shared stripe counts once on each router that its writers use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// By the number of the router.
    pub router: Vec<u64>,
    /// By the number of the server.
    pub server: Vec<u64>,
    /// By the number of the target.
    pub target: Vec<u64>,
}

impl Load {
    pub(super) fn new(topology: &Topology) -> Load {
        Load {
            router: vec![0; topology.router.len()],
            server: vec![0; topology.server.len()],
            target: vec![0; topology.target.len()],
        }
    }

    pub(super) fn add(&mut self, topology: &Topology, path: &Path) {
        self.target[path.target as usize] += 1;
        self.server[topology.server_of[path.target as usize] as usize] += 1;
        let mut routers: Vec<u32> = path.chains.iter().flatten().copied().collect();
        routers.sort_unstable();
        routers.dedup();
        for router in routers {
            self.router[router as usize] += 1;
        }
    }
}

/// Excess load of the busiest resource over a perfectly proportional one: 0 is perfect, 1 is twice as much.
#[must_use]
pub fn imbalance(load: &[u64], capacities: &[f64]) -> f64 {
    let (work, capacity) = (load.iter().sum::<u64>() as f64, capacities.iter().sum::<f64>());
    if work == 0.0 || capacity == 0.0 {
        return 0.0;
    }
    let busiest =
        load.iter().zip(capacities).map(|(&load, capacity)| load as f64 / capacity).fold(0.0, f64::max);
    (busiest * capacity / work - 1.0).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imbalance_is_that_of_the_busiest_resource() {
        for (load, capacities, found) in [
            (&[1, 1, 1][..], &[1.0, 1.0, 1.0][..], 0.0),
            (&[2, 0], &[1.0, 1.0], 1.0),
            (&[3, 1], &[3.0, 1.0], 0.0),
            (&[0, 0], &[1.0, 1.0], 0.0),
            (&[], &[], 0.0),
        ] {
            assert_eq!(imbalance(load, capacities), found, "{load:?}");
        }
    }
}
