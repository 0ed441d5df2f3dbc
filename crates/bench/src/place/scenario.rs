//! Reads a scenario: a system, a job, repetitions.

use crate::failure::{Failure, Outcome};
use forebay_model::{Bytes, Error};
use forebay_policy::device::Curve;
use forebay_policy::place::{
    Client, Description, Rates, Router, Routers, Server, State, Target, Topology, Weights,
};
use forebay_report::keys::{File, Table, Value};
use std::path::Path;

const MOST_NODES: u32 = 1 << 17;
const MOST_TARGETS: u32 = 1 << 14;

/// How processes divide data between files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    PerProcess,
    Shared,
}

/// Real data on targets in memory.
pub(super) struct Real {
    pub(super) targets: u32,
    pub(super) writers: u32,
    /// Bytes that each writer writes.
    pub(super) size: Bytes,
    /// The model, as in `model:DEVICE:…`.
    pub(super) device: String,
    pub(super) phases: u32,
    pub(super) repetitions: u32,
}

impl Real {
    /// Bytes written in one repetition.
    pub(super) fn bytes(&self) -> f64 {
        self.size.0 as f64 * f64::from(self.writers) * f64::from(self.phases)
    }
}

/// A scenario.
pub(super) struct Scenario {
    pub(super) title: String,
    pub(super) pattern: Pattern,
    /// The job's numbers of nodes, one run after the other.
    pub(super) nodes: Vec<u32>,
    /// Number of neighbouring nodes that a batch system assigns together.
    pub(super) together: u32,
    pub(super) processes: u32,
    /// Bytes that each process writes in each phase.
    pub(super) size: Bytes,
    pub(super) phases: u32,
    /// Runs on other nodes.
    pub(super) runs: u32,
    /// Repetitions of a run, on the same nodes.
    pub(super) repetitions: u32,
    /// Writes of competing jobs, relative to this job.
    pub(super) noise: f64,
    pub(super) seed: u64,
    pub(super) weights: Weights,
    pub(super) topology: Topology,
    pub(super) rates: Rates,
    pub(super) real: Option<Real>,
}

impl Scenario {
    pub(super) fn load(path: &Path) -> Outcome<Scenario> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::local("read", path, error))?;
        let name = path.display().to_string();
        read(&File { name: &name, text: &text }).map_err(Failure::misread)
    }
}

pub(super) fn read(file: &File<'_>) -> Result<Scenario, Error> {
    let mut top = Table::top(file)?;
    let title =
        top.take("title").map_or(Ok("Placement".to_owned()), |value| value.text().map(str::to_owned))?;
    let pattern = top.take("pattern").ok_or_else(|| top.missing("pattern", "\"N:N\" or \"N:1\""))?;
    let pattern = match pattern.text()? {
        "N:N" => Pattern::PerProcess,
        "N:1" => Pattern::Shared,
        other => return Err(pattern.wrong(format!("\"{other}\" is no pattern here: write N:N or N:1"))),
    };
    let system =
        top.take("system").ok_or_else(|| top.missing("system", "write it as a table headed [system]"))?;
    let (topology, rates) = system_of(system.table("system: ")?)?;
    let most = topology.description().clients.len() as u32;
    let nodes = top.take("nodes").ok_or_else(|| top.missing("nodes", "a list such as [64, 512]"))?;
    let node = |text: &String| match text.parse::<u32>() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(nodes.wrong(format!("{text} is not a number of nodes from 1 to {most}"))),
    };
    let list = nodes.texts()?.iter().map(node).collect::<Result<Vec<u32>, Error>>()?;
    let count = |value: Option<Value<'_>>, usual: u32, most: u32| {
        value.map_or(Ok(usual), |value| value.whole(1..=most))
    };
    let size = top.take("size").ok_or_else(|| top.missing("size", "what each process writes"))?;
    let scenario = Scenario {
        title,
        pattern,
        nodes: list,
        together: count(top.take("nodes_together"), 1, MOST_NODES)?,
        processes: count(top.take("processes_per_node"), 1, 256)?,
        size: size.text()?.parse().map_err(|error| size.wrong(error))?,
        phases: count(top.take("phases"), 1, 1000)?,
        runs: count(top.take("runs"), 10, 10_000)?,
        repetitions: count(top.take("repetitions"), 5, 10_000)?,
        noise: top.take("noise").map_or(Ok(0.0), |value| value.amount())?,
        seed: top.take("seed").map_or(Ok(1), |value| value.whole(0..=u32::MAX))?.into(),
        weights: top.take("weights").map_or(Ok(Weights::default()), forebay_report::topology::weights)?,
        topology,
        rates,
        real: top.take("real").map(real_of).transpose()?,
    };
    top.finish(
        "title, pattern, nodes, nodes_together, processes_per_node, size, phases, runs, repetitions, noise, seed, weights, system, real",
    )?;
    Ok(scenario)
}

fn real_of(value: Value<'_>) -> Result<Real, Error> {
    let mut table = value.table("real: ")?;
    let mut count =
        |key: &str, usual: u32, most: u32| table.take(key).map_or(Ok(usual), |value| value.whole(1..=most));
    let (targets, writers) = (count("targets", 8, 64)?, count("writers", 16, 256)?);
    let (phases, repetitions) = (count("phases", 1, 1000)?, count("repetitions", 5, 1000)?);
    let size = table.take("size").ok_or_else(|| table.missing("size", "what each of them writes"))?;
    let device =
        table.take("device").map_or(Ok("ost".to_owned()), |value| value.text().map(str::to_owned))?;
    let size = size.text()?.parse().map_err(|error| size.wrong(error))?;
    table.finish("targets, writers, size, device, phases, repetitions")?;
    Ok(Real { targets, writers, size, device, phases, repetitions })
}

/// Nodes in cabinets, each near a router of every group; each group of routers leads to its part of the
/// servers.
fn system_of(mut table: Table<'_>) -> Result<(Topology, Rates), Error> {
    let mut count = |key: &str, most: u32| match table.take(key) {
        Some(value) => value.whole(1..=most),
        None => Err(table.missing(key, "how many there are")),
    };
    let (nodes, routers) = (count("nodes", MOST_NODES)?, count("routers", MOST_TARGETS)?);
    let (groups, servers) = (count("groups", routers)?, count("servers", MOST_TARGETS)?);
    let targets = count("targets", MOST_TARGETS)?;
    let mut rate = |key: &str| match table.take(key) {
        Some(value) => {
            let rate = forebay_server::parse_rate(value.text()?).map_err(|error| value.wrong(error))?;
            if rate.0 == 0 { Err(value.wrong("must be above 0")) } else { Ok(rate.0 as f64) }
        }
        None => Err(table.missing(key, "such as \"2GB/s\"")),
    };
    let rates = Rates {
        client: rate("node_rate")?,
        router: rate("router_rate")?,
        server: rate("server_rate")?,
        target: Curve::trio(),
    };
    let router = |number: u32| Router {
        name: format!("router{number}"),
        capacity: 1.0,
        leads_to: Some(
            (0..servers).filter(|s| s % groups == number % groups).map(|s| format!("server{s}")).collect(),
        ),
    };
    let target = |index: u32| Target {
        name: format!("target{index}"),
        server: format!("server{}", index % servers),
        index,
        capacity: 1.0,
        free: None,
        state: State::Active,
    };
    let cabinets = (routers / groups).max(1);
    let client = |number: u32| {
        let cabinet = (u64::from(number) * u64::from(cabinets) / u64::from(nodes)) as u32;
        let near = (0..groups).map(|group| (format!("router{}", cabinet * groups + group), 1));
        Client { name: format!("node{number}"), routers: Routers::Near(near.collect()) }
    };
    let description = Description {
        routers: (0..cabinets * groups).map(router).collect(),
        servers: (0..servers)
            .map(|number| Server { name: format!("server{number}"), capacity: None })
            .collect(),
        targets: (0..targets).map(target).collect(),
        clients: (0..nodes).map(client).collect(),
    };
    let topology = Topology::new(description).map_err(|flaw| table.missing("groups", &flaw.what))?;
    table.finish("nodes, routers, groups, servers, targets, node_rate, router_rate, server_rate")?;
    Ok((topology, rates))
}
