//! `topology.toml`: routers, servers, targets and clients, and their connections.

use crate::keys::{File, Table, Value};
use forebay_model::{Bytes, Error};
use forebay_policy::place::{
    Client, Description, Flaw, Limits, Part, Router, Routers, Server, State, Target, Topology, Weights,
};
use std::ops::Range;

/// Maximum number of parts of one kind.
const MOST: u32 = 1 << 20;

/// A topology as written, with the limits of the back end.
pub struct Written {
    /// The parts and their connections.
    pub topology: Topology,
    /// What a layout may be.
    pub limits: Limits,
    /// What each resource counts for.
    pub weights: Weights,
}

/// Where each part is in the file, for messages.
#[derive(Default)]
struct Places {
    routers: Vec<Range<usize>>,
    servers: Vec<Range<usize>>,
    targets: Vec<Range<usize>>,
    clients: Vec<Range<usize>>,
}

impl Places {
    fn complain(&self, file: &File<'_>, whole: &Range<usize>, flaw: &Flaw) -> Error {
        let (word, spans, number) = match flaw.part {
            Part::Router(i) => ("router", &self.routers, i),
            Part::Server(i) => ("server", &self.servers, i),
            Part::Target(i) => ("target", &self.targets, i),
            Part::Client(i) => ("client", &self.clients, i),
            Part::Whole => return file.wrong(whole, flaw.key, &flaw.what),
        };
        let span = spans.get(number).unwrap_or(whole);
        file.wrong(span, &format!("{word} {}: {}", number + 1, flaw.key), &flaw.what)
    }
}

/// Reads a topology from a table, which may be the whole file.
pub fn read(file: &File<'_>, mut table: Table<'_>, exclude: &[String]) -> Result<Written, Error> {
    let whole = table.span.clone();
    let limits = table.take("limits").map_or(Ok(Limits::LUSTRE), limits)?;
    let weights = table.take("weights").map_or(Ok(Weights::default()), weights)?;
    let (mut description, places) = match table.take("flat") {
        Some(value) => (flat(value)?, Places::default()),
        None => described(&mut table)?,
    };
    table.finish("limits, weights, flat, router, server, target, client")?;
    self::exclude(&mut description, exclude).map_err(|what| file.wrong(&whole, "exclude", what))?;
    let topology = Topology::new(description).map_err(|flaw| places.complain(file, &whole, &flaw))?;
    Ok(Written { topology, limits, weights })
}

/// Excludes targets by name.
pub fn exclude(description: &mut Description, names: &[String]) -> Result<(), String> {
    for name in names {
        let found = description.targets.iter_mut().find(|target| target.name == *name);
        found.ok_or_else(|| format!("there is no target \"{name}\""))?.state = State::Excluded;
    }
    Ok(())
}

fn described(table: &mut Table<'_>) -> Result<(Description, Places), Error> {
    let mut places = Places::default();
    let mut description = Description::default();
    for one in listed(table, "router")? {
        places.routers.push(one.span.clone());
        description.routers.push(router(one)?);
    }
    for one in listed(table, "server")? {
        places.servers.push(one.span.clone());
        description.servers.push(server(one)?);
    }
    for (number, one) in listed(table, "target")?.into_iter().enumerate() {
        places.targets.push(one.span.clone());
        description.targets.push(target(one, number as u32)?);
    }
    for one in listed(table, "client")? {
        places.clients.push(one.span.clone());
        description.clients.push(client(one)?);
    }
    Ok((description, places))
}

fn listed<'a>(table: &mut Table<'a>, key: &str) -> Result<Vec<Table<'a>>, Error> {
    table.take(key).map_or(Ok(Vec::new()), |value| value.tables(key))
}

/// A number of equal targets on a number of equal servers.
fn flat(value: Value<'_>) -> Result<Description, Error> {
    let mut table = value.table("flat: ")?;
    let targets = table.take("targets").ok_or_else(|| table.missing("targets", "how many there are"))?;
    let targets = targets.whole(1..=MOST)?;
    let servers = table.take("servers").map_or(Ok(1), |value| value.whole(1..=MOST))?;
    table.finish("targets, servers")?;
    let target = |index| Target {
        name: format!("target{index}"),
        server: format!("server{}", index % servers),
        index,
        capacity: 1.0,
        free: None,
        state: State::Active,
    };
    let server = |number| Server { name: format!("server{number}"), capacity: None };
    Ok(Description {
        servers: (0..servers.min(targets)).map(server).collect(),
        targets: (0..targets).map(target).collect(),
        ..Description::default()
    })
}

fn named(table: &mut Table<'_>) -> Result<String, Error> {
    let name = table.take("name").ok_or_else(|| table.missing("name", "everything here has one"))?;
    name.name().map(|name| name.to_string())
}

fn capacity(table: &mut Table<'_>) -> Result<Option<f64>, Error> {
    table.take("capacity").map(|value| value.number()).transpose()
}

fn router(mut table: Table<'_>) -> Result<Router, Error> {
    let router = Router {
        name: named(&mut table)?,
        capacity: capacity(&mut table)?.unwrap_or(1.0),
        leads_to: table.take("leads_to").map(|value| value.texts()).transpose()?,
    };
    table.finish("name, capacity, leads_to")?;
    Ok(router)
}

fn server(mut table: Table<'_>) -> Result<Server, Error> {
    let server = Server { name: named(&mut table)?, capacity: capacity(&mut table)? };
    table.finish("name, capacity")?;
    Ok(server)
}

fn target(mut table: Table<'_>, number: u32) -> Result<Target, Error> {
    let name = named(&mut table)?;
    let server = table.take("server").ok_or_else(|| table.missing("server", "the server that has it"))?;
    let state = match table.take("state") {
        None => State::Active,
        Some(value) => match value.text()? {
            "active" => State::Active,
            "inactive" => State::Inactive,
            "excluded" => State::Excluded,
            other => {
                let text = format!("\"{other}\" is no state: write active, inactive or excluded");
                return Err(value.wrong(text));
            }
        },
    };
    let target = Target {
        name,
        server: server.name()?.to_string(),
        index: table.take("index").map_or(Ok(number), |value| value.whole(0..=u32::MAX))?,
        capacity: capacity(&mut table)?.unwrap_or(1.0),
        free: table.take("free").map(|value| bytes(&value)).transpose()?.map(|free| free.0),
        state,
    };
    table.finish("name, server, index, capacity, free, state")?;
    Ok(target)
}

fn client(mut table: Table<'_>) -> Result<Client, Error> {
    let name = named(&mut table)?;
    let routers = match (table.take("router"), table.take("routers")) {
        (Some(_), Some(value)) => return Err(value.wrong("a client has router or routers, not both")),
        (Some(value), None) => Routers::Preferred(value.name()?.to_string()),
        (None, Some(value)) => {
            let near = value.table("routers: ")?.all().into_iter();
            let near = near.map(|(name, value)| Ok((name, value.whole(0..=u32::MAX)?)));
            Routers::Near(near.collect::<Result<_, Error>>()?)
        }
        (None, None) => Routers::Any,
    };
    table.finish("name, router, routers")?;
    Ok(Client { name, routers })
}

fn limits(value: Value<'_>) -> Result<Limits, Error> {
    let mut table = value.table("limits: ")?;
    let usual = Limits::LUSTRE;
    let size = |value: Option<Value<'_>>, usual: u64| match value {
        None => Ok(usual),
        Some(value) => match bytes(&value)?.0 {
            0 => Err(value.wrong("0 is no size of a stripe")),
            size => Ok(size),
        },
    };
    let limits = Limits {
        stripes: table.take("stripes").map_or(Ok(usual.stripes), |value| value.whole(1..=MOST))?,
        unit: size(table.take("unit"), usual.unit)?,
        largest: size(table.take("largest"), usual.largest)?,
        usual: size(table.take("usual"), usual.usual)?,
        progressive: table.take("progressive").map_or(Ok(usual.progressive), |value| value.truth())?,
    };
    if limits.largest < limits.unit {
        return Err(table.missing("largest", "at least one unit"));
    }
    table.finish("stripes, unit, largest, usual, progressive")?;
    Ok(limits)
}

/// The weight of each resource; 0 if not given.
pub fn weights(value: Value<'_>) -> Result<Weights, Error> {
    let mut table = value.table("weights: ")?;
    let span = table.span.clone();
    let mut weight = |key: &str| table.take(key).map_or(Ok(0.0), |value| value.number());
    let weights = Weights {
        router: weight("router")?,
        server: weight("server")?,
        target: weight("target")?,
        space: weight("space")?,
    };
    let checked = weights.checked().map_err(|what| table.at(&span, "weights", what));
    table.finish("router, server, target, space")?;
    checked
}

/// A size, as a text or a number of bytes.
pub fn bytes(value: &Value<'_>) -> Result<Bytes, Error> {
    match value.text() {
        Ok(text) => text.parse().map_err(|error| value.wrong(error)),
        Err(_) => value.amount().map(|bytes| Bytes(bytes as u64)),
    }
}
