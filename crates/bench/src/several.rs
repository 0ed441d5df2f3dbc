//! Names with several servers: what more servers in one process bring.

use crate::Outcome;
use crate::board::Board;
use crate::far::Far;
use crate::names::{in_tasks, note};
use crate::near::Near;
use crate::plan::{Party, Plan, Socket};

/// Enough requests under way for several servers.
const DEPTH: usize = 16;
const COUNTS: [u16; 3] = [1, 2, 4];

/// A service of each size.
pub(crate) fn start(plan: &Plan) -> Outcome<Vec<(u16, Near)>> {
    COUNTS.into_iter().map(|count| Ok((count, Near::start(plan, Far::Servers(count))?))).collect()
}

/// Makes so many empty files in one directory of each service, asks for their attributes, removes them.
pub(crate) fn run(services: &[(u16, Near)], count: usize, board: &mut Board) -> Outcome {
    for (servers, near) in services {
        note(board, Party::Servers(*servers), count, in_tasks(near, Socket::Unix, count, DEPTH)?);
    }
    Ok(())
}
