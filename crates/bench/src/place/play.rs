//! One repetition: other nodes, other competing jobs, each placement in turn.

use super::scenario::{Pattern, Scenario};
use crate::failure::{Failure, Outcome};
use crate::rng::Rng;
use forebay_policy::place::{Flow, Job, Ledger, Limits, Pattern as Files, Shape, Writer, place, seconds};
use std::sync::Arc;

/// Stripes of a shared file with the default layout.
pub(super) const USUAL: usize = 4;

/// How files are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Variant {
    /// Each file begins at a random target; shared files have four stripes of one MiB.
    Default,
    /// A shared file has a stripe for each writer, on random targets.
    Optimised,
    /// The cheapest paths.
    Balanced,
}

impl Variant {
    /// The variants of a pattern, in the order in which they are compared.
    pub(super) fn all(pattern: Pattern) -> &'static [Variant] {
        match pattern {
            Pattern::PerProcess => &[Variant::Default, Variant::Balanced],
            Pattern::Shared => &[Variant::Default, Variant::Optimised, Variant::Balanced],
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Variant::Default => "default",
            Variant::Optimised => "optimised",
            Variant::Balanced => "balanced",
        }
    }
}

/// The result for one number of nodes: bytes per second by variant, run and repetition.
pub(super) struct Played {
    pub(super) nodes: u32,
    pub(super) variants: Vec<(Variant, Vec<Vec<f64>>)>,
}

/// The random generator of one repetition.
fn rng(seed: u64, nodes: u32, run: u32, repetition: u32) -> Rng {
    let parts = [nodes, run, repetition].into_iter().map(u64::from);
    Rng::new(parts.fold(seed, |seed, part| Rng::new(seed.wrapping_add(part)).bits()))
}

pub(super) fn all(scenario: &Scenario) -> Outcome<Vec<Played>> {
    let variants = Variant::all(scenario.pattern);
    let topology = Arc::new(scenario.topology.clone());
    let all = topology.description().clients.len() as u32;
    // All repetitions of a run use the same nodes, as a batch system assigns them.
    let given = |nodes: u32, run: u32| {
        let mut rng = rng(scenario.seed, nodes, run, 0);
        let together = scenario.together;
        let pieces = rng.some(nodes.div_ceil(together) as usize, all.div_ceil(together));
        let given = pieces.iter().flat_map(|piece| piece * together..((piece + 1) * together).min(all));
        let mut given: Vec<u32> = given.take(nodes as usize).collect();
        // The last piece may be short: a missing node is replaced by using another one twice.
        given.extend_from_within(..(nodes as usize - given.len()).min(given.len()));
        given
    };
    let once = |nodes: u32, run: u32, repetition: u32, variant: Variant| {
        let job = u64::from(nodes) << 32 | u64::from(run);
        let ledger = Ledger::new(topology.clone(), scenario.weights, job);
        let rng = rng(scenario.seed, nodes, run, repetition + 1);
        Repetition { scenario, given: given(nodes, run), rng, ledger, variant }.bandwidth()
    };
    let mut played = Vec::new();
    for &nodes in &scenario.nodes {
        let mut found = Vec::new();
        for &variant in variants {
            let repeated =
                |run| (0..scenario.repetitions).map(move |again| once(nodes, run, again, variant)).collect();
            found.push((variant, (0..scenario.runs).map(repeated).collect::<Outcome<Vec<Vec<f64>>>>()?));
        }
        played.push(Played { nodes, variants: found });
    }
    Ok(played)
}

struct Repetition<'a> {
    scenario: &'a Scenario,
    /// The nodes of the job.
    given: Vec<u32>,
    rng: Rng,
    ledger: Ledger,
    variant: Variant,
}

impl Repetition<'_> {
    /// Bytes per second over all phases.
    fn bandwidth(mut self) -> Outcome<f64> {
        let processes = self.scenario.processes;
        let writers: Vec<u32> =
            self.given.iter().flat_map(|&node| std::iter::repeat_n(node, processes as usize)).collect();
        let targets = self.scenario.topology.description().targets.len() as u32;
        let mut spent = 0.0;
        for _ in 0..self.scenario.phases {
            let mut flows = self.others(writers.len(), targets);
            flows.extend(match self.scenario.pattern {
                Pattern::PerProcess => self.own(&writers, targets)?,
                Pattern::Shared => self.shared(&writers, targets)?,
            });
            spent += seconds(&self.scenario.topology, &self.scenario.rates, &flows)
                .ok_or_else(|| Failure::Failed("a node has no path to a target".to_owned()))?;
        }
        let bytes = self.scenario.size.0 as f64 * writers.len() as f64 * f64::from(self.scenario.phases);
        Ok(bytes / spent.max(f64::MIN_POSITIVE))
    }

    /// The writes of competing jobs: the same for each variant, because placement cannot know them beforehand.
    fn others(&mut self, writers: usize, targets: u32) -> Vec<Flow> {
        let nodes = self.scenario.topology.description().clients.len() as u32;
        let count = (writers as f64 * self.scenario.noise) as u32;
        let flow = |number: u32| {
            let (client, target) = (self.rng.below(nodes), self.rng.below(targets));
            Flow {
                writer: u32::MAX - number,
                client,
                target,
                bytes: self.scenario.size.0 as f64,
                counts: false,
            }
        };
        (0..count).map(flow).collect()
    }

    fn plan(&mut self, writers: &[u32], pattern: Files) -> Outcome<Vec<Vec<u32>>> {
        let bytes = Some(self.scenario.size.0);
        let writers: Vec<Writer> = writers.iter().map(|&node| Writer { client: Some(node), bytes }).collect();
        let job = Job {
            writers: &writers,
            pattern,
            file_size: None,
            stripe_count: None,
            stripe_size: None,
            limits: &Limits::LUSTRE,
        };
        let plan = place(&mut self.ledger, &job).map_err(|trouble| Failure::Failed(trouble.to_string()))?;
        let targets = |shape: Shape| match shape {
            Shape::Striped(stripes) => Ok(stripes.targets),
            _ => Err(Failure::Failed("a file of known size is not placed on targets".to_owned())),
        };
        plan.files.into_iter().map(|file| targets(file.shape)).collect()
    }

    fn own(&mut self, writers: &[u32], targets: u32) -> Outcome<Vec<Flow>> {
        let chosen = match self.variant {
            Variant::Balanced => self.plan(writers, Files::PerProcess)?.concat(),
            _ => writers.iter().map(|_| self.rng.below(targets)).collect(),
        };
        let bytes = self.scenario.size.0 as f64;
        let flow = |(number, (&client, &target)): (usize, (&u32, &u32))| Flow {
            writer: number as u32,
            client,
            target,
            bytes,
            counts: true,
        };
        Ok(writers.iter().zip(&chosen).enumerate().map(flow).collect())
    }

    /// A shared file: each writer's block lies in its stripe, or over all stripes if those are small.
    fn shared(&mut self, writers: &[u32], targets: u32) -> Outcome<Vec<Flow>> {
        let stripes = match self.variant {
            Variant::Balanced => self.plan(writers, Files::Shared)?.concat(),
            Variant::Optimised => {
                let most = targets.min(Limits::LUSTRE.stripes) as usize;
                let together = writers.len().div_ceil(writers.len().min(most));
                self.rng.some(writers.len().div_ceil(together), targets)
            }
            Variant::Default => self.rng.some(USUAL, targets),
        };
        let bytes = self.scenario.size.0 as f64;
        let together = writers.len().div_ceil(stripes.len());
        let small = self.variant == Variant::Default;
        let flow = |number: usize, client: u32, target: u32, bytes: f64| Flow {
            writer: number as u32,
            client,
            target,
            bytes,
            counts: true,
        };
        let flows = writers.iter().enumerate().flat_map(|(number, &client)| match small {
            true => stripes
                .iter()
                .map(|&t| flow(number, client, t, bytes / stripes.len() as f64))
                .collect::<Vec<_>>(),
            false => vec![flow(number, client, stripes[number / together], bytes)],
        });
        Ok(flows.collect())
    }
}
