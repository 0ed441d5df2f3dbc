//! Topology: clients, routers, servers, targets.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Most routers, servers, targets or clients.
const MOST: usize = 1 << 20;
/// Most stored paths: client classes times servers.
const MOST_WAYS: usize = 1 << 26;

/// Cost on a resource without capacity.
const NEVER: f64 = 1e18;

/// Description of a file system, not yet checked.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Description {
    /// Routers between clients and servers. Without any, clients reach all servers.
    pub routers: Vec<Router>,
    /// The storage servers.
    pub servers: Vec<Server>,
    /// The storage targets.
    pub targets: Vec<Target>,
    /// Clients. A client that is not listed reaches all routers equally well.
    pub clients: Vec<Client>,
}

/// A router.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Router {
    /// Its name.
    pub name: String,
    /// Its capacity, relative to other routers.
    pub capacity: f64,
    /// The servers and routers it leads to; `None`: all servers.
    pub leads_to: Option<Vec<String>>,
}

/// A storage server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Its capacity, relative to other servers; the sum of its targets if not given.
    pub capacity: Option<f64>,
}

/// Whether a target may be used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum State {
    /// It may be used.
    #[default]
    Active,
    /// It does not respond.
    Inactive,
    /// An administrator excluded it.
    Excluded,
}

/// A storage target.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// The server that has it.
    pub server: String,
    /// Its index in the file system.
    pub index: u32,
    /// Its capacity, relative to other targets.
    pub capacity: f64,
    /// Free bytes, if known.
    pub free: Option<u64>,
    /// Whether it may be used.
    pub state: State,
}

/// Which routers a client goes through.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Routers {
    /// All, at the same distance.
    Any,
    /// This one; others for servers it does not lead to.
    Preferred(String),
    /// Only these, with distances; the nearest one that leads to a server is used.
    Near(Vec<(String, u32)>),
}

/// A client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// Which routers it goes through.
    pub routers: Routers,
}

/// A part of a description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The router with this number.
    Router(usize),
    /// The server with this number.
    Server(usize),
    /// The target with this number.
    Target(usize),
    /// The client with this number.
    Client(usize),
    /// The whole description.
    Whole,
}

/// An error in a description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flaw {
    /// The part of the description.
    pub part: Part,
    /// The field.
    pub key: &'static str,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.what)
    }
}

/// A path through routers, the nearest to the client first; empty where clients reach servers directly.
pub(super) type Chain = Vec<u32>;

/// Servers that the same equally near chains reach.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) chains: Vec<Chain>,
    pub(super) servers: Vec<u32>,
}

/// Clients with the same paths.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) gates: Vec<Gate>,
    /// The gate of each server.
    pub(super) gate_of: Vec<Option<u32>>,
}

/// Cost of one unit of work on each resource of a kind.
pub(super) type Tariff = Vec<f64>;

/// The share of its kind's capacity that each resource has.
#[derive(Clone, PartialEq, Debug)]
pub struct Capacities {
    /// By the number of the router.
    pub router: Vec<f64>,
    /// By the number of the server.
    pub server: Vec<f64>,
    /// By the number of the target.
    pub target: Vec<f64>,
}

/// A checked description, indexed by number.
#[derive(Clone, Debug)]
pub struct Topology {
    pub(super) router: Tariff,
    pub(super) server: Tariff,
    pub(super) target: Tariff,
    /// By free space; the same as `target` where that is unknown.
    pub(super) space: Tariff,
    pub(super) server_of: Vec<u32>,
    pub(super) usable: Vec<bool>,
    pub(super) free: Vec<Option<u64>>,
    pub(super) classes: Vec<Class>,
    class_of: Vec<u32>,
    clients: HashMap<String, u32>,
    description: Description,
}

impl Topology {
    /// Checks a description.
    pub fn new(description: Description) -> Result<Topology, Flaw> {
        let names = Names::of(&description)?;
        check_amounts(&description)?;
        let ways = ways(&description, &names)?;
        let server_of = description.targets.iter().enumerate().map(|(number, target)| {
            let known = names.servers.get(target.server.as_str()).copied();
            known.ok_or_else(|| unknown(Part::Target(number), "server", "server", &target.server))
        });
        let server_of = server_of.collect::<Result<Vec<u32>, Flaw>>()?;
        let (classes, class_of) = classes(&description, &names, &ways)?;
        let clients = names.clients.iter().map(|(name, &number)| ((*name).to_owned(), number)).collect();
        let usable: Vec<bool> =
            description.targets.iter().map(|target| target.state == State::Active).collect();
        // Unusable targets have no capacity, and their server has that much less.
        let capacity = |(target, usable): (&Target, &bool)| if *usable { target.capacity } else { 0.0 };
        let capacities: Vec<f64> = description.targets.iter().zip(&usable).map(capacity).collect();
        let mut behind = vec![0.0; description.servers.len()];
        for (target, &server) in server_of.iter().enumerate() {
            behind[server as usize] += capacities[target];
        }
        let servers = description.servers.iter().zip(behind);
        let servers: Vec<f64> = servers.map(|(server, behind)| server.capacity.unwrap_or(behind)).collect();
        let routers: Vec<f64> = description.routers.iter().map(|router| router.capacity).collect();
        let free: Vec<Option<u64>> = description.targets.iter().map(|target| target.free).collect();
        let rooms: Option<Vec<f64>> = free.iter().map(|free| free.map(|free| free as f64)).collect();
        Ok(Topology {
            router: tariff(&routers),
            server: tariff(&servers),
            space: tariff(rooms.as_deref().unwrap_or(&capacities)),
            target: tariff(&capacities),
            server_of,
            usable,
            free,
            classes,
            class_of,
            clients,
            description,
        })
    }

    /// A file system of which only the number of targets is known.
    #[must_use]
    pub fn flat(targets: u32) -> Topology {
        let target = |index| Target {
            name: format!("target{index}"),
            server: "server0".to_owned(),
            index,
            capacity: 1.0,
            free: None,
            state: State::Active,
        };
        let servers = vec![Server { name: "server0".to_owned(), capacity: None }];
        let targets = (0..targets.min(MOST as u32)).map(target).collect();
        let flat = Description { servers, targets, ..Description::default() };
        Topology::new(flat).expect("generated names are unique")
    }

    /// The description it was made from.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Capacity of each resource relative to its kind.
    #[must_use]
    pub fn capacities(&self) -> Capacities {
        // A resource's tariff is the kind's total capacity divided by its own.
        let share = |&count: &f64| if count < NEVER { 1.0 / count } else { 0.0 };
        let back = |tariff: &Tariff| tariff.iter().map(share).collect();
        Capacities { router: back(&self.router), server: back(&self.server), target: back(&self.target) }
    }

    /// The number of the client with this name.
    #[must_use]
    pub fn client(&self, name: &str) -> Option<u32> {
        self.clients.get(name).copied()
    }

    /// The class of a client; an unlisted client reaches all routers equally well.
    pub(super) fn class(&self, client: Option<u32>) -> u32 {
        match client {
            Some(client) => self.class_of[client as usize],
            None => self.classes.len() as u32 - 1,
        }
    }

    /// The gate through which a client class reaches a server.
    pub(super) fn gate(&self, class: u32, server: u32) -> Option<&Gate> {
        let class = &self.classes[class as usize];
        class.gate_of[server as usize].map(|gate| &class.gates[gate as usize])
    }

    /// The routers between a client and a target as the network chooses them: of several equally near ones
    /// always the same. `None` if there is no path.
    #[must_use]
    pub fn route(&self, client: u32, target: usize) -> Option<&[u32]> {
        let chains = &self.gate(self.class(Some(client)), self.server_of[target])?.chains;
        Some(&chains[client as usize % chains.len()])
    }

    /// Whether a client reaches a target.
    #[must_use]
    pub fn reaches(&self, client: Option<u32>, target: usize) -> bool {
        self.gate(self.class(client), self.server_of[target]).is_some()
    }
}

/// Cost of a unit of work on each resource of a kind: the kind's total capacity over the resource's own. So
/// evenly loaded kinds cost the same, however many resources they have.
fn tariff(capacities: &[f64]) -> Tariff {
    let sum: f64 = capacities.iter().sum();
    // A resource without capacity costs more than any other, but a finite amount, so that sums stay
    // comparable.
    capacities.iter().map(|&capacity| if capacity > 0.0 { sum / capacity } else { NEVER }).collect()
}

struct Names<'a> {
    routers: HashMap<&'a str, u32>,
    servers: HashMap<&'a str, u32>,
    clients: HashMap<&'a str, u32>,
}

impl Names<'_> {
    fn of(description: &Description) -> Result<Names<'_>, Flaw> {
        let routers = numbered(description.routers.iter().map(|router| &router.name), Part::Router)?;
        let servers = numbered(description.servers.iter().map(|server| &server.name), Part::Server)?;
        let clients = numbered(description.clients.iter().map(|client| &client.name), Part::Client)?;
        numbered(description.targets.iter().map(|target| &target.name), Part::Target)?;
        for (number, router) in description.routers.iter().enumerate() {
            if servers.contains_key(router.name.as_str()) {
                let what = format!("\"{}\" is both a router and a server", router.name);
                return Err(Flaw { part: Part::Router(number), key: "name", what });
            }
        }
        let mut indices = BTreeMap::new();
        for (number, target) in description.targets.iter().enumerate() {
            if let Some(other) = indices.insert(target.index, &target.name) {
                let what = format!("\"{other}\" already has the index {}", target.index);
                return Err(Flaw { part: Part::Target(number), key: "index", what });
            }
        }
        if description.targets.is_empty() {
            let what = "no targets: add a [[target]] table for each".to_owned();
            return Err(Flaw { part: Part::Whole, key: "target", what });
        }
        Ok(Names { routers, servers, clients })
    }
}

fn numbered<'a>(
    names: impl Iterator<Item = &'a String>,
    part: impl Fn(usize) -> Part,
) -> Result<HashMap<&'a str, u32>, Flaw> {
    let mut numbers = HashMap::new();
    for (number, name) in names.enumerate() {
        let what = if numbers.insert(name.as_str(), number as u32).is_some() {
            format!("\"{name}\" occurs twice")
        } else if number >= MOST {
            format!("there are more than {MOST}")
        } else if name.is_empty() {
            "the name is empty".to_owned()
        } else {
            continue;
        };
        return Err(Flaw { part: part(number), key: "name", what });
    }
    Ok(numbers)
}

fn check_amounts(description: &Description) -> Result<(), Flaw> {
    let routers = description.routers.iter().enumerate().map(|(i, r)| (Part::Router(i), r.capacity));
    let servers = description.servers.iter().enumerate();
    let servers = servers.filter_map(|(i, s)| s.capacity.map(|capacity| (Part::Server(i), capacity)));
    let targets = description.targets.iter().enumerate().map(|(i, t)| (Part::Target(i), t.capacity));
    let mut all = routers.chain(servers).chain(targets);
    match all.find(|(_, capacity)| !(capacity.is_finite() && *capacity > 0.0)) {
        None => Ok(()),
        Some((part, capacity)) => {
            let what = format!("{capacity} is not a capacity: it must be a number above 0");
            Err(Flaw { part, key: "capacity", what })
        }
    }
}

fn unknown(part: Part, key: &'static str, kind: &str, name: &str) -> Flaw {
    Flaw { part, key, what: format!("there is no {kind} \"{name}\"") }
}

/// For each router the servers it leads to, with the routers on the path, itself first.
fn ways(description: &Description, names: &Names<'_>) -> Result<Vec<BTreeMap<u32, Chain>>, Flaw> {
    let mut ways: Vec<Option<BTreeMap<u32, Chain>>> = vec![None; description.routers.len()];
    for start in 0..description.routers.len() {
        follow(start, description, names, &mut ways, &mut Vec::new())?;
    }
    Ok(ways.into_iter().map(|way| way.expect("every router was visited")).collect())
}

fn follow(
    router: usize,
    description: &Description,
    names: &Names<'_>,
    ways: &mut Vec<Option<BTreeMap<u32, Chain>>>,
    above: &mut Vec<usize>,
) -> Result<(), Flaw> {
    if ways[router].is_some() {
        return Ok(());
    }
    let flaw = |what| Flaw { part: Part::Router(router), key: "leads_to", what };
    if let Some(place) = above.iter().position(|&passed| passed == router) {
        let round = above[place..].iter().chain([&router]).map(|&i| description.routers[i].name.as_str());
        return Err(flaw(format!("the routers lead in a circle: {}", round.collect::<Vec<_>>().join(" → "))));
    }
    // Deeper than any fabric, and safe for the stack.
    if above.len() > 64 {
        return Err(flaw("a path leads through more than 64 routers".to_owned()));
    }
    above.push(router);
    let mut reached = BTreeMap::new();
    let mut reach = |server: u32, chain: Chain| {
        let known = reached.entry(server).or_insert_with(|| chain.clone());
        if (chain.len(), &chain) < (known.len(), known) {
            *known = chain;
        }
    };
    match &description.routers[router].leads_to {
        None => (0..description.servers.len()).for_each(|server| reach(server as u32, vec![router as u32])),
        Some(next) => {
            for name in next {
                if let Some(&server) = names.servers.get(name.as_str()) {
                    reach(server, vec![router as u32]);
                    continue;
                }
                let next = names.routers.get(name.as_str()).copied();
                let next = next.ok_or_else(|| flaw(format!("there is no server or router \"{name}\"")))?;
                follow(next as usize, description, names, ways, above)?;
                for (&server, chain) in ways[next as usize].iter().flatten() {
                    reach(server, [&[router as u32][..], chain].concat());
                }
            }
        }
    }
    above.pop();
    ways[router] = Some(reached);
    Ok(())
}

/// Routers with their distance from a client, nearest first.
type Near = Vec<(u32, u32)>;

fn near(client: &Client, number: usize, description: &Description, names: &Names<'_>) -> Result<Near, Flaw> {
    let find = |name: &String| {
        let found = names.routers.get(name.as_str()).copied();
        found.ok_or_else(|| unknown(Part::Client(number), "router", "router", name))
    };
    let all = 0..description.routers.len() as u32;
    let mut near: Near = match &client.routers {
        Routers::Any => all.map(|router| (0, router)).collect(),
        Routers::Preferred(name) => {
            let preferred = find(name)?;
            all.map(|router| (u32::from(router != preferred), router)).collect()
        }
        Routers::Near(list) => {
            list.iter().map(|(name, distance)| Ok((*distance, find(name)?))).collect::<Result<_, _>>()?
        }
    };
    near.sort_unstable();
    Ok(near)
}

/// The client classes, that of unlisted clients last, and the class of each client.
fn classes(
    description: &Description,
    names: &Names<'_>,
    ways: &[BTreeMap<u32, Chain>],
) -> Result<(Vec<Class>, Vec<u32>), Flaw> {
    let servers = description.servers.len();
    let mut known: HashMap<Near, u32> = HashMap::new();
    let (mut classes, mut class_of) = (Vec::new(), Vec::new());
    let mut place = |near: Near, part: Part| {
        let next = known.len() as u32;
        let class = *known.entry(near.clone()).or_insert(next);
        if class == next {
            if classes.len() * servers > MOST_WAYS {
                let what = "too many clients with different distances: name a preferred router instead";
                return Err(Flaw { part, key: "routers", what: what.to_owned() });
            }
            classes.push(class_from(&near, servers, ways));
        }
        Ok(class)
    };
    for (number, client) in description.clients.iter().enumerate() {
        class_of.push(place(near(client, number, description, names)?, Part::Client(number))?);
    }
    let stranger = Client { name: String::new(), routers: Routers::Any };
    let all = near(&stranger, 0, description, names)?;
    classes.push(class_from(&all, servers, ways));
    Ok((classes, class_of))
}

/// How a client with these routers reaches each server: through the nearest router that leads there, and
/// among equally near ones by the shortest chain.
fn class_from(near: &Near, servers: usize, ways: &[BTreeMap<u32, Chain>]) -> Class {
    let mut chosen: Vec<Option<(u32, Vec<Chain>)>> = vec![None; servers];
    if ways.is_empty() {
        chosen.fill(Some((0, vec![Chain::new()])));
    }
    let mut left = servers;
    for &(distance, router) in near {
        // Routers further away cannot be better.
        if left == 0 && chosen.iter().flatten().all(|(best, _)| *best < distance) {
            break;
        }
        for (&server, chain) in &ways[router as usize] {
            match &mut chosen[server as usize] {
                Some((best, _)) if *best < distance => {}
                Some((_, chains)) if chains[0].len() < chain.len() => {}
                Some((_, chains)) if chains[0].len() == chain.len() => chains.push(chain.clone()),
                other => {
                    left -= usize::from(other.is_none());
                    *other = Some((distance, vec![chain.clone()]));
                }
            }
        }
    }
    let mut gates: BTreeMap<Vec<Chain>, Vec<u32>> = BTreeMap::new();
    for (server, found) in chosen.into_iter().enumerate() {
        if let Some((_, chains)) = found {
            gates.entry(chains).or_default().push(server as u32);
        }
    }
    let mut gate_of = vec![None; servers];
    let mut listed = Vec::new();
    for (chains, behind) in gates {
        for &server in &behind {
            gate_of[server as usize] = Some(listed.len() as u32);
        }
        listed.push(Gate { chains, servers: behind });
    }
    Class { gates: listed, gate_of }
}
