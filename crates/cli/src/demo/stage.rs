//! The place of the demo: a temporary directory with a store and a server, and how all of it goes away again.

use super::plan::Plan;
use crate::failure::{Failure, Outcome};
use crate::keeper::Keeper;
use forebay_wire::RecoverySummary;
use tempfile::TempDir;

/// Where everything is.
pub(super) struct Stage {
    keeper: Keeper,
    service: String,
    /// Behind the server, so that it goes after it.
    _dir: TempDir,
}

impl Stage {
    pub(super) fn build(plan: &Plan) -> Outcome<Stage> {
        let dir = tempfile::Builder::new().prefix("forebay-demo-").tempdir();
        let dir =
            dir.map_err(|error| Failure::local("make a directory in", &std::env::temp_dir(), &error))?;
        let keeper = Keeper::new(dir.path(), Some(plan.capacity));
        Ok(Stage { service: keeper.service(), keeper, _dir: dir })
    }

    /// Where the jobs find the server.
    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Starts a server process, waits until it serves, and says what it found.
    pub(super) fn start_server(&mut self) -> Outcome<RecoverySummary> {
        self.keeper.start()
    }

    /// Kills the server without a warning.
    pub(super) fn kill_server(&mut self) -> Outcome {
        self.keeper.kill()
    }

    /// Stops the server and removes everything.
    pub(super) fn strike(mut self) -> Outcome {
        self.keeper.clear()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Whoever wanted to know has called `strike`.
        let _ = self.keeper.clear();
    }
}
