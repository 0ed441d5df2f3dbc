//! A node has some of the processes, and a server that buffers their data.

use super::ground::Ground;
use super::scenario::{Pattern, Point, Scenario};
use crate::failure::{Failure, Outcome};
use forebay_client::blocking::Client;
use forebay_model::{Name, ServerId, Striping};

/// Maximum number of names tried to find one that belongs to a server.
const TRIES: u32 = 10_000;
/// The smallest stripe that servers accept.
const LEAST: u64 = 64 << 10;

/// Creates the files of all jobs such that every process writes to the server of its node: a file per process
/// lies whole on it, and a shared file changes servers with every process.
pub(super) fn lay_out(scenario: &Scenario, point: Point, ground: &mut Ground, clients: &[Client]) -> Outcome {
    if point.servers < 2 {
        return ground.plan(scenario, point, |_, number, _| Ok(Name::new(format!("data{number}"))?));
    }
    let members = clients[0].welcome()?.members;
    let servers: Vec<ServerId> = members.servers().collect();
    let mut dirs = Vec::new();
    for (number, (job, client)) in scenario.jobs.iter().zip(clients).enumerate() {
        let stripe = scenario.real_bytes(job.size).max(LEAST);
        let striping = match point.pattern {
            Pattern::PerProcess => Striping { width: 1, stripe },
            Pattern::Shared => Striping { width: 0, stripe },
        };
        let dir = format!("/job{number}");
        client.set_layout(&dir, Some(striping))?;
        dirs.push(client.stat(&dir)?.id);
    }
    ground.plan(scenario, point, |job, number, node| {
        let server = servers.get(usize::from(node)).copied().unwrap_or(servers[0]);
        name_on(number, |name| members.place(dirs[job], name) == server)
    })?;
    for file in &ground.files {
        let layout = clients[0].layout(file.shown())?.1;
        let count = layout.map_or(0, |layout| layout.servers.len());
        let whole = if point.pattern == Pattern::PerProcess { 1 } else { servers.len() };
        if count != whole {
            let text = format!("{} lies over {count} servers instead of {whole}", file.shown());
            return Err(Failure::Failed(text));
        }
    }
    Ok(())
}

/// A name whose data begins on a given server.
fn name_on(number: u32, is_there: impl Fn(&Name) -> bool) -> Outcome<Name> {
    for other in 0..TRIES {
        let name = Name::new(format!("data{number}.{other}"))?;
        if is_there(&name) {
            return Ok(name);
        }
    }
    Err(Failure::Failed(format!("none of {TRIES} names belongs to the requested server")))
}
