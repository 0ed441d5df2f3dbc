//! Names with several servers: the gain from more servers in one process.

use crate::Outcome;
use crate::far::Far;
use crate::names::{in_tasks, note};
use crate::near::Near;
use crate::plan::{Party, Plan, Socket};
use crate::results::Results;

/// Requests in flight, enough for several servers.
const DEPTH: usize = 16;
const COUNTS: [u16; 3] = [1, 2, 4];

/// A service of each size.
pub(crate) fn start(plan: &Plan) -> Outcome<Vec<(u16, Near)>> {
    COUNTS.into_iter().map(|count| Ok((count, Near::start(plan, Far::Servers(count))?))).collect()
}

/// Creates, stats and removes the given number of empty files in one directory of each service.
pub(crate) fn run(services: &[(u16, Near)], count: usize, results: &mut Results) -> Outcome {
    for (servers, near) in services {
        note(results, Party::Servers(*servers), count, in_tasks(near, Socket::Unix, count, DEPTH)?);
    }
    Ok(())
}
